//! The descriptors that a limit applies to, entry by entry.

use std::fmt;

use super::{MAX_DESCRIPTOR_KEY, text::push_escaped};

/// Entries of one limit's descriptor.
const MAX_ENTRIES: usize = 32;
/// Stars of one wildcard.
const MAX_STARS: usize = 8;

/// What the entries of a descriptor have to be, in order and to the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorPattern {
    entries: Vec<EntryPattern>,
}

/// What one entry has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryPattern {
    key: String,
    value: ValuePattern,
    /// All values of a wildcard share one bucket.
    pub share_threshold: bool,
}

/// What an entry's value has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ValuePattern {
    Any,
    Exact(String),
    /// What is before the first star, between them, and after the last.
    Wildcard(Vec<String>),
}

/// Why a text is not an entry of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescriptorError {
    /// It has no entries.
    #[error("a descriptor has at least one entry")]
    NoEntries,
    /// It has too many entries.
    #[error("a descriptor has at most {MAX_ENTRIES} entries")]
    TooManyEntries,
    /// An entry's key is empty or too long.
    #[error("a key is 1 to {MAX_DESCRIPTOR_KEY} bytes")]
    Key,
    /// A wildcard in a key.
    #[error("a `*` belongs into the value, behind a `=`; `\\*` is a literal one")]
    StarInKey,
    /// Too many wildcards.
    #[error("a value has at most {MAX_STARS} `*`")]
    Stars,
    /// A backslash before something that needs none.
    #[error("a `\\` stands before `\\`, `,`, `=` or `*`")]
    Escape,
}

impl EntryPattern {
    /// An entry of this key and value.
    pub fn exact(key: &str, value: &str) -> Self {
        Self::new(key, ValuePattern::Exact(value.to_owned()))
    }

    /// An entry of this key, whatever its value.
    pub fn any(key: &str) -> Self {
        Self::new(key, ValuePattern::Any)
    }

    /// An entry of this key and a value in which each `*` stands for any text.
    pub fn wildcard(key: &str, value: &str) -> Self {
        let parts: Vec<String> = value.split('*').map(str::to_owned).collect();
        match parts.len() {
            1 => Self::exact(key, value),
            _ => Self::new(key, ValuePattern::Wildcard(parts)),
        }
    }

    fn new(key: &str, value: ValuePattern) -> Self {
        Self {
            key: key.to_owned(),
            value,
            share_threshold: false,
        }
    }

    /// Reads `key`, `key=value` or `key=a*b`.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, DescriptorError> {
        let mut key = String::new();
        let mut parts: Option<Vec<String>> = None;
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            let c = match (c, &mut parts) {
                ('\\', _) => match chars.next() {
                    Some(escaped @ ('\\' | ',' | '=' | '*')) => escaped,
                    _ => return Err(DescriptorError::Escape),
                },
                ('=', None) => {
                    parts = Some(vec![String::new()]);
                    continue;
                }
                ('*', None) => return Err(DescriptorError::StarInKey),
                ('*', Some(parts)) => {
                    parts.push(String::new());
                    continue;
                }
                (other, _) => other,
            };
            match &mut parts {
                Some(parts) => parts.last_mut().unwrap_or(&mut key).push(c),
                None => key.push(c),
            }
        }
        let value = match parts {
            None => ValuePattern::Any,
            Some(mut parts) => match (parts.pop(), parts.is_empty()) {
                (Some(value), true) => ValuePattern::Exact(value),
                (last, _) => {
                    parts.extend(last);
                    ValuePattern::Wildcard(parts)
                }
            },
        };
        let entry = Self::new(&key, value);
        entry.check()?;
        Ok(entry)
    }

    fn check(&self) -> Result<(), DescriptorError> {
        if self.key.is_empty() || self.key.len() > MAX_DESCRIPTOR_KEY {
            return Err(DescriptorError::Key);
        }
        match &self.value {
            ValuePattern::Wildcard(parts) if parts.len() > MAX_STARS + 1 => {
                Err(DescriptorError::Stars)
            }
            _ => Ok(()),
        }
    }

    /// The key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The value, where there is only one.
    pub fn exact_value(&self) -> Option<&str> {
        match &self.value {
            ValuePattern::Exact(value) => Some(value),
            ValuePattern::Any | ValuePattern::Wildcard(_) => None,
        }
    }

    /// Whether the value is a wildcard.
    pub fn is_wildcard(&self) -> bool {
        matches!(self.value, ValuePattern::Wildcard(_))
    }

    /// Whether a value matches.
    pub fn matches_value(&self, value: &[u8]) -> bool {
        match &self.value {
            ValuePattern::Any => true,
            ValuePattern::Exact(exact) => exact.as_bytes() == value,
            ValuePattern::Wildcard(parts) => fits(parts, value),
        }
    }

    /// The value of a bucket that all values of the wildcard share.
    pub(crate) fn shared_value(&self) -> Option<Vec<u8>> {
        match &self.value {
            ValuePattern::Wildcard(parts) if self.share_threshold => {
                Some(parts.join("*").into_bytes())
            }
            _ => None,
        }
    }
}

