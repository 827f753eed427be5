use super::*;

fn policy(limits: &str) -> Policy {
    let text = format!("domain: shop\nlimits:\n{limits}");
    limits_file::read("limits.yaml", text.as_bytes()).unwrap()
}

/// A request of a user at so many seconds.
fn at(second: u64, user: &str) -> Request {
    Request {
        at_ms: 1_795_650_000_000 + second * 1000,
        descriptor: [("user".parse().unwrap(), user.as_bytes().to_vec())]
            .into_iter()
            .collect(),
        ..Request::default()
    }
}

async fn report(sides: [Option<Side>; 2], requests: &[Request]) -> Decided {
    let [side, against] = sides;
    let mut replay = Replay::new(side.unwrap(), against);
    for request in requests {
        replay.take(&mut request.clone()).await.unwrap();
    }
    replay.report()
}

const PER_USER: &str = "  - {name: per-user, per: [user], rate: 2/1m}\n";

#[tokio::test]
async fn what_a_limit_denies_is_counted_by_bucket() {
    let limits = format!("{PER_USER}  - {{name: all, rate: 4/1m, enforce: 0%}}\n");
    let users = ["a", "a", "b", "a", "a", "b", "b", "c"];
    let requests: Vec<Request> = (0..).zip(users).map(|(n, user)| at(n, user)).collect();
    let decided = report([Some(Side::new(policy(&limits), &[])), None], &requests).await;
    let totals = decided.result.totals;
    assert_eq!((totals.requests, totals.denied, totals.reported), (8, 3, 1));
    let [per_user, all] = decided.result.limits.as_slice() else {
        panic!("{decided:?}");
    };
    assert_eq!((per_user.requests, per_user.over), (8, 3));
    assert_eq!((per_user.buckets, per_user.buckets_over), (3, 2));
    assert_eq!(per_user.first_ms, Some(at(3, "a").at_ms));
    // A denied request uses nothing up: four passed before the last of b, which both are against.
    assert_eq!((all.over, &*all.action), (2, "report"));
    let buckets: Vec<(&str, u64)> = { decided.result.buckets.iter() }
        .map(|bucket| (&*bucket.text, bucket.requests))
        .collect();
    assert_eq!(buckets, [("(all)", 2), ("user=a", 2), ("user=b", 1)]);
}

#[tokio::test]
async fn two_policies_show_who_changes_sides() {
    let looser = policy("  - {name: per-user, per: [user], rate: 3/1m}\n");
    let stricter = policy("  - {name: per-b, per: [user], match: {user: b}, rate: 1/1m}\n");
    let users = ["a", "a", "a", "b", "b", "a"];
    let requests: Vec<Request> = (0..).zip(users).map(|(n, user)| at(n, user)).collect();
    let sides = [Some(Side::new(stricter, &[])), Some(Side::new(looser, &[]))];
    let against = report(sides, &requests).await.against.unwrap();
    assert_eq!((against.newly_denied, against.newly_allowed), (1, 1));
    let one = |buckets: &[BucketLoss]| {
        let [bucket] = buckets else {
            panic!("{buckets:?}");
        };
        (bucket.limit.clone(), bucket.text.clone(), bucket.requests)
    };
    let lost = ("per-b".to_owned(), "user=b".to_owned(), 1);
    assert_eq!(one(&against.newly_denied_buckets), lost);
    let won = ("per-user".to_owned(), "user=a".to_owned(), 1);
    assert_eq!(one(&against.newly_allowed_buckets), won);
}

#[tokio::test]
async fn costs_come_from_the_log() {
    let limits = "  - {name: tokens, per: [user], rate: 100/1h, cost: {from: {response_json: /n}, reserve: 10}}
  - {name: failures, per: [user], rate: 2/1h, cost: {from: {status: [401]}}}
  - {name: sized, per: [user], rate: 100/1h, cost: {from: {request_header: x-size, max: 60}, default: 1}}
";
    let named = |name: &str| name.parse::<Name>().unwrap();
    let costs = [named("tokens"), named("sized")];
    let with = |second, status, costs: [Option<u64>; 2]| Request {
        took_ms: Some(500),
        status: Some(status),
        costs: costs.to_vec(),
        ..at(second, "a")
    };
    let decided = async |requests: &[Request]| {
        let side = Side::new(policy(limits), &costs);
        let decided = report([Some(side), None], requests).await;
        let limits = decided.result.limits.into_iter();
        limits.map(|limit| limit.over).collect::<Vec<_>>()
    };
    // 95 tokens leave too few to reserve 10; a response of 5 gives the rest back.
    let tokens = |first| {
        [
            with(0, 200, [Some(first), None]),
            with(1, 200, [Some(1), None]),
        ]
    };
    assert_eq!(decided(&tokens(95)).await, [1, 0, 0]);
    assert_eq!(decided(&tokens(5)).await, [0, 0, 0]);
    // Two failures use the limit up; what succeeds costs nothing.
    let statuses = |status| [0, 1, 2].map(|n| with(n, status, [Some(1), None]));
    assert_eq!(decided(&statuses(401)).await, [0, 1, 0]);
    assert_eq!(decided(&statuses(200)).await, [0, 0, 0]);
    // 90 counts as `max`, 60.
    let sizes = [
        with(0, 200, [Some(1), Some(90)]),
        with(1, 200, [Some(1), Some(41)]),
    ];
    assert_eq!(decided(&sizes).await, [0, 0, 1]);
}

