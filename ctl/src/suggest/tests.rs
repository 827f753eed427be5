use harness::Random;

use super::*;

const START_MS: u64 = 1_795_564_800_000;

fn usage(mut times: Vec<(u64, u64)>) -> Usage {
    times.sort_unstable();
    let mut usage = Usage::default();
    for (at_ms, user) in times {
        let hash = user.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        usage.add(hash, || format!("user={user}"), START_MS + at_ms, Some(200));
    }
    usage
}

/// Users that ask evenly, the last one twenty times as often.
fn steady(seed: u64) -> Vec<(u64, u64)> {
    let mut random = Random(seed);
    let mut times = Vec::new();
    for user in 0..300 {
        let every_ms = if user > 298 { 60_000 } else { 1_200_000 };
        let mut at_ms = random.below(every_ms);
        while at_ms < 3 * DAY_MS {
            times.push((at_ms, user));
            at_ms += every_ms;
        }
    }
    times
}

/// Users that come now and then, with a page of requests at once.
fn bursts(seed: u64) -> Vec<(u64, u64)> {
    let mut random = Random(seed);
    let mut times = Vec::new();
    for user in 0..600 {
        for _ in 0..30 {
            let at_ms = random.below(3 * DAY_MS);
            let size = 2 + random.below(10) + 40 * u64::from(random.below(300) == 0);
            times.extend((0..size).map(|n| (at_ms + n * 20, user)));
        }
    }
    times
}

/// Few use much: a user's part falls with its number. All come by day only.
fn skewed(seed: u64) -> Vec<(u64, u64)> {
    let mut random = Random(seed);
    let mut times = Vec::new();
    for user in 0..3000_u64 {
        for _ in 0..(4000 / (user + 10)).max(4) {
            let day = random.below(4) * DAY_MS;
            times.push((day + 8 * HOUR_MS + random.below(10 * HOUR_MS), user));
        }
    }
    times
}

const TARGET: Target = Target {
    deny: 1000,
    of: Of::Requests,
};

/// What limits deny of times, by the algorithms alone.
fn denied(times: &[(u64, u64)], limits: &[Proposed]) -> u64 {
    let mut states: HashMap<(u64, usize), Stored> = HashMap::new();
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let mut denied = 0;
    for (at_ms, user) in sorted {
        let at_ms = START_MS + at_ms;
        let algorithms: Vec<Algorithm> = { limits.iter() }
            .map(|limit| {
                let mut periods = PERIODS_MS.iter();
                let period = periods.position(|ms| *ms == limit.period_ms).unwrap();
                let tried = Try::new(limit.units, period).unwrap();
                calendar::at(&tried.algorithm, at_ms)
            })
            .collect();
        let parts = algorithms.iter().map(|algorithm| Part::new(algorithm, 1));
        let parts: Vec<Part<'_>> = parts.collect();
        let asked = parts.iter().enumerate();
        let asked: Vec<_> = asked
            .map(|(n, part)| (part, states.get(&(user, n)), None))
            .collect();
        let (verdict, writes) = check(&asked, at_ms, Options::default()).unwrap();
        denied += u64::from(!verdict.allowed);
        for (n, write) in writes.into_iter().enumerate() {
            if let (Some(stored), _) = write {
                states.insert((user, n), stored);
            }
        }
    }
    denied
}

#[test]
fn a_suggested_limit_keeps_its_target_on_other_traffic_of_the_kind() {
    for (name, load) in [
        ("steady", steady as fn(u64) -> Vec<(u64, u64)>),
        ("bursts", bursts),
        ("skewed", skewed),
    ] {
        let found = suggest(&usage(load(1)), TARGET).unwrap();
        assert!(!found.proposed.is_empty(), "{name}: {found:#?}");
        assert!(found.proposed_denied_ppm.unwrap() <= TARGET.deny, "{name}");
        assert_eq!(found.bursts, name == "bursts", "{name}");
        // Traffic of the same kind that nobody looked at: within half as much again.
        let other = load(2);
        let share = millionths(denied(&other, &found.proposed), count(other.len()));
        assert!(
            share <= TARGET.deny * 3 / 2,
            "{name}: {share} {:?}",
            found.proposed
        );
        // One unit less would have been too few.
        for row in found.rows.iter().filter(|row| row.units > Some(1)) {
            let times = load(1);
            let first: Vec<(u64, u64)> = { times.into_iter() }
                .filter(|(at_ms, _)| START_MS + at_ms < found.cut_ms)
                .collect();
            let of = |units| {
                let limit = Proposed {
                    units,
                    period_ms: row.period_ms,
                };
                denied(&first, &[limit]) * 1_000_000
            };
            let allowed = TARGET.deny * count(first.len());
            let units = row.units.unwrap();
            assert!(of(units) <= allowed, "{name} {row:?}");
            assert!(of(units - 1) > allowed, "{name} {row:?}");
        }
    }
}

