//! Outages of the limiter.

use crate::{
    decisions::{seeds, worlds},
    world::{CONFIG, Faults, OneOfTwo, Outcome, World},
};

fn mode(mode: &str) -> String {
    format!("  - {{name: per-user, per: [user], rate: 10/s, burst: 20, on_failure: {mode}}}\n")
}

#[test]
fn each_limits_on_failure_decides_during_an_outage() {
    for (faults, label) in [
        (Faults::DOWN, "refused"),
        (Faults::BLACK_HOLE, "lost"),
        (Faults::NO_CLUSTER, "no cluster"),
        (Faults::NO_STORE, "no store"),
    ] {
        for (policy, expected) in [("allow", 100), ("deny", 0)] {
            let mut world = World::new(1, 1, 1, CONFIG, &mode(policy));
            world.run_for_ms(500);
            world.faults = faults;
            for _ in 0..100 {
                world.request(0, 1, "alice", "/");
                world.run_for_ms(5);
            }
            world.run_for_ms(100);
            world.assert_all_decided(25_000);
            assert_eq!(world.admitted("alice"), expected, "{label}, {policy}");
            if policy == "deny" {
                assert_eq!(world.details(99), "rl_denied:per-user:failure");
            }
        }
    }
}

#[test]
fn without_a_policy_the_configured_failure_mode_decides() {
    for (failure_mode, expected) in [("local", 10), ("allow", 10), ("deny", 0)] {
        let config = CONFIG.replace(
            "\"descriptors\"",
            &format!("\"failure_mode\": \"{failure_mode}\", \"descriptors\""),
        );
        let mut world = World::new(1, 1, 1, &config, &mode("deny"));
        world.faults = Faults::DOWN;
        for _ in 0..10 {
            world.request(0, 1, "alice", "/");
            world.run_for_ms(50);
        }
        assert_eq!(world.admitted("alice"), expected, "{failure_mode}");
        let said = world
            .logs
            .iter()
            .filter(|text| text.contains("pass unlimited"))
            .count();
        assert_eq!(
            said,
            usize::from(failure_mode != "deny"),
            "{:?}",
            world.logs
        );
        assert_eq!(world.counted("rl_unlimited_no_policy"), expected);
    }
}

#[test]
fn the_breaker_keeps_requests_from_waiting_and_closes_when_the_limiter_is_back() {
    for mut world in worlds(1, 2, CONFIG, &mode("allow")) {
        world.run_for_ms(500);
        world.faults = Faults::BLACK_HOLE;
        let mut waited = 0;
        for n in 0..1000 {
            let number = world.request(0, 1 + n % 2, "alice", "/");
            waited += u64::from(!world.passed(number));
            world.run_for_ms(2);
        }
        // The calls before the breaker opened, and some probes.
        assert!(waited <= 40, "{waited}");
        world.faults = Faults::NONE;
        let executed = world.checks_executed;
        // The longest open interval and its jitter.
        for _ in 0..300 {
            world.request(0, 1, "bob", "/");
            world.run_for_ms(10);
        }
        assert!(world.checks_executed > executed + 10);
        assert_eq!(world.counted("rl_breaker_open"), 0);
    }
}

/// An outage admits about one capacity more than the limit, however many proxies share it and
/// however it begins.
#[test]
fn an_outage_admits_about_one_capacity_more_across_all_proxies() {
    for seed in seeds() {
        let envoys = 1 + usize::try_from(seed % 4).unwrap();
        let mut world = World::new(seed, envoys, 2, CONFIG, &mode("local"));
        world.limiter.proxies = u64::try_from(envoys).unwrap();
        world.run_for_ms(500);
        let start_us = world.now_us;
        let phases = [
            Faults::NONE,
            Faults::DOWN,
            Faults::NONE,
            Faults::BLACK_HOLE,
            Faults::NONE,
        ];
        let mut uncertain = 0;
        for faults in phases {
            world.faults = faults;
            for n in 0..600 {
                let (envoy, worker) = (n % envoys, 1 + n % 2);
                let number = world.request(envoy, worker, "alice", "/");
                // Neither charged nor a debt: the store may have charged it.
                uncertain += u64::from(world.requests[number].outcome.is_none() && faults.lost > 0);
                let pause_us = 1_000 + world.chance.below(8_000);
                world.run_until(world.now_us + pause_us);
            }
        }
        world.run_for_ms(100);
        world.assert_all_decided(45_000);
        let span_ms = (world.now_us - start_us) / 1000;
        let promised = 20 + span_ms * 10 / 1000 + 1;
        let admitted = world.admitted("alice");
        // Two outages, a capacity each.
        let most = promised + 2 * 20 + uncertain.min(20);
        assert!(
            admitted <= most,
            "{admitted} of {most}, promised {promised}"
        );
        // The limit is not simply closed: units that it admits are still available.
        assert!(admitted * 2 >= promised, "{admitted} of {promised}");
    }
}

