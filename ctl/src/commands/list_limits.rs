//! `rlctl list-limits`, `get-limit`, `export` and `list-domains`.

use clap::Args;
use insight::bucket::{matchers, notes, plain};
use limits_file::ToNode;
use policy::{AmountText, Exemption, Limit, Name, Node, Policy};
use serde::{Serialize, Serializer, ser::SerializeStruct};
use store::{Head, HeadState, Overrides};

use crate::{
    cli::{Format, Global, examples},
    error::{Error, Exit},
    printer::Printer,
    render::{Page, Table, View, counted, pause_state, text},
    session::{self, Session},
};

/// List the limits of a domain.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl list-limits"
    "rlctl list-limits --domain shop -o wide"
    "rlctl list-limits -o json | jq -r '.limits[] | [.name, .rate] | @tsv'"
))]
pub struct ListLimits {}

impl ListLimits {
    /// Lists them in the order of the policy.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        // Tables show the number of overrides, JSON shows the overrides.
        let whole = matches!(printer.format(), Format::Json | Format::Yaml);
        let overrides = if whole {
            Overrides::All
        } else {
            Overrides::None
        };
        let policy = session.policy(overrides).await?;
        let counts = if whole {
            Vec::new()
        } else {
            session.override_counts(&policy).await?
        };
        if policy.limits.is_empty() {
            printer.note(format_args!("domain {} has no limits", policy.domain));
        }
        session.warn_of_pause(&policy, &[]);
        printer.data(&Report { policy, counts })?;
        Ok(Exit::Done)
    }
}

struct Report {
    policy: Policy,
    counts: Vec<u64>,
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let policy = &self.policy;
        let limits: Vec<_> = policy.limits.iter().map(ToNode::to_node).collect();
        let mut fields = serializer.serialize_struct("Policy", 5)?;
        fields.serialize_field("domain", policy.domain.as_str())?;
        fields.serialize_field("revision", &policy.revision.number)?;
        if let Some(paused) = policy.paused {
            fields.serialize_field("paused", &paused.to_node())?;
        }
        if !policy.exempt.is_empty() {
            fields.serialize_field("exempt", &limits_file::exemptions_node(&policy.exempt))?;
        }
        fields.serialize_field("limits", &limits)?;
        fields.end()
    }
}

impl View for Report {
    fn text(&self, page: Page) -> String {
        let tables = [
            limits_table(&self.policy.limits, &self.counts, page),
            exemptions_table(&self.policy.exempt, page),
        ];
        { tables.into_iter() }
            .filter(|table| !table.is_empty())
            .collect::<Vec<_>>()
            .join("\n")
    }

    fn names(&self) -> Vec<String> {
        names(&self.policy)
    }
}

fn names(policy: &Policy) -> Vec<String> {
    let limits = policy.limits.iter();
    limits.map(|limit| limit.name.to_string()).collect()
}

/// One row for each exemption.
fn exemptions_table(exempt: &[Exemption], page: Page) -> String {
    Table::of(exempt)
        .column("EXEMPT", |exemption| &exemption.name)
        .column("MATCH", |exemption| matchers(&exemption.to_node()))
        .draw(page)
}

/// One row for each limit; `overrides` are their counts of overrides.
fn limits_table(limits: &[Limit], overrides: &[u64], page: Page) -> String {
    let nodes = { limits.iter() }.map(limits_file::node_without_overrides);
    let counts = { overrides.iter().copied() }.chain(std::iter::repeat(0));
    let rows: Vec<(&Limit, Node, u64)> = { limits.iter().zip(nodes).zip(counts) }
        .map(|((limit, node), count)| (limit, node, count))
        .collect();
    let or =
        |node: &Node, name: &str, default: &str| node.get(name).map_or(default.to_owned(), plain);
    let per = |limit: &Limit| {
        let names: Vec<&str> = limit.per.iter().map(Name::as_str).collect();
        names.join(",")
    };
    let algorithm = |limit: &Limit, node: &Node| match limit {
        limit if limit.is_unlimited() => "unlimited".to_owned(),
        _ => or(node, "algorithm", "token_bucket"),
    };
    let rate = |limit: &Limit, node: &Node| match limit {
        limit if limit.gives_slots() => AmountText(limit.quota.parameters()).to_string(),
        _ => or(node, "rate", ""),
    };
    let count = |count: u64| Some(count).filter(|count| *count > 0);
    Table::of(&rows)
        .column("NAME", |(limit, ..)| &limit.name)
        .column("MATCH", |(_, node, _)| matchers(node))
        .column("PER", |(limit, ..)| per(limit))
        .column("ALGORITHM", |(limit, node, _)| algorithm(limit, node))
        .column("RATE", |(limit, node, _)| rate(limit, node))
        .column("BURST", |(_, node, _)| or(node, "burst", ""))
        .column("OVERRIDES", |(.., overrides)| text(count(*overrides)))
        .column("NOTES", |(limit, ..)| notes(limit, crate::now_ms()))
        .wide(page, "ON FAILURE", |(_, node, _)| {
            or(node, "on_failure", "local")
        })
        .wide(page, "COST", |(_, node, _)| or(node, "cost", "1"))
        .wide(page, "GENERATION", |(limit, ..)| limit.generation)
        .wide(page, "DESCRIPTION", |(_, node, _)| {
            or(node, "description", "")
        })
        .draw(page)
}

