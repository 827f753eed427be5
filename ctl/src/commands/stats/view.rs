//! Decisions as a table.

use std::collections::BTreeMap;

use policy::Name;
use protocol::{DecidedBy, Outcome};
use serde::Serialize;
use store::{ActivitySummary, LimitActivity};

use crate::{
    activity::{Rate, Span},
    render::{Page, Table, View, duration},
};

#[derive(Serialize)]
pub(super) struct Report {
    domain: String,
    over: &'static str,
    /// What rates are divided by, in milliseconds.
    covered_ms: u64,
    limits: Vec<Row>,
    /// Checks that no limit matched.
    unmatched: u64,
    /// Checks that got no decision.
    errors: u64,
}

#[derive(Serialize)]
struct Row {
    limit: String,
    allowed: Counted,
    denied: Counted,
    would_deny: Counted,
    degraded: Counted,
    /// Allowed requests that were delayed.
    delayed: u64,
    /// The units that responses cost.
    costs: Sum,
    /// Slots that requests in flight took.
    slots: Sum,
    /// Penalties that began.
    penalties: u64,
    /// The number of proxies that share the limit.
    proxies: u64,
}

#[derive(Serialize)]
struct Sum {
    count: u64,
    per_second: Rate,
}

#[derive(Serialize)]
struct Counted {
    count: u64,
    per_second: Rate,
    by: BTreeMap<&'static str, u64>,
}

impl Report {
    pub(super) fn new(
        domain: &Name,
        over: Span,
        limits: &[&Name],
        observed: &ActivitySummary,
        proxies: &BTreeMap<Name, u64>,
    ) -> Self {
        let nothing = LimitActivity::default();
        let row = |name: &&Name| {
            let activity = observed.activity.limits.get(*name).unwrap_or(&nothing);
            let proxies = proxies.get(*name).copied().unwrap_or(0);
            Row::new(name, activity, observed.covered_ms, proxies)
        };
        Self {
            domain: domain.to_string(),
            over: over.word(),
            covered_ms: observed.covered_ms,
            limits: limits.iter().map(row).collect(),
            unmatched: observed.activity.unmatched,
            errors: observed.activity.errors,
        }
    }
}

impl Row {
    fn new(limit: &Name, activity: &LimitActivity, covered_ms: u64, proxies: u64) -> Self {
        let counted = |outcome| {
            let count = activity.total(outcome);
            let by = DecidedBy::ALL.into_iter().filter_map(|by| {
                let count = activity.counts.get(&(outcome, by)).copied()?;
                (count > 0).then_some((by.word(), count))
            });
            Counted {
                count,
                per_second: Rate::of(count, covered_ms),
                by: by.collect(),
            }
        };
        let sum = |count| Sum {
            count,
            per_second: Rate::of(count, covered_ms),
        };
        Self {
            limit: limit.to_string(),
            allowed: counted(Outcome::Allowed),
            denied: counted(Outcome::Denied),
            would_deny: counted(Outcome::WouldDeny),
            degraded: counted(Outcome::Degraded),
            delayed: activity.delayed,
            costs: sum(activity.settled_units),
            slots: sum(activity.slots_taken),
            penalties: activity.penalties,
            proxies,
        }
    }
}

/// Empty for 0, so that the table drops a column without counts.
fn some(count: u64) -> String {
    match count {
        0 => String::new(),
        count => count.to_string(),
    }
}

/// `limiter 12, deny_cache 40`, the largest first.
fn by(counted: &Counted) -> String {
    let mut by: Vec<(&str, u64)> = counted.by.iter().map(|(by, n)| (*by, *n)).collect();
    by.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let one = |(by, count): (&str, u64)| format!("{by} {count}");
    by.into_iter().map(one).collect::<Vec<_>>().join(", ")
}

impl View for Report {
    fn text(&self, page: Page) -> String {
        let mut headers = vec![
            "LIMIT",
            "ALLOWED",
            "PER S",
            "DENIED",
            "PER S",
            "WOULD DENY",
            "DEGRADED",
            "DELAYED",
            "COST",
            "PER S",
            "SLOTS",
            "PENALTIES",
            "PROXIES",
            "DENIED BY",
        ];
        if page.wide {
            headers.push("ALLOWED BY");
        }
        let mut table = Table::new(headers);
        for row in &self.limits {
            let mut cells = vec![
                row.limit.clone(),
                row.allowed.count.to_string(),
                row.allowed.per_second.text(),
                row.denied.count.to_string(),
                row.denied.per_second.text(),
                some(row.would_deny.count),
                some(row.degraded.count),
                some(row.delayed),
                some(row.costs.count),
                match row.costs.count {
                    0 => String::new(),
                    _ => row.costs.per_second.text(),
                },
                some(row.slots.count),
                some(row.penalties),
                row.proxies.to_string(),
                by(&row.denied),
            ];
            if page.wide {
                cells.push(by(&row.allowed));
            }
            table.row(cells);
        }
        let mut text = table.draw(page);
        let mut notes = vec![format!("domain {}", self.domain)];
        if self.covered_ms > 0 {
            notes.push(format!("over {}", duration(self.covered_ms)));
        }
        if self.unmatched > 0 {
            notes.push(format!("{} matched no limit", self.unmatched));
        }
        if self.errors > 0 {
            notes.push(format!("{} got no decision", self.errors));
        }
        text.push_str(&notes.join("; "));
        text.push('\n');
        text
    }

    /// The limits that decided anything.
    fn names(&self) -> Vec<String> {
        let decided = |row: &&Row| {
            let counts = [&row.allowed, &row.denied, &row.would_deny, &row.degraded];
            counts.iter().any(|counted| counted.count > 0)
        };
        let rows = self.limits.iter().filter(decided);
        rows.map(|row| row.limit.clone()).collect()
    }
}
