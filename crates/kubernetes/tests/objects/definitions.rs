//! The definitions: complete, structural, and as documents have them.

use std::path::Path;

use kubernetes::{crds, crds_yaml};
use limits_file::{ToNode as _, policy_from_node};
use policy::Node;
use proptest::prelude::*;
use serde_json::{Value, json};

#[test]
fn the_manifest_is_what_the_code_defines() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes/crds/crds.yaml");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, crds_yaml()).unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(
        text == crds_yaml(),
        "deploy/kubernetes/crds/crds.yaml is behind the code: UPDATE_GOLDEN=1 cargo test -p kubernetes writes it"
    );
}

/// Calls `check` with every schema of a field, and its place.
fn each(schema: &Value, place: &str, check: &mut impl FnMut(&str, &Value)) {
    check(place, schema);
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        each(field, &format!("{place}.{name}"), check);
    }
    for below in ["items", "additionalProperties"] {
        if schema[below].is_object() {
            each(&schema[below], &format!("{place}.{below}"), check);
        }
    }
}

fn schema(kind: usize) -> Value {
    crds()[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// What the API server demands of a schema, and people of `kubectl explain`.
#[test]
fn every_field_has_a_type_and_a_description() {
    let mut count = 0;
    for kind in [0, 1] {
        each(&schema(kind), "", &mut |place, schema| {
            count += 1;
            let untyped = schema["x-kubernetes-preserve-unknown-fields"] == true
                || schema["x-kubernetes-int-or-string"] == true;
            assert!(schema["type"].is_string() || untyped, "{place}: {schema}");
            for word in [
                "$ref",
                "oneOf",
                "const",
                "uniqueItems",
                "propertyNames",
                "default",
            ] {
                assert!(schema.get(word).is_none(), "{place} has {word}");
            }
            let last = place.rsplit('.').next().unwrap();
            let named = !["items", "additionalProperties"].contains(&last);
            if named && place != ".metadata" {
                assert!(
                    schema["description"].is_string(),
                    "{place} has no description"
                );
            }
        });
    }
    assert!(count > 100, "{count} fields");
}

/// An object has the fields of limits files, without those of Envoy's rate limit service.
#[test]
fn limits_have_the_fields_of_limits_files() {
    let schema = schema(0);
    let fields = |of: &Value| of.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let limits = &schema["properties"]["spec"]["properties"]["limits"]["items"]["properties"];
    let file = json_schema::document("limits.schema.json").unwrap();
    let service = [
        "descriptor",
        "unlimited",
        "share_threshold",
        "quota_mode",
        "charge",
    ];
    let mut expected = fields(&file["$defs"]["limit"]["properties"]);
    expected.retain(|field| !service.contains(&field.as_str()));
    assert_eq!(fields(limits), expected);
    let over = &schema["properties"]["spec"]["properties"]["overrides"]["properties"]["limits"]["items"]
        ["properties"];
    assert_eq!(over, limits);
}

/// A schema without the words that only Kubernetes has.
fn plain(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(name, _)| {
                !name.starts_with("x-kubernetes") && *name != "format" && *name != "nullable"
            });
            fields
                .map(|(name, field)| (name.clone(), plain(field)))
                .collect()
        }
        Value::Array(items) => items.iter().map(plain).collect(),
        other => other.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// The API server refuses nothing that the reader of limits files accepts. (Its rules in CEL are conditions of the
    /// schema of limits files, whose tests compare them with the reader.)
    #[test]
    fn the_definition_admits_whatever_the_reader_accepts(
        fields in prop::collection::vec(prop::sample::select(json_schema::long_forms()), 0..6),
        rate in prop::sample::select(&json_schema::RATES[..]),
    ) {
        let limit = json_schema::limit_of(fields, rate);
        let node: Node = serde_json::from_value(json!({"domain": "d", "limits": [limit]})).unwrap();
        if let Ok(policy) = policy_from_node(&node) {
            let schema = plain(&schema(0));
            let place = "/properties/spec/properties/limits/items";
            let admitted = json_schema::validate_within(&schema, place, &limit);
            prop_assert!(admitted.is_ok(), "{}: {admitted:?}", policy.to_node().to_yaml());
        }
    }
}

/// The rules in CEL, whole: a change of them is seen.
#[test]
fn the_rules_are_those_of_the_schema() {
    let schema = schema(0);
    let limits = &schema["properties"]["spec"]["properties"]["limits"]["items"];
    let rules = limits["x-kubernetes-validations"].as_array().unwrap();
    let of = |start: &str| {
        let found = rules
            .iter()
            .find(|rule| rule["message"].as_str().unwrap().starts_with(start));
        found.unwrap()["rule"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        of("over_limit: queue"),
        "!(has(self.over_limit) && (self.over_limit == 'queue')) || ((!has(self.algorithm) || self.algorithm == \
         'token_bucket' || self.algorithm == 'gcra' || self.algorithm == 'leaky_bucket'))"
    );
    assert_eq!(
        of("max_delay is"),
        "!(has(self.max_delay)) || (has(self.over_limit) && (self.over_limit == 'queue'))"
    );
    assert_eq!(
        of("burst is"),
        "!(has(self.burst)) || ((!has(self.algorithm) || self.algorithm == 'token_bucket' || self.algorithm == \
         'gcra' || self.algorithm == 'leaky_bucket'))"
    );
    assert_eq!(
        of("scope: proxy"),
        "!(has(self.scope) && (self.scope == 'proxy')) || (!((has(self.precheck) || has(self.lease))))"
    );
    assert_eq!(rules.len(), 10);
    // The API server refuses a definition with a rule about a field that has no type.
    for rule in rules {
        let rule = rule["rule"].as_str().unwrap();
        for part in rule.split("self.").skip(1) {
            let end = part.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let field = &part[..end.unwrap_or(part.len())];
            assert!(limits["properties"][field]["type"].is_string(), "{rule}");
        }
    }
}
