//! Reads the fields of a map one by one, and collects every problem.

use std::{borrow::Cow, collections::HashSet, fmt, mem};

use crate::{
    Choice, Entry, Name, Node, Place, Problem, Problems, Value, problem::MAX_KEPT, similar,
};

/// The longest path in a message, in characters: keys can be of any length.
const MAX_PATH: usize = 200;

/// The problems found so far, and what is being read.
#[derive(Debug, Default)]
pub struct Report {
    /// Everything wrong with it so far.
    pub problems: Vec<Problem>,
    /// The limit that is being read, once its name is known.
    pub limit: Option<String>,
}

impl Report {
    /// `None` if there are more than `problems` problems.
    pub fn has_only(&self, problems: usize) -> Option<()> {
        (self.problems.len() <= problems).then_some(())
    }

    /// Whether to look for what was meant: not for problems that are not kept, since that compares with many words.
    pub fn gives_hints(&self) -> bool {
        self.problems.len() < MAX_KEPT
    }

    /// What was read, if there was nothing wrong with it.
    ///
    /// # Errors
    /// Every problem found.
    pub fn finish<T>(self, found: Option<T>) -> Result<T, Problems> {
        match (found, self.all()) {
            (Some(found), None) => Ok(found),
            (_, Some(problems)) => Err(problems),
            (None, None) => Err(nothing_to_read()),
        }
    }

    fn all(self) -> Option<Problems> {
        Problems::found(self.problems)
    }

    /// Adds a problem with a field; the caller may add a hint.
    pub fn add(
        &mut self,
        path: &Path<'_>,
        place: Option<Place>,
        message: impl Into<Cow<'static, str>>,
    ) -> &mut Problem {
        self.add_text(path, place, message.into())
    }

    fn add_text(
        &mut self,
        path: &Path<'_>,
        place: Option<Place>,
        message: Cow<'static, str>,
    ) -> &mut Problem {
        let mut path = path.to_string();
        if let Some((end, _)) = path.char_indices().nth(MAX_PATH) {
            path.truncate(end);
            path.push('…');
        }
        let mut problem = Problem::new(path, place, message.into_owned());
        problem.limit.clone_from(&self.limit);
        self.problems.push_mut(problem)
    }
}

fn nothing_to_read() -> Problems {
    Problems::one(Problem::new("", None, "nothing to read"))
}

/// The path from the document to a value. Formatted only when there is a problem to report.
#[derive(Clone, Copy, Debug)]
pub enum Path<'p> {
    /// At the document.
    Root,
    /// At a field of a map.
    Field(&'p Path<'p>, &'p str),
    /// At an item of a list.
    Item(&'p Path<'p>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root => Ok(()),
            Path::Field(Path::Root, name) => f.write_str(name),
            Path::Field(parent, name) => write!(f, "{parent}.{name}"),
            Path::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// A value and the path to it.
#[derive(Clone, Copy, Debug)]
pub struct Field<'n> {
    /// The value.
    pub node: &'n Node,
    /// The path.
    pub path: Path<'n>,
}

impl<'n> Field<'n> {
    /// The document itself.
    pub const fn root(node: &'n Node) -> Self {
        let path = Path::Root;
        Self { node, path }
    }

    /// An entry of this map.
    #[must_use]
    pub const fn below(&'n self, entry: &'n Entry) -> Self {
        Self {
            node: &entry.value,
            path: Path::Field(&self.path, entry.key.as_str()),
        }
    }

    /// An item of this list.
    #[must_use]
    pub const fn item(&'n self, index: usize, node: &'n Node) -> Self {
        let path = Path::Item(&self.path, index);
        Self { node, path }
    }

    /// Adds a problem with this value; the caller may add a hint.
    pub fn report<'r>(
        &self,
        report: &'r mut Report,
        message: impl Into<Cow<'static, str>>,
    ) -> &'r mut Problem {
        report.add(&self.path, self.node.place, message)
    }

    /// Adds the problem that this value is not what it has to be.
    pub fn expected<'r>(&self, what: &str, report: &'r mut Report) -> &'r mut Problem {
        let message = match self.node.as_text() {
            Some(text) => format!("expected {what}, found {}", quoted(text)),
            None => format!("expected {what}, found {}", self.node.kind()),
        };
        self.report(report, message)
    }

    /// The entries of a map, without repeated keys.
    pub fn entries(&self, what: &str, report: &mut Report) -> Option<Vec<&'n Entry>> {
        let Value::Map(entries) = &self.node.value else {
            self.expected(what, report);
            return None;
        };
        let mut keys = HashSet::with_capacity(entries.len());
        let mut once = Vec::with_capacity(entries.len());
        for entry in entries {
            if keys.insert(entry.key.as_str()) {
                once.push(entry);
            } else {
                let path = Path::Field(&self.path, &entry.key);
                report.add(&path, entry.place, "given twice");
            }
        }
        Some(once)
    }
}

