//! JSON pointers (RFC 6901).

use std::fmt;

/// The most parts of a pointer.
pub const MAX_TOKENS: usize = 8;
/// The longest pointer, in bytes.
const MAX_LEN: usize = 200;

/// The path to a value in a JSON document, such as `/usage/total_tokens`; not to the document itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pointer {
    tokens: Vec<String>,
}

impl Pointer {
    /// Reads a pointer; `None`: invalid, or too long.
    pub fn parse(text: &str) -> Option<Self> {
        let path = text.strip_prefix('/').filter(|_| text.len() <= MAX_LEN)?;
        let tokens = path.split('/').map(unescape);
        Self::new(tokens.collect::<Option<_>>()?)
    }

    /// The pointer of these keys and indexes; `None`: none, or too many.
    pub fn new(tokens: Vec<String>) -> Option<Self> {
        (1..=MAX_TOKENS)
            .contains(&tokens.len())
            .then_some(Self { tokens })
    }

    /// The keys and indexes on the way; at least one.
    pub fn tokens(&self) -> &[String] {
        &self.tokens
    }
}

fn unescape(token: &str) -> Option<String> {
    let mut parts = token.split('~');
    let mut plain = parts.next()?.to_owned();
    for part in parts {
        let (character, rest) = match part.as_bytes().first()? {
            b'0' => ('~', part.strip_prefix('0')?),
            b'1' => ('/', part.strip_prefix('1')?),
            _ => return None,
        };
        plain.push(character);
        plain.push_str(rest);
    }
    Some(plain)
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut tokens = self.tokens.iter();
        tokens.try_for_each(|token| {
            let escaped = token.replace('~', "~0").replace('/', "~1");
            write!(f, "/{escaped}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_read_and_written() {
        for (text, tokens) in [
            ("/usage/total_tokens", vec!["usage", "total_tokens"]),
            ("/a~1b/~0", vec!["a/b", "~"]),
            ("/", vec![""]),
        ] {
            let pointer = Pointer::parse(text).unwrap();
            assert_eq!(pointer.tokens(), tokens);
            assert_eq!(pointer.to_string(), text);
        }
        let deep = "/a".repeat(MAX_TOKENS + 1);
        for text in ["", "usage", "/a~2", "/a~", deep.as_str()] {
            assert_eq!(Pointer::parse(text), None, "{text}");
        }
    }
}
