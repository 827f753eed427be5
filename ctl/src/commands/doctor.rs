//! `rlctl doctor`.

mod finding;
mod followers;
mod limits;
mod server;

use clap::Args;
use serde::Serialize;
use store::{HeadState, Overrides, Stored};

use crate::{
    cli::{Global, examples},
    error::Error,
    exit::Exit,
    printer::Printer,
    render::{Page, View, counted},
    session::Session,
};

use finding::{Finding, Severity};

/// Find what is wrong with the server and the limits, and say how to mend it.
///
/// The answer is no (exit code 1) if anything is wrong; what is only worth knowing is shown and
/// does not count. Nothing is changed.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl doctor"
    "rlctl doctor -o json | jq -r '.findings[] | select(.severity == \"error\") | .mend'"
    "rlctl doctor -q || page-somebody"
))]
pub struct Doctor {}

impl Doctor {
    /// Looks at everything, whatever is found on the way.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let health = session.store.health().await;
        let health = health.map_err(|error| session.failed(&error))?;
        let mut findings = server::clocks(&health, crate::clock::now_ms());
        for node in &health {
            findings.extend(server::look(node, session.key_prefix()));
        }
        findings.extend(domains(&session).await?);
        findings.extend(followers::look(&session).await?);
        findings.sort_by_key(|finding| finding.severity);
        let report = Report {
            healthy: findings.iter().all(|f| f.severity == Severity::Info),
            servers: health.into_iter().map(|node| node.address).collect(),
            findings,
        };
        printer.data(&report)?;
        Ok(if report.healthy { Exit::Done } else { Exit::No })
    }
}

/// Of the domain that was named, else of all.
async fn domains(session: &Session<'_>) -> Result<Vec<Finding>, Error> {
    let heads = session.store.heads().await;
    let heads = heads.map_err(|error| session.failed(&error))?;
    let named = session.named_domain();
    let mut findings = Vec::new();
    if heads.is_empty() {
        findings.push(limits::no_domain());
    }
    for head in heads {
        let domain = &head.domain;
        if named.is_some_and(|named| named != domain) {
            continue;
        }
        match &head.state {
            HeadState::Missing => findings.push(limits::lost(domain)),
            HeadState::Unreadable(why) => findings.push(limits::unreadable(domain, why)),
            HeadState::Deleted(_) => {}
            HeadState::Live(_) => match session.store.read(domain, Overrides::All).await {
                Ok(Stored::Live(record)) => findings.extend(limits::look(&record.policy)),
                Ok(_) => {}
                Err(store::StoreError::Corrupt(why)) => {
                    findings.push(limits::unreadable(domain, &why));
                }
                Err(error) => return Err(session.failed(&error)),
            },
        }
    }
    Ok(findings)
}

#[derive(Serialize)]
struct Report {
    healthy: bool,
    servers: Vec<String>,
    findings: Vec<Finding>,
}

impl View for Report {
    fn text(&self, page: Page) -> String {
        let findings = self.findings.iter().map(|finding| finding.text(page));
        let text: String = findings.collect();
        let wrong = self
            .findings
            .iter()
            .filter(|f| f.severity != Severity::Info);
        let verdict = match wrong.count() {
            0 => "nothing is wrong".to_owned(),
            count => format!("{} to mend", counted(count, "thing")),
        };
        let servers = self.servers.join(", ");
        format!("{text}{servers}: {verdict}\n")
    }

    /// The checks that found something wrong.
    fn names(&self) -> Vec<String> {
        let wrong = self
            .findings
            .iter()
            .filter(|f| f.severity != Severity::Info);
        wrong.map(|finding| finding.check.to_owned()).collect()
    }
}
