use policy::{Node, Problems};

use super::{Answer, Backend, Engines, Phase, Report, Scenario, Step, read, steps};
use crate::error::Error;

fn scenarios(json: &str) -> Result<Vec<Scenario>, Problems> {
    let node: Node = serde_json::from_str(json).unwrap();
    read(&node)
}

fn local(scenarios: &[Scenario]) -> Result<Report, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(super::run(scenarios, &mut Engines::Local))
}

fn simulated(json: &str) -> Report {
    local(&scenarios(json).unwrap()).unwrap()
}

/// The messages about a document that is wrong, one per line.
fn problems(json: &str) -> String {
    let problems = scenarios(json).unwrap_err();
    let said: Vec<_> = problems.iter().map(ToString::to_string).collect();
    said.join(
        "
",
    )
}

#[test]
fn the_worked_scenarios_are_as_expected() {
    let report = simulated(include_str!("../../../tests/vectors/examples.json"));
    assert!(report.scenarios.len() >= 40);
    for run in &report.scenarios {
        assert_eq!(run.differences, [], "{}", run.id);
    }
}

#[test]
fn addresses_have_the_prefix_that_proxies_send() {
    let report = simulated(
        r#"{"id": "one", "limits": [{"name": "a", "per": ["remote_address"], "rate": "1/d"}], "steps": [
            {"t_ms": 5, "descriptor": {"remote_address": "2001:db8::1"}},
            {"t_ms": 5, "descriptor": {"remote_address": "2001:db8::2"}, "expect": {"allowed": false}}
        ]}"#,
    );
    assert_eq!(report.scenarios[0].differences, []);
}

#[test]
fn a_difference_names_step_and_field() {
    let report = simulated(
        r#"{"id": "one", "limits": [{"name": "a", "rate": "2/s"}], "steps": [
            {"t_ms": 5, "cost": 1},
            {"t_ms": 5, "cost": 1, "expect": {"remaining": 1, "allowed": true, "delay_ms": null}}
        ]}"#,
    );
    assert!(!report.as_expected());
    let found = &report.scenarios[0].differences;
    let named: Vec<_> = found.iter().map(|d| (d.step, d.field.as_str())).collect();
    assert_eq!(named, [(1, "remaining"), (1, "delay_ms")]);
    assert_eq!(
        (&found[0].expected, &found[0].actual),
        (&Node::number(1), &Node::number(0))
    );
}

#[test]
fn the_report_reads_as_documented() {
    let report = simulated(
        r#"[{"id": "x", "limits": [{"name": "a", "rate": "1/s"}], "steps": [
            {"t_ms": 0, "cost": 1}, {"set": {"name": "a", "rate": "1/2s"}}, {"t_ms": 0, "cost": 2}
        ]}]"#,
    );
    let json = serde_json::to_value(&report).unwrap();
    let expected = serde_json::json!({"scenarios": [{"id": "x", "steps": [
        {"allowed": true, "remaining": 0, "retry_after_ms": 0, "reset_after_ms": 1000,
         "denied_by": [], "delay_ms": 0},
        null,
        {"allowed": false, "remaining": 0, "retry_after_ms": -1, "reset_after_ms": 2000,
         "denied_by": ["a"], "delay_ms": null},
    ]}]});
    assert_eq!(json, expected);
}

