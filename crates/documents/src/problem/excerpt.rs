//! The line that a problem is in, with a caret. Only what was read from YAML has a place.

use std::fmt;

use super::{Problems, render::visible};
use crate::Place;

impl Problems {
    fn line(&self, place: Place) -> Option<&str> {
        let index = usize::try_from(place.line).ok()?.checked_sub(1)?;
        self.source.as_deref()?.lines().nth(index)
    }

    pub(super) fn write_place(&self, f: &mut fmt::Formatter<'_>, place: Place) -> fmt::Result {
        let number = place.line.to_string();
        let margin = " ".repeat(number.len());
        if let Some(file) = &self.file {
            writeln!(f, "{margin}--> {file}:{}:{}", place.line, place.column)?;
        }
        if let Some(line) = self.line(place) {
            let (line, column) = excerpt(line, usize::try_from(place.column).unwrap_or(1));
            let rest = line.chars().count().saturating_sub(column - 1);
            let width = usize::try_from(place.width).unwrap_or(1).min(rest.max(1));
            // A tab is as wide in the caret's line as it is in the quoted one.
            let indent: String = line
                .chars()
                .take(column - 1)
                .map(|c| if c == '\t' { '\t' } else { ' ' })
                .collect();
            writeln!(f, "{margin} |")?;
            writeln!(f, "{number} | {}", visible(&line))?;
            writeln!(f, "{margin} | {indent}{}", "^".repeat(width))?;
        }
        Ok(())
    }
}

/// As much of a line as fits a screen, and the column within that.
fn excerpt(line: &str, column: usize) -> (String, usize) {
    const WIDTH: usize = 120;
    let column = column.max(1);
    if line.chars().count() <= WIDTH {
        return (line.to_owned(), column);
    }
    let before = column.saturating_sub(WIDTH / 2);
    let (lead, column) = match before {
        0 => ("", column),
        _ => ("…", column - before + 1),
    };
    let part: String = line.chars().skip(before).take(WIDTH).collect();
    (format!("{lead}{part}…"), column)
}
