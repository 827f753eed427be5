//! Results as text, in each output format.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use comfy_table::{ColumnConstraint, ContentArrangement, Width, presets};
pub use insight::{age, ceil_seconds, changes::format_map, counted, duration, truncated_list};
use policy::{Name, Node, Pause, Problems, format_timestamp};
use serde::{Serialize, Serializer};

use crate::{
    changes::{Action, FieldChange, LimitChange},
    error::{Error, Exit},
    printer::{ERROR, WARNING},
};

/// The page that text is laid out for.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Columns; `None`: no limit.
    pub width: Option<u16>,
    /// Whether more columns were asked for.
    pub wide: bool,
    /// Whether more than ASCII can be shown.
    pub unicode: bool,
}

/// A result: serialized for programs, as `text` for people.
pub trait View: Serialize {
    /// For people; ends with a newline unless empty.
    fn text(&self, page: Page) -> String;

    /// The names of what is shown, for `-o name`.
    fn names(&self) -> Vec<String>;
}

/// Results of the same kind: one as it is, several as a list.
#[derive(Debug)]
pub struct OneOrMore<V>(pub Vec<V>);

impl<V> Default for OneOrMore<V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<V: Serialize> Serialize for OneOrMore<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => one.serialize(serializer),
            more => more.serialize(serializer),
        }
    }
}

impl<V: View> View for OneOrMore<V> {
    fn text(&self, page: Page) -> String {
        self.0.iter().map(|one| one.text(page)).collect()
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().flat_map(View::names).collect()
    }
}

/// A result in YAML, its fields in the same order as in JSON.
pub fn yaml_of(view: &impl View) -> Result<String, Error> {
    let node = to_node(view)
        .map_err(|error| Error::new(Exit::Refused, format!("cannot write YAML: {error}")))?;
    Ok(node.to_yaml())
}

/// What JSON has of a value.
pub fn to_node(value: &impl Serialize) -> serde_json::Result<Node> {
    serde_json::from_str(&serde_json::to_string(value)?)
}

/// The problems of a document, in the style of a compiler.
pub fn diagnostics(problems: &Problems) -> String {
    let colored = |line: &str| match line.split_once(": ") {
        Some(("error", message)) => format!("{ERROR}error{ERROR:#}: {message}\n"),
        Some(("warning", message)) => format!("{WARNING}warning{WARNING:#}: {message}\n"),
        _ => format!("{line}\n"),
    };
    problems.to_string().lines().map(colored).collect()
}

// --- Tables without lines, as `kubectl` draws them.

const HEADER: Style = Style::new().bold();
/// Spaces between columns.
const GAP: u16 = 2;
/// Characters of one cell; what is longer is cut. `-o json` has all of it.
const CELL_MAX: usize = 1000;
/// The least width to which a column is cut: narrower text is unreadable.
const COLUMN_MIN: u16 = 12;

