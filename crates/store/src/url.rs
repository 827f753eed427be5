//! Where the store is, as users write it.

use std::{fmt, str::FromStr};

use redis_link::{SCHEMES, Server};

/// A store's URL, parsed. Neither `Display` nor `Debug` shows the password.
#[derive(Clone, Debug)]
pub enum StoreUrl {
    /// `memory`: one process, nothing shared.
    Memory,
    /// Redis or Valkey.
    Redis(Server),
}

/// Why a text is not a usable store URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Not one of the schemes.
    #[error("a store is `memory` or starts with {SCHEMES}")]
    Scheme,
    /// The scheme is valid, what follows is not.
    #[error(transparent)]
    Server(redis_link::UrlError),
}

impl FromStr for StoreUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        if text == "memory" {
            return Ok(Self::Memory);
        }
        text.parse().map(Self::Redis).map_err(|error| match error {
            redis_link::UrlError::Scheme => UrlError::Scheme,
            error => UrlError::Server(error),
        })
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Redis(server) => server.fmt(f),
        }
    }
}
