//! `rlctl history` and `rlctl rollback`.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt::Write as _,
};

use clap::Args;
use insight::findings::limits;
use limits_file::ToNode as _;
use policy::{Exemption, Limit, Name, Node, Policy, format_timestamp};
use serde::Serialize;
use store::{HistoryEntry, Keys, Overrides, RecordedOverrides, Stored};

use crate::{
    bucket::{KeyEntries, key_entries, limit_name, parse_whole_number, visible},
    changes::{self, FieldChange, LimitChange},
    cli::{Global, examples},
    commands::replay::{BeforeEdit, with_overrides},
    edit::{EditArgs, Planned, PlannedWrite, revision_of},
    error::{self, Error, Exit},
    history::{HistoryChange, summary},
    now_ms,
    printer::Printer,
    render::{self, Page, Table, View, age, diagnostics},
    session::{self, Deltas, Session},
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
        let entries = session.call(session.store.history(&domain, read)).await?;
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
    if let Some(meant) = error::meant(limit, known) {
        printer.hint(meant);
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
    fn bucket(&self, change: &HistoryChange) -> Option<KeyEntries> {
        let limits = change.limits();
        let limit = limits.first().zip(self.policy);
        let limit = limit.and_then(|(name, policy)| policy.limit(name.as_str()));
        key_entries(self.keys, limit, change.key()?)
    }
}

impl View for Report {
    fn text(&self, page: Page) -> String {
        if page.wide {
            return self.entries(page);
        }
        Table::of(&self.0)
            .column("REVISION", |row| row.revision)
            .column("WHEN", |row| age(now_ms().saturating_sub(row.at_ms)))
            .column("WHO", |row| visible(row.author.as_bytes()))
            .column("WHAT", |row| &row.what)
            .column("WHY", |row| visible(row.reason.as_bytes()))
            .draw(page)
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().map(|row| row.revision.to_string()).collect()
    }
}

impl Report {
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
            let changes =
                render::changes_text(&row.domain, &row.domain_changes, &row.changes, page);
            for line in changes.lines() {
                let _ = writeln!(text, "  {line}");
            }
        }
        text
    }
}

// --- `rlctl rollback`.

/// Roll back to an earlier revision.
///
/// A rollback is an edit with a revision of its own. It does not change usage.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl history                                  # find the revision"
    "rlctl rollback 17 --dry-run"
    "rlctl rollback 17 --replay access.log          # whom would it deny?"
    "rlctl rollback 17 --limit per-user --reason 'too tight'"
))]
pub struct Rollback {
    /// The revision to roll back to.
    #[arg(value_parser = parse_whole_number, allow_negative_numbers = true)]
    revision: u64,

    /// Only this limit.
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,

    #[command(flatten)]
    before: BeforeEdit,

    #[command(flatten)]
    edit: EditArgs,
}

