//! One bad file per way to go wrong, and what is said about each.

use std::{fs, path::Path};

use documents::Node;
use limits_file::{ToNode as _, policy_from_node, read};
use proptest::prelude::*;

#[test]
fn every_bad_file_is_refused_with_what_was_expected() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad");
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() > 20);
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    let _settings = settings.bind_to_scope();
    for file in files {
        let stem = file.file_stem().unwrap().to_str().unwrap();
        let text = fs::read(&file).unwrap();
        let problems = read("limits.yaml", &text).expect_err(stem);
        insta::assert_snapshot!(stem, problems);
    }
}

#[test]
fn every_field_is_read_and_written_back() {
    let text = include_bytes!("every_field.yaml");
    let policy = read("every_field.yaml", text).unwrap_or_else(|e| panic!("{e}"));
    let written = policy.to_node().to_yaml();
    insta::assert_snapshot!("every_field", written);
    let again = read("again.yaml", written.as_bytes()).unwrap();
    assert_eq!(again, policy);
    let json = serde_json::to_vec(&policy.to_node()).unwrap();
    let node = Node::from_json(&json).unwrap();
    assert_eq!(policy_from_node(&node).unwrap(), policy);
}

#[test]
fn a_limits_file_may_be_json_or_have_windows_line_ends() {
    let plain = "domain: shop\nlimits:\n  - {name: a, rate: 1/s, description: \"x \u{1f600}\"}\n";
    let expected = read("plain.yaml", plain.as_bytes()).unwrap();
    let windows = format!("\u{feff}{}", plain.replace('\n', "\r\n"));
    let tabs = "{\n\t\"domain\": \"shop\",\n\t\"limits\": [\n\t\t{\"name\": \"a\", \"rate\": \"1\\/s\", \
                \"description\": \"x \\ud83d\\ude00\"}\n\t]\n}\n";
    for text in [windows.as_str(), tabs] {
        let policy = read("other.yaml", text.as_bytes());
        assert_eq!(
            policy.map_err(|problems| problems.to_string()),
            Ok(expected.clone())
        );
    }
}

/// Pieces that limits files are made of, in any order.
fn almost_yaml() -> impl Strategy<Value = String> {
    let pieces = [
        "domain: ",
        "limits:",
        "\n",
        "\n  - ",
        "\n    ",
        "name: ",
        "rate: ",
        "10/s",
        "per: ",
        "[",
        "]",
        "{",
        "}",
        ", ",
        "match: ",
        "\"",
        "'",
        "!",
        "&a ",
        "*a",
        "overrides: ",
        "values: ",
        "user",
        "|",
        ">",
        "#",
        "\t",
        "- ",
        ": ",
        "<<: ",
        "null",
        "~",
        "cidr:10.0.0.0/8",
        "re:(",
        "---\n",
        "...\n",
        "%YAML 1.2\n",
        "burst: ",
        "99999999999999999999",
        "-1",
        "é",
        "\u{feff}",
    ];
    prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..60)
        .prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn almost_yaml_is_a_policy_or_problems(text in almost_yaml()) {
        if let Err(problems) = read("any.yaml", text.as_bytes()) {
            prop_assert!(problems.count() > 0);
        }
    }
}
