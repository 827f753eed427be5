//! Tables without lines, as `kubectl` draws them.

use std::fmt::Write as _;

use comfy_table::{ContentArrangement, presets};

use super::Page;

const HEADER: anstyle::Style = anstyle::Style::new().bold();

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
        self.rows.push(cells.into_iter().collect());
    }

    /// The lines, each ended. Wraps cells where the page is too narrow.
    pub fn draw(&self, page: Page) -> String {
        let shown = |column: usize| {
            let cell = |row: &Vec<String>| row.get(column).is_some_and(|cell| !cell.is_empty());
            self.rows.is_empty() || self.rows.iter().any(cell)
        };
        let pick = |cells: &[String]| -> Vec<String> {
            let cells = cells.iter().enumerate();
            cells
                .filter(|(column, _)| shown(*column))
                .map(|(_, cell)| cell.clone())
                .collect()
        };
        let headers: Vec<String> = self.headers.iter().map(ToString::to_string).collect();
        let mut table = comfy_table::Table::new();
        table
            .load_style(presets::NOTHING)
            .set_header(pick(&headers));
        match page.width {
            Some(width) => {
                table
                    .set_content_arrangement(ContentArrangement::Dynamic)
                    .set_width(width);
            }
            None => {
                table.set_content_arrangement(ContentArrangement::Disabled);
            }
        }
        for row in &self.rows {
            table.add_row(pick(row));
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
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
}
