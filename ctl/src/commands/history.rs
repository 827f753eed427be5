//! `rlctl history`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use clap::Args;
use policy::{Name, Policy, format_timestamp};
use serde::Serialize;
use store::{HistoryEntry, Keys, Overrides};

use crate::{
    args::{Global, examples},
    bucket::{key, parse_whole_number, visible},
    changes::{FieldChange, LimitChange},
    clock::now_ms,
    error::Error,
    exit::Exit,
    history::{HistoryChange, summary},
    printer::Printer,
    render::{self, Page, Table, View, age},
    session::Session,
    suggest,
};

/// More edits than a history keeps.
const READ_MAX: usize = 10_000;

/// List the edits of a domain: who, when, why and what.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl history"
    "rlctl history per-user -o wide        # every field before and after"
    "rlctl history -n 1 -o json"
))]
pub struct History {
    /// Only edits of this limit; it need not exist any more.
    #[arg(value_name = "LIMIT")]
    name: Option<String>,

    /// The same, as `pause` and `resume` name it.
    #[arg(long, value_name = "NAME", hide = true, conflicts_with = "name")]
    limit: Option<String>,

    /// The last so many edits; 0 shows all that are kept.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20, value_parser = parse_whole_number,
        allow_negative_numbers = true)]
    max: u64,
}

impl History {
    /// Lists them.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let domain = session.domain().await?;
        let max = match usize::try_from(self.max) {
            Ok(0) | Err(_) => READ_MAX,
            Ok(max) => max,
        };
        let limit = self.limit.as_ref().or(self.name.as_ref());
        let read = if limit.is_some() { READ_MAX } else { max };
        let entries = session.store.history(&domain, read).await;
        let entries = entries.map_err(|error| session.failed(&error))?;
        if entries.is_empty() {
            return Err(session.no_domain(&domain).await);
        }
        // Only for the names of buckets: the history of an unreadable domain is shown, too.
        let stored = session.read(&domain, Overrides::None).await.ok();
        let of = Of {
            domain: &domain,
            keys: session.keys(),
            policy: stored.as_ref().and_then(|stored| stored.policy()),
        };
        let rows = entries.into_iter().map(|entry| Row::new(entry, &of));
        let mut names = BTreeSet::new();
        let wanted = |row: &Row| {
            names.extend(row.limits.iter().cloned());
            limit.is_none_or(|limit| row.limits.contains(limit))
        };
        let rows: Vec<Row> = rows.filter(wanted).take(max).collect();
        if rows.is_empty() {
            say_none(printer, &of, limit.map_or("", String::as_str), &names);
        }
        printer.data(&Report(rows))?;
        Ok(Exit::Done)
    }
}

/// Notes that a limit has no history: it never existed, or the name is a typo.
fn say_none(printer: &Printer, of: &Of<'_>, limit: &str, names: &BTreeSet<String>) {
    let domain = of.domain;
    printer.note(format_args!(
        "no edit of domain {domain} concerns this limit"
    ));
    let limits = of.policy.map_or(&[][..], |policy| &policy.limits);
    let known = limits.iter().map(|limit| limit.name.as_str());
    let known = known.chain(names.iter().map(String::as_str));
    if let Some(meant) = suggest::closest(limit, known) {
        printer.hint(format_args!("did you mean `{meant}`?"));
    }
}

/// The domain of the history, and what is needed to name its buckets.
struct Of<'a> {
    domain: &'a Name,
    keys: &'a Keys,
    policy: Option<&'a Policy>,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Report(Vec<Row>);

#[derive(Serialize)]
struct Row {
    revision: u64,
    at_ms: u64,
    at: String,
    author: String,
    reason: String,
    operation: String,
    limits: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    domain_changes: Vec<FieldChange>,
    changes: Vec<LimitChange>,
    /// The bucket that was reset or credited, if the limit's `per` is the same as then.
    #[serde(skip_serializing_if = "Option::is_none")]
    bucket: Option<BTreeMap<String, Option<String>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    redis_key: Option<String>,
    #[serde(skip)]
    domain: Name,
    #[serde(skip)]
    what: String,
}

impl Row {
    fn new(entry: HistoryEntry, of: &Of<'_>) -> Self {
        let change = HistoryChange::parse(&entry);
        let changes = change.changes();
        let entries = of.bucket(&change);
        Self {
            revision: entry.revision.number,
            at_ms: entry.at_ms,
            // Whole seconds are enough for a table.
            at: format_timestamp(entry.at_ms / 1000 * 1000),
            what: summary(&change, &changes, entries.as_deref()),
            domain: of.domain.clone(),
            redis_key: change.key().map(str::to_owned),
            bucket: entries.map(|entries| entries.into_iter().collect()),
            domain_changes: change.domain_changes(),
            limits: change.limits().into_iter().map(Name::to_string).collect(),
            author: entry.by.author,
            reason: entry.by.reason,
            operation: entry.operation,
            changes,
        }
    }
}

impl Of<'_> {
    /// The one bucket that an edit concerns.
    fn bucket(&self, change: &HistoryChange) -> Option<key::Entries> {
        let limits = change.limits();
        let limit = limits.first().zip(self.policy);
        let limit = limit.and_then(|(name, policy)| policy.limit(name.as_str()));
        key::entries(self.keys, limit, change.key()?)
    }
}

impl View for Report {
    fn text(&self, page: Page) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        if page.wide {
            self.entries(page)
        } else {
            self.table(page)
        }
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().map(|row| row.revision.to_string()).collect()
    }
}

impl Report {
    fn table(&self, page: Page) -> String {
        let mut table = Table::new(["REVISION", "WHEN", "WHO", "WHAT", "WHY"]);
        for row in &self.0 {
            table.row([
                row.revision.to_string(),
                age(now_ms().saturating_sub(row.at_ms)),
                visible(row.author.as_bytes()),
                row.what.clone(),
                visible(row.reason.as_bytes()),
            ]);
        }
        table.draw(page)
    }

    fn entries(&self, page: Page) -> String {
        let mut text = String::new();
        for row in &self.0 {
            let (author, reason) = (
                visible(row.author.as_bytes()),
                visible(row.reason.as_bytes()),
            );
            let why = if reason.is_empty() {
                String::new()
            } else {
                format!(": {reason}")
            };
            let _ = writeln!(text, "revision {}  {}  {author}{why}", row.revision, row.at);
            if row.changes.is_empty() && row.domain_changes.is_empty() {
                let _ = writeln!(text, "  {}", row.what);
            }
            let mut changes =
                render::changes::of_domain(row.domain.as_str(), &row.domain_changes, page);
            changes.push_str(&render::changes::text(&row.changes, page));
            for line in changes.lines() {
                let _ = writeln!(text, "  {line}");
            }
        }
        text
    }
}
