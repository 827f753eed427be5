//! What is wrong with a document: every problem at once, each with its place.

use std::{error::Error, fmt, sync::Arc};

use crate::document::Place;

/// Problems that are kept of one document. Beyond them there is a rule behind the errors.
const MAX_KEPT: usize = 100;

/// One thing that is wrong, where, and what was expected instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The field, as `limits[2].rate`; empty for the document as a whole.
    pub path: String,
    /// The limit the field belongs to, if its name could be read.
    pub limit: Option<String>,
    /// Where it stands, if the document was read from a file.
    pub place: Option<Place>,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub hint: Option<String>,
}

impl Problem {
    pub(crate) fn new(
        path: impl Into<String>,
        place: Option<Place>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            path: path.into(),
            limit: None,
            place,
            message: message.into(),
            hint: None,
        }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.push_hint(hint);
        self
    }

    /// Says what would be right.
    pub fn push_hint(&mut self, hint: impl Into<String>) {
        self.hint = Some(hint.into());
    }
}

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

/// Everything that is wrong with one document; never empty.
///
/// Its `Display` is what a compiler would print: message, `file:line:column`,
/// the line itself with a caret, and a hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    list: Vec<Problem>,
    omitted: usize,
    file: Option<String>,
    source: Option<Arc<str>>,
}

impl Problems {
    /// `None` if there is nothing wrong.
    pub(crate) fn found(list: Vec<Problem>) -> Option<Self> {
        if list.is_empty() {
            return None;
        }
        // The first ones of the file, found by insertion: there are rarely many.
        let count = list.len();
        let mut kept: Vec<Problem> = Vec::with_capacity(count.min(MAX_KEPT));
        for problem in list {
            let at = kept.partition_point(|earlier| earlier.place <= problem.place);
            if at < MAX_KEPT {
                kept.truncate(MAX_KEPT - 1);
                kept.insert(at, problem);
            }
        }
        Some(Self {
            omitted: count - kept.len(),
            list: kept,
            file: None,
            source: None,
        })
    }

    pub(crate) fn one(problem: Problem) -> Self {
        Self {
            list: vec![problem],
            omitted: 0,
            file: None,
            source: None,
        }
    }

    /// Names the file that the document came from, and keeps its text to quote from.
    #[must_use]
    pub fn in_file(mut self, name: impl Into<String>, source: impl Into<Arc<str>>) -> Self {
        self.file = Some(name.into());
        self.source = Some(source.into());
        self
    }

    /// The problems in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.list.iter()
    }

    /// How many there are, including those not kept.
    pub fn count(&self) -> usize {
        self.list.len() + self.omitted
    }

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

impl Error for Problems {}

/// Reads a file's bytes, and lets its problems quote from it.
#[cfg(feature = "yaml")]
pub(crate) fn in_text<T>(
    file: &str,
    bytes: &[u8],
    read: impl FnOnce(&str) -> Result<T, Problems>,
) -> Result<T, Problems> {
    match std::str::from_utf8(bytes) {
        Ok(text) => read(text).map_err(|problems| problems.in_file(file, text)),
        Err(error) => {
            let valid = bytes.get(..error.valid_up_to()).unwrap_or_default();
            let line = valid.split(|byte| *byte == b'\n').count();
            let before = valid.rsplit(|byte| *byte == b'\n').next();
            let column = String::from_utf8_lossy(before.unwrap_or_default())
                .chars()
                .count()
                + 1;
            let place = Place {
                line: u32::try_from(line).unwrap_or(u32::MAX),
                column: u32::try_from(column).unwrap_or(u32::MAX),
                width: 1,
            };
            let problem = Problem::new("", Some(place), "not UTF-8");
            let text = String::from_utf8_lossy(bytes);
            Err(Problems::one(problem).in_file(file, text))
        }
    }
}

/// The candidate that `text` was probably meant to be.
pub(crate) fn similar<'c>(
    text: &str,
    candidates: impl IntoIterator<Item = &'c str>,
) -> Option<&'c str> {
    // Longer words forgive more; and no name is longer than this.
    let allowed = match text.len() {
        0..=64 => text.len().div_ceil(3),
        _ => return None,
    };
    let lower = text.to_ascii_lowercase().replace('-', "_");
    candidates
        .into_iter()
        .map(|candidate| (distance(&lower, &candidate.replace('-', "_")), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Levenshtein distance in bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, byte_a) in a.bytes().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        let mut next = vec![left];
        for (byte_b, &above) in b.bytes().zip(row.iter().skip(1)) {
            let substituted = diagonal + usize::from(byte_a != byte_b);
            left = substituted.min(above + 1).min(left + 1);
            diagonal = above;
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_finds_the_word_that_was_meant() {
        let fields = ["rate", "burst", "over_limit", "on_failure"];
        assert_eq!(similar("brust", fields), Some("burst"));
        assert_eq!(similar("overlimit", fields), Some("over_limit"));
        assert_eq!(similar("over-limit", fields), Some("over_limit"));
        assert_eq!(similar("colour", fields), None);
    }
}
