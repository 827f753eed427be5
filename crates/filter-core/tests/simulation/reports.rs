//! Reports of decisions made without the limiter.

use std::collections::BTreeMap;

use crate::{
    decisions::worlds,
    world::{CONFIG, Faults, World},
};

const PER_USER: &str = "  - {name: per-user, per: [user], rate: 10/s, burst: 20}\n";
const MIXED: &str = "
  - {name: per-user, per: [user], rate: 10/s, burst: 20}
  - {name: here, per: [user], scope: proxy, rate: 5/s, burst: 5}
  - {name: both, precheck: 100%, rate: 30/s}
";

/// The decisions made without the limiter, and those that were reported, as `decision.source.limit`.
fn accounting(world: &World) -> [BTreeMap<String, u64>; 2] {
    let counted = world.counted.iter().filter_map(|(name, count)| {
        let name = name.strip_prefix("rl_decisions.")?;
        (!name.contains(".limiter.")).then(|| (name.to_owned(), *count))
    });
    let mut reported = BTreeMap::new();
    for report in &world.reports {
        for tally in &report.tallies {
            let words = [tally.outcome.word(), tally.by.word(), tally.limit.as_str()];
            *reported.entry(words.join(".")).or_default() += tally.count;
        }
    }
    [counted.collect(), reported]
}

#[test]
fn decisions_made_by_the_filter_are_reported_once() {
    for mut world in worlds(2, 2, CONFIG, MIXED) {
        world.run_for_ms(500);
        for n in 0..600 {
            let user = ["alice", "bob"][usize::try_from(world.chance.below(2)).unwrap()];
            world.request(n % 2, 1 + n % 3 % 2, user, "/");
            world.run_for_ms(5);
        }
        world.run_for_ms(3000);
        let [counted, reported] = accounting(&world);
        assert_eq!(counted, reported);
        // Each request is decided by a check or here, however many limits match it.
        let own = world.reports.iter().map(|report| report.requests);
        let own: u64 = own.map(|requests| requests.allowed + requests.denied).sum();
        let by_limiter = ["allowed", "denied"]
            .map(|outcome| world.counted(&format!("rl_decisions.{outcome}.limiter.per-user")));
        assert_eq!(own + by_limiter.iter().sum::<u64>(), 600);
        assert!(reported["denied.proxy.here"] > 100, "{reported:?}");
        assert!(
            reported.keys().all(|key| !key.contains("limiter")),
            "{reported:?}"
        );
    }
}

#[test]
fn a_request_refused_for_lack_of_a_hold_permit_is_a_denial_of_its_queue() {
    let config = CONFIG.replacen('{', "{\"hold\": {\"max\": 2}, ", 1);
    let queue = "  - {name: queue, algorithm: leaky_bucket, rate: 10/s, burst: 100, over_limit: queue, \
                 max_delay: 1m, scope: proxy}\n";
    let checked = format!("{queue}  - {{name: other, rate: 100000/s}}\n");
    for limits in [queue, &checked] {
        for mut world in worlds(1, 1, &config, limits) {
            world.run_for_ms(500);
            for _ in 0..50 {
                world.request(0, 1, "alice", "/");
                world.run_for_ms(20);
            }
            world.run_for_ms(3000);
            let refused = world.counted("rl_hold_full");
            assert!(refused > 10, "{refused}");
            let [counted, reported] = accounting(&world);
            assert_eq!(counted, reported);
            assert_eq!(counted["denied.proxy.queue"], refused, "{counted:?}");
            assert_eq!(counted["allowed.proxy.queue"], 50 - refused);
            let denied = world.reports.iter().map(|report| report.requests.denied);
            assert_eq!(denied.sum::<u64>(), refused);
        }
    }
}

#[test]
fn a_bucket_denied_from_the_cache_is_reported_by_its_values() {
    let mut world = World::new(1, 1, 2, CONFIG, PER_USER);
    world.run_for_ms(500);
    for n in 0..400 {
        world.request(0, 1 + n % 2, "alice", "/x");
        world.run_for_ms(2);
    }
    world.run_for_ms(3000);
    let reports = &world.reports;
    let denied: Vec<_> = reports.iter().flat_map(|report| &report.denied).collect();
    let sum: u64 = denied.iter().map(|bucket| bucket.count).sum();
    assert_eq!(
        sum,
        world.counted("rl_decisions.denied.deny_cache.per-user")
    );
    for bucket in denied {
        assert_eq!(bucket.limit.as_str(), "per-user");
        assert_eq!(bucket.by.word(), "deny_cache");
        assert_eq!(bucket.bucket[0].1.as_deref(), Some(&b"alice"[..]));
        let user = &bucket.descriptor[0];
        assert_eq!(
            (user.0.as_str(), user.1.as_slice()),
            ("user", &b"alice"[..])
        );
        assert!(bucket.ago_ms < 1500, "{bucket:?}");
    }
}

#[test]
fn a_flood_of_clients_makes_small_reports() {
    let mut world = World::new(
        1,
        1,
        1,
        CONFIG,
        "  - {name: here, per: [user], scope: proxy, rate: 0/s, algorithm: fixed_window}\n",
    );
    world.run_for_ms(500);
    for n in 0..3000 {
        world.request(0, 1, &format!("user-{n}"), "/");
        if n % 10 == 0 {
            world.run_for_ms(1);
        }
    }
    world.run_for_ms(3000);
    let reports = &world.reports;
    assert!(reports.iter().all(|report| report.denied.len() <= 32));
    assert_eq!(accounting(&world)[1]["denied.proxy.here"], 3000);
}

#[test]
fn decisions_during_an_outage_are_reported_after_it() {
    let mut world = World::new(3, 1, 1, CONFIG, PER_USER);
    world.run_for_ms(500);
    world.faults = Faults::DOWN;
    for _ in 0..400 {
        world.request(0, 1, "alice", "/");
        world.run_for_ms(10);
    }
    let [_, reported] = accounting(&world);
    assert!(
        !reported.contains_key("allowed.local.per-user"),
        "{reported:?}"
    );
    world.faults = Faults::NONE;
    for _ in 0..20 {
        world.request(0, 1, "bob", "/");
        world.run_for_ms(300);
    }
    let [counted, reported] = accounting(&world);
    // A report may have been in flight when the limiter failed.
    let lost = counted["allowed.local.per-user"] - reported["allowed.local.per-user"];
    assert!(lost <= 20, "{counted:?} {reported:?}");
    assert!(reported["denied.local.per-user"] > 100, "{reported:?}");
}
