//! Whether a value is as one of the JSON Schemas in docs/ says.
//!
//! By hand, because it serves tests only: the crate `jsonschema` brings 25 more into the workspace.

use std::{collections::HashMap, fs, path::Path, sync::OnceLock};

use anyhow::{Context, Result, bail, ensure};
use regex_lite::Regex;
use serde_json::{Map, Value};

const FILES: [&str; 2] = ["limits.schema.json", "rlctl-output.schema.json"];

/// Checks a value against a schema by its reference, `limits.schema.json#/$defs/limit`.
///
/// # Errors
/// The first place that is not as the schema says.
pub fn validate(reference: &str, value: &Value) -> Result<()> {
    let (root, schema) = resolve(&Value::Null, reference)?;
    check(root, schema, value).with_context(|| format!("{reference}: {value:#}"))
}

/// Checks a value against a schema within a document, by its place there: `/$defs/limit`.
///
/// # Errors
/// The first place that is not as the schema says.
pub fn validate_within(document: &Value, place: &str, value: &Value) -> Result<()> {
    let schema = document.pointer(place).with_context(|| place.to_owned())?;
    check(document, schema, value).with_context(|| format!("{place}: {value:#}"))
}

/// A file of docs/ by its name.
///
/// # Errors
/// It is not one of the schemas, or cannot be read.
pub fn document(name: &str) -> Result<&'static Value> {
    static DOCUMENTS: OnceLock<Result<HashMap<&str, Value>>> = OnceLock::new();
    match DOCUMENTS.get_or_init(read) {
        Ok(documents) => documents.get(name).context(name.to_owned()),
        Err(error) => bail!("{error:#}"),
    }
}

fn read() -> Result<HashMap<&'static str, Value>> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let read = |name: &'static str| {
        let text = fs::read_to_string(docs.join(name)).context(name)?;
        Ok((name, serde_json::from_str(&text).context(name)?))
    };
    FILES.into_iter().map(read).collect()
}

/// What a reference points to, and the file that references there are relative to.
fn resolve<'a>(root: &'a Value, reference: &str) -> Result<(&'a Value, &'a Value)> {
    let (file, pointer) = reference.split_once('#').unwrap_or((reference, ""));
    let root = if file.is_empty() {
        root
    } else {
        document(file)?
    };
    let schema = root.pointer(pointer).context(reference.to_owned())?;
    Ok((root, schema))
}

/// Just as much of JSON Schema as the files use: a keyword that is not here is an error.
fn check(root: &Value, schema: &Value, value: &Value) -> Result<()> {
    let keywords = schema.as_object().context("a schema is an object")?;
    for (keyword, argument) in keywords {
        one(root, keywords, (keyword, argument), value)?;
    }
    Ok(())
}

fn one(
    root: &Value,
    keywords: &Map<String, Value>,
    (keyword, argument): (&str, &Value),
    value: &Value,
) -> Result<()> {
    let number = || argument.as_u64().context("a number");
    let holds = match keyword {
        "$schema" | "$defs" | "title" | "description" | "default" | "then" => true,
        "$ref" => {
            let (root, schema) = resolve(root, argument.as_str().context("a reference")?)?;
            return check(root, schema, value);
        }
        "anyOf" | "oneOf" => {
            let options = argument.as_array().context("a list")?.iter();
            let fitting = options.filter(|option| check(root, option, value).is_ok());
            let fitting = fitting.count();
            fitting == 1 || keyword == "anyOf" && fitting > 1
        }
        "allOf" => {
            let all = argument.as_array().context("a list")?.iter();
            return { all }.try_for_each(|one| check(root, one, value));
        }
        "not" => check(root, argument, value).is_err(),
        // Whatever does not fulfil the condition fits.
        "if" => match keywords.get("then") {
            Some(then) if check(root, argument, value).is_ok() => return check(root, then, value),
            _ => true,
        },
        "const" => argument == value,
        "enum" => argument.as_array().context("a list")?.contains(value),
        "type" => match argument {
            Value::Array(types) => types.iter().any(|name| is_type(name, value)),
            name => is_type(name, value),
        },
        "minimum" => value
            .as_f64()
            .is_none_or(|n| n >= argument.as_f64().unwrap_or(f64::MAX)),
        "maximum" => value
            .as_f64()
            .is_none_or(|n| n <= argument.as_f64().unwrap_or(f64::MIN)),
        "pattern" => {
            let pattern = Regex::new(argument.as_str().context("a pattern")?)?;
            value.as_str().is_none_or(|text| pattern.is_match(text))
        }
        "maxLength" => {
            let max = number()?;
            value
                .as_str()
                .is_none_or(|text| text.chars().count() as u64 <= max)
        }
        "minItems" | "maxItems" | "uniqueItems" | "items" => {
            return value
                .as_array()
                .map_or(Ok(()), |list| items(root, keyword, argument, list));
        }
        _ => {
            return value.as_object().map_or(Ok(()), |map| {
                members(root, keywords, (keyword, argument), map)
            });
        }
    };
    ensure!(holds, "{value} is not as {keyword} {argument} says");
    Ok(())
}

