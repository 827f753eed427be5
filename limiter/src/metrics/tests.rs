use store::CheckPlanError;

use super::*;

#[test]
fn counters_begin_at_0() {
    let metrics = Metrics::new();
    let text = b"domain: shop\nlimits:\n  - {name: local, rate: 1/s}\n  \
        - {name: open, rate: 1/s, on_failure: allow}\n  - {name: closed, rate: 1/s, on_failure: deny}\n";
    metrics.domain(&Compiled::new(limits_file::read("limits", text).unwrap()));
    let page = metrics.page(true);
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
        decided("local", "allowed", "local"),
        decided("local", "denied", "local"),
        decided("open", "allowed", "failure"),
        decided("closed", "denied", "failure"),
    ] {
        let line = format!("{series} 0");
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
    }
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
fn trouble_expires_without_new_calls() {
    let (calls, now) = (StoreCalls::default(), Instant::now());
    calls.called(&[], now);
    calls.called(&[], now + LASTING);
    assert!(calls.trouble(now + LASTING).is_some());
    assert_eq!(calls.trouble(now + LASTING + RECENT), None);
}