/// The fields of a map, to be taken by name, the path to it, and the problems found.
#[derive(Debug)]
pub struct Take<'t, 'p> {
    left: Vec<&'p Entry>,
    /// The path to the map.
    pub path: &'p Path<'p>,
    /// Where problems go.
    pub report: &'t mut Report,
}

impl<'t, 'p> Take<'t, 'p> {
    /// `None`, and a problem, if the value is not a map.
    pub fn new(map: &'p Field<'p>, report: &'t mut Report) -> Option<Self> {
        Some(Self {
            left: map.entries("a map of fields", report)?,
            path: &map.path,
            report,
        })
    }
}

impl Field<'_> {
    /// Reads a map that may have only the `known` fields. `None`, and a problem, if it is not a
    /// map.
    pub fn read_map(
        &self,
        known: &[&str],
        report: &mut Report,
        read: &mut dyn FnMut(&mut Take<'_, '_>),
    ) -> Option<()> {
        let mut take = Take::new(self, report)?;
        read(&mut take);
        take.finish(known);
        Some(())
    }
}

impl<'p> Take<'_, 'p> {
    /// The field, if it was given.
    pub fn field(&mut self, name: &'p str) -> Option<Field<'p>> {
        let at = self.left.iter().position(|entry| entry.key == name)?;
        let entry = self.left.remove(at);
        let field = Field {
            node: &entry.value,
            path: Path::Field(self.path, name),
        };
        if entry.value.value == Value::Null {
            let place = entry.value.place.or(entry.place);
            self.report
                .add(&field.path, place, "no value")
                .push_hint("give it one, or remove the line");
            return None;
        }
        Some(field)
    }

    /// Reports the fields that were not taken.
    pub fn finish(&mut self, known: &[&str]) {
        for entry in mem::take(&mut self.left) {
            let path = Path::Field(self.path, &entry.key);
            let hinted = self.report.gives_hints();
            let problem = self.report.add(&path, entry.place, "unknown field");
            if !hinted {
                continue;
            }
            if entry.key == "<<" {
                problem.push_hint(
                    "merge keys are not supported: write the fields here as well; an alias (`rate: *r`) can \
                     stand for a value",
                );
            } else if matches!(entry.key.as_str(), "shadow" | "shadow_mode" | "dry_run")
                && known.contains(&"enforce")
            {
                problem.push_hint("a limit that only counts has `enforce: 0%`");
            } else if let Some(meant) = similar(&entry.key, known) {
                problem.push_hint(format!("did you mean `{meant}`?"));
            } else {
                problem.push_hint(format!("known fields: {}", known.join(", ")));
            }
        }
    }

    /// The field's value, or the default where it is absent or wrong.
    pub fn choice<T: Choice + Default>(&mut self, name: &'p str) -> T {
        self.field(name)
            .and_then(|field| field.choice(self.report))
            .unwrap_or_default()
    }

    /// A whole number.
    pub fn integer(&mut self, name: &'p str, least: u64) -> Option<u64> {
        self.field(name)?.integer(least, self.report)
    }

    /// A whole percentage.
    pub fn percent(&mut self, name: &'p str, least: u32, most: u32) -> Option<u32> {
        self.field(name)?.percent(least, most, self.report)
    }

    /// A boolean.
    pub fn boolean(&mut self, name: &'p str) -> Option<bool> {
        self.field(name)?.boolean(self.report)
    }

    /// A list of different names.
    pub fn names(&mut self, name: &'p str, what: &str) -> Vec<Name> {
        self.field(name)
            .and_then(|field| field.names(what, self.report))
            .unwrap_or_default()
    }
}

/// A value in a message, shortened.
pub fn quoted(text: &str) -> String {
    const MAX: usize = 60;
    let mut short = String::with_capacity(text.len().min(MAX) + 2);
    short.push('`');
    for c in text.chars().take(MAX) {
        if crate::is_printable(c) {
            short.push(c);
        } else {
            for part in c.escape_default() {
                short.push(part);
            }
        }
    }
    short.push_str(if text.chars().nth(MAX).is_some() {
        "…`"
    } else {
        "`"
    });
    short
}
