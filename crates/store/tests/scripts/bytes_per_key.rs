//! What a bucket costs in a server's memory (the table in lua/README.md).

use crate::support::server::Reply;
use crate::support::{Engine, Server, Subject, on_servers};
use algorithms::{Algorithm, Kind, Parameters};

const NOW: u64 = 1_763_000_040_000;

/// 35 characters, as a domain, a limit and a user id may have.
const KEY: &str = "rl:b:shop:per-user:0123456789abcdef";

#[derive(Clone, Copy)]
struct Row {
    what: &'static str,
    parameters: Parameters,
    /// Checks of half the limit, half a period apart, before those that are measured: they give
    /// a log's running totals all the digits they can have.
    before: u64,
    /// Checks of cost 1, and the milliseconds between them.
    checks: u64,
    apart_ms: u64,
    /// The most bytes on Redis 7.0 and on Valkey 9.1, with the key and its time to live.
    bytes_max: [i64; 2],
}

/// A row of one admission.
fn row(what: &'static str, kind: Kind, units: u64, period_ms: u64, bytes_max: [i64; 2]) -> Row {
    let parameters = Parameters::new(kind, units, period_ms);
    Row {
        what,
        parameters,
        before: 0,
        checks: 1,
        apart_ms: 0,
        bytes_max,
    }
}

fn rows() -> Vec<Row> {
    use Kind::{FixedWindow, Gcra, LeakyBucket, SlidingWindow, SlidingWindowBuckets, TokenBucket};

    let (small, large) = ([120, 88], [136, 104]);
    let log = row(
        "log of 1000",
        Kind::SlidingWindowLog,
        1000,
        60_000,
        [26_000; 2],
    );
    let log = Row {
        checks: 1000,
        apart_ms: 1,
        ..log
    };
    let mut sixty = row(
        "60 sub-windows",
        SlidingWindowBuckets,
        60,
        60_000,
        [420, 400],
    );
    (sixty.checks, sixty.apart_ms) = (60, 1000);
    sixty.parameters.sub_windows = Some(60);
    vec![
        row("token_bucket 20/s", TokenBucket, 20, 1000, large),
        row("token_bucket 1000/1d", TokenBucket, 1000, 86_400_000, large),
        row("leaky_bucket 20/s", LeakyBucket, 20, 1000, large),
        row("gcra 20/s", Gcra, 20, 1000, small),
        row("gcra 7/1m", Gcra, 7, 60_000, small),
        row("fixed_window", FixedWindow, 100, 60_000, small),
        row("sliding_window", SlidingWindow, 100, 60_000, large),
        sixty,
        Row {
            what: "log of 1000, long in use",
            before: 500,
            ..log
        },
        log,
    ]
}

fn charge(server: &mut Server, subject: &Subject, now_ms: u64) {
    let allowed = server.one(subject, now_ms).decision.allowed;
    assert!(allowed, "at {now_ms}: {subject:?}");
}

/// The bytes that the key takes: the least of a few copies, because the allocator rounds up some of
/// them further.
fn usage(server: &mut Server) -> i64 {
    let copies = (b'0'..b'8').map(|digit| {
        let mut copy = KEY.as_bytes().to_vec();
        *copy.last_mut().unwrap() = digit;
        server.command(&[b"COPY", KEY.as_bytes(), &copy]);
        let usage = server.command(&[b"MEMORY", b"USAGE", &copy, b"SAMPLES", b"0"]);
        let Reply::Int(bytes) = usage else {
            panic!("{usage:?}")
        };
        bytes
    });
    copies.min().unwrap()
}

fn measure(server: &mut Server, column: usize) {
    for row in rows() {
        server.command(&[b"FLUSHALL"]);
        let subject = Subject {
            generation: 123_456,
            ..Subject::new(KEY, Algorithm::new(&row.parameters).unwrap())
        };
        let half = Subject {
            cost: row.parameters.rate.units / 2,
            ..subject.clone()
        };
        let half_period_ms = row.parameters.rate.period_ms / 2;
        // The last of these is forgotten just when the others need its room.
        let last_ms = NOW - 2 * half_period_ms + row.checks * row.apart_ms / 2;
        for i in (0..row.before).rev() {
            charge(server, &half, last_ms - i * half_period_ms);
        }
        for i in 0..row.checks {
            charge(server, &subject, NOW + i * row.apart_ms);
        }
        let bytes = usage(server);
        println!("{:<28} {bytes}", row.what);
        let most = row.bytes_max.get(column).unwrap();
        assert!(bytes <= *most, "{}: {bytes}, more than {most}", row.what);
    }
}

on_servers!(measure, (0, 1));
