//! A server that has no memory left refuses a check whole, and forgets nothing.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on should stop with the reason"
)]

mod support;

use algorithms::check::{Mode, Options};
use algorithms::{Algorithm, Kind, Parameters};
use store::script::Clock;
use support::server::{REDIS, Reply, VALKEY};
use support::{Server, Subject, script_check};

const NOW: u64 = 1_763_000_040_000;
const HOUR: u64 = 3_600_000;

fn subject(kind: Kind, sub_windows: u64) -> Subject {
    let mut parameters = Parameters::new(kind, 10, 60_000);
    parameters.sub_windows = (kind == Kind::SlidingWindowBuckets).then_some(sub_windows);
    Subject {
        key: kind.name().to_owned(),
        algorithm: Algorithm::new(&parameters).unwrap(),
        generation: 1,
        cost: 1,
        debit: 0,
        mode: Mode::Enforce,
    }
}

fn remaining(server: &mut Server, subject: &Subject, now_ms: u64) -> u64 {
    let asked = Subject {
        cost: 0,
        ..subject.clone()
    };
    let check = script_check(std::slice::from_ref(&asked), Options::default());
    let reply = server.batch(&[check], Clock::Injected(now_ms));
    reply.results[0].as_ref().unwrap().limits[0]
        .decision
        .remaining
}

/// Charges while there is memory, then asks at `later_ms` where that needs a rewrite.
fn refuse(server: &mut Server, before: &Subject, after: &Subject, later_ms: u64) {
    let other = Subject {
        key: "other".to_owned(),
        ..subject(Kind::TokenBucket, 0)
    };
    server.command(&[b"FLUSHALL"]);
    for at in 0..3 {
        let check = script_check(std::slice::from_ref(before), Options::default());
        server.batch(&[check], Clock::Injected(NOW + at * 10_000));
    }
    server.command(&[b"CONFIG", b"SET", b"maxmemory", b"1"]);
    let both = [other.clone(), after.clone()];
    let reply = server.call(
        &[script_check(&both, Options::default())],
        Clock::Injected(later_ms),
    );
    server.command(&[b"CONFIG", b"SET", b"maxmemory", b"0"]);
    let refused = matches!(&reply, Reply::Error(message) if message.contains("OOM"));
    assert!(refused, "{reply:?}");
    assert_eq!(remaining(server, after, later_ms), 7, "{}", before.key);
    assert_eq!(remaining(server, &other, later_ms), 10, "all or nothing");
}

fn nothing_is_forgotten(mut server: Server) {
    let log = subject(Kind::SlidingWindowLog, 0);
    refuse(&mut server, &log, &log, NOW + 20_000);
    refuse(&mut server, &log, &log, NOW - HOUR);
    let (sixth, tenth) = (
        subject(Kind::SlidingWindowBuckets, 6),
        subject(Kind::SlidingWindowBuckets, 10),
    );
    refuse(&mut server, &sixth, &sixth, NOW + 20_000);
    refuse(&mut server, &sixth, &sixth, NOW - HOUR);
    refuse(&mut server, &sixth, &tenth, NOW + 20_000);
    for kind in [
        Kind::TokenBucket,
        Kind::Gcra,
        Kind::FixedWindow,
        Kind::SlidingWindow,
    ] {
        let mut slow = subject(kind, 0);
        slow.algorithm = Algorithm::new(&Parameters::new(kind, 10, 100 * HOUR)).unwrap();
        refuse(&mut server, &slow, &slow, NOW + 20_000);
    }
}

#[test]
fn on_redis() {
    nothing_is_forgotten(Server::start(REDIS));
}

#[test]
fn on_valkey() {
    nothing_is_forgotten(Server::start(VALKEY));
}
