//! `rlctl diff`.

use clap::Args;
use serde::Serialize;

use super::apply::{check_domain, plan, read_file};
use crate::{
    changes::{self, FieldChange, LimitChange},
    cli::{Global, examples},
    error::Error,
    exit::Exit,
    input::FileArg,
    printer::Printer,
    render::{self, Page, View},
    session::Session,
};

/// Show how a limits file differs from what is in Redis.
///
/// Shown is what `apply --prune` would do. Overrides that were set live are no difference, unless
/// the file lists some for that limit.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl diff -f limits.yaml"
    "rlctl diff -f limits.yaml -o name        # only the limits that differ"
))]
pub struct Diff {
    #[command(flatten)]
    file: FileArg,
}

impl Diff {
    /// Compares.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let file = read_file(self.file.path()).await?;
        let session = Session::open(global, printer)?;
        check_domain(&session, &file)?;
        let domain = file.domain.clone();
        let (base, merged, outcome) = plan(&session, file, true).await?;
        let changes = outcome.changes;
        let domain_changes = changes::of_domain(base.policy(), &merged.policy);
        let differs = !domain_changes.is_empty() || changes::any(&changes);
        if base.policy().is_none() {
            printer.note(format_args!("there is no domain {domain} yet"));
        }
        printer.data(&Report {
            domain: domain.to_string(),
            differs,
            domain_changes,
            changes,
        })?;
        Ok(if differs { Exit::No } else { Exit::Done })
    }
}

#[derive(Serialize)]
struct Report {
    domain: String,
    differs: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    domain_changes: Vec<FieldChange>,
    changes: Vec<LimitChange>,
}

impl View for Report {
    fn text(&self, page: Page) -> String {
        let mut changes = render::changes::of_domain(&self.domain, &self.domain_changes, page);
        changes.push_str(&render::changes::text(&self.changes, page));
        if self.differs {
            let summary = render::changes::summary(&self.domain_changes, &self.changes);
            format!(
                "{changes}{}: with `apply --prune`, {summary}\n",
                self.domain
            )
        } else {
            format!("{changes}{}: no difference\n", self.domain)
        }
    }

    fn names(&self) -> Vec<String> {
        changes::names(&self.changes)
    }
}