#[test]
fn descriptors_choose_limits_and_buckets() {
    let report = simulated(
        r#"{"id": "d", "limits": [
            {"name": "user", "per": ["user"], "rate": "1/m",
             "overrides": [{"values": {"user": "probe"}, "unlimited": true}]},
            {"name": "path", "match": {"path": "/x/**"}, "rate": "2/m"},
            {"name": "seen", "rate": "1/m", "enforce": "0%"},
            {"name": "key", "per": ["key"], "match": {"path": "/keyed"}, "if_missing": "deny",
             "rate": "1/m"}
        ], "steps": [
            {"t_ms": 0, "descriptor": {"user": "a", "path": "/x/1"}},
            {"t_ms": 0, "descriptor": {"user": "b", "path": "/x/1"}},
            {"t_ms": 0, "descriptor": {"user": "c", "path": "/x/1"}},
            {"t_ms": 0, "descriptor": {"user": "c", "path": "/y"}, "peek": true},
            {"t_ms": 0, "descriptor": {"user": "c", "path": "/y"}},
            {"t_ms": 0, "descriptor": {"user": "probe", "path": "/y"}},
            {"t_ms": 0, "descriptor": {"user": "d", "path": "/keyed"}},
            {"t_ms": 0, "descriptor": {"user": "d", "path": "/y"}}
        ]}"#,
    );
    let denied: Vec<_> = report.scenarios[0]
        .steps
        .iter()
        .map(|step| step.as_ref().unwrap().denied_by.join(","))
        .collect();
    assert_eq!(
        denied,
        ["", "", "path", "", "", "", "key", ""],
        "a denial charges nobody"
    );
}

/// 20/s: slots are 50 ms apart.
const LEAVING: &str = r#"{"id": "leaving", "limits": [
        {"name": "q", "algorithm": "leaky_bucket", "rate": "20/s", "burst": 100,
         "over_limit": "queue", "max_delay": "3s"}
    ], "steps": [
        {"t_ms": 0}, {"t_ms": 0}, {"t_ms": 0}, {"t_ms": 0},
        {"t_ms": 10, "leave": 1},
        {"t_ms": 10, "expect": {"delay_ms": 40}},
        {"t_ms": 10, "leave": 1, "note": "it has left: the slot is another's now"},
        {"t_ms": 10, "expect": {"delay_ms": 190}},
        {"t_ms": 60, "leave": 5, "note": "it has started"},
        {"t_ms": 60, "leave": 7, "note": "the last one"},
        {"t_ms": 60, "expect": {"delay_ms": 140}},
        {"set": {"name": "q", "max_delay": "2s"}},
        {"t_ms": 60, "leave": 3, "note": "it keeps its slot after an edit"},
        {"t_ms": 60, "expect": {"delay_ms": 190}}
    ]}"#;

#[test]
fn a_client_that_leaves_frees_its_slot() {
    let report = simulated(LEAVING);
    let run = &report.scenarios[0];
    assert_eq!(run.differences, []);
    assert!(run.steps[4].is_none() && run.steps[5].is_some());
}

#[test]
fn who_leaves_is_an_earlier_request() {
    let said = problems(
        r#"{"limits": [{"name": "a", "rate": "1/s"}], "steps": [
            {"t_ms": 0}, {"set": {"name": "a", "rate": "2/s"}},
            {"t_ms": 0, "leave": 1}, {"t_ms": 0, "leave": 3}, {"leave": 0},
            {"t_ms": 0, "leave": 0, "cost": 1}, {"t_ms": 0, "leave": -1}
        ]}"#,
    );
    for part in [
        "steps[2]: `leave` names the step of an earlier request",
        "steps[3]: `leave` names the step of an earlier request",
        "steps[4]: a `leave` has `t_ms`",
        "steps[5].cost: unknown field",
        "steps[6].leave: expected a whole number",
    ] {
        assert!(said.contains(part), "{part:?} is not in\n{said}");
    }
}

#[test]
fn everything_wrong_is_said_at_once() {
    let said = problems(
        r#"[{"id": "x", "limits": [{"name": "a", "rate": "1/s"}], "colour": 1, "steps": [
            {"t_ms": 0, "cost": -1},
            {"cost": 1},
            {"t_ms": 0, "expect": {"allowd": true}},
            {"set": {"name": "b", "rate": "1/s"}},
            {"set": {"name": "a", "rate": "0/s"}},
            {"t_ms": 0, "descriptor": {"Bad Key": "x"}}
        ]}, {"id": "y", "limits": [{"name": "a", "rate": "fast"}], "steps": []}, {"id": "z"}]"#,
    );
    for part in [
        "[0].colour: unknown field",
        "[0].steps[0].cost: expected a whole number of at least 0",
        "[0].steps[1]: a step has `t_ms`, or is a `set`",
        "[0].steps[2].expect.allowd: no such field in an answer",
        "[0].steps[3].set: `set` names a limit of the scenario",
        "[0].steps[4].set",
        "[0].steps[5].descriptor.Bad Key",
        "[1].limits",
        "[2]: a scenario has `limits` and `steps`",
    ] {
        assert!(said.contains(part), "{part:?} is not in\n{said}");
    }
}

