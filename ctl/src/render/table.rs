//! Tables without lines, as `kubectl` draws them.

use std::fmt::Write as _;

use comfy_table::{ColumnConstraint, ContentArrangement, Width, presets};

use super::Page;

const HEADER: anstyle::Style = anstyle::Style::new().bold();
/// Spaces between columns.
const GAP: u16 = 2;
/// Characters of one cell; what is longer is cut. `-o json` has all of it.
const CELL_MAX: usize = 1000;
/// The least width to which a column is cut: narrower text is unreadable.
const COLUMN_MIN: u16 = 12;

/// Rows under headers. Columns that are empty in every row are left out.
#[derive(Debug)]
pub struct Table {
    headers: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(headers: impl IntoIterator<Item = &'static str>) -> Self {
        Self {
            headers: headers.into_iter().collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row, a cell for every header.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(cut).collect());
    }

    /// The lines, each ended. Where the page is narrow long cells are cut, so that a row stays a line;
    /// where it is very narrow every row becomes a paragraph.
    pub fn draw(&self, page: Page) -> String {
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
        self.rows.is_empty() || self.rows.iter().any(cell)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(width: Option<u16>) -> String {
        let mut table = Table::new(["NAME", "EMPTY", "MATCH"]);
        let cells = |cells: [&str; 3]| cells.map(ToOwned::to_owned);
        table.row(cells(["per-user", "", "path=/api/** method=GET|POST"]));
        table.row(cells(["exports", "", "path=/export"]));
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
        let mut table = Table::new(["NAME", "WHAT"]);
        table.row(["ä".to_owned(), "ö".repeat(100_000)]);
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
