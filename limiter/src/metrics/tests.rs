use store::CheckPlanError;

use super::*;

#[test]
fn counters_begin_at_0() {
    let metrics = Metrics::new();
    let text = b"domain: shop\nlimits:\n  - {name: local, rate: 1/s}\n  \
        - {name: open, rate: 1/s, on_failure: allow}\n  - {name: closed, rate: 1/s, on_failure: deny}\n";
    metrics.domain(&Compiled::new(limits_file::read("limits", text).unwrap()));
    let page = metrics.page(true, 0);
    let decided = |limit: &str, decision: &str, source: &str| {
        format!(
            "rl_decisions_total{{domain=\"shop\",limit=\"{limit}\",decision=\"{decision}\",source=\"{source}\"}}"
        )
    };
    for series in [
        "rl_refused_total{code=\"overloaded\"}".to_owned(),
        "rl_refused_total{code=\"store_unavailable\"}".to_owned(),
        "rl_connections_cut_total{reason=\"silent\"}".to_owned(),
        "rl_unmatched_descriptors_total{reason=\"domain\"}".to_owned(),
        "rl_policy_lost_edits_total{domain=\"shop\"}".to_owned(),
        "rl_fallback_decisions_total{domain=\"shop\"}".to_owned(),
        decided("local", "allowed", "local"),
        decided("local", "denied", "local"),
        decided("open", "allowed", "failure"),
        decided("closed", "denied", "failure"),
    ] {
        let line = format!("{series} 0");
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
    }
}

fn of_limits(names: impl IntoIterator<Item = String>) -> Compiled {
    let limits = { names.into_iter() }.map(|name| format!("  - {{name: {name}, rate: 1/s}}\n"));
    let text = format!("domain: shop\nlimits:\n{}", limits.collect::<String>());
    Compiled::new(limits_file::read("limits", text.as_bytes()).unwrap())
}

fn lines_of(page: &str, limit: &str) -> usize {
    let label = format!("limit=\"{limit}\"");
    page.lines().filter(|line| line.contains(&label)).count()
}

#[test]
fn of_many_limits_those_that_decided_have_all_their_counters() {
    let metrics = Metrics::new();
    let names = |many: usize| (0..many).map(|n| format!("n{n}"));
    let few = metrics.domain(&of_limits(names(FROM_ZERO_MAX)));
    let from_zero = lines_of(&metrics.page(true, 0), "n0");
    assert!(from_zero > 10, "{from_zero} lines");
    drop(few);
    let many = metrics.domain(&of_limits(names(FROM_ZERO_MAX + 1)));
    let page = metrics.page(true, 0);
    assert_eq!(lines_of(&page, "n0"), 0);
    let fallback = |page: &str, count: u64| {
        let line = format!("rl_fallback_decisions_total{{domain=\"shop\"}} {count}");
        page.lines().any(|found| found == line)
    };
    assert!(fallback(&page, 0), "an alert needs it before there are any");
    let reported = |by| Tally {
        limit: "n0".parse().unwrap(),
        outcome: Outcome::Denied,
        by,
        count: 3,
    };
    many.reported(&reported(DecidedBy::DenyCache));
    let page = metrics.page(true, 0);
    assert_eq!(lines_of(&page, "n0"), from_zero + 1);
    assert_eq!(lines_of(&page, "n1"), 0);
    assert!(fallback(&page, 0));
    many.reported(&reported(DecidedBy::Local));
    many.reported(&reported(DecidedBy::Failure));
    assert!(fallback(&metrics.page(true, 0), 6));
}

#[test]
fn the_page_of_many_limits_of_which_few_decide_is_short() {
    let metrics = Metrics::new();
    let names = (0..5000).map(|n| format!("a-limit-of-a-tenant-and-a-route-{n}"));
    let counters = metrics.domain(&of_limits(names));
    for n in 0..100 {
        counters.reported(&Tally {
            limit: format!("a-limit-of-a-tenant-and-a-route-{n}")
                .parse()
                .unwrap(),
            outcome: Outcome::Allowed,
            by: DecidedBy::Lease,
            count: 1,
        });
    }
    let bytes = metrics.page(true, 0).len();
    assert!(bytes < 300_000, "{bytes} bytes");
}

#[test]
fn counters_stay_through_an_edit_and_go_with_their_limit() {
    let metrics = Metrics::new();
    let names = |names: &[&str]| of_limits(names.iter().map(ToString::to_string));
    let before = metrics.domain(&names(&["kept", "gone"]));
    before.settled(
        &"kept".parse().unwrap(),
        &Settlement {
            spent: 7,
            ..Settlement::default()
        },
    );
    let after = metrics.domain(&names(&["kept", "new"]));
    // A check that began before the edit.
    before.settled(
        &"kept".parse().unwrap(),
        &Settlement {
            spent: 1,
            ..Settlement::default()
        },
    );
    let page = metrics.page(true, 0);
    let line = "rl_lease_spent_units_total{domain=\"shop\",limit=\"kept\"} 8";
    assert!(page.lines().any(|found| found == line), "{page}");
    assert_eq!(lines_of(&page, "gone"), 0);
    assert_eq!(lines_of(&page, "new"), lines_of(&page, "kept"));
    metrics.forget_domain(&"shop".parse().unwrap());
    assert_eq!(lines_of(&metrics.page(true, 0), "kept"), 0);
    after.undecided(1);
}

fn failed() -> Result<Answer, CheckError> {
    Err(StoreError::Timeout(Duration::from_millis(10)).into())
}

#[test]
fn trouble_is_reported_when_calls_keep_failing() {
    let (calls, mut now) = (StoreCalls::default(), Instant::now());
    assert!(!calls.any());
    for _ in 0..6 {
        assert_eq!(calls.trouble(now), None);
        calls.called(&[failed(), failed()], now);
        now += LASTING / 5;
    }
    let why = calls.trouble(now).unwrap();
    assert!(why.contains("within 10 ms"), "{why}");
    // One decision is enough.
    calls.called(&[failed(), Err(CheckPlanError::NoMatch.into())], now);
    assert_eq!(calls.trouble(now), None);
}

#[test]
fn the_log_says_that_checks_get_no_decision_and_when_they_do_again() {
    let (calls, begun) = (StoreCalls::default(), Instant::now());
    let fails = |after| calls.record(&[failed()], begun + after);
    let decides = |after| calls.record(&[Err(CheckPlanError::NoMatch.into())], begun + after);
    assert_eq!(fails(Duration::ZERO), None);
    assert!(matches!(fails(LASTING), Some(Err(why)) if why.contains("within 10 ms")));
    assert_eq!(fails(LASTING * 2), None);
    assert!(matches!(fails(LASTING + LOGGED_AGAIN), Some(Err(_))));
    let end = LASTING * 2 + LOGGED_AGAIN;
    assert_eq!(decides(end), Some(Ok(end)));
    assert_eq!(decides(end), None);
    // It comes and goes: not a line each time.
    for after in [end, end + LASTING] {
        assert_eq!(fails(after), None);
    }
    assert_eq!(decides(end + LASTING), None);
}

#[test]
fn trouble_expires_without_new_calls() {
    let (calls, now) = (StoreCalls::default(), Instant::now());
    calls.called(&[], now);
    calls.called(&[], now + LASTING);
    assert!(calls.trouble(now + LASTING).is_some());
    assert_eq!(calls.trouble(now + LASTING + RECENT), None);
}