#[test]
fn what_is_no_scenario_is_a_problem() {
    for json in [
        "null",
        "5",
        r#""x""#,
        "{}",
        r#"{"scenarios": 5}"#,
        "[[]]",
        r#"{"steps": {}}"#,
    ] {
        assert!(scenarios(json).is_err(), "{json}");
    }
    assert!(scenarios("[]").unwrap().is_empty());
}

#[test]
fn traffic_runs_through_limits() {
    let mut all = scenarios(
        r#"{"id": "t", "limits": [{"name": "a", "rate": "10/s", "burst": 50}], "steps": []}"#,
    )
    .unwrap();
    let traffic: Phase = "constant:20/s".parse().unwrap();
    let nobody = policy::Descriptor::new();
    all[0].steps = steps(&[traffic], 1_763_000_000_000, 10_000, 1, &nobody).unwrap();
    assert!(matches!(all[0].steps[0], Step::Check(_)));
    let report = local(&all).unwrap();
    let steps = report.scenarios[0].steps.iter().flatten();
    let admitted = steps.filter(|answer| answer.allowed).count();
    assert_eq!(
        admitted,
        50 + 99,
        "the burst, and what came back before the last request"
    );
}

/// A hundred units, of which each request reserves 30.
const SETTLING: &str = r#"{"id": "settling", "limits": [
        {"name": "tokens", "rate": "100/10s", "burst": 100, "cost": {
            "from": {"response_json": "/usage/total"}, "reserve": {"default": 30}, "max": 500}},
        {"name": "requests", "algorithm": "fixed_window", "rate": "10/1h"}
    ], "steps": [
        {"t_ms": 0, "expect": {"remaining": 9}},
        {"t_ms": 0},
        {"t_ms": 0},
        {"t_ms": 0, "expect": {"denied_by": ["tokens"]}},
        {"t_ms": 0, "settle": 0, "cost": 10, "expect": {"given_back": 20, "excess": 0, "remaining": 7}},
        {"t_ms": 0, "settle": 0, "cost": 0, "note": "again", "expect": {"given_back": 0, "excess": 0}},
        {"t_ms": 0, "expect": {"allowed": true}},
        {"t_ms": 0, "settle": 1, "cost": 900, "note": "500 at most",
         "expect": {"given_back": 0, "excess": 470, "allowed": false, "remaining": 0, "retry_after_ms": 47000}},
        {"t_ms": 0, "settle": 3, "cost": 5, "note": "it was denied", "expect": {"given_back": 0, "excess": 0}},
        {"set": {"name": "requests", "rate": "11/1h"}},
        {"t_ms": 1000, "settle": 2, "cost": 20, "expect": {"given_back": 10}},
        {"t_ms": 49000, "expect": {"allowed": true}}
    ]}"#;

#[test]
fn a_true_cost_replaces_what_a_request_reserved() {
    let report = simulated(SETTLING);
    assert_eq!(report.scenarios[0].differences, []);
}

#[test]
fn a_table_says_what_a_request_costs() {
    let report = simulated(
        r#"{"id": "t", "limits": [{"name": "a", "rate": "100/1h", "cost": {
            "table": [{"match": {"path": "/export/**"}, "units": 50}], "default": 1}}],
         "steps": [
            {"t_ms": 0, "descriptor": {"path": "/export/x"}, "expect": {"remaining": 50}},
            {"t_ms": 0, "descriptor": {"path": "/"}, "cost": 2, "expect": {"remaining": 48}}
        ]}"#,
    );
    assert_eq!(report.scenarios[0].differences, []);
}

