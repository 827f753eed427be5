//! What a bucket costs in a server's memory (the table in lua/README.md).

use crate::support::server::Reply;
use crate::support::{Server, Subject, script_check};
use algorithms::check::Options;
use algorithms::{Algorithm, Kind, Parameters};
use harness::Engine;
use store::script::Clock;

const NOW: u64 = 1_763_000_040_000;

/// 35 characters, as a domain, a limit and a user id may have.
const KEY: &str = "rl:b:shop:per-user:0123456789abcdef";

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
    let (small, large) = ([120, 88], [136, 104]);
    let sixty = row(
        "60 sub-windows",
        Kind::SlidingWindowBuckets,
        60,
        60_000,
        [420, 400],
    );
    let sub_windows = Parameters {
        sub_windows: Some(60),
        ..sixty.parameters
    };
    let log = row(
        "log of 1000",
        Kind::SlidingWindowLog,
        1000,
        60_000,
        [26_000, 26_000],
    );
    vec![
        row("token_bucket 20/s", Kind::TokenBucket, 20, 1000, large),
        row(
            "token_bucket 1000/1d",
            Kind::TokenBucket,
            1000,
            86_400_000,
            large,
        ),
        row("leaky_bucket 20/s", Kind::LeakyBucket, 20, 1000, large),
        row("gcra 20/s", Kind::Gcra, 20, 1000, small),
        row("gcra 7/1m", Kind::Gcra, 7, 60_000, small),
        row("fixed_window", Kind::FixedWindow, 100, 60_000, small),
        row("sliding_window", Kind::SlidingWindow, 100, 60_000, large),
        Row {
            parameters: sub_windows,
            checks: 60,
            apart_ms: 1000,
            ..sixty
        },
        Row {
            checks: 1000,
            apart_ms: 1,
            ..log
        },
        Row {
            what: "log of 1000, long in use",
            before: 500,
            checks: 1000,
            apart_ms: 1,
            ..log
        },
    ]
}

fn charge(server: &mut Server, subject: &Subject, now_ms: u64) {
    let check = script_check(std::slice::from_ref(subject), Options::default());
    let reply = server.batch(&[check], Clock::Injected(now_ms));
    let charged = reply.results.first().unwrap().as_ref().unwrap();
    assert!(charged.allowed, "at {now_ms}: {subject:?}");
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

#[test]
#[ignore = "needs a server"]
fn on_redis() {
    measure(&mut Server::start(Engine::Redis), 0);
}

#[test]
#[ignore = "needs a server"]
fn on_valkey() {
    measure(&mut Server::start(Engine::Valkey), 1);
}
