//! Queues whose clients leave, and proxies that hold no more requests.

use crate::{
    decisions::worlds,
    world::{CONFIG, Faults, Outcome, Reply, World},
};

/// Twenty a second.
const EXPORTS: &str = "  - {name: exports, algorithm: leaky_bucket, rate: 20/s, burst: 100, \
                       over_limit: queue, max_delay: 3s}\n";
/// The same rate, in each proxy.
const LOCAL: &str = "  - {name: exports, algorithm: leaky_bucket, rate: 20/s, burst: 100, \
                     over_limit: queue, max_delay: 3s, scope: proxy}\n";
/// Two hundred a second.
const BUSY: &str = "  - {name: exports, algorithm: leaky_bucket, rate: 200/s, burst: 1000, \
                    over_limit: queue, max_delay: 3s}\n";

/// Two a second.
const SLOW: &str = "  - {name: exports, algorithm: leaky_bucket, rate: 2/s, burst: 100, \
                    over_limit: queue, max_delay: 1m}\n";

fn config(hold_max: u64) -> String {
    CONFIG.replacen('{', &format!("{{\"hold\": {{\"max\": {hold_max}}}, "), 1)
}

/// Sends requests at a steady pace, each from a client that leaves if it is not served in time.
fn load(world: &mut World, per_second: u64, patience_ms: u64, ms: u64) {
    let (envoys, workers) = (world.envoys.len(), world.envoys[0].workers.len() - 1);
    let end_us = world.now_us + ms * 1000;
    let mut waiting: Vec<(u64, usize)> = Vec::new();
    let mut next_us = world.now_us;
    while world.now_us < end_us {
        let leaves_us = waiting.first().map_or(u64::MAX, |(at_us, _)| *at_us);
        world.run_until(next_us.min(leaves_us).min(end_us));
        if world.now_us == leaves_us {
            let (_, number) = waiting.remove(0);
            if world.requests[number].outcome.is_none() {
                world.leave(number);
            }
        } else if world.now_us == next_us {
            let (envoy, worker) = (world.chance.index(envoys), 1 + world.chance.index(workers));
            let number = world.request(envoy, worker, "alice", "/");
            waiting.push((world.now_us + patience_ms * 1000, number));
            let pause_us = 2_000_000 / per_second;
            next_us = world.now_us + 1 + world.chance.below(pause_us);
        }
    }
}

/// When the requests that arrived from `from_us` on continued, in order, in microseconds.
fn starts(world: &World, from_us: u64) -> Vec<u64> {
    let passed = world.requests.iter().filter_map(|sent| match sent.outcome {
        Some(Outcome::Passed { at_us, .. }) if at_us >= from_us => Some(at_us),
        _ => None,
    });
    let mut starts: Vec<u64> = passed.collect();
    starts.sort_unstable();
    starts
}

/// In any interval, no more requests continue than the rate allows and so many at once, except for the
/// delay of ticks and of the network.
fn assert_spaced(starts: &[u64], per_second: u64, at_once: u64) {
    const LATE_US: u64 = 15_000;
    for (n, first) in starts.iter().enumerate() {
        for (more, last) in (0_u64..).zip(&starts[n..]).skip(1).take(50) {
            let least_us = (more + 1).saturating_sub(at_once) * 1_000_000 / per_second;
            assert!(last - first + LATE_US >= least_us, "{more} after {first}");
        }
    }
}

#[test]
fn a_queue_serves_its_rate_though_clients_give_up() {
    let mut served = Vec::new();
    for mut world in worlds(2, 2, CONFIG, EXPORTS) {
        world.run_for_ms(1_000);
        let from_us = world.now_us;
        load(&mut world, 29, 1_000, 20_000);
        let starts = starts(&world, from_us);
        assert!(starts.len() >= 340, "{} of 400", starts.len());
        assert_spaced(&starts, 20, 1);
        served.push(starts.len());
    }
    let mean = served.iter().sum::<usize>() / served.len();
    assert!(mean >= 380, "{mean} of 400");
}

#[test]
fn a_queue_of_the_proxy_serves_its_rate_though_clients_give_up() {
    for mut world in worlds(1, 2, CONFIG, LOCAL) {
        world.run_for_ms(1_000);
        let from_us = world.now_us;
        load(&mut world, 29, 1_000, 20_000);
        let starts = starts(&world, from_us);
        assert!(starts.len() >= 360, "{} of 400", starts.len());
        assert_spaced(&starts, 20, 1);
    }
}

/// A request starts at its turn in the proxy's queue, however long the limiter takes to decide the rest.
#[test]
fn the_answer_about_another_limit_does_not_add_to_the_delay() {
    let config = CONFIG.replace("20ms", "200ms");
    let limits = format!("{LOCAL}  - {{name: other, rate: 100000/s}}\n");
    for mut world in worlds(1, 1, &config, &limits) {
        world.run_for_ms(1_000);
        world.slowest_us = 90_000;
        // The answers come within 91 ms: these wait longer for their turns.
        let sent: Vec<usize> = (0..5).map(|_| world.request(0, 1, "alice", "/")).collect();
        world.run_for_ms(500);
        for (number, own_ms) in sent.into_iter().zip([0, 50, 100, 150, 200]).skip(2) {
            let took_ms = world.requests[number].took_us().unwrap() / 1000;
            assert!(
                (own_ms..own_ms + 8).contains(&took_ms),
                "{took_ms} for {own_ms} ms"
            );
        }
    }
}

