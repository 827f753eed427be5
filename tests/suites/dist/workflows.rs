//! `.github`: checked by GitHub's schemas, and for known attacks on workflows.

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

fn of_schema(schema: &str, files: &[String]) {
    let mut check = Command::new("python3");
    check.env("PYTHONPATH", variable("RL_TEST_DIST_CHECKERS"));
    check.args(["-m", "check_jsonschema", "--builtin-schema", schema]);
    output(check.args(files));
}

#[test]
fn files_are_of_githubs_schemas() {
    of_schema("vendor.github-workflows", &files("workflows"));
    let (config, forms): (Vec<String>, Vec<String>) = files("ISSUE_TEMPLATE")
        .into_iter()
        .partition(|path| path.ends_with("/config.yml"));
    of_schema("vendor.github-issue-config", &config);
    of_schema("vendor.github-issue-forms", &forms);
    let dependabot = file(".github/dependabot.yml").display().to_string();
    of_schema("vendor.dependabot", &[dependabot]);
}

/// Unpinned actions, excessive permissions, untrusted text in commands, credentials left in
/// checkouts, caches that a release would trust.
#[test]
fn workflows_pass_the_security_audit() {
    let mut check = Command::new(variable("RL_TEST_DIST_CHECKERS").join("bin/zizmor"));
    check.args(["--offline", "--persona", "pedantic"]);
    check.args(files("workflows"));
    output(check.arg(file(".github/dependabot.yml")));
}