#[test]
fn a_share_of_buckets_is_kept_too() {
    let target = Target {
        deny: 5000,
        of: Of::Buckets,
    };
    let found = suggest(&usage(steady(1)), target).unwrap();
    // One of 300 asks twenty times as often, which is less than half a percent.
    let hourly = found.rows[2].clone();
    assert_eq!(
        (hourly.units, hourly.denied_first_ppm),
        (Some(3), 3334),
        "{found:#?}"
    );
}

#[test]
fn what_buckets_used_is_exact_and_named() {
    let mut times: Vec<(u64, u64)> = (0..999).map(|user| (user * 1000, user)).collect();
    times.extend((0..50).map(|n| (DAY_MS + n * 100, 999)));
    let found = suggest(&usage(times), TARGET).unwrap();
    let of = |spread: &Spread| {
        (
            spread.p50,
            spread.p99,
            spread.p999,
            spread.largest,
            spread.bucket.clone(),
        )
    };
    assert_eq!(of(&found.usage[0]), (1, 1, 1, 10, "user=999".to_owned()));
    assert_eq!(of(&found.usage[1]), (1, 1, 1, 50, "user=999".to_owned()));
    assert_eq!(found.usage.len(), 5);
    assert_eq!(found.parts[0].requests + found.parts[1].requests, 1049);
}

#[test]
fn clients_that_something_else_refused_are_apart() {
    let mut usage = usage(steady(1));
    let before = suggest(&usage, TARGET).unwrap();
    for n in 0..5000 {
        let status = if n % 2 == 0 { 401 } else { 429 };
        usage.add(
            7,
            || "user=robot".to_owned(),
            START_MS + 3 * DAY_MS + n,
            Some(status),
        );
    }
    let after = suggest(&usage, TARGET).unwrap();
    assert_eq!(
        after.refused,
        PartSize {
            requests: 5000,
            buckets: 1
        }
    );
    assert_eq!(after.rows[1].units, before.rows[1].units);
    // One that got through is a client.
    usage.add(7, String::new, START_MS + 3 * DAY_MS + 6000, Some(200));
    assert_eq!(suggest(&usage, TARGET).unwrap().refused.buckets, 0);
    assert!(suggest(&Usage::default(), TARGET).is_none());
}

#[test]
fn what_a_log_cannot_say_is_said() {
    let hour: Vec<(u64, u64)> = (0..50).map(|n| (n * 60_000, n % 5)).collect();
    let found = suggest(&usage(hour), TARGET).unwrap();
    let notes = found.notes.join("\n");
    assert!(notes.contains("has 5 buckets"), "{notes}");
    assert!(notes.contains("the log covers 49 min"), "{notes}");
    assert!(!found.rows[3].is_long_enough && !found.rows[2].is_long_enough);
    assert!(found.proposed.iter().all(|limit| limit.period_ms < HOUR_MS));
    let notes = suggest(&usage(skewed(1)), TARGET).unwrap().notes.join("\n");
    assert!(notes.contains("the shape of a day"), "{notes}");
    assert!(notes.contains("whether weeks have a shape"), "{notes}");
    // Five days of work, two of rest, for three weeks.
    let weeks = (0..21_u64).filter(|day| day % 7 < 5);
    let weeks = weeks.flat_map(|day| (0..500).map(move |n| (day * DAY_MS + n * 160_000, n % 150)));
    let notes = suggest(&usage(weeks.collect()), TARGET)
        .unwrap()
        .notes
        .join("\n");
    assert!(notes.contains("the shape of a week"), "{notes}");
}

