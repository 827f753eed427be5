//! What requests hold at a proxy, and give back however they end: denied, failed, left by their clients,
//! or with a worker that is deleted.

use crate::{
    accounting::Accounting,
    decisions::{seeds, worlds},
    world::{CONFIG, Faults, World},
};

const LEASED: &str = "  - {name: all, rate: 1000/s, on_failure: allow, lease: {ttl: 100ms}}\n";
const QUEUE: &str = "  - {name: queue, algorithm: leaky_bucket, rate: 2/s, burst: 100, \
                     over_limit: queue, max_delay: 1m}\n";

fn world(seed: u64, limits: &str) -> World {
    let mut world = World::new(seed, 1, 2, CONFIG, limits);
    world.run_for_ms(500);
    world
}

/// Requests of which the limiter admits some, and whose clients sometimes do not wait for the answer.
fn traffic(world: &mut World, requests: usize) {
    for n in 0..requests {
        let number = world.request(0, 1 + n % 2, "alice", "/");
        if world.chance.percent(20) {
            let pause_us = world.chance.below(500);
            world.run_until(world.now_us + pause_us);
            world.leave(number);
        }
        let pause_us = world.chance.below(4_000);
        world.run_until(world.now_us + pause_us);
    }
}

#[test]
fn leased_units_come_back_from_requests_that_are_denied_or_whose_clients_left() {
    let local = "  - {name: local, rate: 50/s, burst: 10, scope: proxy}\n";
    let global = "  - {name: global, rate: 50/s, burst: 10}\n";
    let precheck = "  - {name: global, rate: 50/s, burst: 10, precheck: 100%}\n";
    for other in [local, global, precheck] {
        for mut world in seeds().map(|seed| world(seed, &format!("{LEASED}{other}"))) {
            traffic(&mut world, 400);
            world.run_for_ms(300);
            let (granted, spent, returned) = Accounting::new(&world, 1).totals();
            assert!(granted > 50, "{granted}");
            assert_eq!(granted, spent + returned, "{other}");
        }
    }
}

/// The lease lasts, so that no other reason ends it.
#[test]
fn leased_units_come_back_when_their_worker_is_deleted() {
    let limits =
        "  - {name: all, rate: 1000/s, burst: 40000, on_failure: allow, lease: {ttl: 10s}}\n";
    for mut world in worlds(1, 2, CONFIG, limits) {
        world.run_for_ms(500);
        for n in 0..400 {
            world.request(0, 1 + n % 2, "alice", "/");
            world.run_for_ms(1);
        }
        world.run_for_ms(50);
        world.replace_worker(0, 1, CONFIG);
        world.run_for_ms(20_000);
        let (granted, spent, returned) = Accounting::new(&world, 1).totals();
        assert!(spent > 100, "{spent}");
        assert_eq!(granted, spent + returned);
    }
}

/// The lease lasts, so that no settlement is lost with the failed calls.
#[test]
fn leased_units_come_back_when_a_check_fails_whose_client_left() {
    let limits = "  - {name: all, rate: 1000/s, burst: 40000, on_failure: allow, lease: {ttl: 10s}}\n  \
                  - {name: other, rate: 1000/s}\n";
    for mut world in worlds(1, 1, CONFIG, limits) {
        world.run_for_ms(500);
        for _ in 0..400 {
            world.request(0, 1, "alice", "/");
            world.run_for_ms(1);
        }
        world.run_for_ms(50);
        world.faults = Faults::BLACK_HOLE;
        for _ in 0..3 {
            let number = world.request(0, 1, "alice", "/");
            world.run_for_ms(1);
            world.leave(number);
        }
        world.run_for_ms(100);
        world.faults = Faults::NONE;
        world.run_for_ms(20_000);
        let (granted, spent, returned) = Accounting::new(&world, 1).totals();
        assert!(spent > 100, "{spent}");
        assert_eq!(granted, spent + returned);
    }
}

/// However requests end that are or may be held, their permits are free again.
#[test]
fn each_permit_is_free_again_once_its_request_ends() {
    let config = CONFIG.replacen('{', "{\"hold\": {\"max\": 4}, ", 1);
    let limits = format!("{}  - {{name: other, per: [user], rate: 1/1h}}\n", {
        QUEUE
            .replace("2/s", "100/s")
            .replace("1m}", "1m, scope: proxy}")
    });
    for limits in [limits.clone(), limits.replace(", scope: proxy", "")] {
        for mut world in worlds(1, 1, &config, &limits) {
            world.run_for_ms(500);
            for round in 0..30 {
                world.faults = match round % 3 {
                    2 => Faults::BLACK_HOLE,
                    _ => Faults::NONE,
                };
                // The first request of each user is admitted, and the second is denied.
                let users = [0, 1, 0, 2].map(|n| format!("user-{round}-{n}"));
                let sent = users.map(|user| world.request(0, 1, &user, "/"));
                if round % 2 == 0 {
                    let pause_us = world.chance.below(5_000);
                    world.run_until(world.now_us + pause_us);
                    world.leave(sent[3]);
                }
                world.run_for_ms(200);
            }
            assert_eq!(world.counted("rl_hold_full"), 0, "{limits}");
        }
    }
}

