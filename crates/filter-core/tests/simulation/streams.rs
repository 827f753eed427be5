//! Check streams: when they are opened, used, given up and replaced.

use crate::world::{CONFIG, Faults, Opening, World};

const LIMITS: &str = "  - {name: per-user, per: [user], rate: 100000/1h}\n";

/// A world with an open stream.
fn streaming() -> World {
    let mut world = World::new(2, 1, 1, CONFIG, LIMITS);
    world.run_for_ms(500);
    world.request(0, 1, "first", "/");
    world.run_for_ms(100);
    assert_eq!(world.counted("rl_stream.opened"), 1);
    assert_eq!(
        world.counted("rl_stream.calls"),
        0,
        "the first is a callout"
    );
    world
}

/// Requests of as many users, each after the other's decision.
fn requests(world: &mut World, users: std::ops::Range<usize>) {
    for user in users {
        world.request(0, 1, &format!("user-{user}"), "/");
        world.run_for_ms(10);
    }
    world.run_for_ms(50);
}

#[test]
fn checks_use_the_stream_only_if_configured() {
    let mut world = streaming();
    requests(&mut world, 0..20);
    assert_eq!(world.counted("rl_stream.calls"), 20);
    assert_eq!(world.counted("rl_callouts.answered"), 21);
    let mut world = World::new(1, 1, 1, CONFIG, LIMITS);
    world.run_for_ms(500);
    requests(&mut world, 0..20);
    assert_eq!(world.counted("rl_stream.opened"), 0);
    assert_eq!(world.counted("rl_callouts.answered"), 20);
}

#[test]
fn a_call_on_the_stream_times_out_as_a_callout_does() {
    let mut world = streaming();
    world.faults = Faults::BLACK_HOLE;
    let at_us = world.now_us;
    let number = world.request(0, 1, "alice", "/");
    world.run_for_ms(30);
    assert_eq!(world.counted("rl_stream.calls"), 1);
    let took_us = world.requests[number].took_us().unwrap();
    assert!(
        (20_000..=25_000).contains(&took_us),
        "{took_us} us after {at_us}"
    );
    world.run_for_ms(50);
    assert_eq!(world.counted("rl_stream.failed"), 1);
}

#[test]
fn a_failed_stream_reopens_only_after_a_pause_and_an_answered_callout() {
    let mut world = streaming();
    world.faults = Faults {
        late: 100,
        ..Faults::NONE
    };
    requests(&mut world, 0..1);
    assert_eq!(world.counted("rl_stream.failed"), 1);
    world.run_for_ms(2_000);
    // No callout was answered yet.
    requests(&mut world, 1..3);
    assert_eq!(world.counted("rl_stream.opened"), 1);
    world.faults = Faults::NONE;
    world.run_for_ms(2_000);
    requests(&mut world, 3..4);
    requests(&mut world, 4..6);
    assert_eq!(world.counted("rl_stream.opened"), 2);
    assert!(world.counted("rl_stream.calls") >= 2);
}

#[test]
fn stream_attempts_back_off_while_a_limiter_refuses_them() {
    let mut world = World::new(2, 1, 1, CONFIG, LIMITS);
    world.run_for_ms(500);
    world.opening = Opening::Refuses;
    for user in 0..1_000 {
        requests(&mut world, user..user + 1);
        world.run_for_ms(300);
    }
    assert_eq!(world.counted("rl_callouts.answered"), 1_000);
    // After 1, 2, 4 … 64 s, then after 64 s each, in 6 minutes.
    let failed = world.counted("rl_stream.failed");
    assert!((9..=11).contains(&failed), "{failed}");
}

#[test]
fn a_limiter_that_ends_its_streams_loses_no_check() {
    let mut world = streaming();
    world.faults = Faults {
        ending: 20,
        ..Faults::NONE
    };
    for user in 0..300 {
        world.request(0, 1, &format!("user-{user}"), "/");
        world.run_for_ms(user % 3);
        if user % 10 == 0 {
            world.run_for_ms(1_100);
        }
    }
    world.run_for_ms(100);
    assert!(world.counted("rl_stream.opened") > 5);
    for name in ["rl_callouts.failed", "rl_check_errors", "rl_stream.failed"] {
        assert_eq!(world.counted(name), 0, "{name}");
    }
    for user in 0..300 {
        let user = format!("user-{user}");
        assert_eq!(world.limiter.charged_in_all("per-user", &user), 1, "{user}");
    }
}

#[test]
fn an_unexpected_stream_message_fails_only_the_calls_on_that_stream() {
    let mut world = streaming();
    let answer = |id: u8| [0, 0, 0, id, 0, 200];
    for message in [&answer(77)[..], &answer(0), b"123", &[0, 0, 0, 0, 1, 0xf8]] {
        let opened = world.counted("rl_stream.opened");
        let failed = world.counted("rl_stream.failed");
        world.message(0, 1, message);
        world.run_for_ms(100);
        assert_eq!(world.counted("rl_stream.failed"), failed + 1, "{message:?}");
        world.run_for_ms(120_000);
        requests(&mut world, 0..2);
        assert_eq!(world.counted("rl_stream.opened"), opened + 1, "{message:?}");
    }
    world.assert_all_decided(25_000);
}

#[test]
fn a_stream_answer_with_the_id_of_a_callout_is_ignored() {
    let mut world = streaming();
    world.faults = Faults::BLACK_HOLE;
    world.message(0, 1, b"no answer");
    let number = world.request(0, 1, "alice", "/");
    world.run_for_ms(1);
    for id in 0..=u8::MAX {
        world.message(0, 1, &[0, 0, 0, id, 0, 200, 0]);
    }
    assert!(world.requests[number].outcome.is_none());
}

#[test]
fn a_limiter_that_never_opens_a_stream_gets_callouts() {
    let mut world = World::new(2, 1, 1, CONFIG, LIMITS);
    world.run_for_ms(500);
    world.opening = Opening::Hangs;
    requests(&mut world, 0..400);
    assert_eq!(world.counted("rl_callouts.answered"), 400);
    assert_eq!(world.counted("rl_stream.opened"), 0);
    // The stream is given up after a second, and opened again a second later.
    assert_eq!(world.counted("rl_stream.failed"), 2);
}
