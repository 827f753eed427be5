//! A finding: a problem, or information.

use serde::Serialize;

/// How bad it is, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Limits do not hold, or cannot be edited.
    Error,
    /// Limits may soon not hold, or not for every request.
    Warning,
    /// Information only.
    Info,
}

/// A problem or a fact, with its reason and fix.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The name of the check, for programs.
    pub check: &'static str,
    /// Where: a server's address, a domain, or a domain and a limit.
    pub place: String,
    /// What was found.
    pub what: String,
    /// Why it matters.
    pub why: String,
    /// The command that fixes it, if there is one.
    pub mend: Option<String>,
}

impl Finding {
    /// A finding without a command that fixes it.
    pub fn new(
        severity: Severity,
        check: &'static str,
        place: impl Into<String>,
        what: impl Into<String>,
        why: impl Into<String>,
    ) -> Self {
        Self {
            severity,
            check,
            place: place.into(),
            what: what.into(),
            why: why.into(),
            mend: None,
        }
    }

    /// Adds the command that fixes it.
    #[must_use]
    pub fn mend(self, command: impl Into<String>) -> Self {
        Self {
            mend: Some(command.into()),
            ..self
        }
    }
}
