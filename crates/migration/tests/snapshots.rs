//! Whole files of each system, and what becomes of them.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on should stop"
)]

use std::{fmt::Write, fs, path::Path};

use documents::Choice;
use migration::{File, Options, System, convert};

/// The limits files and the notes, or what is wrong.
fn converted(system: System, path: &str, options: &Options) -> String {
    let bytes = fs::read(Path::new("tests").join(path)).unwrap();
    let file = File {
        name: path,
        bytes: &bytes,
    };
    let conversion = match convert(system, &[file], options) {
        Ok(conversion) => conversion,
        Err(wrong) => return wrong.iter().map(ToString::to_string).collect(),
    };
    let mut text = String::new();
    for domain in &conversion.domains {
        let yaml = domain.document.to_yaml();
        let read = limits_file::read("", yaml.as_bytes()).unwrap_or_else(|wrong| panic!("{wrong}"));
        assert_eq!(read, domain.policy);
        text += &yaml;
    }
    for report in &conversion.reports {
        for problems in [report.warnings(), report.errors()].iter().flatten() {
            write!(text, "\n{problems}").unwrap();
        }
    }
    text
}

fn folder(system: System) {
    let (word, _) = System::CHOICES.iter().find(|(_, s)| *s == system).unwrap();
    let entries = fs::read_dir(Path::new("tests").join(word)).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let path = format!("{word}/{}", file.to_string_lossy());
        let text = converted(system, &path, &Options::default());
        insta::assert_snapshot!(path.replace('/', "-"), text, &path);
    }
}

#[test]
fn envoyproxy_ratelimit() {
    folder(System::EnvoyRatelimit);
}

#[test]
fn limitador() {
    folder(System::Limitador);
}

#[test]
fn spring() {
    folder(System::Spring);
}

#[test]
fn kubernetes() {
    folder(System::Kubernetes);
}

#[test]
fn every_problem_has_its_place() {
    for (word, system) in System::CHOICES {
        let path = format!("broken/{word}.yaml");
        let text = converted(*system, &path, &Options::default());
        insta::assert_snapshot!(path.replace('/', "-"), text, &path);
    }
}

#[test]
fn an_empty_file_is_no_configuration_without_limits() {
    for (word, system) in System::CHOICES {
        for text in ["", "# limits\n---\n", "kind: ConfigMap\ndata: {}\n"] {
            let file = File {
                name: "x",
                bytes: text.as_bytes(),
            };
            let wrong = convert(*system, &[file], &Options::default()).unwrap_err();
            let said: String = wrong.iter().map(ToString::to_string).collect();
            assert!(said.contains("--> x:1:1"), "{word}: {text:?}: {said}");
        }
    }
}

#[test]
fn a_key_resolver_is_the_entry_that_was_named() {
    let options = Options {
        domain: Some("shop".parse().unwrap()),
        keys: vec![("userKeyResolver".to_owned(), "customer".parse().unwrap())],
    };
    let text = converted(System::Spring, "spring/application.yml", &options);
    assert!(text.starts_with("domain: shop\n"), "{text}");
    assert!(text.contains("per: [customer]"), "{text}");
    assert!(!text.contains("`userKeyResolver` is code"), "{text}");
}

#[test]
fn shadow_limits_are_the_same_in_both_forms() {
    let bytes = fs::read("tests/envoy-ratelimit/5-unlimited.yaml").unwrap();
    let file = File {
        name: "x",
        bytes: &bytes,
    };
    let conversion = convert(System::EnvoyRatelimit, &[file], &Options::default()).unwrap();
    for mut domain in conversion.domains {
        domain.shadow();
        let yaml = domain.document.to_yaml();
        let read = limits_file::read("", yaml.as_bytes()).unwrap();
        assert_eq!(read, domain.policy);
        let percents: Vec<u8> = read
            .limits
            .iter()
            .map(|limit| limit.enforce_percent)
            .collect();
        assert_eq!(percents, [100, 0], "{yaml}");
    }
}