impl Rollback {
    /// Reverts the later edits, newest first, and writes the result as one edit.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let domain = session.domain().await?;
        let limit = self.limit.as_deref().map(limit_name).transpose()?;
        let base = session.read(&domain, Overrides::None).await?;
        let history = session
            .call(session.store.history(&domain, READ_MAX))
            .await?;
        if history.is_empty() {
            return Err(session.no_domain(&domain).await);
        }
        let earlier = self.earlier(&domain, &base, &history, limit.as_ref())?;
        let policy = &earlier.policy;
        if let Some(name) = &limit {
            let known = base.policy().and_then(|base| base.limit(name.as_str()));
            known.map_or_else(|| session::find_limit(policy, name.as_str()), Ok)?;
        }
        let plan = session
            .plan_edit(base.policy(), policy, &earlier.overrides)
            .await?;
        if let Some(text) = plan.invalid_overrides_text() {
            return Err(invalid(&text));
        }
        let domain_changes = changes::of_domain(base.policy(), policy);
        let after = |before: &Policy| earlier.with_overrides(before);
        self.before
            .show(&session, &domain, &self.edit, after)
            .await?;
        self.ask(printer, &domain, &domain_changes, &plan.changes)
            .await?;
        let mut edit = self.edit.clone();
        if edit.reason.is_empty() {
            edit.reason = format!("rollback to revision {}", self.revision);
        }
        let planned = Planned {
            write: PlannedWrite::Parts(earlier.policy, plan.overrides),
            changes: plan.changes,
        };
        let edited = session.write(&edit, &domain, base, planned).await;
        let edited = edited.map_err(|error| session.edit_failed(&error))?;
        session.finish(&edited.report, &edit).await
    }

    async fn ask(
        &self,
        printer: &Printer,
        domain: &Name,
        domain_changes: &[FieldChange],
        changes: &[LimitChange],
    ) -> Result<(), Error> {
        let any = !domain_changes.is_empty() || changes::any(changes);
        if self.edit.dry_run || self.edit.yes || !any {
            return Ok(());
        }
        // Shows the changes before the user confirms them.
        let page = printer.page();
        let shown = render::changes_text(domain, domain_changes, changes, page);
        printer.note(shown.trim_end());
        let question = format!("roll domain {domain} back to revision {}", self.revision);
        self.edit.confirm(question).await
    }

    /// The limits at the earlier revision.
    fn earlier(
        &self,
        domain: &Name,
        base: &Stored,
        history: &[HistoryEntry],
        limit: Option<&Name>,
    ) -> Result<Reverted, Error> {
        // The history has what edits changed: without the limits that none of them changed, half a domain
        // would be in force.
        if matches!(base, Stored::Absent) {
            let lost = format!(
                "the store lost the limits of domain {domain}, and their history has only changes"
            );
            return Err(Error::new(Exit::Refused, lost).hint(limits::restore(domain)));
        }
        let newest = history.first().map_or(0, |entry| entry.revision.number);
        let current = revision_of(base).map_or(newest, |revision| revision.number);
        let later = |entry: &&HistoryEntry| {
            (self.revision.saturating_add(1)..=current).contains(&entry.revision.number)
        };
        let later: Vec<&HistoryEntry> = history.iter().filter(later).collect();
        let whole =
            u64::try_from(later.len()).is_ok_and(|n| n == current - self.revision.min(current));
        if self.revision == 0 || self.revision > current || !whole {
            let oldest = history.last().map_or(1, |entry| entry.revision.number);
            let back_to = oldest.saturating_sub(1).max(1);
            return Err(Error::not_found(format!(
                "there is no revision {} to roll back to",
                self.revision
            ))
            .hint(format!(
                "domain {domain} can be rolled back to any from {back_to} to {current}"
            )));
        }
        let policy = base.policy().cloned();
        let mut reverted = Reverted::new(policy.unwrap_or_else(|| Policy::empty(domain.clone())));
        for entry in later {
            let change = HistoryChange::parse(entry);
            let reverted = reverted.revert(&change, limit);
            reverted.ok_or_else(|| cannot_revert(entry, &change))?;
        }
        checked(reverted, base.policy())
    }
}

fn cannot_revert(entry: &HistoryEntry, change: &HistoryChange) -> Error {
    let number = entry.revision.number;
    let error = Error::new(
        Exit::Refused,
        format!("revision {number} cannot be rolled back"),
    );
    match change {
        HistoryChange::TooLarge => error
            .hint("it changed more than the history records; `rlctl apply -f` restores a backup"),
        _ => error.hint("this version of rlctl cannot read its history entry"),
    }
}

/// Checks that the resulting limits are valid together and that overrides fit them. Limits that are
/// new or have another `per` list their overrides.
fn checked(mut reverted: Reverted, base: Option<&Policy>) -> Result<Reverted, Error> {
    let policy = &mut reverted.policy;
    limits_file::policy_from_node(&policy.to_node())
        .map_err(|problems| invalid(&diagnostics(&problems)))?;
    let base = base.map(Policy::by_name).unwrap_or_default();
    for limit in &mut policy.limits {
        let Some(deltas) = reverted.overrides.get_mut(&limit.name) else {
            continue;
        };
        for found in deltas.values_mut().flatten() {
            let again = limits_file::override_from_node(
                limit,
                &limits_file::override_node(found, &limit.per),
            );
            *found = again.map_err(|problems| invalid(&diagnostics(&problems)))?;
        }
        let old = base.get(limit.name.as_str());
        if old.is_none_or(|old| old.per != limit.per) {
            limit.overrides = deltas.values().flatten().cloned().collect();
        }
    }
    Ok(reverted)
}

fn invalid(text: &str) -> Error {
    Error::usage(format!("the result would be invalid\n{text}"))
}

// --- Reverting edits.

/// A domain with some of its last edits reverted.
#[derive(Debug)]
struct Reverted {
    /// The limits, without overrides.
    policy: Policy,
    /// The overrides that differ from those in the store.
    overrides: Deltas,
}

impl Reverted {
    /// The domain as stored; overrides need not be loaded.
    fn new(policy: Policy) -> Self {
        Self {
            policy,
            overrides: Deltas::new(),
        }
    }

    /// The limits with all their overrides, those that do not differ as in the store.
    fn with_overrides(&self, before: &Policy) -> Policy {
        let mut after = with_overrides(self.policy.clone(), before);
        for limit in &mut after.limits {
            for (values, now) in self.overrides.get(&limit.name).into_iter().flatten() {
                limit.overrides.retain(|old| old.values != *values);
                limit.overrides.extend(now.clone());
            }
        }
        after
    }