#[test]
fn a_rest_that_is_busier_says_what_would_have_held() {
    let mut times = steady(1);
    times.retain(|(at_ms, _)| *at_ms < 2 * DAY_MS);
    // Nearly as many requests as before, all at once, from users that were not there.
    let each = count(times.len()) / 11;
    for user in 0..10 {
        times.extend((0..each).map(|n| (3 * DAY_MS + n + user, 5000 + user)));
    }
    let found = suggest(&usage(times), TARGET).unwrap();
    assert_eq!(found.proposed, []);
    let notes = found.notes.join("\n");
    assert!(notes.contains("these would have: "), "{notes}");
}

#[test]
fn two_limits_together_reach_less_than_each() {
    // A page is a burst of twenty, some times a day.
    let mut random = Random(3);
    let mut times = Vec::new();
    for user in 0..150 {
        for day in 0..4 {
            for _ in 0..5 {
                let at_ms = day * DAY_MS + random.below(DAY_MS - 1000);
                times.extend((0..20).map(|n| (at_ms + n * 10, user)));
            }
        }
    }
    let found = suggest(&usage(times), TARGET).unwrap();
    let [short, long] = found.proposed.as_slice() else {
        panic!("{found:#?}");
    };
    assert!(
        short.period_ms < long.period_ms && short.units < long.units,
        "{found:#?}"
    );
    assert!(found.rows.iter().any(|row| found.proposes(row)));
}

#[test]
fn only_rows_are_marked_that_are_proposed_with_their_number() {
    // Pages of other sizes: half of the share needs more units than the share.
    let mut random = Random(3);
    let mut times = Vec::new();
    for user in 0..150 {
        for day in 0..4 {
            for _ in 0..5 {
                let at_ms = day * DAY_MS + random.below(DAY_MS - 1000);
                times.extend((0..10 + random.below(20)).map(|n| (at_ms + n * 10, user)));
            }
        }
    }
    let target = Target {
        deny: 20_000,
        ..TARGET
    };
    let found = suggest(&usage(times), target).unwrap();
    let of_period = |row: &&Row| {
        let mut proposed = found.proposed.iter();
        proposed.any(|one| one.period_ms == row.period_ms)
    };
    let rows: Vec<&Row> = found.rows.iter().filter(of_period).collect();
    assert_eq!((found.proposed.len(), rows.len()), (2, 2), "{found:#?}");
    for (row, proposed) in rows.into_iter().zip(&found.proposed) {
        assert!(row.units < Some(proposed.units), "{found:#?}");
        assert!(!found.proposes(row));
    }
}

#[test]
fn nothing_holds_where_no_request_is_left_to_judge_by() {
    // Most requests come at the end, so the first part has all.
    let first = (0..100).map(|user| (user * 1000, user));
    let last = (0..300).map(|user| (3 * DAY_MS, user));
    let found = suggest(&usage(first.chain(last).collect()), TARGET).unwrap();
    assert_eq!((found.parts[0].requests, found.parts[1].requests), (400, 0));
    assert!(
        found
            .rows
            .iter()
            .all(|row| row.is_long_enough && !row.holds)
    );
    assert_eq!(found.proposed, []);
    let notes = found.notes.join("\n");
    assert!(notes.contains("none are left to judge"), "{notes}");
}

#[test]
fn beyond_the_bound_whole_buckets_are_left_out() {
    let mut all = usage(steady(1));
    let requests = all.requests;
    let exact = suggest(&all, TARGET).unwrap();
    all.halve();
    all.halve();
    let sampled = suggest(&all, TARGET).unwrap();
    assert_eq!((all.requests, sampled.sampled), (requests, 4));
    let buckets = sampled.parts[0].buckets;
    assert!((50..110).contains(&buckets), "{buckets}");
    assert!(exact.parts[0].buckets == 300);
    assert!(sampled.notes.join("").contains("one in 4 buckets"));
}

#[test]
fn times_are_kept_exactly() {
    let mut usage = Usage::default();
    let times = [5, 5, 6, 133, 134, 20_000, 3_000_000, 1 << 40, u64::MAX];
    for at_ms in times {
        usage.add(0, String::new, at_ms, None);
    }
    let kept: Vec<u64> = usage.buckets[&0].all().collect();
    assert_eq!(kept, times);
}
