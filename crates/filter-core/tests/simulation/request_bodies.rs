//! Request bodies that contain what to reserve: which ones the filter waits for, how long, and which
//! count.

use filter_core::BodyNeed;

use crate::world::{Faults, Reply, Upload, World};

const LIMITS: &str = "  - {name: tokens, per: [user], rate: 100000/1h, cost: {from: {response_json: /total}, \
     reserve: {from: [{request_json: /max}], default: 100}}}\n";
const CONFIG: &str = r#"{
    "domain": "shop", "limiter": {"cluster": "limiter", "timeout": "20ms"},
    "descriptors": [{"key": "user", "header": "x-user"}],
    "request_body": {"max": 100}, "hold": {"max": 2}
}"#;

fn world(config: &str, limits: &str) -> World {
    let mut world = World::new(1, 1, 1, config, limits);
    world.faults = Faults::NONE;
    world.run_for_ms(500);
    world
}

fn json() -> Upload {
    with(&[])
}

/// A request with a JSON body, with other headers instead of its own.
fn with(headers: &[(&'static str, &'static str)]) -> Upload {
    let own = [
        (":method", "POST"),
        (":path", "/"),
        ("x-user", "alice"),
        ("content-type", "application/json"),
    ];
    let kept = own
        .iter()
        .filter(|(name, _)| headers.iter().all(|(other, _)| other != name));
    Upload {
        headers: kept.chain(headers).copied().collect(),
        has_body: true,
    }
}

/// The units that are reserved a little later.
fn reserved(world: &mut World) -> Vec<u64> {
    world.run_for_ms(50);
    let mut units: Vec<u64> = world.limiter.costs.reserved.values().copied().collect();
    units.sort_unstable();
    units
}

#[test]
fn a_complete_body_determines_the_reserve() {
    let mut world = world(CONFIG, LIMITS);
    let (number, need) = world.upload(&json());
    assert_eq!(need, BodyNeed::Reads);
    assert_eq!(
        world.send_body(number, "{\"max\":7", false),
        BodyNeed::Reads
    );
    assert_eq!(reserved(&mut world), [0; 0], "it is not decided yet");
    assert_eq!(world.send_body(number, "00}", true), BodyNeed::Read);
    assert_eq!(reserved(&mut world), [700]);
    assert!(world.passed(number));
}

#[test]
fn an_incomplete_body_leaves_the_default_reserve() {
    let blanks = format!("{{\"max\":700}}{}", " ".repeat(100));
    for (body, ended) in [
        ("{\"max\":700", true),
        ("{\"max\":700}}", true),
        ("{\"max\":700}}", false),
        (&blanks, false),
    ] {
        let mut world = world(CONFIG, LIMITS);
        let (number, _) = world.upload(&json());
        assert_eq!(
            world.send_body(number, body, ended),
            BodyNeed::Read,
            "{body}"
        );
        assert_eq!(reserved(&mut world), [100], "{body}");
    }
}

#[test]
fn only_short_json_bodies_delay_the_check() {
    let mut none = json();
    none.has_body = false;
    for upload in [
        none,
        with(&[("content-length", "101")]),
        with(&[("content-length", "many")]),
        with(&[("content-type", "text/plain")]),
        with(&[("content-encoding", "gzip")]),
        with(&[("upgrade", "websocket")]),
        with(&[("expect", "100-continue")]),
        with(&[(":method", "CONNECT")]),
    ] {
        let mut world = world(CONFIG, LIMITS);
        let (number, need) = world.upload(&upload);
        // The body waits only for the decision.
        assert_eq!(need, BodyNeed::Waits, "{upload:?}");
        assert_eq!(
            world.send_body(number, "{\"max\":700}", true),
            BodyNeed::Waits
        );
        assert_eq!(reserved(&mut world), [100], "{upload:?}");
        assert_eq!(world.send_body(number, "", true), BodyNeed::None);
    }
    let mut world = world(CONFIG, LIMITS);
    let long_enough = with(&[("content-length", "100")]);
    assert_eq!(world.upload(&long_enough).1, BodyNeed::Reads);
}

#[test]
fn bodies_are_read_where_the_configuration_and_a_limit_say_so() {
    let without = CONFIG.replace("\"request_body\": {\"max\": 100}, ", "");
    let fixed = LIMITS.replace("from: [{request_json: /max}], ", "");
    for (config, limits) in [(without.as_str(), LIMITS), (CONFIG, fixed.as_str())] {
        let mut world = world(config, limits);
        assert_eq!(world.upload(&json()).1, BodyNeed::Waits);
        assert_eq!(reserved(&mut world), [100]);
    }
}

#[test]
fn a_body_that_does_not_come_is_waited_for_a_second() {
    let mut world = world(CONFIG, LIMITS);
    let (number, _) = world.upload(&json());
    world.run_for_ms(950);
    assert!(!world.passed(number));
    world.run_for_ms(70);
    assert!(world.passed(number));
    assert_eq!(reserved(&mut world), [100]);
    assert_eq!(
        world.send_body(number, "{\"max\":700}", true),
        BodyNeed::None
    );
}

#[test]
fn the_number_of_bodies_awaited_at_once_is_bounded() {
    let mut world = world(CONFIG, LIMITS);
    let (first, _) = world.upload(&json());
    let (second, need) = world.upload(&json());
    assert_eq!(need, BodyNeed::Reads);
    assert_eq!(world.upload(&json()).1, BodyNeed::Waits);
    // A body that was read, or whose client left, makes room for another.
    world.send_body(first, "{}", true);
    let (third, need) = world.upload(&json());
    assert_eq!(need, BodyNeed::Reads);
    world.leave(second);
    assert_eq!(world.upload(&json()).1, BodyNeed::Reads);
    assert_eq!(world.upload(&json()).1, BodyNeed::Waits);
    world.leave(third);
}

/// As Envoy answers a malformed chunk.
#[test]
fn a_request_that_envoy_answers_waits_for_no_body() {
    let mut world = world(CONFIG, LIMITS);
    for _ in 0..5 {
        let (number, need) = world.upload(&json());
        assert_eq!(need, BodyNeed::Reads);
        world.respond(number, &Reply::json(400, ""));
        world.leave(number);
    }
    assert_eq!(reserved(&mut world), [0; 0]);
}

/// An Envoy without `allow_on_headers_stop_iteration` passes no bodies to the filter; a client may just
/// be slow.
#[test]
fn polls_report_that_no_body_comes() {
    let reports = |world: &mut World| {
        world.run_for_ms(2500);
        world.limiter.polled.contains("request_body_passes")
    };
    for (came, reported) in [(false, [false, false, true]), (true, [false; 3])] {
        let mut world = world(CONFIG, LIMITS);
        assert!(!reports(&mut world));
        if came {
            let (number, _) = world.upload(&json());
            world.send_body(number, "{", false);
        }
        for reported in reported {
            world.upload(&json());
            assert_eq!(reports(&mut world), reported, "{came}");
        }
    }
}
