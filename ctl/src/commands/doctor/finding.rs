//! A finding as text.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use insight::{Finding, Severity};

use crate::render::{Page, wrapped};

const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const INFO: Style = AnsiColor::Cyan.on_default();

pub fn text(finding: &Finding, page: Page) -> String {
    let (style, word) = match finding.severity {
        Severity::Error => (ERROR, "error"),
        Severity::Warning => (WARNING, "warning"),
        Severity::Info => (INFO, "info"),
    };
    let head = format!("{}: {}", finding.place, finding.what);
    let check = finding.check;
    let mut text = format!(
        "{style}{word}{style:#}[{check}]: {}\n",
        wrapped(&head, 2, word.len() + check.len() + 4, page)
    );
    let _ = writeln!(text, "  {}", wrapped(&finding.why, 2, 2, page));
    if let Some(mend) = &finding.mend {
        // People copy the command, so it stays on one line.
        let _ = writeln!(text, "  fix: {mend}");
    }
    text
}
