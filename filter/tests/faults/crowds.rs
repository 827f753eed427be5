//! Crowds: thousands of requests that are decided in one event, on routes that answer at once.

use crate::{
    Outcome::{self, Answered, Continued},
    begin, callback, end_turn,
    host::{self, ROOT},
    outcome_of, proxy_on_delete, start, tick,
};

const CROWD: u32 = 3_000;
/// Responses that may begin within each other. Envoy's stack has room for about two hundred.
const DEPTH_MAX: u32 = 40;

/// Sends a crowd in one turn to a filter of its own. `meanwhile` something happens that decides it, and
/// each request has this outcome, without a deep stack.
fn assert_outcome(path: &'static str, user: &'static str, meanwhile: fn(), outcome: Outcome) {
    let run = std::thread::spawn(move || {
        host::with(|host| host.answers_at_once = true);
        assert!(start());
        tick();
        let streams = 2..2 + CROWD;
        // Only a path whose limit reads bodies waits for one.
        let begun = |stream| {
            begin(
                stream,
                path,
                &format!("{user}-{stream}"),
                path != "/reserving",
            )
        };
        let at_once: Vec<bool> = streams.clone().map(|stream| begun(stream) == 0).collect();
        meanwhile();
        for _ in 0..100 {
            end_turn();
            tick();
        }
        let mut others = Vec::new();
        for (stream, at_once) in streams.zip(at_once) {
            let is = if at_once {
                Continued
            } else {
                outcome_of(stream)
            };
            others.extend((is != outcome).then_some(is));
            callback(stream, || unsafe { proxy_on_delete(stream) });
        }
        // Those that end in one turn.
        let reports = host::with(|host| host.reports);
        end_turn();
        callback(ROOT, || unsafe { proxy_on_delete(ROOT) });
        (others, reports, host::with(|host| host.deepest))
    });
    let (others, reports, deepest) = run.join().unwrap();
    let (first, count) = (others.first(), others.len());
    assert!(first.is_none(), "{path}, {user}: {count} are {first:?}");
    assert!(reports <= 1, "{path}, {user}: {reports} for one turn");
    assert!(deepest <= DEPTH_MAX, "{path}, {user}: {deepest}");
}

#[test]
fn a_crowd_that_a_limiter_decides_is_resumed_bit_by_bit() {
    assert_outcome("/checked", "allowed", || (), Continued);
    assert_outcome("/checked", "denied", || (), Answered(429));
}

/// Some calls fail, which opens the circuit breaker; then everything that waits is decided at once.
#[test]
fn a_crowd_without_a_limiter_is_resumed_bit_by_bit() {
    assert_outcome("/checked", "lost", || (), Continued);
    assert_outcome("/strict", "lost", || (), Answered(503));
}

/// While the process is stopped, the delays of all requests in a queue end.
#[test]
fn a_crowd_that_a_queue_releases_is_resumed_bit_by_bit() {
    let stopped = || {
        end_turn();
        host::with(|host| host.now_ns += 8_000_000_000);
        tick();
    };
    assert_outcome("/queue", "any", stopped, Continued);
}

/// No bodies arrive in the second that the crowd waits for them.
#[test]
fn a_crowd_without_its_bodies_is_resumed_bit_by_bit() {
    let late = || host::with(|host| host.now_ns += 1_000_000_000);
    assert_outcome("/reserving", "allowed", late, Continued);
}
