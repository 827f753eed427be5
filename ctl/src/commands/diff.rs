//! `rlctl diff`.

use clap::Args;
use policy::Policy;
use serde::Serialize;

use super::apply::{check_domain, plan_file, read};
use crate::{
    args::{Global, examples},
    changes::{self, FieldChange, LimitChange},
    error::Error,
    exit::Exit,
    input::FilesArg,
    printer::Printer,
    render::{self, OneOrMore, Page, View},
    session::Session,
};

/// Show how a limits file differs from what is in Redis.
///
/// The differences are what `apply --prune` would change. Overrides that were set live do not count,
/// unless the file lists some for that limit.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl diff -f limits.yaml"
    "rlctl diff -f limits/                    # every file of a folder"
    "rlctl diff -f limits.yaml -o name        # only the limits that differ"
))]
pub struct Diff {
    #[command(flatten)]
    files: FilesArg,
}

impl Diff {
    /// Compares.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let files = read(&self.files, &session).await?;
        for file in &files {
            check_domain(&session, file)?;
        }
        let mut reports = OneOrMore::default();
        for file in files {
            reports.0.push(report(&session, file).await?);
        }
        printer.data(&reports)?;
        Ok(if reports.0.iter().any(|report| report.differs) {
            Exit::No
        } else {
            Exit::Done
        })
    }
}

async fn report(session: &Session<'_>, file: Policy) -> Result<Report, Error> {
    let domain = file.domain.clone();
    let (base, merged, plan) = plan_file(session, file, true).await?;
    let changes = plan.changes;
    let domain_changes = changes::of_domain(base.policy(), &merged.policy);
    let differs = !domain_changes.is_empty() || changes::any(&changes);
    if base.policy().is_none() {
        session
            .printer
            .note(format_args!("there is no domain {domain} yet"));
    }
    Ok(Report {
        domain: domain.to_string(),
        differs,
        domain_changes,
        changes,
    })
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
