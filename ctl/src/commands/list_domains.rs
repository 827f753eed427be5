//! `rlctl list-domains`.

use clap::Args;
use policy::Policy;
use serde::Serialize;
use store::{Head, HeadState, Overrides};

use crate::{
    args::{Global, examples},
    error::Error,
    exit::Exit,
    printer::Printer,
    render::{Page, Table, View, counted, pause_state},
    session::Session,
};

/// List the domains and their revisions.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl list-domains"
    "for domain in $(rlctl list-domains -o name); do rlctl export --domain \"$domain\" > \"$domain.yaml\"; done"
))]
pub struct ListDomains {}

impl ListDomains {
    /// Lists them by name.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let mut heads = session
            .store
            .heads()
            .await
            .map_err(|error| session.failed(&error))?;
        heads.sort_unstable_by(|a, b| a.domain.cmp(&b.domain));
        let mut rows = Vec::with_capacity(heads.len());
        for head in heads {
            rows.push(row(&session, head).await?);
        }
        if rows.is_empty() {
            printer.note("there is no domain yet; `rlctl apply -f limits.yaml` makes one");
        }
        printer.data(&Report(rows))?;
        Ok(Exit::Done)
    }
}

async fn row(session: &Session<'_>, head: Head) -> Result<Row, Error> {
    let (state, revision) = match &head.state {
        HeadState::Live(revision) => ("live", Some(revision.number)),
        HeadState::Deleted(revision) => ("deleted", Some(revision.number)),
        HeadState::Missing => ("missing", None),
        HeadState::Unreadable(_) => ("unreadable", None),
    };
    let (mut limits, mut paused) = (None, None);
    if state == "live" {
        let stored = session.read(&head.domain, Overrides::None).await?;
        let policy = stored.policy();
        limits = policy.map(|policy| policy.limits.len());
        paused = policy.and_then(paused_in);
    }
    Ok(Row {
        domain: head.domain.to_string(),
        revision,
        limits,
        paused,
        state,
    })
}

/// `paused until 2026-12-01T00:00:00Z`, `2 limits paused`.
fn paused_in(policy: &Policy) -> Option<String> {
    let limits = policy.limits.iter();
    let paused = limits.filter(|limit| pause_state(limit.paused).is_some());
    match (pause_state(policy.paused), paused.count()) {
        (Some(domain), _) => Some(domain),
        (None, 0) => None,
        (None, count) => Some(format!("{} paused", counted(count, "limit"))),
    }
}

#[derive(Serialize)]
#[serde(transparent)]
struct Report(Vec<Row>);

#[derive(Serialize)]
struct Row {
    domain: String,
    revision: Option<u64>,
    limits: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused: Option<String>,
    state: &'static str,
}

impl View for Report {
    fn text(&self, page: Page) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let mut table = Table::new(["DOMAIN", "REVISION", "LIMITS", "STATE", "PAUSED"]);
        for row in &self.0 {
            let number = |n: Option<String>| n.unwrap_or_default();
            table.row([
                row.domain.clone(),
                number(row.revision.map(|n| n.to_string())),
                number(row.limits.map(|n| n.to_string())),
                row.state.to_owned(),
                row.paused.clone().unwrap_or_default(),
            ]);
        }
        table.draw(page)
    }

    /// Those with limits.
    fn names(&self) -> Vec<String> {
        let live = self.0.iter().filter(|row| row.state == "live");
        live.map(|row| row.domain.clone()).collect()
    }
}
