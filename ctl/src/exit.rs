//! Exit codes, which scripts rely on.

use std::process::ExitCode;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done, or: yes.
    Done = 0,
    /// The answer is no: a difference found, a check denied, an invalid file, scripts missing.
    No = 1,
    /// The command line or the environment makes no sense.
    Usage = 2,
    /// Redis did not answer.
    Unreachable = 3,
    /// Redis refused the credentials.
    Auth = 4,
    /// No such domain, limit, bucket or revision.
    NotFound = 5,
    /// Somebody else wrote in the meantime, or what should be created is there already.
    Conflict = 6,
    /// Not confirmed.
    Declined = 7,
    /// Redis answered, and did not do it.
    Refused = 8,
    /// Written, but not every limiter and proxy has the revision yet (`--wait`).
    Behind = 9,
    /// Ctrl-C.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        // The discriminants are the codes.
        Self::from(exit as u8)
    }
}
