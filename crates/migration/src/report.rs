//! The report of converting a file.

use std::{collections::HashSet, sync::Arc};

use documents::{Entry, Node, Place, Problem, Problems, Report, Value};
use limits_file::yaml;

use crate::File;

/// What the conversion of one file changes and loses.
#[derive(Clone, Debug)]
pub struct FileReport {
    /// The name of the file in messages.
    pub file: String,
    source: Arc<str>,
    changed: Vec<Problem>,
    lost: Vec<Problem>,
}

impl FileReport {
    pub(crate) fn new(file: &File<'_>, changed: Vec<Problem>, lost: Vec<Problem>) -> Self {
        Self {
            file: file.name.to_owned(),
            source: String::from_utf8_lossy(file.bytes).into(),
            changed,
            lost,
        }
    }

    /// Rules that are converted and mean something else than before.
    pub fn changed(&self) -> &[Problem] {
        &self.changed
    }

    /// What a limits file cannot express.
    pub fn lost(&self) -> &[Problem] {
        &self.lost
    }

    /// What is changed, as warnings with the lines that they are about.
    pub fn warnings(&self) -> Option<Problems> {
        let warnings = Problems::warnings(self.changed.clone())?;
        Some(warnings.in_file(&*self.file, Arc::clone(&self.source)))
    }

    /// What is lost, as errors with the lines that they are about.
    pub fn errors(&self) -> Option<Problems> {
        let errors = Problems::found(self.lost.clone())?;
        Some(errors.in_file(&*self.file, Arc::clone(&self.source)))
    }
}

/// One file while it is converted.
pub(crate) struct Reading {
    file: String,
    source: Arc<str>,
    /// The documents that could be read at all, in order; empty ones are left out.
    pub(crate) nodes: Vec<Node>,
    /// Whether they are what is in `ConfigMap`s.
    pub(crate) of_config_map: bool,
    /// With any of these the file cannot be used.
    pub(crate) errors: Report,
    /// See [`FileReport::changed`].
    pub(crate) changed: Report,
    /// See [`FileReport::lost`].
    pub(crate) lost: Report,
}

/// The documents of a text, by its name: of a file, or of an entry of a `ConfigMap`, which has these entries.
pub(crate) type Read = fn((&str, &[Entry]), &str, &mut Report) -> Vec<Node>;

/// Reads YAML or JSON.
pub(crate) fn yaml(_: (&str, &[Entry]), text: &str, report: &mut Report) -> Vec<Node> {
    yaml::load_all(text, report)
}

impl Reading {
    /// Loads a file.
    ///
    /// # Errors
    /// The bytes are not UTF-8.
    fn load(file: &File<'_>, read: Read) -> Result<Self, Problems> {
        yaml::from_text(file.name, file.bytes, |text| {
            let mut errors = Report::default();
            let mut of_config_map = false;
            let mut nodes = Vec::new();
            for node in read((file.name, &[]), text, &mut errors) {
                if node.get("kind").and_then(Node::as_text) == Some("ConfigMap") {
                    of_config_map = true;
                    nodes.extend(config_map(&node, text, read, &mut errors));
                } else {
                    nodes.push(node);
                }
            }
            nodes.retain(|node| node.value != Value::Null);
            Ok(Self {
                file: file.name.to_owned(),
                source: text.into(),
                nodes,
                of_config_map,
                errors,
                changed: Report::default(),
                lost: Report::default(),
            })
        })
    }

    /// The report of the file.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(crate) fn finish(self) -> Result<FileReport, Problems> {
        if let Some(problems) = Problems::found(self.errors.problems) {
            return Err(problems.in_file(self.file, self.source));
        }
        Ok(FileReport {
            file: self.file,
            source: self.source,
            changed: self.changed.problems,
            lost: self.lost.problems,
        })
    }
}

/// The documents in a `ConfigMap`, with their places in the file.
fn config_map(map: &Node, source: &str, read: Read, errors: &mut Report) -> Vec<Node> {
    let Some(Value::Map(data)) = map.get("data").map(|data| &data.value) else {
        return Vec::new();
    };
    let mut nodes = Vec::new();
    for entry in data {
        let Some(text) = entry.value.as_text() else {
            continue;
        };
        let mut report = Report::default();
        let mut found = read((&entry.key, data), text, &mut report);
        let shift = Shift::new(entry.value.place, source);
        for node in &mut found {
            shift.node(node);
        }
        for mut problem in report.problems {
            problem.place = shift.place(problem.place);
            errors.problems.push(problem);
        }
        nodes.append(&mut found);
    }
    nodes
}

/// From a place in a text of a YAML file to the place in that file.
struct Shift {
    /// Where the text begins.
    text: Option<Place>,
    /// Whether its lines are lines of the file: only after `|`.
    is_literal: bool,
}

impl Shift {
    fn new(text: Option<Place>, source: &str) -> Self {
        let header = text.and_then(|place| {
            let above = usize::try_from(place.line).ok()?.checked_sub(2)?;
            source.lines().nth(above)
        });
        Self {
            text,
            is_literal: header.is_some_and(|line| line.contains('|')),
        }
    }