#[test]
fn a_bucket_unknown_before_an_outage_starts_with_one_request() {
    let limits = "  - {name: per-user, per: [user], rate: 20/1h, burst: 20}\n";
    let mut world = World::new(1, 1, 1, CONFIG, limits);
    world.run_for_ms(500);
    for _ in 0..10 {
        world.request(0, 1, "known", "/");
        world.run_for_ms(10);
    }
    world.faults = Faults::DOWN;
    // At first, the limiter that does not answer may be one of several.
    for (after_ms, users) in [(3_000, ["known", "early"]), (7_100, ["known", "late"])] {
        world.run_for_ms(after_ms);
        for user in users {
            for _ in 0..15 {
                world.request(0, 1, user, "/");
                world.run_for_ms(10);
            }
        }
    }
    assert_eq!(world.admitted("known"), 20);
    assert_eq!(world.admitted("early"), 15);
    assert_eq!(world.admitted("late"), 1);
}

/// All first checks reach a limiter that hangs, after another one served the policy.
#[test]
fn a_loaded_policy_counts_as_a_recent_answer_of_a_limiter() {
    let limits = "  - {name: per-user, per: [user], rate: 20/1h, burst: 20}\n";
    let mut world = World::new(1, 1, 1, CONFIG, limits);
    world.run_for_ms(500);
    world.faults = Faults::DOWN;
    for (user, after_ms) in [("early", 0), ("late", 10_000)] {
        world.run_for_ms(after_ms);
        for _ in 0..15 {
            world.request(0, 1, user, "/");
            world.run_for_ms(10);
        }
    }
    assert_eq!(world.admitted("early"), 15);
    assert_eq!(world.admitted("late"), 1);
}

/// One of several limiters fails: full local buckets decide its checks, and no request within the limit
/// is denied.
#[test]
fn one_failing_limiter_of_several_denies_no_request_within_the_limit() {
    for seed in seeds() {
        let limits = "  - {name: per-user, per: [user], algorithm: fixed_window, rate: 3/1d}\n";
        let mut world = World::new(seed, 1, 2, CONFIG, limits);
        world.run_for_ms(500);
        world.faults = match seed % 4 {
            0 => Faults {
                lost: 50,
                ..Faults::NONE
            },
            1 => Faults {
                refused: 50,
                ..Faults::NONE
            },
            2 => Faults {
                untouched: 50,
                ..Faults::NONE
            },
            _ => Faults {
                late: 50,
                ..Faults::NONE
            },
        };
        for n in 0..300 {
            world.request(0, 1 + n % 2, &format!("user-{}", n % 100), "/");
            let pause_us = world.chance.below(8_000);
            world.run_until(world.now_us + pause_us);
        }
        world.run_for_ms(100);
        world.assert_all_decided(45_000);
        for user in 0..100 {
            let user = format!("user-{user}");
            assert_eq!(world.admitted(&user), 3, "{user}");
            let charged = world.limiter.charged_in_all("per-user", &user);
            assert!(charged <= 3, "{user} was charged {charged}");
        }
    }
}

/// Debts are charged at once if other limiters answer, because the bucket's next request may arrive
/// at another proxy.
#[test]
fn a_debt_is_charged_at_once_while_other_limiters_answer() {
    let limits = "  - {name: per-user, per: [user], rate: 5/1h}
  - {name: all, rate: 1000000/1h}
";
    let mut world = World::new(1, 1, 1, CONFIG, limits);
    world.run_for_ms(500);
    for user in (0..20).map(|n| format!("user-{n}")) {
        // Answers earn retry tokens.
        for n in 0..10 {
            world.request(0, 1, &format!("{user}-before-{n}"), "/");
            world.run_for_ms(5);
        }
        world.faults = Faults::DOWN;
        let number = world.request(0, 1, &user, "/");
        // Refused four times, each time at once.
        world.run_until(world.now_us + 450);
        assert!(world.passed(number), "{user} is decided here");
        let checks = world.limiter.entries;
        world.faults = Faults::NONE;
        world.run_for_ms(10);
        assert_eq!(world.limiter.charged_in_all("per-user", &user), 1, "{user}");
        assert_eq!(world.limiter.entries, checks + 1, "by a call of its own");
    }
    assert_eq!(world.counted("rl_decisions.allowed.local.per-user"), 20);
}

