//! A server without free memory refuses a check as a whole, and loses no state.

use crate::support::server::Reply;
use crate::support::{Engine, KINDS, Server, Subject, script_check};
use algorithms::check::Options;
use algorithms::{Algorithm, Kind, Parameters};
use store::script::Clock;

const NOW: u64 = 1_763_000_040_000;
const HOUR: u64 = 3_600_000;

fn subject(kind: Kind, sub_windows: u64) -> Subject {
    let mut parameters = Parameters::new(kind, 10, 60_000);
    parameters.sub_windows = (kind == Kind::SlidingWindowBuckets).then_some(sub_windows);
    Subject::new(kind.name(), Algorithm::new(&parameters).unwrap())
}

fn remaining(server: &mut Server, subject: &Subject, now_ms: u64) -> u64 {
    let mut asked = subject.clone();
    asked.cost = 0;
    server.one(&asked, now_ms).decision.remaining
}

/// Charges while there is memory, then again at `later_ms` when there is none.
fn refuse(server: &mut Server, before: &Subject, after: &Subject, later_ms: u64) {
    let other = Subject::new("other", subject(Kind::TokenBucket, 0).algorithm);
    server.command(&[b"FLUSHALL"]);
    for at in 0..3 {
        server.one(before, NOW + at * 10_000);
    }
    let left = remaining(server, after, later_ms);
    let stored = server.command(&[b"DUMP", before.key.as_bytes()]);
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
        assert_eq!(server.command(&[b"DUMP", before.key.as_bytes()]), stored);
    }
}

fn nothing_is_forgotten(server: &mut Server) {
    let log = subject(Kind::SlidingWindowLog, 0);
    let (sixths, tenths) = (
        subject(Kind::SlidingWindowBuckets, 6),
        subject(Kind::SlidingWindowBuckets, 10),
    );
    // Shortly after, when some have expired, when all have, and after a far step back.
    for later_ms in [NOW + 20_000, NOW + 75_000, NOW + HOUR, NOW - HOUR] {
        refuse(server, &log, &log, later_ms);
        refuse(server, &sixths, &sixths, later_ms);
        refuse(server, &sixths, &tenths, later_ms);
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
            refuse(server, &string, &string, later_ms);
        }
    }
}

/// What has no state yet, or that of another algorithm, gets none.
fn nothing_is_added(server: &mut Server) {
    let kinds = KINDS.into_iter().chain([Kind::Concurrency]);
    for after in kinds.map(|kind| subject(kind, 6)) {
        for before in [Kind::FixedWindow, Kind::TokenBucket].map(|kind| subject(kind, 0)) {
            let of_another = Subject {
                key: before.key.clone(),
                ..after.clone()
            };
            if before.key != after.key {
                refuse(server, &before, &after, NOW + 20_000);
                refuse(server, &before, &of_another, NOW + 20_000);
            }
        }
    }
}

mod forgotten {
    crate::support::on_servers!(super::nothing_is_forgotten);
}

mod added {
    crate::support::on_servers!(super::nothing_is_added);
}
