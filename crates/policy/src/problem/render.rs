//! Problems as people read them.

use std::fmt;

use super::{Problem, Problems};
use crate::document::Place;

/// One line, without the source: what an API answers or a log says.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.headline())?;
        match &self.hint {
            Some(hint) => write!(f, " ({})", visible(hint)),
            None => Ok(()),
        }
    }
}

impl Problem {
    /// Which field of which limit, and what is wrong with it.
    fn headline(&self) -> String {
        let field = match &self.limit {
            // The limit's name says more than its position.
            Some(_) if self.path.starts_with("limits[") => {
                self.path.split_once("].").map_or("", |(_, field)| field)
            }
            _ => self.path.as_str(),
        };
        let limit = match &self.limit {
            Some(limit) => format!("limit `{limit}`: "),
            None => String::new(),
        };
        let colon = if field.is_empty() { "" } else { ": " };
        visible(&format!("{limit}{field}{colon}{}", self.message))
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, problem) in self.list.iter().enumerate() {
            if n > 0 {
                writeln!(f)?;
            }
            writeln!(f, "error: {}", problem.headline())?;
            if let Some(place) = problem.place {
                self.write_place(f, place)?;
            }
            if let Some(hint) = &problem.hint {
                writeln!(f, "  = {}", visible(hint))?;
            }
        }
        if self.omitted > 0 {
            writeln!(f, "\n... and {} more", self.omitted)?;
        }
        Ok(())
    }
}

impl Problems {
    fn line(&self, place: Place) -> Option<&str> {
        let index = usize::try_from(place.line).ok()?.checked_sub(1)?;
        self.source.as_deref()?.lines().nth(index)
    }

    fn write_place(&self, f: &mut fmt::Formatter<'_>, place: Place) -> fmt::Result {
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

/// A file's control characters must not reach the terminal.
fn visible(line: &str) -> String {
    line.chars()
        .map(|c| {
            if c.is_control() && c != '\t' {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect()
}
