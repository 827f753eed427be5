//! Limitador's limits file: a list of limits, each with a namespace, conditions and variables.

mod condition;
mod expression;
mod unsupported;

use std::collections::HashMap;

use documents::{Entry, Field, Name, Node, Path, Problems, Value, similar};

use crate::{
    Conversion, File,
    assemble::{DomainDraft, Draft, Fields, assemble},
    names::Unique,
    report::{Reading, load_all, yaml},
};

use condition::{Matchers, parse_condition, parse_variable};

const LIMIT: [&str; 7] = [
    "namespace",
    "max_value",
    "seconds",
    "conditions",
    "variables",
    "name",
    "id",
];

/// The most entries in the `per` of one limit.
const MAX_PER: usize = 16;

pub(crate) fn convert(files: &[File<'_>]) -> Result<Conversion, Vec<Problems>> {
    let mut readings = load_all(files, yaml)?;
    let mut domains = Domains::default();
    for (file, reading) in readings.iter_mut().enumerate() {
        for node in std::mem::take(&mut reading.nodes) {
            limits(file, &node, reading, &mut domains);
        }
    }
    assemble(domains.list, readings)
}

/// The limits by namespace, in the order in which the namespaces appear.
#[derive(Default)]
struct Domains {
    list: Vec<DomainDraft>,
    names: HashMap<String, (usize, Unique)>,
}

impl Domains {
    fn add(&mut self, found: &Found, file: usize) {
        let next = self.list.len();
        let (at, names) = { self.names.entry(found.namespace.clone()) }
            .or_insert_with(|| (next, Unique::default()));
        if *at == next {
            self.list.push(DomainDraft {
                name: found.namespace.clone(),
                limits: Vec::new(),
            });
        }
        let node = found.to_node(names);
        if let Some(domain) = self.list.get_mut(*at) {
            domain.limits.push(Draft {
                node,
                file,
                place: found.place,
            });
        }
    }
}

/// One limit of Limitador's.
#[derive(Default)]
struct Found {
    namespace: String,
    name: Option<String>,
    max_value: u64,
    seconds: u64,
    matchers: Matchers,
    per: Vec<Name>,
    /// The conditions and variables as written.
    written: Vec<String>,
    place: Option<documents::Place>,
}

fn limits(file: usize, node: &Node, reading: &mut Reading, domains: &mut Domains) {
    let root = Field {
        node,
        path: Path::Root,
    };
    let spec = node.get("spec").map(|node| Field {
        node,
        path: Path::Field(&root.path, "spec"),
    });
    let holder = spec.unwrap_or(root);
    let list = match holder.node.get("limits") {
        Some(node) => Field {
            node,
            path: Path::Field(&holder.path, "limits"),
        },
        None => root,
    };
    let Value::List(items) = &list.node.value else {
        list.expected("a list of limits", &mut reading.errors)
            .push_hint("Limitador's LIMITS_FILE, or a `Limitador` resource with `spec.limits`");
        return;
    };
    for (index, node) in items.iter().enumerate() {
        let item = Field {
            node,
            path: Path::Item(&list.path, index),
        };
        if let Some(found) = limit(&item, reading) {
            domains.add(&found, file);
        }
    }
}

/// One limit; `None` if it is invalid or any part of it cannot be expressed: without one of its
/// conditions it would apply to more requests.
fn limit(item: &Field<'_>, reading: &mut Reading) -> Option<Found> {
    let entries = item.entries("a limit", &mut reading.errors)?;
    let (wrong, lost) = (reading.errors.problems.len(), reading.lost.problems.len());
    let mut found = Found {
        place: entries.first().and_then(|entry| entry.place),
        ..Found::default()
    };
    for entry in &entries {
        read_field(&mut found, item, entry, reading);
    }
    for needed in ["namespace", "max_value", "seconds"] {
        if !entries.iter().any(|entry| snake_case(&entry.key) == needed) {
            let message = format!("a limit needs `{needed}`");
            reading.errors.add(&item.path, found.place, message);
        }
    }
    reading.errors.has_only(wrong)?;
    if reading.lost.has_only(lost).is_none() {
        let message = "this limit is left out, because part of it cannot be expressed";
        reading.lost.add(&item.path, found.place, message);
        return None;
    }
    Some(found)
}

fn read_field(found: &mut Found, item: &Field<'_>, entry: &Entry, reading: &mut Reading) {
    let field = Field {
        node: &entry.value,
        path: Path::Field(&item.path, &entry.key),
    };
    let errors = &mut reading.errors;
    match snake_case(&entry.key).as_str() {
        "namespace" => {
            let text = field.text("the name of a namespace", errors);
            text.unwrap_or_default().clone_into(&mut found.namespace);
        }
        "max_value" => found.max_value = field.integer(0, errors).unwrap_or(0),
        "seconds" => found.seconds = field.integer(1, errors).unwrap_or(1),
        // The name says more than the identifier.
        "name" => found.name = field.text("a name", errors).map(str::to_owned),
        "id" => {
            let id = field.text("an identifier", errors);
            found.name = found.name.take().or(id.map(str::to_owned));
        }
        "conditions" => conditions(found, &field, reading),
        "variables" => variables(found, &field, reading),
        _ => {
            let problem = errors.add(&field.path, entry.place, "unknown field");
            match similar(&snake_case(&entry.key), &LIMIT) {
                Some(meant) => problem.push_hint(format!("did you mean `{meant}`?")),
                None => problem.push_hint(format!("known fields: {}", LIMIT.join(", "))),
            }
        }
    }
}

/// Kuadrant's resources have fields in camelCase, `maxValue`.
fn snake_case(key: &str) -> String {
    let mut snake = String::with_capacity(key.len() + 2);
    for c in key.chars() {
        if c.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}

fn conditions(found: &mut Found, list: &Field<'_>, reading: &mut Reading) {
    for_each_text(list, reading, |text, field, reading| {
        let parsed = parse_condition(text).and_then(|tests| {
            tests
                .into_iter()
                .try_for_each(|test| found.matchers.add(test))
        });
        match parsed {
            Ok(()) => found.written.push(text.to_owned()),
            Err(why) => {
                field.report(&mut reading.lost, why.to_string());
            }
        }
    });
}

fn variables(found: &mut Found, list: &Field<'_>, reading: &mut Reading) {
    for_each_text(list, reading, |text, field, reading| {
        match parse_variable(text) {
            Ok(_) if found.per.len() == MAX_PER => {
                field.report(&mut reading.lost, format!("more than {MAX_PER} variables"));
            }
            Ok(name) => {
                found.written.push(text.to_owned());
                if !found.per.contains(&name) {
                    found.per.push(name);
                }
            }
            Err(why) => {
                field.report(&mut reading.lost, why.to_string());
            }
        }
    });
}

fn for_each_text(
    list: &Field<'_>,
    reading: &mut Reading,
    mut each: impl FnMut(&str, &Field<'_>, &mut Reading),
) {
    let Value::List(items) = &list.node.value else {
        list.expected("a list of expressions", &mut reading.errors);
        return;
    };
    for (index, node) in items.iter().enumerate() {
        let item = Field {
            node,
            path: Path::Item(&list.path, index),
        };
        if let Some(text) = item.text("an expression", &mut reading.errors) {
            each(text, &item, reading);
        }
    }
}

impl Found {
    fn to_node(&self, names: &mut Unique) -> Node {
        let written = self.written.join(" ");
        let name = self.name.clone().unwrap_or_else(|| match written.as_str() {
            "" => format!("all.{}s", self.seconds),
            // The index of the descriptor no longer matters.
            written => format!(
                "{} {}s",
                written.replace("descriptors[0]", ""),
                self.seconds
            ),
        });
        let mut fields = Fields::default();
        fields.text("name", names.name(&name));
        if !written.is_empty() {
            fields.description(&written);
        }
        if let Some(matchers) = self.matchers.to_node() {
            fields.set("match", matchers);
        }
        fields.names("per", &self.per);
        if !self.per.is_empty() {
            fields.text("if_missing", "skip");
        }
        fields.text("algorithm", "fixed_window");
        fields.text(
            "rate",
            format!("{}/{}", self.max_value, period(self.seconds)),
        );
        // Limitador's windows start at the first request that they count.
        fields.text("align", "first_request");
        fields.finish()
    }
}

/// `60` is `m`, `90` is `90s`.
fn period(seconds: u64) -> String {
    let period = policy::Duration(seconds.saturating_mul(1000)).to_string();
    match period.strip_prefix('1') {
        Some(unit) if unit.starts_with(|c: char| c.is_ascii_alphabetic()) => unit.to_owned(),
        _ => period,
    }
}