/// Rows under headers, made column by column. Columns that are empty in every row are left out.
#[derive(Debug)]
pub struct Table<'r, R> {
    of: &'r [R],
    headers: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl<'r, R> Table<'r, R> {
    /// A table with a row for each of these.
    pub fn of(of: &'r [R]) -> Self {
        Self {
            of,
            headers: Vec::new(),
            rows: vec![Vec::new(); of.len()],
        }
    }

    /// Adds a column.
    #[must_use]
    pub fn column<C: ToString>(mut self, header: &'static str, cell: impl Fn(&'r R) -> C) -> Self {
        self.headers.push(header);
        for (row, of) in self.rows.iter_mut().zip(self.of) {
            row.push(cut(cell(of).to_string()));
        }
        self
    }

    /// Adds a column that only wide pages have.
    #[must_use]
    pub fn wide<C: ToString>(
        self,
        page: Page,
        header: &'static str,
        cell: impl Fn(&'r R) -> C,
    ) -> Self {
        if page.wide {
            self.column(header, cell)
        } else {
            self
        }
    }

    /// The lines, each ended. Where the page is narrow long cells are cut, so that a row stays a line;
    /// where it is very narrow every row becomes a paragraph. Empty without rows.
    pub fn draw(&self, page: Page) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let mut table = self.grid();
        let widths = table.column_max_content_widths();
        let whole: u16 = sum(widths.iter().map(|width| width.saturating_add(GAP)));
        let Some(page_width) = page.width.filter(|width| *width < whole) else {
            return lines(&table);
        };
        let least = widths.iter().map(|width| (*width).min(COLUMN_MIN));
        if sum(least.clone().map(|width| width.saturating_add(GAP))) > page_width {
            return self.paragraphs();
        }
        table
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_truncation_indicator("…")
            .set_width(page_width);
        for row in table.row_iter_mut() {
            row.max_height(1);
        }
        for (column, least) in table.column_iter_mut().zip(least) {
            let width = Width::Fixed(least.saturating_add(GAP));
            column.set_constraint(ColumnConstraint::LowerBoundary(width));
        }
        lines(&table)
    }

    fn grid(&self) -> comfy_table::Table {
        let pick = |cells: &mut dyn Iterator<Item = String>| -> Vec<String> {
            let cells = cells.enumerate();
            cells
                .filter(|(column, _)| self.shown(*column))
                .map(|(_, cell)| cell)
                .collect()
        };
        let mut table = comfy_table::Table::new();
        table
            .load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Disabled)
            .set_header(pick(&mut self.headers.iter().map(ToString::to_string)));
        for row in &self.rows {
            table.add_row(pick(&mut row.iter().cloned()));
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, GAP));
        }
        table
    }

    fn shown(&self, column: usize) -> bool {
        let cell = |row: &Vec<String>| row.get(column).is_some_and(|cell| !cell.is_empty());
        self.rows.iter().any(cell)
    }

    fn paragraphs(&self) -> String {
        let mut text = String::new();
        for row in &self.rows {
            for (n, (header, cell)) in self.headers.iter().zip(row).enumerate() {
                let _ = match n {
                    0 => writeln!(text, "{HEADER}{cell}{HEADER:#}"),
                    _ if cell.is_empty() => Ok(()),
                    _ => writeln!(text, "  {}: {cell}", header.to_ascii_lowercase()),
                };
            }
        }
        text
    }
}

/// A cell that may have nothing in it.
pub fn text(cell: Option<impl ToString>) -> String {
    cell.map(|cell| cell.to_string()).unwrap_or_default()
}

fn cut(cell: String) -> String {
    match cell.char_indices().nth(CELL_MAX) {
        Some((end, _)) => format!("{}…", cell.get(..end).unwrap_or_default()),
        None => cell,
    }
}

fn sum(widths: impl Iterator<Item = u16>) -> u16 {
    widths.fold(0, u16::saturating_add)
}

fn lines(table: &comfy_table::Table) -> String {
    let mut text = String::new();
    for (n, line) in table.lines().enumerate() {
        let line = line.trim_end();
        let _ = match n {
            0 => writeln!(text, "{HEADER}{line}{HEADER:#}"),
            _ => writeln!(text, "{line}"),
        };
    }
    text
}

// --- The changes of an edit as text.

/// Overrides of one limit that are listed one by one.
const OVERRIDES_SHOWN: usize = 20;
/// Limits that are listed one by one.
const LIMITS_SHOWN: usize = 40;

const CREATED: Style = AnsiColor::Green.on_default();
const CHANGED: Style = AnsiColor::Yellow.on_default();
const DELETED: Style = AnsiColor::Red.on_default();
const NAME: Style = Style::new().bold();

/// What changed of a domain itself, and the changed limits with their fields before and after, at most `LIMITS_SHOWN`; on
/// a wide page all limits.
pub fn changes_text(
    domain: &Name,
    own: &[FieldChange],
    changes: &[LimitChange],
    page: Page,
) -> String {
    let wanted = |change: &&LimitChange| page.wide || change.action != Action::Unchanged;
    let mut wanted = changes.iter().filter(wanted);
    let max = if page.wide { usize::MAX } else { LIMITS_SHOWN };
    let mut text = domain_changes_text(domain, own, page);
    text.extend(wanted.by_ref().take(max).map(|change| one(change, page)));
    let more = wanted.count();
    if more > 0 {
        let more = counted(more, "more limit");
        let _ = writeln!(text, "… and {more}; -o wide shows all");
    }
    text
}

fn domain_changes_text(domain: &Name, changes: &[FieldChange], page: Page) -> String {
    if changes.is_empty() {
        return String::new();
    }
    let mut text = format!("{CHANGED}~{CHANGED:#} {NAME}domain {domain}{NAME:#}\n");
    for change in changes {
        let sides = [change.before_text(), change.after_text()];
        text.push_str(&line(&change.field, sides, Action::Changed, page));
    }
    text
}

