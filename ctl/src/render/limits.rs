//! Limits as tables and as cards.

use std::fmt::Write as _;

use policy::{Limit, Node};

use super::{Page, Table, counted, pause_state};

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
            matchers(&node, "*"),
            limit
                .per
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(","),
            or("algorithm", "token_bucket"),
            field("rate"),
            field("burst"),
            overrides,
            notes(limit, &node),
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

/// `path=/api/** method=GET|POST`.
fn matchers(limit: &Node, none: &str) -> String {
    let Some(Node {
        value: policy::Value::Map(entries),
        ..
    }) = limit.get("match")
    else {
        return none.to_owned();
    };
    let one = |entry: &policy::Entry| {
        let patterns: Vec<String> = match entry.value.items() {
            [] => vec![plain(&entry.value)],
            many => many.iter().map(plain).collect(),
        };
        format!("{}={}", entry.key, patterns.join("|"))
    };
    entries.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// What is out of the ordinary about a limit.
fn notes(limit: &Limit, node: &Node) -> String {
    let mut notes = Vec::from_iter(pause_state(limit.paused));
    let text = |name: &str| node.get(name).map(plain);
    match text("enforce").as_deref() {
        Some("0%") => notes.push("shadow".to_owned()),
        Some(percent) => notes.push(format!("enforced {percent}")),
        None => {}
    }
    notes.extend(text("over_limit"));
    notes.extend(text("scope").map(|scope| format!("per {scope}")));
    notes.extend(text("precheck").map(|percent| format!("precheck {percent}")));
    notes.extend(
        node.get("lease")
            .and_then(|lease| lease.get("ttl"))
            .map(|ttl| format!("leased {}", plain(ttl))),
    );
    notes.extend(text("hidden").map(|_| "hidden".to_owned()));
    notes.extend(node.get("replaces").map(|names| {
        let names: Vec<String> = names.items().iter().map(plain).collect();
        format!("replaces {}", names.join(","))
    }));
    notes.join(", ")
}

/// A value without quotes, for the eye.
fn plain(node: &Node) -> String {
    node.as_text()
        .map_or_else(|| node.to_yaml_line(), str::to_owned)
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
