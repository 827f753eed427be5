//! A finding: a problem, or information.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use crate::render::{Page, wrapped};

const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const INFO: Style = AnsiColor::Cyan.on_default();

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

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub severity: Severity,
    /// The name of the check, for programs.
    pub check: &'static str,
    /// Where: a server's address, a domain, or a domain and a limit.
    pub place: String,
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

    /// With the command that fixes it.
    pub fn mend(self, command: impl Into<String>) -> Self {
        Self {
            mend: Some(command.into()),
            ..self
        }
    }

    pub fn text(&self, page: Page) -> String {
        let (style, word) = match self.severity {
            Severity::Error => (ERROR, "error"),
            Severity::Warning => (WARNING, "warning"),
            Severity::Info => (INFO, "info"),
        };
        let head = format!("{}: {}", self.place, self.what);
        let mut text = format!(
            "{style}{word}{style:#}: {}\n",
            wrapped(&head, 2, word.len() + 2, page)
        );
        let _ = writeln!(text, "  {}", wrapped(&self.why, 2, 2, page));
        if let Some(mend) = &self.mend {
            // A command is copied: it stays on one line.
            let _ = writeln!(text, "  fix: {mend}");
        }
        text
    }
}
