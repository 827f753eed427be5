//! docs/limits.schema.json and the reader say the same, as far as a schema can say it.

use std::{fs, path::Path as FilePath};

use algorithms::{Align, Kind};
use proptest::prelude::*;
use regex_lite::Regex;
use serde_json::{Map, Value as Json, json};

use super::{limit::LIMIT_FIELDS, overrides::OVERRIDE_FIELDS, policy::FIELDS as POLICY_FIELDS};
use documents::{Choice, Node};

use crate::{IfMissing, OnFailure, OverLimit, Policy, Scope, quota::Written};

fn file(name: &str) -> String {
    let root = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join(name)).unwrap()
}

fn schema() -> Json {
    serde_json::from_str(&file("docs/limits.schema.json")).unwrap()
}

/// Just as much of JSON Schema as the file uses. A keyword that is not here is a failure.
fn accepts(root: &Json, schema: &Json, value: &Json) -> bool {
    let keywords = schema.as_object().unwrap();
    keywords
        .iter()
        .all(|(keyword, argument)| match keyword.as_str() {
            "$schema" | "title" | "description" | "default" | "$defs" => true,
            "$ref" => {
                let pointer = argument.as_str().unwrap().strip_prefix('#').unwrap();
                accepts(root, root.pointer(pointer).unwrap(), value)
            }
            "oneOf" => {
                let options = argument.as_array().unwrap().iter();
                options
                    .filter(|option| accepts(root, option, value))
                    .count()
                    == 1
            }
            "const" => argument == value,
            "enum" => argument.as_array().unwrap().contains(value),
            "type" => match argument {
                Json::Array(types) => types.iter().any(|name| is_type(name, value)),
                name => is_type(name, value),
            },
            "pattern" | "maxLength" => string_keyword(keyword, argument, value),
            "minimum" => value
                .as_u64()
                .is_none_or(|n| n >= argument.as_u64().unwrap()),
            "maximum" => value
                .as_u64()
                .is_none_or(|n| n <= argument.as_u64().unwrap()),
            "minItems" | "maxItems" | "uniqueItems" | "items" => {
                let list = value.as_array();
                list.is_none_or(|list| list_keyword(root, keyword, argument, list))
            }
            _ => {
                let map = value.as_object();
                map.is_none_or(|map| map_keyword(root, (keyword, argument), keywords, map))
            }
        })
}

fn is_type(name: &Json, value: &Json) -> bool {
    match name.as_str().unwrap() {
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        other => panic!("a type {other}"),
    }
}

fn string_keyword(keyword: &str, argument: &Json, value: &Json) -> bool {
    let Some(text) = value.as_str() else {
        return true;
    };
    match keyword {
        "pattern" => Regex::new(argument.as_str().unwrap())
            .unwrap()
            .is_match(text),
        _ => text.chars().count() as u64 <= argument.as_u64().unwrap(),
    }
}

fn list_keyword(root: &Json, keyword: &str, argument: &Json, list: &[Json]) -> bool {
    let len = list.len() as u64;
    match keyword {
        "minItems" => len >= argument.as_u64().unwrap(),
        "maxItems" => len <= argument.as_u64().unwrap(),
        "uniqueItems" => list
            .iter()
            .enumerate()
            .all(|(n, item)| !list[..n].contains(item)),
        _ => list.iter().all(|item| accepts(root, argument, item)),
    }
}

fn map_keyword(
    root: &Json,
    (keyword, argument): (&str, &Json),
    keywords: &Map<String, Json>,
    map: &Map<String, Json>,
) -> bool {
    let known = keywords.get("properties").and_then(Json::as_object);
    match keyword {
        "properties" => {
            let mut present = map
                .iter()
                .filter_map(|(key, v)| Some((known?.get(key)?, v)));
            present.all(|(schema, v)| accepts(root, schema, v))
        }
        "required" => {
            let mut names = argument.as_array().unwrap().iter();
            names.all(|name| map.contains_key(name.as_str().unwrap()))
        }
        "additionalProperties" => {
            let mut others = map
                .iter()
                .filter(|(key, _)| known.is_none_or(|k| !k.contains_key(*key)));
            match argument {
                Json::Bool(false) => others.next().is_none(),
                schema => others.all(|(_, v)| accepts(root, schema, v)),
            }
        }
        "propertyNames" => map.keys().all(|key| accepts(root, argument, &json!(key))),
        "maxProperties" => map.len() as u64 <= argument.as_u64().unwrap(),
        other => panic!("a keyword {other}"),
    }
}

fn schema_accepts(node: &Node) -> bool {
    let schema = schema();
    accepts(&schema, &schema, &serde_json::to_value(node).unwrap())
}

