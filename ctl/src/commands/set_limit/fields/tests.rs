use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    fields: LimitFields,
}

/// A limit, with these flags given, as YAML.
fn edited(before: &str, flags: &str) -> String {
    let words = ["set-limit"].into_iter().chain(flags.split_whitespace());
    let mut node = limits_file::yaml::read("limit", before.as_bytes()).unwrap();
    let fields = Line::try_parse_from(words).unwrap().fields;
    fields.apply(&mut node);
    node.to_yaml_line()
}

#[test]
fn only_the_named_fields_change() {
    let limit = "{name: a, rate: 1/s, burst: 5}";
    assert_eq!(
        edited(limit, "--rate 2/s"),
        "{name: a, rate: 2/s, burst: 5}"
    );
    assert_eq!(edited(limit, "--unset burst"), "{name: a, rate: 1/s}");
}

#[test]
fn an_adaptive_limit_keeps_the_parts_that_are_not_named() {
    let whole = edited("{name: a}", "--adaptive min=5,max=200,latency=300ms");
    let adaptive = r#"{name: a, adaptive: {min: "5", max: "200", latency: 300ms}}"#;
    assert_eq!(whole, adaptive);
    let higher = r#"{name: a, adaptive: {min: "5", max: "400", latency: 300ms}}"#;
    assert_eq!(edited(adaptive, "--adaptive max=400"), higher);
    assert_eq!(edited(adaptive, "--unset adaptive"), "{name: a}");
}

#[test]
fn a_penalty_keeps_the_parts_that_are_not_named() {
    let whole = edited("{name: a}", "--penalty after=10,within=1m,for=15m");
    let penalty = r#"{name: a, penalty: {after: "10", within: 1m, for: 15m}}"#;
    assert_eq!(whole, penalty);
    let longer = r#"{name: a, penalty: {after: "10", within: 1m, for: 1h}}"#;
    assert_eq!(edited(penalty, "--penalty for=1h"), longer);
    assert_eq!(edited(penalty, "--unset penalty"), "{name: a}");
}

#[test]
fn match_replaces_the_whole_and_collects_alternatives() {
    let flags = "--match method=GET --match host=a=b --match method=!POST --match method=";
    let found = edited("{name: a, match: {path: /old}}", flags);
    let expected = r#"{name: a, match: {method: [GET, "!POST", ""], host: "a=b"}}"#;
    assert_eq!(found, expected);
}

#[test]
fn shorthands_mean_what_they_say() {
    for (flags, fields) in [
        ("--shadow", "enforce: 0%"),
        ("--enforce 5", "enforce: 5%"),
        ("--per user,tenant", "per: [user, tenant]"),
        ("--hidden", "hidden: true"),
        ("--algorithm leaky-bucket", "algorithm: leaky_bucket"),
        ("--over-limit queue", "over_limit: queue"),
    ] {
        assert_eq!(edited("{name: a}", flags), format!("{{name: a, {fields}}}"));
    }
}
