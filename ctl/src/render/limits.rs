//! Limits as tables and as cards.

use std::fmt::Write as _;

use insight::limit::{matchers, notes, plain};
use policy::{AmountText, Exemption, Limit};

use super::{Page, Table, counted};
use crate::clock::now_ms;

/// One row for each exemption.
pub fn exemptions(exempt: &[Exemption], page: Page) -> String {
    let mut table = Table::new(vec!["EXEMPT", "MATCH"]);
    for exemption in exempt {
        table.row(vec![
            exemption.name.to_string(),
            matchers(&exemption.to_node()),
        ]);
    }
    table.draw(page)
}

/// One row for each limit; `overrides` are their counts of overrides.
pub fn table(limits: &[Limit], overrides: &[u64], page: Page) -> String {
    let mut headers = vec![
        "NAME",
        "MATCH",
        "PER",
        "ALGORITHM",
        "RATE",
        "BURST",
        "OVERRIDES",
        "NOTES",
    ];
    if page.wide {
        headers.extend(["ON FAILURE", "COST", "GENERATION", "DESCRIPTION"]);
    }
    let mut table = Table::new(headers);
    for (at, limit) in limits.iter().enumerate() {
        let node = limit.to_node_without_overrides();
        let field = |name: &str| node.get(name).map(plain).unwrap_or_default();
        let or = |name: &str, default: &str| node.get(name).map_or(default.to_owned(), plain);
        let overrides = match overrides.get(at) {
            None | Some(0) => String::new(),
            Some(count) => count.to_string(),
        };
        let mut row = vec![
            limit.name.to_string(),
            matchers(&node),
            limit
                .per
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(","),
            if limit.is_unlimited() {
                "unlimited".to_owned()
            } else {
                or("algorithm", "token_bucket")
            },
            if limit.gives_slots() {
                AmountText(limit.quota.parameters()).to_string()
            } else {
                field("rate")
            },
            field("burst"),
            overrides,
            notes(limit, now_ms()),
        ];
        if page.wide {
            row.extend([
                or("on_failure", "local"),
                or("cost", "1"),
                limit.generation.to_string(),
                field("description"),
            ]);
        }
        table.row(row);
    }
    table.draw(page)
}

/// All of one limit, a field a line, as in a limits file; `overrides` says how many it has.
pub fn card(limit: &Limit, overrides: u64) -> String {
    let mut text = limit.to_node().to_yaml();
    let shown = u64::try_from(limit.overrides.len()).unwrap_or(u64::MAX);
    let more = overrides.saturating_sub(shown);
    if more > 0 {
        let more = counted(more, "more override");
        let _ = writeln!(text, "# and {more}; -o yaml shows all");
    }
    text
}
