//! `.github`: by the schemas of GitHub, and by a checker of how workflows are attacked.

use std::process::Command;

use crate::artifacts::{file, output, variable};

/// The files of a folder of `.github`.
fn files(folder: &str) -> Vec<String> {
    let found = std::fs::read_dir(file(&format!(".github/{folder}"))).unwrap();
    let mut paths: Vec<String> = found
        .map(|entry| entry.unwrap().path().display().to_string())
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths
}

#[test]
fn workflows_are_of_githubs_schema() {
    let mut check = Command::new("python3");
    check.env("PYTHONPATH", variable("RL_TEST_DIST_CHECKERS"));
    check.args(["-m", "check_jsonschema", "--builtin-schema"]);
    output(
        check
            .arg("vendor.github-workflows")
            .args(files("workflows")),
    );
}

/// Unpinned actions, permissions beyond need, text of strangers in commands, credentials left in
/// checkouts, caches that a release would trust.
#[test]
fn workflows_give_no_stranger_a_way_in() {
    let mut check = Command::new(variable("RL_TEST_DIST_CHECKERS").join("bin/zizmor"));
    check.args(["--offline", "--persona", "pedantic"]);
    output(check.args(files("workflows")));
}