#[tokio::test]
async fn requests_in_flight_end_when_the_log_says() {
    let limits = "  - {name: busy, per: [user], algorithm: concurrency, limit: 1}\n";
    let mut requests = [at(0, "a"), at(1, "a"), at(3, "a")];
    requests[0].took_ms = Some(2000);
    let decided = report([Some(Side::new(policy(limits), &[])), None], &requests).await;
    assert_eq!(decided.result.totals.denied, 1);
}

#[tokio::test]
async fn an_adaptive_limit_follows_the_durations_in_the_log() {
    let limits = "  - {name: busy, algorithm: concurrency, limit: 4, \
                  adaptive: {min: 1, max: 4, latency: 10ms}}\n";
    for (took_ms, denies) in [(Some(5), false), (Some(25), true), (None, false)] {
        // Two at once, ten times a second.
        let pair = |n: u64| Request {
            at_ms: at(0, "a").at_ms + n / 2 * 100,
            took_ms,
            ..at(0, "a")
        };
        let requests: Vec<Request> = (0..60).map(pair).collect();
        let side = Side::new(policy(limits), &[]);
        let decided = report([Some(side), None], &requests).await;
        assert_eq!(decided.result.totals.denied > 0, denies, "{took_ms:?}");
    }
}

#[tokio::test]
async fn the_names_of_those_that_lose_most_are_kept_whoever_comes_first() {
    let limits = "  - {name: none, per: [user], algorithm: fixed_window, rate: 0/1m}\n";
    let mut side = Side::new(policy(limits), &[]);
    // Each of 1000 users loses as many requests as its number modulo 7, in turns; one loses 20, late.
    for turn in 0..7 {
        for user in (0..1000).filter(|user| user % 7 > turn) {
            side.decide(&mut at(0, &format!("u{user}"))).await.unwrap();
        }
    }
    for _ in 0..20 {
        side.decide(&mut at(0, "u0")).await.unwrap();
    }
    let most = side.result().buckets;
    assert_eq!(most.len(), NAMED_MAX);
    assert_eq!((&*most[0].text, most[0].requests), ("user=u0", 20));
    assert!(
        most.iter().skip(1).all(|bucket| bucket.requests == 6),
        "{most:?}"
    );
    assert!(side.over.named.len() <= 2 * NAMED_MAX);
}

#[tokio::test]
async fn of_many_that_lose_alike_as_many_are_named_as_are_shown() {
    let limits = "  - {name: none, per: [user], algorithm: fixed_window, rate: 0/1m}\n";
    let mut side = Side::new(policy(limits), &[]);
    for user in 0..5 * NAMED_MAX {
        side.decide(&mut at(0, &format!("u{user}"))).await.unwrap();
    }
    assert_eq!(side.result().buckets.len(), NAMED_MAX);
    side.decide(&mut at(0, "u499")).await.unwrap();
    let most = side.result().buckets;
    assert_eq!((&*most[0].text, most[0].requests), ("user=u499", 2));
    assert_eq!(most.len(), NAMED_MAX);
}

#[test]
fn a_timeline_gets_longer_slots_and_loses_nothing() {
    let mut timeline = Timeline::default();
    let start = 1_795_650_007_250;
    timeline.add(start, true);
    assert_eq!(
        (timeline.start_ms, timeline.slot_ms),
        (1_795_650_007_000, 1000)
    );
    for second in 0..100_u64 {
        timeline.add(start + second * 1000, second % 2 == 0);
    }
    let sum = |timeline: &Timeline| {
        let slots = timeline.slots.iter();
        slots.fold((0, 0), |(all, no), slot| {
            (all + slot.requests, no + slot.denied)
        })
    };
    assert_eq!((timeline.slot_ms, sum(&timeline)), (5000, (101, 51)));
    assert_eq!(timeline.start_ms, 1_795_650_005_000);
    assert_eq!(
        timeline.slots[0],
        Slot {
            requests: 4,
            denied: 3
        }
    );
    // A year later, then the end of time.
    timeline.add(start + 365 * 86_400_000, false);
    assert_eq!(sum(&timeline), (102, 51));
    timeline.add(u64::MAX, false);
    assert_eq!(sum(&timeline), (103, 51));
    assert!(timeline.slots.len() <= SLOTS_MAX);
}

#[test]
fn shares_are_read_and_written() {
    for (text, share) in [
        ("0.1%", 1000),
        ("0.1", 1000),
        ("5%", 50_000),
        ("0.0001%", 1),
        ("100%", 1_000_000),
        ("0", 0),
    ] {
        assert_eq!(parse_percent(text), Ok(share), "{text}");
    }
    for text in [
        "", "%", "-1%", "0.00001%", "101%", "100.1%", "1e2", "one", "1.%2", "+1",
    ] {
        assert!(parse_percent(text).is_err(), "{text}");
    }
    for (part, whole, text) in [
        (0, 10, "0%"),
        (1, 1000, "0.10%"),
        (1, 10_000_000, "0.0001%"),
        (15, 1_000_000, "0.0015%"),
        (1, 3, "33.3%"),
        (10, 10, "100.0%"),
        (1, 0, "0%"),
    ] {
        assert_eq!(percent(millionths(part, whole)), text, "{part} of {whole}");
    }
    assert_eq!(millionths(u64::MAX, u64::MAX), 1_000_000);
}
