//! Lua scripts that are called by their digest.

/// A script as a server stores it.
#[derive(Debug)]
pub struct Script {
    /// The Lua source.
    pub source: String,
    /// The digest for EVALSHA, in lower-case hexadecimal.
    pub sha1: String,
}

impl Script {
    /// The script of this source.
    pub fn new(source: String) -> Self {
        Self {
            sha1: sha1_smol::Sha1::from(&source).digest().to_string(),
            source,
        }
    }
}