#[test]
fn the_same_fields() {
    let schema = schema();
    let fields = |pointer: &str| {
        let properties = schema.pointer(pointer).unwrap().as_object().unwrap();
        let mut names: Vec<String> = properties.keys().cloned().collect();
        names.sort();
        names
    };
    let sorted = |names: &[&str]| {
        let mut names: Vec<String> = names.iter().map(ToString::to_string).collect();
        names.sort();
        names
    };
    assert_eq!(fields("/properties"), sorted(&POLICY_FIELDS));
    assert_eq!(fields("/$defs/limit/properties"), sorted(&LIMIT_FIELDS));
    assert_eq!(
        fields("/$defs/override/properties"),
        sorted(&OVERRIDE_FIELDS)
    );
}

#[test]
fn the_same_words_and_defaults() {
    fn compare<T: Choice>(field: &str, default: T) {
        let schema = schema();
        let field = schema
            .pointer(&format!("/$defs/limit/properties/{field}"))
            .unwrap();
        let words: Vec<&str> = T::CHOICES.iter().map(|(word, _)| *word).collect();
        assert_eq!(field["enum"], json!(words));
        assert_eq!(field["default"], json!(default.word()));
    }
    compare("algorithm", Written(Kind::TokenBucket));
    compare("align", Written(Align::default()));
    compare("if_missing", IfMissing::default());
    compare("over_limit", OverLimit::default());
    compare("on_failure", OnFailure::default());
    compare("scope", Scope::default());
}

#[test]
fn good_files_are_good_to_both() {
    for name in ["limits.yaml", "crates/policy/tests/every_field.yaml"] {
        let text = file(name);
        Policy::from_yaml(name, text.as_bytes()).unwrap_or_else(|problems| panic!("{problems}"));
        let node = Node::from_yaml(name, text.as_bytes()).unwrap();
        assert!(schema_accepts(&node), "{name}");
    }
}

#[test]
fn bad_files_are_bad_to_the_schema_where_it_can_tell() {
    for name in [
        "bad_names",
        "bad_rate",
        "bad_words",
        "format",
        "generation",
        "missing",
        "no_values",
        "not_a_map",
        "paused",
        "unknown_field",
        "wrong_types",
    ] {
        let text = file(&format!("crates/policy/tests/bad/{name}.yaml"));
        let node = Node::from_yaml(name, text.as_bytes()).unwrap();
        assert!(!schema_accepts(&node), "{name}");
    }
}

/// Fields with values of which some are right.
fn some_fields() -> impl Strategy<Value = Vec<(&'static str, Json)>> {
    let choices: Vec<(&str, Json)> = [
        ("description", json!("text")),
        ("match", json!({"path": ["/a/**", "!/a/b"], "n": 1})),
        ("match", json!({"path": []})),
        ("per", json!("user")),
        ("per", json!(["user", "tenant"])),
        ("if_missing", json!("skip")),
        ("algorithm", json!("leaky_bucket")),
        ("algorithm", json!("fixed_window")),
        ("algorithm", json!("sliding_window_buckets")),
        ("burst", json!(0)),
        ("cost", json!(3)),
        ("over_limit", json!("queue")),
        ("max_delay", json!("0ms")),
        ("enforce", json!("0%")),
        ("enforce", json!("100%")),
        ("precheck", json!("100%")),
        ("precheck", json!("10000%")),
        ("scope", json!("proxy")),
        ("overrides", json!([])),
        (
            "overrides",
            json!([{"values": {"user": null}, "rate": "1/s"}]),
        ),
        (
            "overrides",
            json!([{"values": {"user": {"base64": ""}}, "unlimited": true}]),
        ),
        ("replaces", json!([])),
        ("partition", json!("user")),
        ("fleet_size", json!(1)),
        ("sub_windows", json!(10)),
        ("strict", json!(false)),
        ("align", json!("first_request")),
        ("paused", json!(true)),
        ("paused", json!({"until": "2026-12-01T00:00Z"})),
    ]
    .into();
    prop::collection::vec(prop::sample::select(choices), 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_the_reader_takes_the_schema_takes(
        fields in some_fields(),
        rate in prop::sample::select(vec!["10/s", "0/1m", "7/1500ms", "10"]),
    ) {
        let mut limit = json!({"name": "a", "rate": rate});
        for (field, value) in fields {
            limit[field] = value;
        }
        let node: Node = serde_json::from_value(json!({"domain": "d", "limits": [limit]})).unwrap();
        if Policy::from_node(&node).is_ok() {
            prop_assert!(schema_accepts(&node), "{}", node.to_yaml());
        }
    }
}