/// `domain changed, 1 created, 2 changed, 1 deleted, 3 unchanged`.
pub fn changes_summary(domain: &[FieldChange], changes: &[LimitChange]) -> String {
    let of_limits = summary_of_limits(changes);
    match (domain.is_empty(), changes.is_empty()) {
        (true, true) => "unchanged".to_owned(),
        (true, false) => of_limits,
        (false, true) => "domain changed".to_owned(),
        (false, false) => format!("domain changed, {of_limits}"),
    }
}

fn summary_of_limits(changes: &[LimitChange]) -> String {
    let kinds = [
        (Action::Created, "created"),
        (Action::Changed, "changed"),
        (Action::Deleted, "deleted"),
        (Action::Unchanged, "unchanged"),
    ];
    let there = kinds.into_iter().filter_map(|(action, word)| {
        let of_kind = changes.iter().filter(|change| change.action == action);
        let count = of_kind.count();
        (count > 0).then(|| format!("{count} {word}"))
    });
    let there: Vec<String> = there.collect();
    if there.is_empty() {
        "no limits".to_owned()
    } else {
        there.join(", ")
    }
}

fn one(change: &LimitChange, page: Page) -> String {
    let (sign, style, word) = match change.action {
        Action::Created => ("+", CREATED, "  (new)"),
        Action::Changed => ("~", CHANGED, ""),
        Action::Deleted => ("-", DELETED, "  (deleted)"),
        Action::Unchanged => ("=", Style::new(), "  (unchanged)"),
    };
    let name = &change.limit;
    let mut text = format!("{style}{sign}{style:#} {NAME}{name}{NAME:#}{word}\n");
    for field in &change.fields {
        let sides = [field.before_text(), field.after_text()];
        text.push_str(&line(&field.field, sides, change.action, page));
    }
    for entry in change.overrides.iter().take(OVERRIDES_SHOWN) {
        let what = format!("override for {}", entry.bucket_text());
        let sides = [entry.before_text(), entry.after_text()];
        text.push_str(&line(&what, sides, change.action, page));
    }
    let more = change.overrides.len().saturating_sub(OVERRIDES_SHOWN);
    if more > 0 {
        let _ = writeln!(text, "    and {}", counted(more, "more override"));
    }
    if change.overrides_unrecorded > 0 {
        let count = counted(change.overrides_unrecorded, "override");
        let _ = writeln!(text, "    without the {count} it has now");
    }
    text
}

/// What something was and is, by what became of what it belongs to.
fn line(what: &str, [before, after]: [String; 2], action: Action, page: Page) -> String {
    match action {
        Action::Created => format!("    {what}: {after}\n"),
        Action::Deleted => format!("    {what}: {before}\n"),
        _ => format!("    {what}: {before} {} {after}\n", arrow(page)),
    }
}

/// The arrow between before and after.
pub fn arrow(page: Page) -> &'static str {
    if page.unicode { "→" } else { "->" }
}

// --- A quota as a bar.

const CELLS: u64 = 24;

/// `used` of `quota`, as a bar of fixed length. A quota of 0 is full.
pub fn bar(used: u64, quota: u64, page: Page) -> String {
    let full = match quota {
        0 => CELLS,
        // Any usage fills a cell; only a used-up quota fills all.
        _ if used >= quota => CELLS,
        _ => (u128::from(used) * u128::from(CELLS) / u128::from(quota))
            .try_into()
            .unwrap_or(CELLS)
            .max(u64::from(used > 0)),
    };
    let (on, off) = if page.unicode {
        ("█", "░")
    } else {
        ("#", "-")
    };
    let cells = |n: u64, cell: &str| (0..n).map(|_| cell).collect::<String>();
    format!("{}{}", cells(full, on), cells(CELLS - full, off))
}

// --- Line breaks for a narrow page.

