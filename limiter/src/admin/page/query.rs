//! The parameters of a query or a form.

use std::borrow::Cow;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode, percent_encode};

/// Parameters that are read; more are ignored.
const PARAMETERS_MAX: usize = 64;

/// Names and values, decoded.
#[derive(Debug, Default)]
pub(super) struct Query(Vec<(String, Vec<u8>)>);

impl Query {
    pub(super) fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        let decoded = pairs.take(PARAMETERS_MAX).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = String::from_utf8_lossy(&decode(name)).into_owned();
            (name, decode(value))
        });
        Self(decoded.collect())
    }

    /// All parameters in order.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_slice()))
    }

    /// The first parameter of a name, as text.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        let (_, value) = self.all().find(|(key, _)| *key == name)?;
        Some(String::from_utf8_lossy(value).into_owned())
    }

    /// A number, `default` where there is none.
    pub(super) fn number(&self, name: &str, default: usize) -> usize {
        self.text(name)
            .and_then(|text| text.parse().ok())
            .unwrap_or(default)
    }
}

fn decode(text: &str) -> Vec<u8> {
    let spaced: Cow<'_, str> = if text.contains('+') {
        text.replace('+', " ").into()
    } else {
        text.into()
    };
    percent_decode(spaced.as_bytes()).collect()
}

/// A value as part of a query.
pub(super) fn encode(value: impl AsRef<[u8]>) -> String {
    percent_encode(value.as_ref(), NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_survive_a_link() {
        let value: Vec<u8> = (0..=255).collect();
        let query = Query::parse(&format!("a=b&v.user={}", encode(&value)));
        let (name, read) = query.all().nth(1).unwrap();
        assert_eq!((name, read), ("v.user", value.as_slice()));
        assert_eq!(Query::parse("q=a+b%2Bc").text("q").unwrap(), "a b+c");
        assert_eq!(Query::parse("page=x").number("page", 1), 1);
        assert_eq!(
            Query::parse(&"a&".repeat(9999)).all().count(),
            PARAMETERS_MAX
        );
    }
}
