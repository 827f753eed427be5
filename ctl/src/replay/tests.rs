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
async fn of_several_places_the_first_with_a_number_gives_the_bounds() {
    let limits = "  - {name: sized, rate: 100/1h, cost: {default: 1, from: [
      {request_header: x-a, max: 10}, {request_header: x-b, max: 60}]}}
";
    let costs = ["sized", "sized"].map(|name| name.parse().unwrap());
    for (numbers, units) in [
        ([Some(90), Some(90)], 10),
        ([None, Some(90)], 60),
        ([None, None], 1),
    ] {
        let mut side = Side::new(policy(limits), &costs);
        let mut request = Request {
            costs: numbers.to_vec(),
            ..at(0, "a")
        };
        let decision = side.decide(&mut request).await.unwrap();
        let charged: Vec<u64> = { decision.answer.limits.iter() }
            .map(|l| l.verdict.charged)
            .collect();
        assert_eq!(charged, [units], "{numbers:?}");
    }
}

#[tokio::test]
async fn requests_whose_cost_the_log_lacks_are_counted_by_limit() {
    let limits = "  - {name: tokens, match: {user: a}, rate: 100/1h, cost: {from: {response_json: /n}, on_error: 0, reserve: 10}}
  - {name: sized, match: {user: b}, rate: 100/1h, cost: {from: {request_header: x-size}, default: 1}}
  - {name: failures, rate: 100/1h, cost: {from: {status: [401]}}}
  - {name: all, rate: 100/1h}
";
    let with = |second, user, status, cost| Request {
        status: Some(status),
        costs: vec![cost],
        ..at(second, user)
    };
    let requests = [
        with(0, "a", 200, Some(3)),
        with(1, "a", 200, None),
        with(2, "a", 500, None),
        with(3, "a", 0, None),
        with(4, "b", 200, Some(3)),
    ];
    let costs = ["tokens".parse().unwrap()];
    let decided = report([Some(Side::new(policy(limits), &costs)), None], &requests).await;
    let limits = decided.result.limits.iter();
    let counts: Vec<(u64, u64)> = limits.map(|limit| (limit.priced, limit.unpriced)).collect();
    assert_eq!(counts, [(1, 1), (0, 1), (0, 0), (0, 0)]);
}

/// As the filter's own tests have it of the same responses.
#[tokio::test]
async fn a_response_without_its_cost_costs_what_the_filter_takes() {
    let limits = "  - {name: tokens, rate: 1000/1h, cost: {from: {response_json: /n}, reserve: 10, max: 500}}
  - {name: failing, rate: 1000/1h, cost: {from: {response_json: /n}, reserve: 10, on_error: 700, max: 600}}
";
    for (status, is_head, bytes, said, costs) in [
        (Some(200), false, Some(400), None, [100, 100]),
        (Some(200), false, Some(4), None, [10, 10]),
        (Some(200), false, Some(400), Some(7), [7, 7]),
        (Some(200), false, None, None, [500, 600]),
        (Some(200), true, Some(400), None, [500, 600]),
        (Some(206), false, Some(400), None, [500, 600]),
        (Some(226), false, Some(400), None, [500, 600]),
        (Some(302), false, Some(4000), None, [10, 10]),
        (Some(304), true, None, None, [10, 10]),
        (Some(404), false, Some(400), Some(7), [0, 600]),
        (Some(600), false, Some(400), None, [0, 600]),
        (Some(0), false, Some(0), Some(7), [10, 10]),
        (None, false, Some(400), None, [100, 100]),
    ] {
        let names = ["tokens", "failing"].map(|name| name.parse().unwrap());
        let mut side = Side::new(policy(limits), &names);
        let request = Request {
            status,
            is_head,
            bytes_sent: bytes,
            costs: vec![said, said],
            ..at(0, "a")
        };
        let left = async |side: &mut Side| {
            let decision = side.decide(&mut request.clone()).await.unwrap();
            { decision.answer.limits.iter() }
                .map(|limit| limit.verdict.decision.remaining)
                .collect::<Vec<_>>()
        };
        let (first, second) = (left(&mut side).await, left(&mut side).await);
        // The second has what the first left, and reserves as much.
        let cost: Vec<u64> = { first.iter().zip(&second) }
            .map(|(first, second)| first - second)
            .collect();
        assert_eq!(cost, costs, "{status:?} {is_head} {bytes:?} {said:?}");
    }
}

