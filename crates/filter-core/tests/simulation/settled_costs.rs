//! Costs in responses, over Envoys and lossy networks: each reservation is settled once, by the cost in
//! its response.

use filter_core::{Metering, ResponseNeeds};

use crate::{
    decisions::seeds,
    faults::any,
    world::{CONFIG, Faults, Outcome, Reply, World},
};

const TOKENS: &str = "  - {name: tokens, per: [user], rate: 100000/1h, \
     cost: {from: {response_json: /usage/total_tokens}, reserve: 1000, max: 5000}}\n";
const LOGINS: &str = "  - {name: logins, per: [user], rate: 5/1h, cost: {from: {status: [401]}}}\n";

fn world(seed: u64, limits: &str) -> World {
    let mut world = World::new(seed, 1, 2, CONFIG, limits);
    world.run_for_ms(500);
    world
}

/// Requests that were all admitted.
fn passed(world: &mut World, count: usize) -> Vec<usize> {
    let numbers: Vec<usize> = (0..count)
        .map(|n| world.request(0, 1 + n % 2, "alice", "/"))
        .collect();
    world.run_for_ms(50);
    assert!(numbers.iter().all(|number| world.passed(*number)));
    numbers
}

/// The settled costs of requests, sorted.
fn settled(world: &World) -> Vec<(u64, u64)> {
    let mut settled: Vec<(u64, u64)> = { world.limiter.costs.settled.iter() }
        .map(|(_, reserved, units)| (*reserved, *units))
        .collect();
    settled.sort_unstable();
    settled
}

/// Settlements; units reserved, settled, unused and in excess; responses without a cost, estimated
/// ones and those that `max` cut; requests that nobody settles.
fn costs_counted(world: &World, limit: &str) -> [u64; 9] {
    let names = "settlements reserved settled unused excess absent estimated cut unsettled";
    let mut counts = names
        .split(' ')
        .map(|name| world.counted(&format!("rl_costs.{name}.{limit}")));
    [(); 9].map(|()| counts.next().unwrap())
}