/// Breaks text at the page's width. The first line starts at column `at`; later lines are indented
/// by `indent` columns.
pub fn wrapped(text: &str, indent: usize, at: usize, page: Page) -> String {
    let Some(width) = page.width.map(usize::from) else {
        return text.to_owned();
    };
    let mut lines = String::with_capacity(text.len() + 16);
    let mut column = at;
    for (n, word) in text.split(' ').enumerate() {
        let length = word.chars().count();
        if n > 0 && column + 1 + length > width && column > indent {
            lines.push('\n');
            lines.push_str(&" ".repeat(indent));
            column = indent;
        } else if n > 0 {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += length;
    }
    lines
}

// --- Whether a limit or a domain is paused.

/// ` until 2026-12-01T00:00:00Z`; empty if it never ends.
pub fn until(until_ms: Option<u64>) -> String {
    until_ms.map_or_else(String::new, |ms| format!(" until {}", format_timestamp(ms)))
}

/// `paused`, `paused until 2026-12-01T00:00:00Z`; `None` if it does not hold any more.
pub fn pause_state(pause: Option<Pause>) -> Option<String> {
    insight::pause_state(pause, crate::now_ms())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(width: Option<u16>) -> String {
        let rows = [
            ["per-user", "path=/api/** method=GET|POST"],
            ["exports", "path=/export"],
        ];
        let table = Table::of(&rows).column("NAME", |row| row[0]);
        let table = table.column("EMPTY", |_| "").column("MATCH", |row| row[1]);
        let page = Page {
            width,
            wide: false,
            unicode: true,
        };
        anstream::adapter::strip_str(&table.draw(page)).to_string()
    }

    #[test]
    fn a_wide_page_or_a_pipe_has_a_line_for_each_row() {
        let whole = "NAME      MATCH\n\
                     per-user  path=/api/** method=GET|POST\n\
                     exports   path=/export\n";
        assert_eq!(drawn(None), whole);
        assert_eq!(drawn(Some(40)), whole);
    }

    #[test]
    fn a_narrow_page_cuts_the_long_column() {
        assert_eq!(
            drawn(Some(30)),
            "NAME      MATCH\n\
             per-user  path=/api/**…\n\
             exports   path=/export\n"
        );
    }

    #[test]
    fn a_cell_of_a_hundred_thousand_characters_is_cut() {
        let table = Table::of(&["ä"]).column("NAME", |name| name);
        let table = table.column("WHAT", |_| "ö".repeat(100_000));
        for width in [None, Some(80), Some(20)] {
            let page = Page {
                width,
                wide: false,
                unicode: true,
            };
            let text = table.draw(page);
            let shown = text.matches('ö').count();
            match width {
                None => assert_eq!(shown, CELL_MAX),
                // A line that is as wide as the page.
                Some(width) => {
                    assert!(shown > usize::from(width) / 2, "{width}: {shown}");
                    assert_eq!(text.lines().count(), 2, "{width}");
                }
            }
            assert!(text.contains('…'));
        }
    }

    #[test]
    fn a_very_narrow_page_has_a_paragraph_for_each_row() {
        assert_eq!(
            drawn(Some(20)),
            "per-user\n  match: path=/api/** method=GET|POST\nexports\n  match: path=/export\n"
        );
    }
}

#[cfg(test)]
mod bar_tests {
    use super::*;

    const PAGE: Page = Page {
        width: None,
        wide: false,
        unicode: false,
    };

    #[test]
    fn a_bar_is_full_only_when_the_quota_is_used_up() {
        assert_eq!(bar(0, 10, PAGE), "-".repeat(24));
        assert_eq!(
            bar(5, 10, PAGE),
            format!("{}{}", "#".repeat(12), "-".repeat(12))
        );
        assert_eq!(bar(1, 1_000_000, PAGE), format!("#{}", "-".repeat(23)));
        assert_eq!(
            bar(999_999, 1_000_000, PAGE),
            format!("{}-", "#".repeat(23))
        );
        assert_eq!(bar(10, 10, PAGE), "#".repeat(24));
        assert_eq!(bar(25, 10, PAGE), "#".repeat(24));
        assert_eq!(bar(0, 0, PAGE), "#".repeat(24));
        assert_eq!(
            bar(u64::MAX - 1, u64::MAX, PAGE),
            format!("{}-", "#".repeat(23))
        );
    }
}

#[cfg(test)]
mod wrap_tests {
    use super::*;

    fn page(width: Option<u16>) -> Page {
        Page {
            width,
            wide: false,
            unicode: true,
        }
    }

    #[test]
    fn words_stay_whole_and_lines_within_the_page() {
        let text = "one two three four-and-a-half five";
        assert_eq!(wrapped(text, 2, 0, page(None)), text);
        assert_eq!(
            wrapped(text, 2, 4, page(Some(12))),
            "one two\n  three\n  four-and-a-half\n  five"
        );
    }
}
