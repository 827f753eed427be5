//! What applies to a request, as JSON and as text.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use insight::Window;
use serde::Serialize;

use super::reasons::Reason;
use crate::{
    penalty::BucketPenalty,
    render::{Page, View},
};

const YES: Style = AnsiColor::Green.on_default();
const NO: Style = AnsiColor::Red.on_default();
const NAME: Style = Style::new().bold();

#[derive(Serialize)]
pub(super) struct Report {
    pub(super) domain: String,
    pub(super) revision: u64,
    pub(super) limits: Vec<Row>,
}

#[derive(Serialize)]
pub(super) struct Row {
    pub(super) limit: String,
    pub(super) applies: bool,
    pub(super) enforced: Option<bool>,
    pub(super) bucket: Option<String>,
    pub(super) quota: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) window: Option<Window>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cost: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) penalty: Option<BucketPenalty>,
    pub(super) reasons: Vec<Reason>,
}

impl View for Report {
    fn text(&self, page: Page) -> String {
        let mut text = String::new();
        let (tick, cross) = if page.unicode {
            ("✓", "✗")
        } else {
            ("+", "x")
        };
        let (yes, no) = (format!("{YES}{tick}{YES:#}"), format!("{NO}{cross}{NO:#}"));
        let mark = |holds: bool| if holds { &yes } else { &no };
        for row in &self.limits {
            let limit = &row.limit;
            let bucket = row
                .bucket
                .as_ref()
                .map(|bucket| format!("  {bucket}"))
                .unwrap_or_default();
            let shadow = if row.enforced == Some(false) {
                "  (only reported)"
            } else {
                ""
            };
            let mark_of_row = mark(row.applies);
            let _ = writeln!(text, "{mark_of_row} {NAME}{limit}{NAME:#}{bucket}{shadow}");
            for reason in &row.reasons {
                let _ = writeln!(text, "    {} {}", mark(reason.holds), reason.text);
            }
            if let Some(quota) = &row.quota {
                let _ = writeln!(text, "    quota {quota}");
            }
            if let Some(cost) = &row.cost {
                let _ = writeln!(text, "    costs {cost}");
            }
            if let Some(penalty) = &row.penalty {
                let _ = writeln!(text, "    penalty: {}", penalty.text);
            }
            if let Some(window) = &row.window {
                let _ = writeln!(text, "    counts in {window}");
            }
        }
        text
    }

    /// The limits that apply.
    fn names(&self) -> Vec<String> {
        let applies = self.limits.iter().filter(|row| row.applies);
        applies.map(|row| row.limit.clone()).collect()
    }
}