    /// Reverts the latest edit, or with `only` the part of it that concerns that limit. `None` if
    /// that is impossible.
    fn revert(&mut self, change: &HistoryChange, only: Option<&Name>) -> Option<()> {
        let concerned = |name: &Name| only.is_none_or(|only| only == name);
        match change {
            HistoryChange::Limits {
                limits: [before, after],
                overrides: [was, became],
                paused,
                exempt: [exempt, then_exempt],
                places,
                ..
            } => {
                // The limit as the edit left it reads the overrides after the edit; the limit
                // before it reads those before.
                self.set_all(became, concerned, false)?;
                if let (Some([before, _]), None) = (paused, only) {
                    self.policy.paused = *before;
                }
                if only.is_none() {
                    self.revert_exempt(exempt, then_exempt);
                }
                self.revert_limits(before, after, concerned);
                self.restore_places(places, concerned);
                self.set_all(was, concerned, true)
            }
            HistoryChange::Override {
                limit,
                before,
                after,
            } if concerned(limit) => {
                let limit = self.policy.limit(limit.as_str())?;
                set(&mut self.overrides, limit, after.as_slice(), false)?;
                set(&mut self.overrides, limit, before.as_slice(), true)
            }
            HistoryChange::Override { .. }
            | HistoryChange::Reset { .. }
            | HistoryChange::Credit { .. } => Some(()),
            HistoryChange::TooLarge | HistoryChange::Unknown => None,
        }
    }

    fn revert_exempt(&mut self, before: &[Exemption], after: &[Exemption]) {
        let exempt = &mut self.policy.exempt;
        let named = |list: &[Exemption], name: &Name| list.iter().any(|other| other.name == *name);
        exempt.retain(|now| !named(after, &now.name) || named(before, &now.name));
        for old in before {
            match exempt.iter_mut().find(|now| now.name == old.name) {
                Some(now) => *now = old.clone(),
                None => exempt.push(old.clone()),
            }
        }
    }

    fn revert_limits<'l>(
        &mut self,
        before: &'l [Limit],
        after: &[Limit],
        concerned: impl Fn(&Name) -> bool,
    ) {
        let named = |limit: &'l Limit| (limit.name.as_str(), limit);
        let mut earlier: HashMap<&str, &Limit> = before.iter().map(named).collect();
        let touched: HashSet<&str> = after.iter().map(|limit| limit.name.as_str()).collect();
        let limits = &mut self.policy.limits;
        limits.retain(|limit| {
            let name = limit.name.as_str();
            let created = touched.contains(name) && !earlier.contains_key(name);
            !(concerned(&limit.name) && created)
        });
        for limit in limits.iter_mut().filter(|limit| concerned(&limit.name)) {
            if let Some(old) = earlier.remove(limit.name.as_str()) {
                let place = limit.place;
                *limit = Limit {
                    place,
                    ..old.clone()
                };
            }
        }
        // Whose place was not recorded comes last.
        let deleted = before
            .iter()
            .filter(|old| concerned(&old.name) && earlier.contains_key(old.name.as_str()))
            .map(|old| Limit {
                place: u64::MAX,
                ..old.clone()
            });
        limits.extend(deleted);
    }

    fn restore_places(&mut self, places: &BTreeMap<Name, u64>, concerned: impl Fn(&Name) -> bool) {
        for limit in { self.policy.limits.iter_mut() }.filter(|limit| concerned(&limit.name)) {
            limit.place = *places.get(&limit.name).unwrap_or(&limit.place);
        }
        self.policy.limits.sort_by_key(|limit| limit.place);
    }

    /// As [`set`], of all limits that are concerned.
    fn set_all(
        &mut self,
        overrides: &RecordedOverrides,
        concerned: impl Fn(&Name) -> bool,
        there: bool,
    ) -> Option<()> {
        let limits = self.policy.by_name();
        for (name, overrides) in overrides.iter().filter(|(name, _)| concerned(name)) {
            let limit = limits.get(name.as_str())?;
            set(&mut self.overrides, limit, overrides, there)?;
        }
        Some(())
    }
}

/// Adds these overrides of a limit if `there`, and removes them otherwise.
fn set(deltas: &mut Deltas, limit: &Limit, overrides: &[Node], there: bool) -> Option<()> {
    let deltas = deltas.entry(limit.name.clone()).or_default();
    for node in overrides {
        let found = limits_file::override_from_node(limit, node).ok()?;
        deltas.insert(found.values.clone(), there.then_some(found));
    }
    Some(())
}
