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

use policy::{ChargeMode, ChoiceOf, IfMissing, OnFailure, OverLimit, Scope};

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
    compare("algorithm", ChoiceOf(Kind::TokenBucket));
    compare("align", ChoiceOf(Align::default()));
    compare("week_start", ChoiceOf(WeekStart::default()));
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
    let names = "adaptive bad_names bad_rate bad_words generation missing no_values not_a_map paused penalty \
                 unknown_field wrong_types";
    for name in names.split(' ') {
        let text = file(&format!("crates/limits-file/tests/bad/{name}.yaml"));
        let node = crate::yaml::read(name, text.as_bytes()).unwrap();
        assert!(!schema_accepts(&node), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_schema_accepts_whatever_the_reader_accepts(
        fields in prop::collection::vec(prop::sample::select(json_schema::all_forms()), 0..6),
        rate in prop::sample::select(&json_schema::RATES[..]),
    ) {
        let limit = json_schema::limit_of(fields, rate);
        let node: Node = serde_json::from_value(json!({"domain": "d", "limits": [limit]})).unwrap();
        if policy_from_node(&node).is_ok() {
            prop_assert!(schema_accepts(&node), "{}", node.to_yaml());
        }
    }
}