/// Whether a value consists of the parts, in this order, and of anything between them.
fn fits(parts: &[String], value: &[u8]) -> bool {
    let Some(((first, last), between)) = parts
        .split_first()
        .and_then(|(first, rest)| rest.split_last().map(|(last, mid)| ((first, last), mid)))
    else {
        return false;
    };
    let Some(value) = value.strip_prefix(first.as_bytes()) else {
        return false;
    };
    let Some(mut value) = value.strip_suffix(last.as_bytes()) else {
        return false;
    };
    for part in between.iter().map(String::as_bytes) {
        // The first place leaves the most of the value for the other parts.
        let found = match part.len() {
            0 => Some(0),
            length => value.windows(length).position(|window| window == part),
        };
        match found.and_then(|at| value.get(at + part.len()..)) {
            Some(rest) => value = rest,
            None => return false,
        }
    }
    true
}

impl fmt::Display for EntryPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let escaped = |text: &str, special: &[u8]| {
            let mut bytes = Vec::new();
            push_escaped(&mut bytes, text.as_bytes(), special);
            String::from_utf8(bytes).unwrap_or_default()
        };
        f.write_str(&escaped(&self.key, b"\\=*"))?;
        match &self.value {
            ValuePattern::Any => Ok(()),
            ValuePattern::Exact(value) => write!(f, "={}", escaped(value, b"\\*")),
            ValuePattern::Wildcard(parts) => {
                let parts: Vec<String> = parts.iter().map(|part| escaped(part, b"\\*")).collect();
                write!(f, "={}", parts.join("*"))
            }
        }
    }
}

impl DescriptorPattern {
    /// A pattern of these entries.
    ///
    /// # Errors
    /// Too few or too many entries, or one that has no key.
    pub fn new(entries: Vec<EntryPattern>) -> Result<Self, DescriptorError> {
        match entries.len() {
            0 => return Err(DescriptorError::NoEntries),
            1..=MAX_ENTRIES => {}
            _ => return Err(DescriptorError::TooManyEntries),
        }
        entries.iter().try_for_each(EntryPattern::check)?;
        Ok(Self { entries })
    }

    /// The entries.
    pub fn entries(&self) -> &[EntryPattern] {
        &self.entries
    }

    /// The entries, as a limits file lists them.
    pub fn to_items(&self) -> Vec<String> {
        self.entries.iter().map(ToString::to_string).collect()
    }
}

impl fmt::Display for DescriptorPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}]", self.to_items().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn entries_are_read_and_written() {
        for (text, expected) in [
            ("to_number", EntryPattern::any("to_number")),
            ("a=b", EntryPattern::exact("a", "b")),
            ("a=", EntryPattern::exact("a", "")),
            ("a=b=c,d", EntryPattern::exact("a", "b=c,d")),
            (r"a\=b=\*c\\", EntryPattern::exact("a=b", r"*c\")),
            (
                "path=/export/*",
                EntryPattern::wildcard("path", "/export/*"),
            ),
            ("A B=*x*", EntryPattern::wildcard("A B", "*x*")),
        ] {
            let read = EntryPattern::parse(text).unwrap();
            assert_eq!(read, expected, "{text}");
            assert_eq!(EntryPattern::parse(&read.to_string()).unwrap(), expected);
        }
        assert_eq!(EntryPattern::parse("=a"), Err(DescriptorError::Key));
        assert_eq!(EntryPattern::parse("a*"), Err(DescriptorError::StarInKey));
        assert_eq!(EntryPattern::parse(r"a=\b"), Err(DescriptorError::Escape));
        assert_eq!(EntryPattern::parse(r"a=\"), Err(DescriptorError::Escape));
        let stars = format!("a={}", "*".repeat(MAX_STARS + 1));
        assert_eq!(EntryPattern::parse(&stars), Err(DescriptorError::Stars));
        let long = "k".repeat(MAX_DESCRIPTOR_KEY + 1);
        assert_eq!(EntryPattern::parse(&long), Err(DescriptorError::Key));
    }

    proptest! {
        #[test]
        fn wildcard_matching_agrees_with_a_naive_search(
            pattern in "[ab*]{0,5}",
            value in "[ab]{0,6}",
        ) {
            fn tries(pattern: &[u8], value: &[u8]) -> bool {
                match pattern.split_first() {
                    None => value.is_empty(),
                    Some((b'*', rest)) => (0..=value.len()).any(|at| tries(rest, &value[at..])),
                    Some((c, rest)) => value.first() == Some(c) && tries(rest, &value[1..]),
                }
            }
            let entry = EntryPattern::wildcard("k", &pattern);
            prop_assert_eq!(
                entry.matches_value(value.as_bytes()),
                tries(pattern.as_bytes(), value.as_bytes())
            );
        }
    }
}
