//! docs/limits.schema.json and the reader accept the same, as far as a schema can express it.

use std::{collections::BTreeSet, fs, path::Path as FilePath};

use algorithms::{Align, Kind, WeekStart};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::{
    EXEMPTION_FIELDS, FIELDS as POLICY_FIELDS,
    limit::{LIMIT_FIELDS, PENALTY_FIELDS},
    numbers::{ADAPTIVE_FIELDS, OVERRIDE_FIELDS},
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
        properties.keys().cloned().collect::<BTreeSet<_>>()
    };
    let sorted = |names: &[&str]| {
        names
            .iter()
            .map(ToString::to_string)
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(fields("/properties"), sorted(&POLICY_FIELDS));
    assert_eq!(fields("/$defs/limit/properties"), sorted(&LIMIT_FIELDS));
    let penalty = "/$defs/limit/properties/penalty/properties";
    assert_eq!(fields(penalty), sorted(&PENALTY_FIELDS));
    let adaptive = "/$defs/limit/properties/adaptive/properties";
    assert_eq!(fields(adaptive), sorted(&ADAPTIVE_FIELDS));
    for (of, known) in [
        ("override", OVERRIDE_FIELDS.as_slice()),
        ("exemption", &EXEMPTION_FIELDS),
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
    let names = "adaptive bad_names bad_rate bad_words format generation missing no_values not_a_map paused penalty \
                 unknown_field wrong_types";
    for name in names.split(' ') {
        let text = file(&format!("crates/limits-file/tests/bad/{name}.yaml"));
        let node = crate::yaml::read(name, text.as_bytes()).unwrap();
        assert!(!schema_accepts(&node), "{name}");
    }
}

/// Fields with values of which some are valid.
const FIELDS: &str = r#"
description: "text"
match: {"path": ["/a/**", "!/a/b"], "n": 1}
match: {"path": []}
per: "user"
per: ["user", "tenant"]
descriptor: "a=b"
descriptor: ["a=b", "c=d*", "e"]
share_threshold: true
share_threshold: ["c"]
quota_mode: true
charge: "fitting"
unlimited: true
if_missing: "skip"
algorithm: "leaky_bucket"
algorithm: "fixed_window"
algorithm: "sliding_window_buckets"
burst: 0
cost: 3
cost: {"from": {"request_header": "x", "max": 9}, "default": 0}
cost: {"table": [{"match": {"path": "/a"}, "units": 5}], "default": 1}
cost: {"from": [{"response_json": "/a", "weight": 2}, {"metadata": ["a", "b"]}], "reserve": {"from": [{"request_json": "/m"}, {"request_header": "m"}], "default": 5, "cap": "10%"}, "on_error": 1, "if_absent": "reserved", "max": 100}
cost: {"from": {"status": [401, "5xx"]}, "units": 2, "if_absent": 1}
over_limit: "queue"
max_delay: "0ms"
penalty: {"after": 1, "within": "1000ms", "for": "7d"}
penalty: {"after": 1, "within": "1s", "for": "1m", "grow": 10, "max": "7d"}
enforce: "0%"
enforce: "100%"
precheck: "100%"
precheck: "10000%"
scope: "proxy"
overrides: []
overrides: [{"values": {"user": null}, "rate": "1/s"}]
overrides: [{"values": {"user": {"base64": ""}}, "unlimited": true}]
overrides: [{"values": {"user": "a"}, "time_zone": "UTC"}]
replaces: []
partition: "user"
fleet_size: 1
sub_windows: 10
algorithm: "concurrency"
limit: 10
slot_ttl: "1s"
adaptive: {"min": 1, "max": 100000, "latency": "2ms"}
adaptive: {"min": 10, "max": 10, "latency": "1h", "share": "99.9%"}
deny_status: 503
strict: false
align: "first_request"
time_zone: "Europe/Berlin"
week_start: "sunday"
paused: true
paused: {"until": "2026-12-01T00:00Z"}
"#;

fn some_fields() -> impl Strategy<Value = Vec<(&'static str, Json)>> {
    let field = |line: &'static str| {
        let (field, value) = line.split_once(": ").unwrap();
        (field, serde_json::from_str(value).unwrap())
    };
    let choices: Vec<(&str, Json)> = FIELDS.trim().lines().map(field).collect();
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
