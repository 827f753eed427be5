//! Problems as people read them.

use std::fmt;

use super::{Gravity, Problem, Problems};
use crate::is_printable;

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
                let rest = self.path.split_once(']').map(|(_, rest)| rest);
                rest.and_then(|rest| rest.strip_prefix('.')).unwrap_or("")
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
            let word = match self.gravity {
                Gravity::Error => "error",
                Gravity::Warning => "warning",
            };
            writeln!(f, "{word}: {}", problem.headline())?;
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

/// A file's control characters must not reach the terminal.
pub(super) fn visible(line: &str) -> String {
    line.chars()
        .map(|c| {
            if is_printable(c) || c == '\t' {
                c
            } else {
                '\u{fffd}'
            }
        })
        .collect()
}
