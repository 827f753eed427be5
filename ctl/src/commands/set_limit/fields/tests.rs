use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    fields: LimitFields,
}

fn fields(flags: &[&str]) -> LimitFields {
    let words = ["set-limit"].iter().chain(flags);
    Line::try_parse_from(words).unwrap().fields
}

fn edited(before: &str, flags: &[&str]) -> String {
    let mut node: Node = serde_json::from_str(before).unwrap();
    fields(flags).apply(&mut node);
    node.to_yaml_line()
}

#[test]
fn only_the_named_fields_change() {
    assert_eq!(
        edited(
            r#"{"name": "a", "rate": "1/s", "burst": 5}"#,
            &["--rate", "2/s"]
        ),
        "{name: a, rate: 2/s, burst: 5}"
    );
    assert_eq!(
        edited(
            r#"{"name": "a", "rate": "1/s", "burst": 5}"#,
            &["--unset", "burst"]
        ),
        "{name: a, rate: 1/s}"
    );
}

#[test]
fn a_penalty_keeps_the_parts_that_are_not_named() {
    let limit = r#"{"name": "a", "rate": "1/s"}"#;
    let whole = ["--penalty", "after=10,within=1m,for=15m"];
    assert_eq!(
        edited(limit, &whole),
        r#"{name: a, rate: 1/s, penalty: {after: "10", within: 1m, for: 15m}}"#
    );
    let limit = r#"{"name": "a", "penalty": {"after": 10, "within": "1m", "for": "15m"}}"#;
    assert_eq!(
        edited(limit, &["--penalty", "for=1h"]),
        "{name: a, penalty: {after: 10, within: 1m, for: 1h}}"
    );
    assert_eq!(edited(limit, &["--unset", "penalty"]), "{name: a}");
}

#[test]
fn match_replaces_the_whole_and_collects_alternatives() {
    assert_eq!(
        edited(
            r#"{"name": "a", "match": {"path": "/old"}}"#,
            &[
                "--match",
                "method=GET",
                "--match",
                "host=a=b",
                "--match",
                "method=!POST",
                "--match",
                "method="
            ],
        ),
        r#"{name: a, match: {method: [GET, "!POST", ""], host: "a=b"}}"#
    );
}

#[test]
fn shorthands_mean_what_they_say() {
    assert_eq!(
        edited(r#"{"name": "a"}"#, &["--shadow"]),
        "{name: a, enforce: 0%}"
    );
    assert_eq!(
        edited(r#"{"name": "a"}"#, &["--enforce", "5"]),
        "{name: a, enforce: 5%}"
    );
    assert_eq!(
        edited(r#"{"name": "a"}"#, &["--per", "user,tenant"]),
        "{name: a, per: [user, tenant]}"
    );
    assert_eq!(
        edited(r#"{"name": "a"}"#, &["--hidden"]),
        "{name: a, hidden: true}"
    );
    assert_eq!(
        edited(
            r#"{"name": "a"}"#,
            &["--algorithm", "leaky-bucket", "--over-limit", "queue"]
        ),
        "{name: a, algorithm: leaky_bucket, over_limit: queue}"
    );
}