/// A table with room for this many buckets.
fn small_table(buckets: u32) -> String {
    let memory = format!("\"memory\": {{\"buckets\": {buckets}}}, \"descriptors\"");
    CONFIG.replace("\"descriptors\"", &memory)
}

#[test]
fn a_flood_during_an_outage_evicts_no_debt() {
    let limits = "  - {name: per-user, per: [user], rate: 6/1h}\n";
    let mut world = World::new(1, 1, 1, &small_table(4), limits);
    world.run_for_ms(500);
    let requests = |world: &mut World, user: &str, count: u64| {
        for _ in 0..count {
            world.request(0, 1, user, "/");
            world.run_for_ms(10);
        }
    };
    requests(&mut world, "alice", 2);
    world.faults = Faults::DOWN;
    requests(&mut world, "alice", 4);
    for n in 0..50 {
        requests(&mut world, &format!("user-{n}"), 1);
    }
    world.faults = Faults::NONE;
    world.run_for_ms(3_000);
    requests(&mut world, "another", 1);
    world.run_for_ms(100);
    requests(&mut world, "alice", 4);
    assert_eq!(world.admitted("alice"), 6);
}

#[test]
fn a_flood_during_an_outage_leaves_an_honest_user_its_rate() {
    let mut admitted = Vec::new();
    for seed in seeds() {
        let limits = "  - {name: per-user, per: [user], rate: 10/s, burst: 20}\n";
        let mut world = World::new(seed, 1, 1, &small_table(64), limits);
        world.run_for_ms(500);
        world.faults = Faults::DOWN;
        world.run_for_ms(1_100);
        for n in 0..3_600 {
            world.request(0, 1, &format!("user-{n}"), "/");
            if n % 200 == 199 {
                world.request(0, 1, "honest", "/");
            }
            world.run_for_ms(5);
        }
        let of_18 = world.admitted("honest");
        assert!(of_18 >= 5, "{of_18} of 18");
        admitted.push(of_18);
    }
    let (all, runs) = (admitted.iter().sum::<u64>(), admitted.len());
    assert!(all >= 13 * runs as u64, "{all} of 18 in {runs} runs");
}

#[test]
fn a_full_table_of_prechecks_denies_no_request() {
    let limits = "  - {name: per-user, per: [user], rate: 5/1h, precheck: 100%}\n";
    let mut world = World::new(1, 1, 1, &small_table(16), limits);
    world.run_for_ms(500);
    for n in 0..500 {
        let number = world.request(0, 1, &format!("user-{n}"), "/");
        world.run_for_ms(10);
        assert!(world.passed(number), "user {n}: {}", world.details(number));
    }
}

/// Requests of as many users, so many a second, at one worker and the other in turn. Returns the share
/// that a limiter decided, in tenths of a percent, and how many were refused.
fn decided_by_limiters(world: &mut World, rate: u64, ms: u64) -> (usize, usize) {
    let (first, until_us) = (world.requests.len(), world.now_us + ms * 1000);
    while world.now_us < until_us {
        let n = world.requests.len();
        world.request(0, 1 + n % 2, &format!("user-{n}"), "/");
        let pause_us = world.chance.below(2_000_000 / rate);
        world.run_until(world.now_us + pause_us);
    }
    world.run_for_ms(100);
    world.assert_all_decided(50_000);
    let sent = &world.requests[first..];
    let decided = sent.iter().filter(|sent| sent.answered).count();
    let refused = (first..world.requests.len())
        .filter(|n| !world.passed(*n))
        .count();
    (decided * 1000 / sent.len(), refused)
}

/// One of two limiters loses its store for a while: the other one decides nearly everything, also for a
/// worker whose stream leads to the first.
#[test]
fn a_limiter_without_its_store_leaves_the_decisions_to_another() {
    // Each is half a minute of requests.
    for seed in seeds().take(50) {
        let mut world = World::new(seed, 1, 2, CONFIG, &mode("deny"));
        world.run_for_ms(500);
        world.one_of_two = Some(OneOfTwo::new(Faults::NONE));
        decided_by_limiters(&mut world, 300, 500);
        world.one_of_two = Some(OneOfTwo::new(Faults::NO_STORE));
        let (first, first_refused) = decided_by_limiters(&mut world, 300, 1_000);
        let (decided, refused) = decided_by_limiters(&mut world, 300, 14_000);
        eprintln!("{first}, {decided} of 1000 decided, {first_refused}, {refused} refused");
        assert!(decided >= 995, "{decided} of 1000");
        // The first calls to fail, before another one is answered.
        assert!(
            first_refused + refused <= 8,
            "{first_refused} and {refused}"
        );
        // Both, and nobody answers.
        world.faults = Faults::NO_STORE;
        decided_by_limiters(&mut world, 300, 11_000);
        let (decided, refused) = decided_by_limiters(&mut world, 300, 1_000);
        assert_eq!(decided, 0);
        assert!(refused >= 100, "{refused}");
    }
}

