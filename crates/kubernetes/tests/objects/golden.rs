//! `tests/golden/NAME.yaml` has manifests, `NAME.expected` what becomes of them.
//! `UPDATE_GOLDEN=1 cargo test -p kubernetes golden` writes the latter.

use std::{fmt::Write, fs, path::Path};

use limits_file::ToNode as _;

use super::translated;

/// The limits files, and what each status says.
fn rendered(yaml: &str) -> String {
    let found = translated(yaml);
    let mut text = String::new();
    for domain in found.domains.values() {
        let file = domain.policy.to_node().to_yaml();
        let read = limits_file::read("", file.as_bytes()).unwrap_or_else(|wrong| panic!("{wrong}"));
        assert_eq!(read, domain.policy, "the limits file is not what it says");
        assert_eq!(domain.owners.len(), domain.policy.limits.len());
        writeln!(text, "{file}---").unwrap();
    }
    for (name, found) in &found.domain_objects {
        let accepted = &found.accepted;
        writeln!(
            text,
            "RateLimitDomain {name}: {} {}",
            accepted.reason, accepted.message
        )
        .unwrap();
    }
    for (key, object) in &found.objects {
        let generation = object.in_force.as_ref().map_or(0, |found| found.generation);
        writeln!(text, "RateLimit {key}: generation {generation} in force").unwrap();
        for found in &object.ancestors {
            let ancestor = &found.ancestor;
            let namespace = ancestor.namespace.as_deref().unwrap_or_default();
            let limits: Vec<&str> = found.limits.iter().map(policy::Name::as_str).collect();
            let shadow = if found.shadow { " (shadow)" } else { "" };
            writeln!(
                text,
                "  {} {namespace}/{}: {} {}\n    {}{shadow}",
                ancestor.kind,
                ancestor.name,
                found.accepted.reason,
                found.accepted.message,
                limits.join(" "),
            )
            .unwrap();
        }
    }
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n") + "\n"
}

#[test]
fn golden_files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut checked = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|is| is != "yaml") {
            continue;
        }
        checked += 1;
        let text = rendered(&fs::read_to_string(&path).unwrap());
        let expected = path.with_extension("expected");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&expected, &text).unwrap();
        }
        let expected = fs::read_to_string(&expected).unwrap_or_default();
        assert!(text == expected, "{}: {text}", path.display());
    }
    assert!(checked > 5, "{checked} files");
}
