//! docs/limits.schema.json and the reader accept the same, as far as a schema can express it.

use std::{fs, path::Path as FilePath};

use algorithms::{Align, Kind, WeekStart};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::{
    EXEMPTION_FIELDS, FIELDS as POLICY_FIELDS,
    limit::{LIMIT_FIELDS, PENALTY_FIELDS},
    numbers::OVERRIDE_FIELDS,
    pricing::{COST_FIELDS, RESERVE_FIELDS, ROW_FIELDS, SOURCE_FIELDS},
};
use documents::{Choice, Node};

use policy::{ChargeMode, IfMissing, OnFailure, OverLimit, Scope, Written};

use crate::{policy_from_node, read};

fn file(name: &str) -> String {
    let root = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join(name)).unwrap()
}

fn schema() -> &'static Json {
    json_schema::document("limits.schema.json").unwrap()
}

fn schema_accepts(node: &Node) -> bool {
    let value = serde_json::to_value(node).unwrap();
    json_schema::validate("limits.schema.json", &value).is_ok()
}

#[test]
fn schema_and_reader_have_the_same_fields() {
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
    assert_eq!(
        fields("/$defs/limit/properties/penalty/properties"),
        sorted(&PENALTY_FIELDS)
    );
    for (of, known) in [
        ("exemption", EXEMPTION_FIELDS.as_slice()),
        ("cost", &COST_FIELDS),
        ("reserve", &RESERVE_FIELDS),
        ("row", &ROW_FIELDS),
        ("source", &SOURCE_FIELDS),
    ] {
        let pointer = format!("/$defs/{of}/properties");
        assert_eq!(fields(&pointer), sorted(known));
    }
}

#[test]
fn schema_and_reader_have_the_same_words_and_defaults() {
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
    compare("week_start", Written(WeekStart::default()));
    compare("if_missing", IfMissing::default());
    compare("over_limit", OverLimit::default());
    compare("on_failure", OnFailure::default());
    compare("scope", Scope::default());
    compare("charge", ChargeMode::default());
}

#[test]
fn schema_and_reader_accept_valid_files() {
    for name in ["limits.yaml", "crates/limits-file/tests/every_field.yaml"] {
        let text = file(name);
        read(name, text.as_bytes()).unwrap_or_else(|problems| panic!("{problems}"));
        let node = crate::yaml::read(name, text.as_bytes()).unwrap();
        assert!(schema_accepts(&node), "{name}");
    }
}

#[test]
fn the_schema_rejects_invalid_files_where_it_can() {
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
        "penalty",
        "unknown_field",
        "wrong_types",
    ] {
        let text = file(&format!("crates/limits-file/tests/bad/{name}.yaml"));
        let node = crate::yaml::read(name, text.as_bytes()).unwrap();
        assert!(!schema_accepts(&node), "{name}");
    }
}

/// Fields with values of which some are valid.
fn some_fields() -> impl Strategy<Value = Vec<(&'static str, Json)>> {
    let choices: Vec<(&str, Json)> = [
        ("description", json!("text")),
        ("match", json!({"path": ["/a/**", "!/a/b"], "n": 1})),
        ("match", json!({"path": []})),
        ("per", json!("user")),
        ("per", json!(["user", "tenant"])),
        ("descriptor", json!("a=b")),
        ("descriptor", json!(["a=b", "c=d*", "e"])),
        ("share_threshold", json!(true)),
        ("share_threshold", json!(["c"])),
        ("quota_mode", json!(true)),
        ("charge", json!("fitting")),
        ("unlimited", json!(true)),
        ("if_missing", json!("skip")),
        ("algorithm", json!("leaky_bucket")),
        ("algorithm", json!("fixed_window")),
        ("algorithm", json!("sliding_window_buckets")),
        ("burst", json!(0)),
        ("cost", json!(3)),
        (
            "cost",
            json!({"from": {"request_header": "x", "max": 9}, "default": 0}),
        ),
        (
            "cost",
            json!({"table": [{"match": {"path": "/a"}, "units": 5}], "default": 1}),
        ),
        (
            "cost",
            json!({"from": [{"response_json": "/a", "weight": 2}, {"metadata": ["a", "b"]}],
                "reserve": {"from": [{"request_json": "/m"}, {"request_header": "m"}], "default": 5, "cap": "10%"},
                "on_error": 1, "if_absent": "reserved", "max": 100}),
        ),
        (
            "cost",
            json!({"from": {"status": [401, "5xx"]}, "units": 2, "if_absent": 1}),
        ),
        ("over_limit", json!("queue")),
        ("max_delay", json!("0ms")),
        (
            "penalty",
            json!({"after": 1, "within": "1000ms", "for": "7d"}),
        ),
        (
            "penalty",
            json!({"after": 1, "within": "1s", "for": "1m", "grow": 10, "max": "7d"}),
        ),
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
        (
            "overrides",
            json!([{"values": {"user": "a"}, "time_zone": "UTC"}]),
        ),
        ("replaces", json!([])),
        ("partition", json!("user")),
        ("fleet_size", json!(1)),
        ("sub_windows", json!(10)),
        ("algorithm", json!("concurrency")),
        ("limit", json!(10)),
        ("slot_ttl", json!("1s")),
        ("strict", json!(false)),
        ("align", json!("first_request")),
        ("time_zone", json!("Europe/Berlin")),
        ("week_start", json!("sunday")),
        ("paused", json!(true)),
        ("paused", json!({"until": "2026-12-01T00:00Z"})),
    ]
    .into();
    prop::collection::vec(prop::sample::select(choices), 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_schema_accepts_whatever_the_reader_accepts(
        fields in some_fields(),
        rate in prop::sample::select(vec!["10/s", "0/1m", "7/1500ms", "10", "5/day", "5/week"]),
    ) {
        let mut limit = json!({"name": "a", "rate": rate});
        for (field, value) in fields {
            limit[field] = value;
        }
        if limit.get("unlimited").is_some() || limit["algorithm"] == "concurrency" {
            limit.as_object_mut().unwrap().remove("rate");
        }
        let node: Node = serde_json::from_value(json!({"domain": "d", "limits": [limit]})).unwrap();
        if policy_from_node(&node).is_ok() {
            prop_assert!(schema_accepts(&node), "{}", node.to_yaml());
        }
    }
}
