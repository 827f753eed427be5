//! Sources of entries: the built-in ones, and those in `descriptors`.

use documents::{Choice, Field, Fields, Name, Node, Path, Report, Take, Value};

use policy::{REMOTE_ADDRESS, WHOLE_ADDRESS};

use crate::{Format, IfSeveral, Prefixes, Source};

const SOURCES: [&str; 6] = ["header", "cookie", "query", "metadata", "property", "value"];
const FIELDS: [&str; 10] = [
    "key",
    "header",
    "cookie",
    "query",
    "metadata",
    "property",
    "value",
    "as",
    "if_several",
    "hash",
];
/// Envoy's pseudo-headers whose value is as the client sent it.
const PSEUDO_HEADERS: [&str; 4] = [":method", ":path", ":authority", ":scheme"];
/// The property in which other filters store values about a request.
const METADATA: &[u8] = b"metadata\0filter_metadata\0";
const MAX_DESCRIPTORS: usize = 64;

impl Choice for Format {
    const CHOICES: &'static [(&'static str, Self)] =
        &[("text", Self::Text), ("integer", Self::Integer)];
}

impl Choice for IfSeveral {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("share", Self::Share),
        ("first", Self::First),
        ("last", Self::Last),
    ];
}

/// The entries that every request has without configuration.
fn built_in(prefixes: Prefixes) -> Vec<(Name, Source)> {
    const SOURCES: usize = 8;
    let whole = Prefixes { v4: 32, v6: 128 };
    let property = |path: &[u8]| Source::Property(path.to_vec(), Format::Text);
    let sources: [(&str, Source); SOURCES] = [
        ("method", Source::Method),
        ("path", Source::Path),
        ("host", Source::Host),
        ("route", property(b"xds\0route_name")),
        (REMOTE_ADDRESS, Source::RemoteAddress(prefixes)),
        (WHOLE_ADDRESS, Source::RemoteAddress(whole)),
        ("workload", property(b"node\0metadata\0WORKLOAD_NAME")),
        ("namespace", property(b"node\0metadata\0NAMESPACE")),
    ];
    let mut named = Vec::with_capacity(SOURCES);
    for (key, source) in sources {
        if let Ok(key) = key.parse() {
            named.push((key, source));
        }
    }
    named
}

pub(crate) fn read_prefixes(take: &mut Take<'_, '_>) -> Prefixes {
    let mut prefixes = Prefixes::default();
    let Some(field) = take.field("remote_address") else {
        return prefixes;
    };
    field.read_map(&["v4", "v6"], take.report, &mut |inner| {
        for (name, most, prefix) in [("v4", 32, &mut prefixes.v4), ("v6", 128, &mut prefixes.v6)] {
            let Some(field) = inner.field(name) else {
                continue;
            };
            let bits = field
                .node
                .as_text()
                .and_then(|text| text.parse::<u64>().ok());
            match bits.and_then(|bits| u8::try_from(bits).ok()) {
                Some(bits) if bits <= most => *prefix = bits,
                _ => {
                    let what = format!("a prefix length from 0 to {most}");
                    field.expected(&what, inner.report);
                }
            }
        }
    });
    prefixes
}

pub(crate) fn read(take: &mut Take<'_, '_>, prefixes: Prefixes) -> Vec<(Name, Source)> {
    let mut sources = built_in(prefixes);
    let Some(field) = take.field("descriptors") else {
        return sources;
    };
    let Value::List(items) = &field.node.value else {
        field.expected("a list of descriptors", take.report);
        return sources;
    };
    if items.len() > MAX_DESCRIPTORS {
        field.report(
            take.report,
            format!("more than {MAX_DESCRIPTORS} descriptors"),
        );
        return sources;
    }
    let built_in = sources.len();
    for (index, node) in items.iter().enumerate() {
        let item = Field {
            node,
            path: Path::Item(&field.path, index),
        };
        let Some((key, source)) = read_one(item, take.report) else {
            continue;
        };
        match sources.iter().position(|(known, _)| *known == key) {
            None => sources.push((key, source)),
            Some(at) => {
                let why = if at < built_in {
                    "is built in"
                } else {
                    "is there already"
                };
                item.report(take.report, format!("`{key}` {why}"))
                    .push_hint("choose another key");
            }
        }
    }
    sources
}