#[test]
fn a_queue_behind_a_burst_passes_it_and_then_serves_its_rate() {
    for scope in ["global", "proxy"] {
        let limits = format!(
            "  - {{name: pages, algorithm: token_bucket, rate: 20/s, burst: 10, over_limit: queue, \
             max_delay: 3s, scope: {scope}}}\n"
        );
        for mut world in worlds(1, 2, CONFIG, &limits) {
            world.run_for_ms(1_000);
            let from_us = world.now_us;
            let page: Vec<usize> = (0..12).map(|_| world.request(0, 1, "alice", "/")).collect();
            world.run_for_ms(40);
            let passed = page.iter().filter(|number| world.passed(**number)).count();
            assert_eq!(passed, 10);
            load(&mut world, 29, 1_000, 20_000);
            let starts = starts(&world, from_us);
            assert!(starts.len() >= 370, "{} of 410", starts.len());
            assert_spaced(&starts, 20, 10);
        }
    }
}

#[test]
fn without_a_limiter_a_used_burst_does_not_pass_again() {
    let limits = "  - {name: pages, algorithm: token_bucket, rate: 20/s, burst: 10, over_limit: queue, \
                  max_delay: 3s}\n";
    for mut world in worlds(1, 2, CONFIG, limits) {
        world.run_for_ms(1_000);
        let from_us = world.now_us;
        for _ in 0..12 {
            world.request(0, 1, "alice", "/");
        }
        world.run_for_ms(40);
        world.faults = Faults::DOWN;
        for _ in 0..20 {
            world.request(0, 1, "alice", "/");
        }
        world.run_for_ms(1_000);
        // Two of the twelve are held, by the limiter's answer.
        assert_spaced(&starts(&world, from_us), 20, 12);
    }
}

#[test]
fn without_a_limiter_a_queue_serves_its_rate_though_clients_give_up() {
    for mut world in worlds(1, 2, CONFIG, EXPORTS) {
        world.run_for_ms(1_000);
        load(&mut world, 10, 1_000, 1_000);
        world.faults = Faults::DOWN;
        world.run_for_ms(3_000);
        let from_us = world.now_us;
        load(&mut world, 29, 1_000, 20_000);
        let starts = starts(&world, from_us);
        assert!(starts.len() >= 350, "{} of 400", starts.len());
        assert_spaced(&starts, 20, 1);
    }
}

#[test]
fn slots_given_up_while_no_limiter_answers_are_freed_when_one_does() {
    for mut world in worlds(1, 1, CONFIG, SLOW) {
        world.run_for_ms(1_000);
        let clients: Vec<usize> = (0..50).map(|_| world.request(0, 1, "alice", "/")).collect();
        world.run_for_ms(50);
        world.faults = Faults::DOWN;
        for number in clients {
            if world.requests[number].outcome.is_none() {
                world.leave(number);
            }
        }
        world.run_for_ms(300);
        world.faults = Faults::NONE;
        world.run_for_ms(4_000);
        // The limiter answers its check again.
        world.request(0, 1, "carol", "/");
        world.run_for_ms(200);
        let number = world.request(0, 1, "bob", "/");
        world.run_for_ms(600);
        assert!(world.passed(number), "it waits behind those that left");
    }
}

/// As Envoy answers when a timeout ends the request: the response comes before the request's end.
#[test]
fn a_request_that_envoy_answers_leaves_the_queue() {
    let timeout = Reply::json(504, "");
    let local = SLOW.replace("1m}", "1m, scope: proxy}");
    for limits in [SLOW, &local] {
        for mut world in worlds(1, 1, &config(1), limits) {
            world.run_for_ms(1_000);
            world.request(0, 1, "alice", "/");
            world.run_for_ms(20);
            // The first before its check leaves, where it needs one; the others while they are held.
            for n in 0..4 {
                let number = world.request(0, 1, "alice", "/");
                if n > 0 {
                    world.run_for_ms(50);
                }
                world.respond(number, &timeout);
                world.leave(number);
                world.run_for_ms(20);
                assert!(world.requests[number].outcome.is_none());
            }
            let number = world.request(0, 1, "alice", "/");
            world.run_for_ms(500);
            assert!(world.passed(number), "it waits behind those that left");
            world.run_for_ms(100);
            assert_eq!(world.counted("rl_hold_full"), 0);
            let charged: u64 = world.limiter.charged.values().sum();
            assert_eq!(charged, if limits == SLOW { 5 } else { 0 });
        }
    }
}

#[test]
fn a_queue_serves_its_rate_while_all_hold_permits_are_taken() {
    for mut world in worlds(1, 1, &config(100), BUSY) {
        world.run_for_ms(1_000);
        let from_us = world.now_us;
        load(&mut world, 400, 60_000, 5_000);
        let starts = starts(&world, from_us);
        assert!(starts.len() >= 900, "{} of 1000", starts.len());
        assert!(world.counted("rl_hold_full") > 0);
    }
}

/// A request that is refused because too many are held charges no limit.
#[test]
fn a_request_refused_for_lack_of_a_hold_permit_is_not_charged() {
    let limits = format!("{EXPORTS}  - {{name: daily, rate: 1000/1d}}\n");
    for mut world in worlds(1, 2, &config(10), &limits) {
        world.run_for_ms(1_000);
        load(&mut world, 100, 60_000, 3_000);
        world.run_for_ms(2_000);
        let passed = world.admitted("alice");
        let daily = |(limit, _): &(_, Vec<_>)| *limit == "daily".parse().unwrap();
        let of = world
            .limiter
            .charged
            .iter()
            .filter(|(bucket, _)| daily(bucket));
        let charged: u64 = of.map(|(_, units)| *units).sum();
        assert!(world.counted("rl_hold_full") > 50);
        assert_eq!(charged, passed);
    }
}