#[test]
fn a_slot_in_a_queue_of_the_proxy_is_freed_when_the_client_leaves_before_the_answer() {
    let limits = QUEUE.replace("1m}", "1m, scope: proxy}");
    let limits = format!("{limits}  - {{name: other, rate: 1000/s}}\n");
    for mut world in seeds().map(|seed| world(seed, &limits)) {
        for _ in 0..20 {
            let number = world.request(0, 1, "alice", "/");
            world.run_until(world.now_us + 50);
            world.leave(number);
            world.run_for_ms(5);
        }
        let number = world.request(0, 1, "alice", "/");
        world.run_for_ms(700);
        assert!(world.passed(number), "it waits behind those that left");
    }
}

/// Such a request is decided without the answer, so nobody can settle what the answer reserved for it.
#[test]
fn units_reserved_by_an_answer_that_came_too_late_are_refunded() {
    let config = CONFIG.replace("20ms", "200ms");
    let limits = "  - {name: in-flight, algorithm: concurrency, limit: 12, slot_ttl: 300ms}\n  \
                  - {name: tokens, rate: 100000/1h, \
                  cost: {from: {response_json: /total}, reserve: 1000, max: 5000}}\n";
    let mut late = 0;
    for mut world in worlds(1, 1, &config, limits) {
        world.run_for_ms(500);
        world.slowest_us = 190_000;
        let number = world.request(0, 1, "alice", "/");
        world.run_for_ms(195);
        assert!(world.passed(number), "by its share");
        if world.requests[number].took_us().unwrap() < 100_000 {
            continue;
        }
        late += 1;
        world.run_for_ms(500);
        let settled: Vec<_> = { world.limiter.costs.settled.iter() }
            .map(|(_, reserved, units)| (*reserved, *units))
            .collect();
        assert_eq!(settled, [(1000, 0)]);
    }
    assert!(late > 0);
}

#[test]
fn a_slot_in_a_queue_is_freed_when_its_worker_is_deleted() {
    for mut world in seeds().map(|seed| world(seed, QUEUE)) {
        let sent: Vec<usize> = (0..20).map(|_| world.request(0, 1, "alice", "/")).collect();
        world.run_for_ms(50);
        for number in sent {
            world.leave(number);
        }
        world.replace_worker(0, 1, CONFIG);
        world.run_for_ms(700);
        let number = world.request(0, 2, "alice", "/");
        world.run_for_ms(700);
        assert!(world.passed(number), "it waits behind those that left");
    }
}

/// Of a proxy's own buckets, whether the request also needs a check or not.
#[test]
fn a_request_refused_for_lack_of_a_hold_permit_refunds_the_proxys_buckets() {
    let config = CONFIG.replacen('{', "{\"hold\": {\"max\": 2}, ", 1);
    let queue = QUEUE
        .replace("2/s", "50/s")
        .replace("1m}", "1m, scope: proxy}");
    let local = format!("{queue}  - {{name: here, rate: 60/1d, scope: proxy}}\n");
    let checked = format!("{local}  - {{name: other, rate: 100000/s}}\n");
    for limits in [local, checked] {
        for mut world in worlds(1, 2, &config, &limits) {
            world.run_for_ms(500);
            for n in 0..2_000 {
                world.request(0, 1 + n % 2, "alice", "/");
                let pause_us = world.chance.below(4_000);
                world.run_until(world.now_us + pause_us);
            }
            world.run_for_ms(500);
            assert!(world.counted("rl_hold_full") > 50);
            assert_eq!(world.admitted("alice"), 60, "{limits}");
        }
    }
}

/// Without a limiter, the queue is this proxy's share of it.
#[test]
fn a_request_refused_for_lack_of_a_hold_permit_in_an_outage_refunds_the_proxys_buckets() {
    let config = CONFIG.replacen('{', "{\"hold\": {\"max\": 2}, ", 1);
    let queue = QUEUE.replace("2/s", "50/s");
    let limits = format!("{queue}  - {{name: here, rate: 60/1d, scope: proxy}}\n");
    for mut world in worlds(1, 2, &config, &limits) {
        world.run_for_ms(500);
        world.faults = Faults::DOWN;
        for n in 0..2_000 {
            world.request(0, 1 + n % 2, "alice", "/");
            let pause_us = world.chance.below(4_000);
            world.run_until(world.now_us + pause_us);
        }
        world.run_for_ms(500);
        assert!(world.counted("rl_hold_full") > 50);
        assert_eq!(world.admitted("alice"), 60);
    }
}
