//! What an edit reports.

use std::fmt::Write as _;

use serde::Serialize;

use crate::{
    changes::{self, FieldChange, LimitChange},
    render::{self, Page, View},
};

/// An edit that was made, or would be.
#[derive(Debug, Serialize)]
pub struct EditReport {
    /// The domain.
    pub domain: String,
    /// Its revision before; `None` if the domain did not exist.
    pub previous_revision: Option<u64>,
    /// Its revision after; the same as before if nothing changed.
    pub revision: Option<u64>,
    /// Whether nothing was written because of `--dry-run`.
    pub dry_run: bool,
    /// What changed about the domain itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub domain_changes: Vec<FieldChange>,
    /// What changed.
    pub changes: Vec<LimitChange>,
}

impl View for EditReport {
    fn text(&self, page: Page) -> String {
        let mut text = render::changes::of_domain(&self.domain, &self.domain_changes, page);
        text.push_str(&render::changes::text(&self.changes, page));
        text.push_str(&self.domain);
        text.push_str(": ");
        text.push_str(&render::changes::summary(
            &self.domain_changes,
            &self.changes,
        ));
        let _ = match (self.previous_revision, self.revision) {
            _ if self.dry_run => write!(text, "; dry run, nothing was written"),
            (Some(before), Some(after)) if before != after => {
                write!(
                    text,
                    "; revision {before} {} {after}",
                    render::changes::arrow(page)
                )
            }
            (None, Some(after)) => write!(text, "; revision {after}"),
            (Some(same), _) => write!(text, "; still at revision {same}"),
            (None, None) => Ok(()),
        };
        text.push('\n');
        text
    }

    /// The limits that changed.
    fn names(&self) -> Vec<String> {
        changes::names(&self.changes)
    }
}
