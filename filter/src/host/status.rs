//! Statuses of host calls.

use std::fmt;

/// The status of a host call that failed: a plain number, for a host may send any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostError(u32);

impl HostError {
    /// No such header, property or value.
    pub const NOT_FOUND: Self = Self(1);
}

/// Converts a status to a result.
pub fn check(status: u32) -> Result<(), HostError> {
    match status {
        0 => Ok(()),
        status => Err(HostError(status)),
    }
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "status {}", self.0)
    }
}