fn read_one(item: Field<'_>, report: &mut Report) -> Option<(Name, Source)> {
    let mut fields = Fields::of(item, report)?;
    let take = &mut Take {
        fields: &mut fields,
        path: &item.path,
        report,
    };
    let key = take.field("key");
    let key = key.and_then(|field| field.name("the entry's key", take.report));
    if item.node.get("key").is_none() {
        item.report(take.report, "`key` is missing");
    }
    let (format, several) = (take.field("as"), take.field("if_several"));
    let chosen = (
        format.and_then(|field| field.choice::<Format>(take.report)),
        several.and_then(|field| field.choice::<IfSeveral>(take.report)),
    );
    let mut given = Vec::with_capacity(SOURCES.len());
    for name in SOURCES {
        given.extend(take.field(name).map(|field| (name, field)));
    }
    let source = if let [(name, field)] = given.as_slice() {
        read_source(name, *field, chosen, take.report)
    } else {
        let message = "a descriptor has one of header, cookie, query, metadata, property, value";
        item.report(take.report, message);
        None
    };
    if let (Some(field), Some(source)) = (format, &source)
        && !matches!(source, Source::Property(..))
    {
        field.report(take.report, "`as` goes with `metadata` and `property` only");
    }
    if let (Some(field), Some(source)) = (several, &source)
        && !matches!(
            source,
            Source::Header(..) | Source::Cookie(..) | Source::Query(..)
        )
    {
        let message = "`if_several` goes with `header`, `cookie` and `query` only";
        field.report(take.report, message);
    }
    let hash = take.boolean("hash").unwrap_or(false);
    fields.finish(&item.path, &FIELDS, report);
    let source = source?;
    let source = if hash {
        Source::Hashed(Box::new(source))
    } else {
        source
    };
    Some((key?, source))
}

fn read_source(
    name: &str,
    field: Field<'_>,
    (format, several): (Option<Format>, Option<IfSeveral>),
    report: &mut Report,
) -> Option<Source> {
    let several = several.unwrap_or_default();
    Some(match name {
        "header" => Source::Header(read_header(field, report)?, several),
        "cookie" => Source::Cookie(read_text(field, "the name of a cookie", report)?, several),
        "query" => Source::Query(
            read_text(field, "the name of a parameter", report)?,
            several,
        ),
        "value" => Source::Constant(read_text(field, "text", report)?.into_bytes()),
        "metadata" => {
            let mut path = METADATA.to_vec();
            path.append(&mut read_path(field, report)?);
            Source::Property(path, format.unwrap_or(Format::Metadata))
        }
        _ => {
            let path = read_path(field, report)?;
            let usual = if path.starts_with(METADATA) {
                Format::Metadata
            } else {
                Format::Text
            };
            Source::Property(path, format.unwrap_or(usual))
        }
    })
}

fn read_text(field: Field<'_>, what: &str, report: &mut Report) -> Option<String> {
    field.text(what, report).map(str::to_owned)
}

fn read_header(field: Field<'_>, report: &mut Report) -> Option<String> {
    let text = field.text("the name of a header", report)?;
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if !text.is_empty() && text.bytes().all(is_token) || PSEUDO_HEADERS.contains(&text) {
        return Some(text.to_ascii_lowercase());
    }
    let problem = field.expected("the name of a header", report);
    if text.starts_with(':') {
        problem.push_hint("of those with a colon: :method, :path, :authority and :scheme");
    }
    None
}

/// A list of texts, converted to the host's format of a path.
fn read_path(field: Field<'_>, report: &mut Report) -> Option<Vec<u8>> {
    let path = path_of(field.node.items());
    if path.is_none() {
        field.expected("a list of texts, the way to a value", report);
    }
    path
}

fn path_of(parts: &[Node]) -> Option<Vec<u8>> {
    let (first, rest) = parts.split_first()?;
    let part_of = |node: &Node| {
        let text = node.as_text().filter(|text| !text.contains('\0'))?;
        Some(text.as_bytes().to_vec())
    };
    let mut path = part_of(first)?;
    for part in rest {
        path.push(0);
        path.append(&mut part_of(part)?);
    }
    Some(path)
}