/// What is printed as a limits file has it.
#[derive(Serialize)]
#[serde(transparent)]
struct Document {
    node: Node,
    /// What comes behind it for people.
    #[serde(skip)]
    more: String,
    #[serde(skip)]
    limits: Vec<String>,
}

impl View for Document {
    fn text(&self, _page: Page) -> String {
        self.node.to_yaml() + &self.more
    }

    fn names(&self) -> Vec<String> {
        self.limits.clone()
    }
}

// --- `rlctl get-limit`.

/// Overrides that are shown to people.
const OVERRIDES_SHOWN: usize = 20;

/// Show everything about one limit.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl get-limit per-user"
    "rlctl get-limit per-user -o json | jq .rate"
))]
pub struct GetLimit {
    /// The limit.
    name: String,
}

impl GetLimit {
    /// Shows it as a limits file would.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let policy = session.policy(Overrides::None).await?;
        let found = session::find_limit(&policy, &self.name)?;
        let count = session.override_count(&policy.domain, found).await?;
        let max = match printer.format() {
            Format::Json | Format::Yaml => usize::MAX,
            _ => OVERRIDES_SHOWN,
        };
        let edits = found.bucket_edits.iter();
        let last_edit = edits.fold(found.generation, |last, edit| last.max(edit.generation));
        let mut limit = found.clone();
        limit.overrides = session.some_overrides(&policy.domain, found, max).await?;
        session.warn_of_pause(&policy, &[self.name.as_str()]);
        let more = count.saturating_sub(u64::try_from(limit.overrides.len()).unwrap_or(u64::MAX));
        printer.data(&Document {
            node: limit.to_node(),
            more: match more {
                0 => String::new(),
                _ => format!(
                    "# and {}; -o yaml shows all\n",
                    counted(more, "more override")
                ),
            },
            limits: vec![limit.name.to_string()],
        })?;
        printer.note(format_args!(
            "domain {}, last edited at revision {} of {}",
            policy.domain, last_edit, policy.revision.number
        ));
        Ok(Exit::Done)
    }
}

// --- `rlctl export`.

/// Print a domain as a limits file.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl export > limits.yaml"
    "rlctl export --domain shop -o json > shop.json"
    "rlctl export | rlctl --redis redis://staging:6379 apply -f -"
))]
pub struct Export {}

impl Export {
    /// YAML, unless JSON is asked for.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let policy = session.policy(Overrides::All).await?;
        printer.data(&Document {
            node: policy.to_node(),
            more: String::new(),
            limits: names(&policy),
        })?;
        Ok(Exit::Done)
    }
}

// --- `rlctl list-domains`.

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
        let mut heads = session.call(session.store.heads()).await?;
        heads.sort_unstable_by(|a, b| a.domain.cmp(&b.domain));
        let mut rows = Vec::with_capacity(heads.len());
        for head in heads {
            rows.push(row(&session, head).await?);
        }
        if rows.is_empty() {
            printer.note("there is no domain yet; `rlctl apply -f limits.yaml` makes one");
        }
        printer.data(&Domains(rows))?;
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
struct Domains(Vec<Row>);

#[derive(Serialize)]
struct Row {
    domain: String,
    revision: Option<u64>,
    limits: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused: Option<String>,
    state: &'static str,
}

impl View for Domains {
    fn text(&self, page: Page) -> String {
        Table::of(&self.0)
            .column("DOMAIN", |row| &row.domain)
            .column("REVISION", |row| text(row.revision))
            .column("LIMITS", |row| text(row.limits))
            .column("STATE", |row| row.state)
            .column("PAUSED", |row| text(row.paused.as_ref()))
            .draw(page)
    }

    /// Those with limits.
    fn names(&self) -> Vec<String> {
        let live = self.0.iter().filter(|row| row.state == "live");
        live.map(|row| row.domain.clone()).collect()
    }
}