fn is_type(name: &Value, value: &Value) -> bool {
    match name.as_str() {
        Some("string") => value.is_string(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        Some("null") => value.is_null(),
        _ => false,
    }
}

fn items(root: &Value, keyword: &str, argument: &Value, list: &[Value]) -> Result<()> {
    let bound = argument.as_u64().unwrap_or_default();
    let holds = match keyword {
        "minItems" => list.len() as u64 >= bound,
        "maxItems" => list.len() as u64 <= bound,
        "uniqueItems" => { list.iter().enumerate() }
            .all(|(n, item)| !list.iter().take(n).any(|other| other == item)),
        _ => return list.iter().try_for_each(|item| check(root, argument, item)),
    };
    ensure!(holds, "{keyword} {argument} of {} items", list.len());
    Ok(())
}

fn members(
    root: &Value,
    keywords: &Map<String, Value>,
    (keyword, argument): (&str, &Value),
    map: &Map<String, Value>,
) -> Result<()> {
    let known = keywords.get("properties").and_then(Value::as_object);
    let is_known = |key: &str| known.is_some_and(|known| known.contains_key(key));
    match keyword {
        "properties" => {
            for (key, value) in map {
                if let Some(schema) = argument.get(key) {
                    check(root, schema, value).with_context(|| key.clone())?;
                }
            }
        }
        "required" => {
            for name in argument.as_array().context("a list")? {
                let name = name.as_str().context("a name")?;
                ensure!(map.contains_key(name), "{name} is not there");
            }
        }
        "additionalProperties" => {
            for (key, value) in map.iter().filter(|(key, _)| !is_known(key)) {
                ensure!(*argument != Value::Bool(false), "{key} is not documented");
                check(root, argument, value).with_context(|| key.clone())?;
            }
        }
        "propertyNames" => {
            for key in map.keys() {
                check(root, argument, &Value::String(key.clone()))?;
            }
        }
        "maxProperties" => ensure!(map.len() as u64 <= argument.as_u64().unwrap_or_default()),
        other => bail!("the keyword {other} is not known here"),
    }
    Ok(())
}

// --- Random limits, for properties of what a schema admits.

/// Fields of a limit with values of which some are valid, as objects in Kubernetes have them, too.
const LONG_FORMS: &str = r#"
description: "text"
match: {"path": ["/a/**", "!/a/b"], "n": ["1"]}
match: {"path": []}
per: ["user", "tenant"]
if_missing: "skip"
algorithm: "leaky_bucket"
algorithm: "fixed_window"
algorithm: "sliding_window_buckets"
algorithm: "concurrency"
limit: 10
slot_ttl: "1s"
adaptive: {"min": 1, "max": 100000, "latency": "2ms"}
adaptive: {"min": 10, "max": 10, "latency": "1h", "share": "99.9%"}
burst: 0
cost: 3
cost: {"from": {"request_header": "x", "max": 9}, "default": 0}
cost: {"table": [{"match": {"path": "/a"}, "units": 5}], "default": 1}
cost: {"from": [{"response_json": "/a", "weight": 2}, {"metadata": ["a", "b"]}], "reserve": {"from": [{"request_json": "/m"}, {"request_header": "m"}], "default": 5, "cap": "10%"}, "on_error": 1, "if_absent": "reserved", "max": 100}
cost: {"from": {"status": [401, "5xx"]}, "units": 2, "if_absent": 1}
over_limit: "queue"
max_delay: "0ms"
deny_status: 503
penalty: {"after": 1, "within": "1000ms", "for": "7d"}
penalty: {"after": 1, "within": "1s", "for": "1m", "grow": 10, "max": "7d"}
enforce: "0%"
enforce: "100%"
precheck: "100%"
precheck: "10000%"
scope: "proxy"
lease: {"ttl": "50ms"}
overrides: []
overrides: [{"values": {"user": null}, "rate": "1/s"}]
overrides: [{"values": {"user": {"base64": ""}}, "unlimited": true}]
overrides: [{"values": {"user": "a"}, "time_zone": "UTC"}]
overrides: [{"values": {"user": null, "tenant": {"base64": ""}}, "rate": "1/s", "until": "2026-12-01T00:00Z"}]
replaces: []
partition: ["user"]
fleet_size: 1
sub_windows: 10
strict: false
align: "first_request"
time_zone: "Europe/Berlin"
week_start: "sunday"
paused: true
paused: {"until": "2026-12-01T00:00Z"}
"#;

/// Those of files alone: shorthands, and limits on descriptors.
const FILE_FORMS: &str = r#"
match: {"path": ["/a/**", "!/a/b"], "n": 1}
per: "user"
partition: "user"
descriptor: "a=b"
descriptor: ["a=b", "c=d*", "e"]
share_threshold: true
share_threshold: ["c"]
quota_mode: true
charge: "fitting"
unlimited: true
"#;

/// Rates of which some are valid.
pub const RATES: [&str; 6] = ["10/s", "0/1m", "7/1500ms", "10", "5/day", "5/week"];

/// Fields and values in the long form that objects in Kubernetes have.
pub fn long_forms() -> Vec<(&'static str, Value)> {
    fields(LONG_FORMS)
}

/// Every field and value.
pub fn all_forms() -> Vec<(&'static str, Value)> {
    [fields(LONG_FORMS), fields(FILE_FORMS)].concat()
}

fn fields(lines: &'static str) -> Vec<(&'static str, Value)> {
    let field = |line: &'static str| {
        let (field, value) = line.split_once(": ")?;
        Some((field, serde_json::from_str(value).ok()?))
    };
    // A line that cannot be read leaves none, and without fields the tests fail.
    let lines = lines.trim().lines().map(field);
    lines.collect::<Option<_>>().unwrap_or_default()
}

/// A limit of these fields.
pub fn limit_of(fields: Vec<(&'static str, Value)>, rate: &str) -> Value {
    let mut limit = Map::from_iter([
        ("name".to_owned(), "a".into()),
        ("rate".to_owned(), rate.into()),
    ]);
    for (field, value) in fields {
        limit.insert(field.to_owned(), value);
    }
    let is_concurrency = limit.get("algorithm").is_some_and(|is| is == "concurrency");
    if limit.contains_key("unlimited") || is_concurrency {
        limit.remove("rate");
    }
    Value::Object(limit)
}
