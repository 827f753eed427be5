//! What being over a limit means for a request.

use super::Match;
use crate::OverLimit;

/// What happens to a request over a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It is denied.
    #[default]
    Enforce,
    /// It goes on, and is only reported.
    Shadow,
    /// It goes on, marked as degraded.
    Degrade,
}

impl Match<'_, '_> {
    /// What happens to the request if it is over the limit.
    pub fn mode(&self) -> Mode {
        match (self.enforced, self.limit.over_limit) {
            (false, _) => Mode::Shadow,
            (true, OverLimit::Degrade) => Mode::Degrade,
            (true, OverLimit::Reject | OverLimit::Queue) => Mode::Enforce,
        }
    }
}
