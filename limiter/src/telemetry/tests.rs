use policy::Compiled;

use super::*;
use crate::metrics::Metrics;

/// Noon of some day: the start of a slot of either kind.
const START_MS: u64 = 1_763_000_400_000;

fn compiled(limits: &str) -> Compiled {
    let text = format!("domain: shop\nlimits:\n{limits}");
    Compiled::new(limits_file::read("test", text.as_bytes()).unwrap())
}

fn counters() -> Arc<DomainCounters> {
    Metrics::new().domain(&compiled("  - {name: per-user, per: [user], rate: 1/s}\n"))
}

fn answer(user: &str, allowed: bool) -> LimitAnswer {
    let mut answer = LimitAnswer::new("per-user".parse().unwrap());
    answer.bucket = vec![("user".parse().unwrap(), Some(user.as_bytes().to_vec()))];
    answer.verdict.decision.allowed = allowed;
    answer
}

fn count(decided: &mut Decided, answer: &LimitAnswer) {
    decided.count(answer, |outcome| Denial {
        at_ms: START_MS,
        outcome,
        by: DecidedBy::Limiter,
        proxy: None,
        descriptor: Vec::new(),
    });
}

/// One decision, counted in the metrics and in the activity.
fn decide(recorder: &mut ActivityRecorder, counters: &DomainCounters, answer: &LimitAnswer) {
    counters.answered(answer, true);
    let mut decided = Decided::default();
    count(&mut decided, answer);
    recorder.add(&decided);
}

fn denied(due: &Due) -> u64 {
    let limits = due.report.activity.limits.values();
    limits.map(|limit| limit.total(Outcome::Denied)).sum()
}

#[test]
fn a_slot_is_reported_while_it_fills_and_once_more_when_it_ends() {
    let (counters, mut recorder) = (counters(), ActivityRecorder::new(START_MS));
    decide(&mut recorder, &counters, &answer("alice", false));
    let [due] = &recorder.collect(&counters, START_MS + 1000, false)[..] else {
        panic!("the short slot is due");
    };
    let first = Resolution::Fine.slot(START_MS);
    assert_eq!((due.slot, due.is_final, denied(due)), (first, false, 1));
    // Nothing new, nothing to report.
    assert!(
        recorder
            .collect(&counters, START_MS + 2000, false)
            .is_empty()
    );
    decide(&mut recorder, &counters, &answer("alice", false));
    let last = recorder.collect(&counters, START_MS + 5100, false);
    assert_eq!(
        (last[0].slot, last[0].is_final, denied(&last[0])),
        (first, true, 2)
    );
    let bucket = &last[0].report.activity.buckets[0];
    assert_eq!((bucket.requests, bucket.denied), (2, 2));
    recorder.written(&last, START_MS + 5100);
    decide(&mut recorder, &counters, &answer("bob", false));
    let next = recorder.collect(&counters, START_MS + 6000, false);
    assert_eq!(next[0].slot.number, first.number + 1);
    assert_eq!(denied(&next[0]), 1);
    assert_eq!(next[0].report.activity.buckets.len(), 1);
}

#[test]
fn unconfirmed_counts_are_reported_again_for_the_last_ended_slot() {
    let (counters, mut recorder) = (counters(), ActivityRecorder::new(START_MS));
    decide(&mut recorder, &counters, &answer("alice", false));
    // The report is not confirmed.
    recorder.collect(&counters, START_MS + 6000, false);
    decide(&mut recorder, &counters, &answer("alice", false));
    let late = recorder.collect(&counters, START_MS + 62_000, false);
    assert_eq!(denied(&late[0]), 2);
    let now = Resolution::Fine.slot(START_MS + 62_000);
    assert_eq!(late[0].slot.number, now.number - 1);
}

#[test]
fn the_coarse_slot_is_reported_every_ten_seconds() {
    let (counters, mut recorder) = (counters(), ActivityRecorder::new(START_MS));
    let mut reported = 0;
    for second in 1..=60 {
        decide(&mut recorder, &counters, &answer("alice", true));
        let due = recorder.collect(&counters, START_MS + second * 1000, false);
        let long = due
            .iter()
            .filter(|due| due.slot.resolution == Resolution::Coarse);
        for due in long {
            reported += 1;
            assert_eq!(due.report.activity.limits.len(), 1);
            let [alice] = &due.report.activity.buckets[..] else {
                panic!("{:?}", due.report.activity.buckets);
            };
            assert_eq!(alice.requests, second);
        }
        recorder.written(&due, START_MS + second * 1000);
    }
    assert_eq!(reported, 6);
}

#[test]
fn bucket_counts_are_sampled_when_there_are_very_many_decisions() {
    let (counters, mut recorder) = (counters(), ActivityRecorder::new(START_MS));
    let mut decided = Decided::default();
    for n in 0..200_000 {
        let user = if n % 4 == 0 { "alice" } else { "bob" };
        let answer = answer(user, user == "bob");
        counters.answered(&answer, true);
        count(&mut decided, &answer);
    }
    recorder.add(&decided);
    let due = recorder.collect(&counters, START_MS + 1000, false);
    assert_eq!(denied(&due[0]), 50_000, "counts are exact");
    let buckets = &due[0].report.activity.buckets;
    let alice = buckets.iter().find(|bucket| bucket.denied > 0).unwrap();
    // Sixteenths of some 50,000: a twentieth off would be five standard deviations.
    assert!((45_000..55_000).contains(&alice.denied), "{alice:?}");
}

#[test]
fn a_limit_that_was_away_is_counted_from_its_return() {
    let before = LimitCounts::default();
    let mut last = 7;
    assert_eq!(since(&mut last, 9), 2);
    assert_eq!(since(&mut last, 3), 3);
    assert_eq!(
        LimitCounts::default().since(before),
        LimitActivity::default()
    );
}

#[test]
fn a_report_is_bounded_and_keeps_the_busiest_limits() {
    let mut activity = Activity::default();
    for n in 0..3000_u64 {
        let mut limit = LimitActivity::default();
        limit.add(Outcome::Allowed, DecidedBy::Limiter, n);
        let name = format!("limit-{n}").parse().unwrap();
        activity.limits.insert(name, limit);
    }
    let kept = bounded(&activity);
    assert_eq!(kept.limits.len(), LIMITS_MAX);
    assert!(kept.limits.contains_key("limit-2999") && !kept.limits.contains_key("limit-999"));
}

#[test]
fn a_domain_beyond_the_bound_is_counted_by_the_hour_once_another_is_gone() {
    let recorder = |n: usize| {
        let recorder = ActivityRecorder {
            has_long_tops: n < LONG_DOMAINS_MAX,
            ..ActivityRecorder::new(START_MS)
        };
        (format!("d{n}").parse::<Name>().unwrap(), recorder)
    };
    let mut recorders: HashMap<Name, _> = (0..LONG_DOMAINS_MAX + 2).map(recorder).collect();
    let long = |recorders: &HashMap<Name, ActivityRecorder>| {
        { recorders.values() }.filter(|r| r.has_long_tops).count()
    };
    share_long_tops(&mut recorders);
    assert_eq!(long(&recorders), LONG_DOMAINS_MAX);
    recorders.retain(|name, _| name.as_str() != "d0");
    assert_eq!(long(&recorders), LONG_DOMAINS_MAX - 1);
    share_long_tops(&mut recorders);
    assert_eq!(long(&recorders), LONG_DOMAINS_MAX);
}