#[test]
fn adaptive_limits_learn_what_the_filter_reports() {
    const RULE: Adaptive = Adaptive {
        min: 1,
        max: 9,
        latency_ms: 300,
        share: 950,
    };
    let (fast, late, slow) = (Some(Pace::InTime), Some(Pace::Late), Some(Pace::Slow));
    for (status, service, took_ms, expected) in [
        (200, Service::Took(150), 9000, fast),
        (200, Service::Took(151), 9000, late),
        (200, Service::Took(301), 9000, slow),
        (429, Service::Took(5), 5, fast),
        (404, Service::Took(5), 5, fast),
        (499, Service::Took(5), 9000, fast),
        (500, Service::Took(5), 5, None),
        (502, Service::Took(200), 200, late),
        (503, Service::Took(1), 1, slow),
        (101, Service::Took(1), 1, None),
        // Envoy answered.
        (503, Service::Silent, 1, slow),
        (502, Service::Silent, 1, slow),
        (429, Service::Silent, 1, None),
        (401, Service::Silent, 1, None),
        (301, Service::Silent, 1, None),
        (500, Service::Silent, 400, None),
        (200, Service::Silent, 200, late),
        (0, Service::Silent, 150, None),
        (0, Service::Silent, 151, slow),
        // By the status and the duration alone.
        (200, Service::Unknown, 150, fast),
        (200, Service::Unknown, 301, slow),
        (404, Service::Unknown, 1, fast),
        (429, Service::Unknown, 400, None),
        (500, Service::Unknown, 1, None),
        (500, Service::Unknown, 301, slow),
        (504, Service::Unknown, 1, slow),
        (499, Service::Unknown, 1, None),
        (499, Service::Unknown, 151, slow),
    ] {
        let mut request = Request {
            status: Some(status),
            service,
            took_ms: Some(took_ms),
            ..Request::default()
        };
        assert_eq!(
            pace(&RULE, &request),
            expected,
            "{status} {service:?} {took_ms}"
        );
        request.is_connect = true;
        assert_eq!(pace(&RULE, &request), None);
    }
    let without = Request {
        status: Some(200),
        ..Request::default()
    };
    assert_eq!(pace(&RULE, &without), None);
}

#[tokio::test]
async fn limits_judge_as_they_are_written_whatever_is_in_force_when() {
    let text = "domain: shop
paused: {until: 2026-12-01T00:00Z}
limits:
  - {name: per-user, per: [user], rate: 2/1m, paused: true, overrides: [
      {values: {user: ended}, rate: 100/1m, until: 2026-11-26T00:00Z},
      {values: {user: partner}, rate: 3/1m, until: 2026-11-28T00:00Z}]}
  - {name: other, match: {user: nobody}, rate: 2/1m, paused: {until: 2026-11-26T00:00Z}}
";
    let written = limits_file::read("limits.yaml", text.as_bytes()).unwrap();
    let now_ms = policy::parse_timestamp("2026-11-27T00:00:00Z").unwrap();
    // The day before the pauses and one override ended; and a log of a clock that is ahead.
    for second in [0, 10 * 86_400] {
        let mut policy = written.clone();
        let paused = as_written(&mut policy, now_ms);
        assert_eq!(paused, [None, Some("per-user".parse().unwrap())]);
        let requests =
            ["a", "ended", "partner"].map(|user| [0, 1, 2, 3].map(|n| at(second + n, user)));
        let mut requests = requests.concat();
        requests.sort_by_key(|request| request.at_ms);
        let decided = report([Some(Side::new(policy, &[])), None], &requests).await;
        let buckets: Vec<(&str, u64)> = { decided.result.buckets.iter() }
            .map(|bucket| (&*bucket.text, bucket.requests))
            .collect();
        let expected = [("user=a", 2), ("user=ended", 2), ("user=partner", 1)];
        assert_eq!(buckets, expected);
    }
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
