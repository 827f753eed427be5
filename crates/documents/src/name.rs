//! The names of domains, limits and descriptor keys.

use std::{borrow::Borrow, fmt, str::FromStr, sync::Arc};

/// A name that fits keys, metrics and headers unescaped: `^[a-z0-9][a-z0-9._-]{0,62}$`. Only a
/// domain may be any [text](Name::domain): Envoy's rate limit service has such domains.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

/// Why a text is not a [`Name`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a name is 1 to 63 characters of a-z, 0-9, '.', '_' and '-', and starts with a letter or digit"
)]
pub struct NameError;

/// Why a text is not a [domain](Name::domain).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a domain is 1 to 512 bytes of text without control characters")]
pub struct DomainError;

impl Name {
    /// The longest name, in bytes.
    pub const MAX_LEN: usize = 63;

    /// The longest domain, in bytes.
    pub const MAX_DOMAIN_LEN: usize = 512;

    /// A domain, which need not be a name: `namespace/gateway/listener`.
    ///
    /// # Errors
    /// It is empty, too long or has control characters.
    pub fn domain(text: &str) -> Result<Self, DomainError> {
        let fits = (1..=Self::MAX_DOMAIN_LEN).contains(&text.len());
        if fits && !text.chars().any(char::is_control) {
            Ok(Self(text.into()))
        } else {
            Err(DomainError)
        }
    }

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
