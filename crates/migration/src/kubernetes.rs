//! `RateLimit` objects in manifests: the limits files that they become in the store.

use std::collections::BTreeMap;

use ::kubernetes::{
    AncestorResult, Key, Objects, ToObjects, api_version, from_limits_file, translate,
};
use documents::{Node, Place, Problem, Problems};
use limits_file::ToNode as _;

use crate::{
    Conversion, Domain, File, FileReport,
    report::{all, finish_all, load_as_written, yaml},
};

/// Where an object stands: its file, and its name there.
type Places = BTreeMap<(String, Key), (usize, Option<Place>)>;

pub(crate) fn convert(files: &[File<'_>]) -> Result<Conversion, Vec<Problems>> {
    let mut readings = load_as_written(files, yaml)?;
    let mut objects = Objects::default();
    let mut places = Places::new();
    for (file, reading) in readings.iter_mut().enumerate() {
        for node in std::mem::take(&mut reading.nodes) {
            match objects.read(&node) {
                Ok(mut unknown) => reading.lost.problems.append(&mut unknown),
                Err(problem) => reading.errors.problems.push(problem),
            }
            note_places(&node, file, &mut places);
        }
    }
    let is_wrong = { readings.iter() }.any(|reading| !reading.errors.problems.is_empty());
    if objects.rate_limits.is_empty() && objects.domains.is_empty() && !is_wrong {
        let message = format!("no RateLimit and no RateLimitDomain of {}", api_version());
        for reading in &mut readings {
            reading
                .errors
                .problems
                .push(Problem::new("", Some(Place::START), message.clone()));
        }
    }
    objects.add_implied();
    let found = translate(&objects);
    let mut lose = |kind: &str, key: &Key, message: String| {
        let (file, place) =
            { places.get(&(kind.to_owned(), key.clone())).copied() }.unwrap_or_default();
        if let Some(reading) = readings.get_mut(file) {
            reading.lost.problems.push(Problem::new("", place, message));
        }
    };
    for (name, domain) in &found.domain_objects {
        if !domain.accepted.ok {
            let message = format!("RateLimitDomain {name}: {}", domain.accepted.message);
            lose("RateLimitDomain", &Key::new("", name), message);
        }
    }
    for (key, object) in &found.objects {
        for refused in object.ancestors.iter().filter(|found| !found.accepted.ok) {
            lose("RateLimit", key, refusal(key, refused));
        }
    }
    let domains = found.domains.into_values().map(|domain| Domain {
        document: domain.policy.to_node(),
        policy: domain.policy,
    });
    let domains = domains.collect();
    let reports = finish_all(readings)?;
    Ok(Conversion { domains, reports })
}

fn refusal(key: &Key, found: &AncestorResult) -> String {
    format!("RateLimit {key}: {}", found.accepted.message)
}

fn note_places(node: &Node, file: usize, places: &mut Places) {
    let text = |node: Option<&Node>| node.and_then(Node::as_text).unwrap_or_default().to_owned();
    let kind = text(node.get("kind"));
    if kind.ends_with("List") {
        for item in node.get("items").map(Node::items).unwrap_or_default() {
            note_places(item, file, places);
        }
    }
    if let Some(metadata) = node.get("metadata") {
        let key = Key::new(text(metadata.get("namespace")), text(metadata.get("name")));
        let place = metadata.get("name").and_then(|name| name.place);
        places.insert((kind, key), (file, place));
    }
}

// --- The way back.

/// Limits files as objects: the document of each domain is a `List`.
///
/// # Errors
/// The problems of each file that is not valid.
pub fn to_objects(files: &[File<'_>], options: &ToObjects) -> Result<Conversion, Vec<Problems>> {
    let made = all(files.iter().map(|file| {
        let policy = limits_file::read(file.name, file.bytes)?;
        let made = from_limits_file(&policy, options);
        let document = Node::map([
            ("apiVersion", Node::text("v1")),
            ("kind", Node::text("List")),
            ("items", Node::list(made.documents)),
        ]);
        let report = FileReport::new(file, made.changed, made.lost);
        Ok((Domain { document, policy }, report))
    }));
    let (domains, reports) = made?.into_iter().unzip();
    Ok(Conversion { domains, reports })
}
