//! What is wrong with a document: every problem at once, each with its place.

use std::{
    borrow::Cow,
    error::Error,
    fmt::{self, Write},
    sync::Arc,
};

use crate::{JsonError, Place};

/// The most problems that are kept of one document. With more, the errors are systematic.
pub(crate) const MAX_KEPT: usize = 100;

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
    /// A problem without a hint.
    pub fn new(path: impl Into<String>, place: Option<Place>, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            limit: None,
            place,
            message: message.into(),
            hint: None,
        }
    }

    /// Says what would be right.
    pub fn push_hint(&mut self, hint: impl Into<Cow<'static, str>>) {
        self.set_hint(hint.into());
    }

    fn set_hint(&mut self, hint: Cow<'static, str>) {
        self.hint = Some(hint.into_owned());
    }
}

/// Whether a document can be used in spite of its problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gravity {
    Error,
    Warning,
}

/// Everything that is wrong with one document; never empty.
///
/// Its `Display` is what a compiler would print: message, `file:line:column`,
/// the line itself with a caret, and a hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    list: Vec<Problem>,
    omitted: usize,
    gravity: Gravity,
    file: Option<String>,
    source: Option<Arc<str>>,
}

impl Problems {
    /// Problems that do not prevent the use of the document; `None` if there are none.
    pub fn warnings(list: Vec<Problem>) -> Option<Self> {
        let found = Self::found(list)?;
        Some(Self {
            gravity: Gravity::Warning,
            ..found
        })
    }

    /// `None` if there is nothing wrong.
    pub fn found(list: Vec<Problem>) -> Option<Self> {
        if list.is_empty() {
            return None;
        }
        // Keeps the first ones of the file, sorted by insertion: there are rarely many.
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
            gravity: Gravity::Error,
            file: None,
            source: None,
        })
    }

    /// A single problem, because of which nothing else can be read.
    pub fn one(problem: Problem) -> Self {
        Self {
            list: vec![problem],
            omitted: 0,
            gravity: Gravity::Error,
            file: None,
            source: None,
        }
    }

    /// The problem of bytes that are not JSON.
    pub fn not_json(error: JsonError) -> Self {
        Self::one(Problem::new("", None, format!("not JSON: {error}")))
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

    /// How many problems there are, including those not kept.
    pub fn count(&self) -> usize {
        self.list.len() + self.omitted
    }
}

impl Error for Problems {}

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
fn visible(line: &str) -> String {
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

/// The candidate that `text` was probably meant to be.
pub fn similar<'c>(text: &str, candidates: &[&'c str]) -> Option<&'c str> {
    // Longer words may differ more; and no name is longer than 64.
    let allowed = match text.len() {
        0..=64 => text.len().div_ceil(3),
        _ => return None,
    };
    let mut nearest = None;
    for candidate in candidates {
        let found = (distance(text, candidate), *candidate);
        if found.0 <= allowed && nearest.is_none_or(|nearest| found < nearest) {
            nearest = Some(found);
        }
    }
    nearest.map(|(_, candidate)| candidate)
}

/// The Levenshtein distance of two words in bytes; letters may be of either case, and `-` is as good as `_`.
pub fn distance(a: &str, b: &str) -> usize {
    let plain = |byte: u8| match byte {
        b'-' => b'_',
        byte => byte.to_ascii_lowercase(),
    };
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, byte_a) in a.bytes().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        let mut next = vec![left];
        for (byte_b, &above) in b.bytes().zip(row.iter().skip(1)) {
            let substituted = diagonal + usize::from(plain(byte_a) != plain(byte_b));
            left = substituted.min(above + 1).min(left + 1);
            diagonal = above;
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

const ESCAPE: char = '\u{1b}';

/// Whether a terminal just shows a character: it is not a control character, nor one that changes
/// the direction of text or ends a line.
pub fn is_printable(c: char) -> bool {
    !c.is_control()
        && !matches!(
            c,
            '\u{61c}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
                | '\u{feff}'
        )
}

/// Text from elsewhere, safe for terminals and logs: nothing in it moves the cursor, hides what comes after
/// it, or reorders what a reader sees. Unprintable characters are written as in JSON, `\u001b`; line breaks
/// and tabs stay.
pub fn printable(text: &str) -> Cow<'_, str> {
    rewrite(text, |_| 0)
}

/// The same, but colours and weights stay, for text that was styled by us.
pub fn printable_styled(text: &str) -> Cow<'_, str> {
    rewrite(text, style)
}

/// `keep` returns how many bytes stay as they are at an escape character.
fn rewrite(text: &str, keep: fn(&str) -> usize) -> Cow<'_, str> {
    let stays = |c: char| is_printable(c) || matches!(c, '\n' | '\t');
    if text.chars().all(stays) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let kept = if stays(c) { c.len_utf8() } else { keep(rest) };
        if kept == 0 {
            // Writing to a string cannot fail; all of them are in the first plane.
            write!(out, "\\u{:04x}", u32::from(c)).unwrap_or_default();
        }
        let (same, after) = rest.split_at_checked(kept).unwrap_or((rest, ""));
        out.push_str(same);
        rest = if kept == 0 {
            after.get(c.len_utf8()..).unwrap_or_default()
        } else {
            after
        };
    }
    Cow::Owned(out)
}

/// The length of a sequence that sets a colour or weight with which text can still be read.
fn style(text: &str) -> usize {
    let parameters = text
        .strip_prefix(ESCAPE)
        .and_then(|text| text.strip_prefix('['))
        .and_then(|text| text.split_once('m'));
    let readable = |parameter: &str| {
        let number: Option<u8> = parameter.parse().ok();
        parameter.is_empty() || matches!(number, Some(0..=4 | 31..=36 | 91..=96))
    };
    match parameters {
        Some((parameters, _)) if parameters.split(';').all(readable) => parameters.len() + 3,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