fn json(tokens: u64) -> String {
    format!(r#"{{"text":"\"usage\":","usage":{{"total_tokens":{tokens}}}}}"#)
}

#[test]
fn a_request_reserves_and_its_response_settles() {
    for mut world in seeds().map(|seed| world(seed, TOKENS)) {
        let numbers = passed(&mut world, 4);
        assert_eq!(world.limiter.charged_in_all("tokens", "alice"), 4000);
        for (number, tokens) in numbers.iter().zip([1, 700, 4000, 9000]) {
            let reply = Reply::json(200, &json(tokens));
            assert_eq!(world.respond(*number, &reply), Metering::Settled);
            world.leave(*number);
        }
        world.run_for_ms(50);
        assert_eq!(
            settled(&world),
            [(1000, 1), (1000, 700), (1000, 4000), (1000, 5000)]
        );
        assert!(world.limiter.costs.reserved.is_empty());
        let counted = [4, 4000, 9701, 999 + 300, 3000 + 4000, 0, 0, 1, 0];
        assert_eq!(costs_counted(&world, "tokens"), counted);
    }
}

/// Only limiters have overrides, so only they know what a bucket holds.
#[test]
fn a_reserve_is_cut_to_what_the_bucket_holds_and_not_to_what_others_hold() {
    const OVERRIDDEN: &str = "  - {name: tokens, per: [user], rate: 10000/1h, \
         cost: {from: {response_json: /n}, reserve: {default: 4000, cap: 10%}, max: 5000}, overrides: \
         [{values: {user: alice}, rate: 100000/1h}, {values: {user: bob}, rate: 100/1h}]}\n";
    let mut world = world(1, OVERRIDDEN);
    for (user, reserved) in [("alice", 4000), ("bob", 10), ("carol", 1000)] {
        let number = world.request(0, 1, user, "/");
        world.run_for_ms(50);
        assert!(world.passed(number), "{user}");
        assert_eq!(
            world.limiter.charged_in_all("tokens", user),
            reserved,
            "{user}"
        );
    }
}

#[test]
fn missing_usage_is_estimated_and_a_failed_response_is_free() {
    for mut world in seeds().map(|seed| world(seed, TOKENS)) {
        let numbers = passed(&mut world, 7);
        let long = format!("{{\"text\":\"{}\"}}", "x".repeat(8000));
        let replies = [
            Reply::json(200, "{}"),
            Reply::json(200, &long),
            Reply::json(500, &json(700)),
            Reply::json(404, ""),
            // Cut short by the upstream, or by the client.
            Reply {
                ended: false,
                ..Reply::json(200, &json(700))
            },
            Reply {
                ended: false,
                ..Reply::json(200, &json(4000))
            },
        ];
        for (number, reply) in numbers.iter().zip(&replies) {
            world.respond(*number, reply);
        }
        // The last request gets no response at all.
        for number in numbers {
            world.leave(number);
        }
        world.run_for_ms(50);
        let units: Vec<u64> = settled(&world).iter().map(|(_, units)| *units).collect();
        assert_eq!(units, [0, 0, 1000, 1000, 1000, 2002, 4000]);
        let counted = [7, 7000, 9002, 2000, 1002 + 3000, 5, 5, 0, 0];
        assert_eq!(costs_counted(&world, "tokens"), counted);
    }
}

/// Nobody can settle what a request reserved without an answer; one that was certainly not charged
/// reserved nothing.
#[test]
fn requests_that_may_have_been_charged_without_an_answer_are_counted_as_unsettled() {
    let cases = [
        (Faults::DOWN, 0),
        (Faults::NO_CLUSTER, 0),
        (Faults::NO_STORE, 0),
        (Faults::BLACK_HOLE, 3),
    ];
    for (faults, unsettled) in cases {
        let mut world = world(1, TOKENS);
        world.faults = faults;
        let numbers: Vec<usize> = (0..3).map(|_| world.request(0, 1, "alice", "/")).collect();
        world.run_for_ms(500);
        for number in numbers {
            assert!(world.passed(number));
            world.respond(number, &Reply::json(200, &json(700)));
            world.leave(number);
        }
        world.run_for_ms(50);
        let counted = [0, 0, 0, 0, 0, 0, 0, 0, unsettled];
        assert_eq!(costs_counted(&world, "tokens"), counted, "{faults:?}");
    }
}

/// Whatever a client may choose, it does not pay less for it: 5000 is the most that a response costs.
#[test]
fn a_response_that_cannot_be_read_costs_the_most() {
    let filling = "x".repeat(400);
    let plain = Reply::json(200, &json(700));
    let text = |media_type, status| Reply {
        media_type,
        ..Reply::json(status, &filling)
    };
    let coded = |coding, reply: Reply| Reply {
        coding: Some(coding),
        ..reply
    };
    let cut_off = Reply {
        ended: false,
        ..coded("gzip", Reply::json(200, &filling))
    };
    let lacking = format!("{{\"text\":\"{filling}\"}}");
    let cases = [
        (plain.clone(), 700),
        (coded("gzip", Reply::json(200, &filling)), 5000),
        (cut_off, 5000),
        (coded("gzip", Reply::json(500, &filling)), 0),
        (coded("identity", plain.clone()), 700),
        (Reply::json(206, &json(700)), 5000),
        (text("text/csv", 200), 5000),
        (text("application/json; charset=utf-16", 200), 5000),
        (Reply::json(200, "{\"usage\":"), 5000),
        // No answer passed, or one that was read and lacks its cost.
        (Reply::json(204, ""), 1000),
        (text("text/html", 302), 1000),
        (Reply::json(200, &lacking), 1000),
    ];
    for mut world in seeds().map(|seed| world(seed, TOKENS)) {
        for (n, (reply, units)) in cases.iter().enumerate() {
            let number = passed(&mut world, 1)[0];
            world.respond(number, reply);
            world.leave(number);
            world.run_for_ms(50);
            let last = world.limiter.costs.settled.last().unwrap();
            assert_eq!((last.1, last.2), (1000, *units), "case {n}");
        }
        let [.., absent, estimated, cut, unsettled] = costs_counted(&world, "tokens");
        assert_eq!([absent, estimated, cut, unsettled], [9, 3, 0, 0]);
        world.method = "HEAD";
        for (status, units) in [(200, 5000), (404, 0)] {
            let number = passed(&mut world, 1)[0];
            world.respond(number, &Reply::json(status, ""));
            world.leave(number);
            world.run_for_ms(50);
            assert_eq!(world.limiter.costs.settled.last().unwrap().2, units);
        }
    }
}

/// Without `max`, the most is what a bucket holds.
#[test]
fn an_unread_response_without_a_most_takes_a_whole_bucket() {
    let limits = TOKENS.replace(", max: 5000", "");
    let mut world = world(1, &limits);
    let number = passed(&mut world, 1)[0];
    world.respond(
        number,
        &Reply {
            coding: Some("br"),
            ..Reply::json(200, "x")
        },
    );
    world.leave(number);
    world.run_for_ms(50);
    assert_eq!(settled(&world), [(1000, 100_000)]);
}

#[test]
fn requests_ask_for_what_their_cost_is_read_from() {
    for (cost, body, trailers) in [
        (
            "{from: {response_json: /n}, reserve: 1, if_absent: 5}",
            true,
            false,
        ),
        ("{from: {response_header: n}, reserve: 1}", true, false),
        (
            "{from: {response_header: n}, reserve: 1, if_absent: max}",
            false,
            false,
        ),
        (
            "{from: {response_trailer: n}, reserve: 1, if_absent: 5}",
            false,
            true,
        ),
        ("{from: {status: 401}}", false, false),
        (
            "{table: [{match: {path: /}, units: 3}], default: 1}",
            false,
            false,
        ),
    ] {
        let mut world = world(1, &format!("  - {{name: a, rate: 100/1h, cost: {cost}}}\n"));
        let number = passed(&mut world, 1)[0];
        let Some(Outcome::Passed { needs, .. }) = world.requests[number].outcome else {
            panic!("it passed");
        };
        assert_eq!(needs, ResponseNeeds { body, trailers }, "{cost}");
    }
}

#[test]
fn a_client_that_leaves_before_the_decision_is_charged_nothing() {
    for mut world in seeds().map(|seed| world(seed, TOKENS)) {
        world.faults = Faults::NONE;
        let number = world.request(0, 1, "alice", "/");
        world.run_until(world.now_us + 1);
        world.leave(number);
        world.run_for_ms(100);
        let settled = settled(&world);
        assert!(settled.is_empty() || settled == [(1000, 0)], "{settled:?}");
        assert!(world.limiter.costs.reserved.is_empty());
    }
}

#[test]
fn concurrent_logins_pass_up_to_the_number_of_allowed_failures() {
    for mut world in seeds().map(|seed| world(seed, LOGINS)) {
        let numbers: Vec<usize> = (0..100)
            .map(|n| world.request(0, 1 + n % 2, "alice", "/"))
            .collect();
        world.run_for_ms(100);
        let passed: Vec<usize> = { numbers.iter().copied() }
            .filter(|number| world.passed(*number))
            .collect();
        assert_eq!(passed.len(), 5);
        for (number, status) in passed.iter().zip([401, 200, 302, 401, 500]) {
            world.respond(*number, &Reply::json(status, ""));
            world.leave(*number);
        }
        world.run_for_ms(50);
        assert_eq!(settled(&world), [(1, 0), (1, 0), (1, 0), (1, 1), (1, 1)]);
        assert_eq!(costs_counted(&world, "logins"), [5, 5, 2, 3, 0, 0, 0, 0, 0]);
    }
}

#[test]
fn call_faults_settle_no_reservation_twice_or_with_wrong_units() {
    for mut world in seeds().map(|seed| world(seed, TOKENS)) {
        let mut running = Vec::new();
        for round in 0..40 {
            world.faults = any(&mut world);
            for n in 0..4 {
                running.push(world.request(0, 1 + n % 2, ["alice", "bob"][n / 2], "/"));
            }
            world.run_for_ms(30);
            for number in running.split_off(running.len().min(round % 5)) {
                if world.passed(number) {
                    world.respond(number, &Reply::json(200, &json(number as u64)));
                }
                world.leave(number);
            }
        }
        for number in running {
            world.leave(number);
        }
        world.faults = Faults::NONE;
        world.run_for_ms(10_000);
        let costs = settled(&world);
        assert!(!costs.is_empty());
        let possible = world.requests.len() as u64;
        for (reserved, units) in costs {
            assert_eq!(reserved, 1000);
            assert!(units < possible || units == 1000, "{units}");
        }
        // A reservation stands if the check's answer was lost. All others were settled.
        let open = world.limiter.costs.reserved.len() as u64;
        let failed = world.counted("rl_callouts.failed") + world.counted("rl_check_errors");
        assert!(open == 0 || failed > 0, "{open} open");
    }
}

#[test]
fn a_response_is_not_metered_unless_a_limit_needs_its_body() {
    let mut world = world(
        1,
        "  - {name: all, rate: 100/1h, cost: {table: [{match: {path: /dear}, units: 9}], default: 2}}\n",
    );
    let numbers = [
        world.request(0, 1, "alice", "/dear"),
        world.request(0, 1, "alice", "/"),
    ];
    world.run_for_ms(50);
    assert_eq!(world.limiter.charged_in_all("all", ""), 0);
    assert_eq!(world.limiter.charged.values().sum::<u64>(), 11);
    for number in numbers {
        assert_eq!(
            world.respond(number, &Reply::json(200, "{}")),
            Metering::None
        );
    }
}
