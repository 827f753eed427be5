//! A limits file becomes objects, and these the same limits.

use std::fs;

use kubernetes::{Key, ToObjects, from_limits_file, translate};
use limits_file::ToNode as _;
use policy::Policy;

/// As objects, and back.
fn there_and_back(policy: &Policy) -> Policy {
    let options = ToObjects {
        gateway: Key::new("infra", "public"),
    };
    let made = from_limits_file(policy, &options);
    let text: Vec<String> = made
        .documents
        .iter()
        .map(documents::Node::to_yaml)
        .collect();
    let read = super::documents(&text.join("---\n"));
    let found = translate(&super::read(&read));
    for (key, object) in &found.objects {
        for ancestor in &object.ancestors {
            assert!(ancestor.accepted.ok, "{key}: {}", ancestor.accepted.message);
        }
    }
    found.domains[&policy.domain].policy.clone()
}

/// With conditions in the order that the API server gives them.
fn sorted(mut policy: Policy) -> Policy {
    for limit in &mut policy.limits {
        limit.matchers.sort_by(|a, b| a.key.cmp(&b.key));
    }
    for exemption in &mut policy.exempt {
        exemption.matchers.sort_by(|a, b| a.key.cmp(&b.key));
    }
    policy
}

/// A policy with the names that limits have in objects.
fn renamed(policy: &Policy, object: &str) -> Policy {
    let mut policy = policy.clone();
    let name = |name: &policy::Name| {
        let label = name.as_str().replace(['.', '_'], "-");
        format!("infra.{object}.{label}").parse().unwrap()
    };
    for limit in &mut policy.limits {
        limit.name = name(&limit.name);
        limit.replaces = limit.replaces.iter().map(name).collect();
    }
    policy
}

#[test]
fn a_limits_file_is_the_same_there_and_back() {
    for file in ["limits.yaml", "crates/limits-file/tests/every_field.yaml"] {
        let path = format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR"));
        let text = fs::read(path).unwrap();
        let mut policy = limits_file::read(file, &text).unwrap();
        policy.limits.retain(|limit| limit.descriptor.is_none());
        assert!(!policy.limits.is_empty());
        let object = policy.domain.as_str().replace(['.', '_'], "-");
        let text = |policy| sorted(policy).to_node().to_yaml();
        assert_eq!(
            text(there_and_back(&policy)),
            text(renamed(&policy, &object)),
            "{file}"
        );
    }
}

#[test]
fn what_changes_and_what_is_lost_is_said() {
    let limits: Vec<String> = (0..130)
        .map(|n| format!("{{name: l{n}, rate: 1/s}}"))
        .collect();
    let file = format!(
        "domain: a_b\nlimits: [{{name: x.y, rate: 1/s}}, {{name: x-y, rate: 1/s}}, {{name: d, descriptor: [k], \
         rate: 1/s}}, {}, {{name: last, rate: 1/s, replaces: [l0]}}]",
        limits.join(", ")
    );
    let policy = limits_file::read("", file.as_bytes()).unwrap();
    let options = ToObjects {
        gateway: Key::new("infra", "public"),
    };
    let made = from_limits_file(&policy, &options);
    let text = |problems: &[policy::Problem]| {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        lines.join("\n")
    };
    assert_eq!(
        text(&made.changed),
        "limit `x.y`: name: renamed to `x-y-2`, since names in an object have no dot and no underscore"
    );
    assert_eq!(
        text(&made.lost),
        "limit `d`: descriptor: a limit on descriptors of Envoy's rate limit service has no target\n\
         limit `last`: replaces: `l0` is in another object, of which nothing can be replaced"
    );
    let names: Vec<_> = made
        .documents
        .iter()
        .map(|one| one.get("metadata").unwrap().to_yaml_line())
        .collect();
    assert_eq!(
        names,
        [
            "{name: a-b}",
            "{namespace: infra, name: a-b-1}",
            "{namespace: infra, name: a-b-2}"
        ]
    );
}