/// One of two limiters restarts again and again, without its limits at first.
#[test]
fn a_limiter_that_restarts_opens_no_breaker_while_another_answers() {
    for seed in [1, 2, 3] {
        let mut world = World::new(seed, 1, 2, CONFIG, &mode("deny"));
        world.run_for_ms(500);
        world.one_of_two = Some(OneOfTwo::new(Faults::NONE));
        decided_by_limiters(&mut world, 2_000, 500);
        let (mut least, mut all_refused) = (1000, 0);
        for _ in 0..9 {
            for faults in [Faults::DOWN, Faults::NO_STORE, Faults::NONE] {
                world.one_of_two = Some(OneOfTwo::new(faults));
                let (decided, refused) = decided_by_limiters(&mut world, 2_000, 300);
                (least, all_refused) = (least.min(decided), all_refused + refused);
            }
        }
        eprintln!("seed {seed}: {least} of 1000 decided, {all_refused} refused");
        assert!(least >= 900, "{least} of 1000");
        // A call or two that each restart cuts off, before another one is answered.
        assert!(all_refused <= 9, "{all_refused}");
    }
}

/// One of two limiters hangs, and Envoy does not notice: its share of the requests is decided by the
/// proxy's share of the limit, also with `on_failure: deny`.
#[test]
fn a_limiter_that_hangs_refuses_nobody_while_another_answers() {
    let (mut blind, mut worlds) = (0, 0);
    for seed in seeds() {
        let mut world = World::new(seed, 1, 2, CONFIG, &mode("deny"));
        world.run_for_ms(500);
        world.one_of_two = Some(OneOfTwo::new(Faults::NONE));
        decided_by_limiters(&mut world, 300, 500);
        world.one_of_two = Some(OneOfTwo::new(Faults::BLACK_HOLE));
        let sent = world.requests.len();
        let (decided, refused) = decided_by_limiters(&mut world, 300, 3_000);
        let sent = world.requests.len() - sent;
        eprintln!("seed {seed}: {refused} of {sent} refused, {decided} of 1000 decided");
        // If the first calls all reach the one that hangs, nothing shows that another one answers, until a
        // probe reaches it.
        assert!(refused * 2 <= sent, "{refused} of {sent}");
        blind += usize::from(refused * 50 > sent);
        worlds += 1;
    }
    assert!(blind <= 1 + worlds / 8, "{blind} of {worlds}");
}

/// What a worker does for long, such as a search in a long path, ends calls of requests that wait at it.
#[test]
fn calls_that_a_busy_worker_lost_open_no_breaker() {
    for seed in seeds() {
        let mut world = World::new(seed, 1, 2, CONFIG, &mode("deny"));
        world.run_for_ms(500);
        decided_by_limiters(&mut world, 300, 500);
        world.faults = Faults {
            busy: 60,
            ..Faults::NONE
        };
        let (decided, _) = decided_by_limiters(&mut world, 300, 3_000);
        eprintln!("seed {seed}: {decided} of 1000 decided");
        assert!(decided >= 300, "{decided} of 1000");
    }
}

#[test]
fn a_request_that_is_degraded_without_a_limiter_is_counted() {
    let limits = "  - {name: less, rate: 5/1h, over_limit: degrade}\n";
    for mut world in worlds(1, 1, CONFIG, limits) {
        world.run_for_ms(500);
        world.faults = Faults::DOWN;
        for _ in 0..20 {
            world.request(0, 1, "alice", "/");
            world.run_for_ms(50);
        }
        let outcomes = world
            .requests
            .iter()
            .filter_map(|sent| sent.outcome.as_ref());
        let degraded = outcomes.filter(|outcome| {
            matches!(
                outcome,
                Outcome::Passed {
                    degraded: Some(_),
                    ..
                }
            )
        });
        let degraded = degraded.count();
        let degraded = u64::try_from(degraded).unwrap();
        assert!(degraded > 10, "{degraded}");
        let counted = |decision| world.counted(&format!("rl_decisions.{decision}.local.less"));
        assert_eq!(
            [counted("degraded"), counted("allowed")],
            [degraded, 20 - degraded]
        );
    }
}
