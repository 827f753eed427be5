//! What is wrong with a document: every problem at once, each with its place.

mod excerpt;
mod render;
mod similar;

use std::{borrow::Cow, error::Error, sync::Arc};

use crate::{JsonError, Place};

pub use similar::{distance, similar};

/// The most problems that are kept of one document. With more, the errors are systematic.
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

    pub(crate) fn hint(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.push_hint(hint);
        self
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
