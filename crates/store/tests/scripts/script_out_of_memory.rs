//! A server without free memory refuses a check as a whole, and loses no state.

use crate::support::server::Reply;
use crate::support::{Leasing, Server, Subject, script_check};
use algorithms::check::{Mode, Options};
use algorithms::{Algorithm, Kind, Parameters};
use harness::Engine;
use store::script::Clock;

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
        debit_serial: None,
        costs: None,
        penalty: None,
        lease: Leasing::default(),
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

/// Charges while there is memory, then again at `later_ms` when there is none.
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
    let left = remaining(server, after, later_ms);
    for both in [
        [other.clone(), after.clone()],
        [after.clone(), other.clone()],
    ] {
        server.command(&[b"CONFIG", b"SET", b"maxmemory", b"1"]);
        let check = script_check(&both, Options::default());
        let reply = server.call(&[check], Clock::Injected(later_ms));
        server.command(&[b"CONFIG", b"SET", b"maxmemory", b"0"]);
        let refused = matches!(&reply, Reply::Error(message) if message.contains("OOM"));
        assert!(refused, "{reply:?} {both:#?}");
        assert_eq!(remaining(server, after, later_ms), left, "{}", before.key);
        assert_eq!(remaining(server, &other, later_ms), 10, "all or nothing");
    }
}

fn nothing_is_forgotten(mut server: Server) {
    let log = subject(Kind::SlidingWindowLog, 0);
    let (sixths, tenths) = (
        subject(Kind::SlidingWindowBuckets, 6),
        subject(Kind::SlidingWindowBuckets, 10),
    );
    // Shortly after, when some have expired, when all have, and after a far step back.
    for later_ms in [NOW + 20_000, NOW + 75_000, NOW + HOUR, NOW - HOUR] {
        refuse(&mut server, &log, &log, later_ms);
        refuse(&mut server, &sixths, &sixths, later_ms);
        refuse(&mut server, &sixths, &tenths, later_ms);
        for kind in [
            Kind::TokenBucket,
            Kind::Gcra,
            Kind::FixedWindow,
            Kind::SlidingWindow,
        ] {
            if kind == Kind::Gcra && later_ms < NOW {
                continue; // Used up by then, so that nothing is written.
            }
            let string = subject(kind, 0);
            refuse(&mut server, &string, &string, later_ms);
        }
    }
}

#[test]
#[ignore = "needs a server"]
fn on_redis() {
    nothing_is_forgotten(Server::start(Engine::Redis));
}

#[test]
#[ignore = "needs a server"]
fn on_valkey() {
    nothing_is_forgotten(Server::start(Engine::Valkey));
}
