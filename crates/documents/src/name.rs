//! The names of domains, limits and descriptor keys.

use std::{borrow::Borrow, fmt, str::FromStr, sync::Arc};

/// A name that fits keys, metrics and headers unescaped: `^[a-z0-9][a-z0-9._-]{0,62}$`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

/// Why a text is not a [`Name`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a name is 1 to 63 characters of a-z, 0-9, '.', '_' and '-', and starts with a letter or digit"
)]
pub struct NameError;

impl Name {
    /// The longest name, in bytes.
    pub const MAX_LEN: usize = 63;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let plain = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let first = text.as_bytes().first().ok_or(NameError)?;
        let rest_fits = text
            .bytes()
            .all(|b| plain(&b) || matches!(b, b'.' | b'_' | b'-'));
        if plain(first) && rest_fits && text.len() <= Self::MAX_LEN {
            Ok(Self(text.into()))
        } else {
            Err(NameError)
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}
