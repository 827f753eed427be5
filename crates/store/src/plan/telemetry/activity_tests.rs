use super::*;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn bucket(user: &[u8], requests: u64, denied_at_ms: Option<u64>) -> BucketActivity {
    BucketActivity {
        limit: name("per-user"),
        bucket: vec![(name("user"), Some(user.to_vec())), (name("tenant"), None)],
        requests,
        denied: u64::from(denied_at_ms.is_some()),
        over: 2 * u64::from(denied_at_ms.is_some()),
        last: denied_at_ms.map(|at_ms| Denial {
            at_ms,
            outcome: Outcome::Denied,
            by: DecidedBy::DenyCache,
            proxy: Some("p1".to_owned()),
            descriptor: vec![(name("path"), b"/\xff".to_vec())],
        }),
    }
}

fn report() -> ActivityReport {
    let mut limit = LimitActivity {
        delayed: 2,
        settled_units: 730,
        penalties: 1,
        slots_taken: 9,
        ..LimitActivity::default()
    };
    limit.add(Outcome::Allowed, DecidedBy::Limiter, 7);
    limit.add(Outcome::Denied, DecidedBy::Limiter, 1);
    limit.add(Outcome::Denied, DecidedBy::DenyCache, 40);
    ActivityReport {
        covered_ms: 4000,
        activity: Activity {
            requests: RequestCounts {
                allowed: 6,
                denied: 41,
            },
            limits: BTreeMap::from([(name("per-user"), limit)]),
            unmatched: 3,
            errors: 4,
            buckets: vec![bucket(b"alice", 5, Some(17)), bucket(b"b\xffb", 2, None)],
        },
    }
}

#[test]
fn a_note_goes_there_and_back() {
    let json = report().to_json();
    insta::assert_snapshot!(json, @r#"{"format":1,"covered_ms":4000,"allowed":6,"denied":41,"unmatched":3,"errors":4,"limits":{"per-user":{"allowed":{"limiter":7},"denied":{"limiter":1,"deny_cache":40},"delayed":2,"settled_units":730,"penalties":1,"slots_taken":9}},"buckets":[{"limit":"per-user","bucket":{"user":"alice","tenant":null},"requests":5,"denied":1,"over":2,"last":{"at_ms":17,"outcome":"denied","by":"deny_cache","descriptor":{"path":{"base64":"L/8="}},"proxy":"p1"}},{"limit":"per-user","bucket":{"user":{"base64":"Yv9i"},"tenant":null},"requests":2}]}"#);
    assert_eq!(ActivityReport::read(&json), report());
}

#[test]
fn what_a_later_version_adds_is_skipped() {
    let later = r#"{"format":1,"covered_ms":1,"new":[],"limits":{"per-user":
        {"allowed":{"limiter":7,"oracle":2},"guessed":{"limiter":1},"new":3}},
        "buckets":[{"limit":"per-user","last":{"at_ms":1,"outcome":"guessed"}}]}"#;
    let read = ActivityReport::read(later).activity;
    assert_eq!(read.limits[&name("per-user")].counts.len(), 1);
    assert_eq!(read.limits.len(), 1);
    assert_eq!(read.buckets.len(), 1);
    assert_eq!(read.buckets[0].last, None);
    assert_eq!(
        ActivityReport::read(r#"{"format":2,"errors":3}"#),
        ActivityReport::default()
    );
    assert_eq!(ActivityReport::read("\u{0}"), ActivityReport::default());
}

#[test]
fn activities_add_up_and_the_last_denial_stays() {
    let mut sum = report().activity;
    let mut other = report().activity;
    other.buckets = vec![bucket(b"alice", 1, Some(18)), bucket(b"alice", 1, Some(16))];
    sum.merge(other);
    sum.join_buckets();
    let limit = &sum.limits[&name("per-user")];
    assert_eq!(limit.total(Outcome::Denied), 82);
    assert_eq!(limit.total(Outcome::WouldDeny), 0);
    assert_eq!((limit.delayed, sum.unmatched, sum.errors), (4, 6, 8));
    assert_eq!(
        (limit.settled_units, limit.penalties, limit.slots_taken),
        (1460, 2, 18)
    );
    assert_eq!((sum.requests.allowed, sum.requests.denied), (12, 82));
    let alice = &sum.buckets[0];
    assert_eq!((alice.requests, alice.denied), (7, 3));
    assert_eq!(alice.last.as_ref().unwrap().at_ms, 18);
    assert_eq!(sum.buckets.len(), 2);
}

#[test]
fn a_summary_keeps_what_each_slot_had() {
    let from = |limiter: &str| (limiter.to_owned(), report());
    let slots = [vec![from("a"), from("b")], Vec::new(), vec![from("a")]];
    let summary = ActivitySummary::from_slots(slots, 99);
    assert_eq!(summary.covered_ms, 8000, "two slots of `a`");
    assert_eq!(summary.activity.requests.denied, 3 * 41);
    let denied: Vec<u64> = summary
        .slots
        .iter()
        .map(|slot| slot.requests.denied)
        .collect();
    assert_eq!(denied, [82, 0, 41]);
    let of_limit = &summary.slots[0].limits[&name("per-user")];
    assert_eq!(of_limit.total(Outcome::Denied), 82);
}

#[test]
fn a_slot_lists_its_buckets_and_bounds_what_is_not_listed() {
    let users = |users: std::ops::Range<u64>| {
        let of = |user: u64| bucket(format!("u{user}").as_bytes(), 1000 - user, None);
        let mut report = report();
        report.activity.buckets = users.map(of).collect();
        report
    };
    let full = ("a".to_owned(), users(0..60));
    let short = ("b".to_owned(), users(30..79));
    let slots = [vec![full.clone(), short], vec![full.clone(), full]];
    let summary = ActivitySummary::from_slots(slots, 99);
    let [first, second] = summary.slots.as_slice() else {
        panic!("{summary:?}");
    };
    // Only the first list may lack some: those have at most what its fiftieth has.
    assert_eq!((first.buckets.len(), first.unlisted_max), (79, 951));
    assert_eq!((second.buckets.len(), second.unlisted_max), (60, 2 * 951));
    let both =
        { first.buckets.iter() }.find(|found| found.bucket == bucket(b"u40", 0, None).bucket);
    assert_eq!(both.map(|found| found.requests), Some(2 * 960));
    // What only the short list has may have as many more at the other limiter, as its last has.
    let lacks = |of: &SlotActivity| -> Vec<u64> {
        let more = of.buckets_unlisted.iter().copied();
        more.filter(|more| *more > 0).collect()
    };
    assert_eq!(
        (lacks(first), first.buckets_unlisted.len()),
        (vec![951; 19], 79)
    );
    assert!(lacks(second).is_empty());
    assert_eq!(summary.activity.buckets.len(), 79);
}