    fn place(&self, inside: Option<Place>) -> Option<Place> {
        let (Some(text), Some(inside), true) = (self.text, inside, self.is_literal) else {
            return self.text;
        };
        Some(Place {
            line: text.line.saturating_add(inside.line).saturating_sub(1),
            column: text.column.saturating_add(inside.column).saturating_sub(1),
            width: inside.width,
        })
    }

    fn node(&self, node: &mut Node) {
        node.place = self.place(node.place);
        match &mut node.value {
            Value::List(items) => items.iter_mut().for_each(|item| self.node(item)),
            Value::Map(entries) => {
                for entry in entries {
                    entry.place = self.place(entry.place);
                    self.node(&mut entry.value);
                }
            }
            _ => {}
        }
    }
}

/// All files.
///
/// # Errors
/// The problems of files that cannot be read.
pub(crate) fn load_all(files: &[File<'_>], read: Read) -> Result<Vec<Reading>, Vec<Problems>> {
    let mut readings = load_as_written(files, read)?;
    for reading in &mut readings {
        // A file that is being written, mostly: it does not say that there are no limits.
        if reading.nodes.is_empty() && reading.errors.problems.is_empty() {
            let message = "there is nothing in it";
            let place = Some(Place::START);
            reading.errors.add(&documents::Path::Root, place, message);
        }
        let nodes = std::mem::take(&mut reading.nodes).into_iter();
        reading.nodes = nodes.map(plain).collect();
    }
    Ok(readings)
}

/// As [`load_all`], with fields that have no value: in an override, that is one.
///
/// # Errors
/// The problems of files that cannot be read.
pub(crate) fn load_as_written(
    files: &[File<'_>],
    read: Read,
) -> Result<Vec<Reading>, Vec<Problems>> {
    all(files.iter().map(|file| Reading::load(file, read)))
}

/// The reports of all files.
///
/// # Errors
/// The problems of files that cannot be used.
pub(crate) fn finish_all(readings: Vec<Reading>) -> Result<Vec<FileReport>, Vec<Problems>> {
    all(readings.into_iter().map(Reading::finish))
}

/// What each file gave, or the problems of all that gave none.
pub(crate) fn all<T>(
    files: impl Iterator<Item = Result<T, Problems>>,
) -> Result<Vec<T>, Vec<Problems>> {
    let (mut found, mut wrong) = (Vec::new(), Vec::new());
    for file in files {
        match file {
            Ok(file) => found.push(file),
            Err(problems) => wrong.push(problems),
        }
    }
    if wrong.is_empty() {
        Ok(found)
    } else {
        Err(wrong)
    }
}

/// A boolean of YAML 1.1, which has more words for it.
pub(crate) fn truth(word: &str) -> Option<bool> {
    match &*word.to_ascii_lowercase() {
        "true" | "yes" | "on" | "y" => Some(true),
        "false" | "no" | "off" | "n" => Some(false),
        _ => None,
    }
}

// --- Documents as common YAML readers see them: merge keys merged, fields without a value absent.

/// The document without `<<` and without fields that have no value.
pub(crate) fn plain(node: Node) -> Node {
    let value = match node.value {
        Value::List(items) => Value::List(items.into_iter().map(plain).collect()),
        Value::Map(entries) => Value::Map(merged(entries)),
        scalar => scalar,
    };
    Node { value, ..node }
}

fn merged(entries: Vec<Entry>) -> Vec<Entry> {
    let (merges, own): (Vec<_>, Vec<_>) = entries.into_iter().partition(is_merge);
    let mut fields: Vec<Entry> = own
        .into_iter()
        .filter(|entry| entry.value.value != Value::Null)
        .map(|entry| Entry {
            value: plain(entry.value),
            ..entry
        })
        .collect();
    if merges.is_empty() {
        return fields;
    }
    // A map's own fields win; of several merged maps the first wins.
    let mut known: HashSet<String> = fields.iter().map(|field| field.key.clone()).collect();
    for merge in merges {
        let maps = match merge.value.value {
            Value::List(maps) => maps,
            _ => vec![merge.value],
        };
        for map in maps {
            let Value::Map(entries) = plain(map).value else {
                continue;
            };
            for entry in entries {
                if known.insert(entry.key.clone()) {
                    fields.push(entry);
                }
            }
        }
    }
    fields
}

fn is_merge(entry: &Entry) -> bool {
    let map = |node: &Node| matches!(node.value, Value::Map(_));
    entry.key == "<<" && (map(&entry.value) || entry.value.items().iter().all(map))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merge_keys_and_empty_fields() {
        let text = "\
base: &base {unit: second, requests_per_unit: 5}
a: {<<: *base, requests_per_unit: 7}
b:
c: [{<<: [*base, {unit: day, name: x}]}]
";
        let node = plain(yaml::read("", text.as_bytes()).unwrap());
        assert!(node.get("b").is_none());
        let a = node.get("a").unwrap();
        assert_eq!(a.get("requests_per_unit").unwrap().as_text(), Some("7"));
        assert_eq!(a.get("unit").unwrap().as_text(), Some("second"));
        let c = node.get("c").unwrap().items().first().unwrap();
        assert_eq!(c.get("unit").unwrap().as_text(), Some("second"));
        assert_eq!(c.get("name").unwrap().as_text(), Some("x"));
    }
}