#[test]
fn a_settlement_that_settles_nothing_is_a_problem() {
    let steps = r#"[{"t_ms": 1}, {"settle": 0}, {"t_ms": 2, "settle": 1, "cost": 1},
        {"t_ms": 2, "settle": 7, "cost": 1, "leaves": 1}]"#;
    let json =
        format!(r#"{{"id": "x", "limits": [{{"name": "a", "rate": "1/s"}}], "steps": {steps}}}"#);
    let said = problems(&json);
    for part in [
        "a `settle` has `t_ms`",
        "a `settle` has `cost`",
        "`settle` names the step of an earlier request",
        "steps[3].leaves: unknown field",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn limits_of_the_rate_limit_service_apply_to_descriptors_and_values_may_share_a_bucket() {
    let report = simulated(
        r#"{"id": "d", "limits": [
            {"name": "shared", "descriptor": ["kind=a*"], "share_threshold": true, "rate": "2/1h"},
            {"name": "each", "descriptor": ["kind"], "rate": "1/1h"}
        ], "steps": [
            {"t_ms": 0, "descriptor": {"descriptor": "kind=a1"}, "expect": {"remaining": 1}},
            {"t_ms": 0, "descriptor": {"descriptor": "kind=a2"}, "expect": {"remaining": 0}},
            {"t_ms": 0, "descriptor": {"descriptor": "kind=a3"}, "expect": {"denied_by": ["shared"]}},
            {"t_ms": 0, "descriptor": {"descriptor": "kind=b"}, "expect": {"allowed": true}},
            {"t_ms": 0, "descriptor": {"descriptor": "kind=c"}, "expect": {"allowed": true}},
            {"t_ms": 0, "descriptor": {"descriptor": "kind=b"}, "expect": {"denied_by": ["each"]}},
            {"t_ms": 0, "descriptor": {"kind": "b"}, "expect": {"remaining": null}}
        ]}"#,
    );
    assert_eq!(report.scenarios[0].differences, []);
}

#[test]
fn an_adaptive_limit_follows_the_service() {
    let text = r#"{"id": "a", "limits": [{"name": "a", "algorithm": "concurrency", "limit": 5,
        "adaptive": {"min": 2, "max": 100, "latency": "300ms"}}], "steps": []}"#;
    let mut scenarios = scenarios(text).unwrap();
    let traffic: [Phase; 1] = ["constant:600/s".parse().unwrap()];
    scenarios[0].steps = steps(&traffic, 0, 60_000, 1, &policy::Descriptor::new()).unwrap();
    // It has 400/s, then a quarter of that, then all again.
    let services = ["20x50ms", "5x50ms,20s..40s"].map(|text| text.parse().unwrap());
    scenarios[0].backend = Backend::new(services.into(), 0, 1);
    let report = local(&scenarios).unwrap();
    let answers: Vec<&Answer> = report.scenarios[0].steps.iter().flatten().collect();
    let limit = |second: usize| answers[second * 600].adaptive_limit.unwrap();
    let admitted = |from: usize, to: usize| {
        let allowed = answers[from * 600..to * 600].iter();
        allowed.filter(|answer| answer.allowed).count() / (to - from)
    };
    assert_eq!(limit(0), 5);
    assert!(
        limit(19) > 30 && limit(39) < 20,
        "{} {}",
        limit(19),
        limit(39)
    );
    assert!(limit(59) > 30, "{}", limit(59));
    assert!(
        (380..410).contains(&admitted(10, 20)),
        "{}",
        admitted(10, 20)
    );
    assert!(
        (90..110).contains(&admitted(30, 40)),
        "{}",
        admitted(30, 40)
    );
    assert!(answers.iter().any(|answer| answer.took_ms > Some(300)));
}