fn of_objects(text: &str) -> Result<migration::Conversion, Vec<documents::Problems>> {
    let file = File {
        name: "objects.yaml",
        bytes: text.as_bytes(),
    };
    convert(System::Kubernetes, &[file], &Options::default())
}

/// A domain and a `RateLimit` on its Gateway, with this in its spec.
fn objects(spec: &str) -> String {
    let metadata = "metadata: {namespace: infra, name: all}";
    let version = "apiVersion: rl.example.com/v1alpha1";
    format!(
        "{version}\nkind: RateLimitDomain\nmetadata: {{name: shop}}\n\
         spec: {{domain: shop, gateways: [{{namespace: infra, name: public}}]}}\n\
         ---\n{version}\nkind: RateLimit\n{metadata}\nspec:\n  \
         targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: public}}]\n  {spec}\n"
    )
}

#[test]
fn limits_without_a_rate_become_shadow_limits_too() {
    let limits =
        "limits: [{name: slots, algorithm: concurrency, limit: 5}, {name: few, rate: 1/s}]";
    let mut conversion = of_objects(&objects(limits)).unwrap();
    let domain = conversion.domains.first_mut().unwrap();
    domain.shadow();
    let read = limits_file::read("", domain.document.to_yaml().as_bytes()).unwrap();
    assert_eq!(read, domain.policy);
    let percents: Vec<u8> = { read.limits.iter() }
        .map(|limit| limit.enforce_percent)
        .collect();
    assert_eq!(percents, [0, 0]);
}

#[test]
fn objects_lose_no_field_without_a_note_and_others_alone_are_an_error() {
    let conversion = of_objects(&objects(
        "limit: []\n  overrides: {limit: [], limits: [{name: a, rate: 1/s}]}",
    ))
    .unwrap();
    let lost = conversion.reports.first().unwrap().lost();
    let lost: Vec<&str> = lost.iter().map(|problem| problem.path.as_str()).collect();
    assert_eq!(lost, ["spec.limit", "spec.overrides.limit"]);
    let other = "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: b}\n";
    for text in [
        other,
        "limits: []\n",
        "apiVersion: rl.example.com/v1\nkind: RateLimits\n",
    ] {
        assert!(of_objects(text).is_err(), "{text}");
    }
}

#[test]
fn files_of_one_domain_are_merged_and_may_not_repeat_each_other() {
    let part = |key: &str| {
        format!(
            "domain: shop\ndescriptors: [{{key: {key}, rate_limit: {{unit: day, requests_per_unit: 1}}}}]\n"
        )
    };
    let (a, b) = (part("a"), part("b"));
    let file = |name, text| File {
        name,
        bytes: str::as_bytes(text),
    };
    let both = [file("a.yaml", &a), file("b.yaml", &b)];
    let conversion = convert(System::EnvoyRatelimit, &both, &Options::default()).unwrap();
    let [domain] = conversion.domains.as_slice() else {
        panic!("one domain")
    };
    assert_eq!(domain.policy.limits.len(), 2);
    let twice = [file("a.yaml", &a), file("b.yaml", &a)];
    let wrong = convert(System::EnvoyRatelimit, &twice, &Options::default()).unwrap_err();
    let text: String = wrong.iter().map(ToString::to_string).collect();
    assert!(text.contains("b.yaml:2:"), "{text}");
    assert!(text.contains("a second descriptor `a`"), "{text}");
}

#[test]
fn a_long_value_is_not_repeated_for_each_descriptor_below_it() {
    let value = "v".repeat(100_000);
    let below: Vec<_> = (0..9000).map(|n| format!("  - {{key: u{n}}}\n")).collect();
    let below = below.concat();
    let text =
        format!("domain: shop\ndescriptors:\n- key: a\n  value: {value}\n  descriptors:\n{below}");
    let files = [File {
        name: "test.yaml",
        bytes: text.as_bytes(),
    }];
    let wrong = convert(System::EnvoyRatelimit, &files, &Options::default()).unwrap_err();
    let found = wrong[0].iter().next().unwrap();
    assert!(
        found.message.ends_with("limits take over 4194304 bytes"),
        "{}",
        found.message
    );
}
