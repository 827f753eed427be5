//! What a host call answers when it does not do what was asked.

/// A host call that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostError {
    /// No such header, property or value.
    NotFound,
    /// A name, value or context the host does not accept; also an unknown cluster.
    BadArgument,
    /// Another worker wrote first.
    CasMismatch,
    /// The host could not; also a cluster without endpoints.
    InternalFailure,
    /// A number this module has no name for.
    Other(u32),
}

/// Gives the status of a host call its meaning.
pub fn check(status: u32) -> Result<(), HostError> {
    match status {
        0 => Ok(()),
        1 => Err(HostError::NotFound),
        2 => Err(HostError::BadArgument),
        8 => Err(HostError::CasMismatch),
        10 => Err(HostError::InternalFailure),
        other => Err(HostError::Other(other)),
    }
}

impl std::fmt::Display for HostError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotFound => f.write_str("not found"),
            Self::BadArgument => f.write_str("bad argument"),
            Self::CasMismatch => f.write_str("written by another worker"),
            Self::InternalFailure => f.write_str("internal failure"),
            Self::Other(status) => write!(f, "status {status}"),
        }
    }
}
