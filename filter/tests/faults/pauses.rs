//! How Envoy treats requests that wait: whether it buffers bodies, passes them to the filter, and
//! applies backpressure to clients.

use crate::{
    Outcome::{Continued, Undecided},
    begin, callback, end_turn,
    host::ROOT,
    outcome_of, proxy_on_delete, start, tick,
};

unsafe extern "C" {
    fn proxy_on_request_body(stream: u32, size: usize, end: u32) -> u32;
}

// Envoy's names of the statuses, for headers and for a body.
const CONTINUE: u32 = 0;
const STOP_ITERATION: u32 = 1;
const STOP_ALL_ITERATION_AND_WATERMARK: u32 = 4;
const BODY_STOP_ITERATION_AND_WATERMARK: u32 = 2;

fn body(stream: u32, end: bool) -> u32 {
    body_of(stream, 10, end)
}

fn large_body(stream: u32) -> u32 {
    body_of(stream, 100_000, false)
}

fn body_of(stream: u32, size: usize, end: bool) -> u32 {
    callback(stream, || unsafe {
        proxy_on_request_body(stream, size, end.into())
    })
}

/// Runs a test in a filter of its own, because the state is thread-local. `test` returns the streams
/// that it began.
fn in_a_filter(test: fn() -> &'static [u32]) {
    let run = std::thread::spawn(move || {
        assert!(start());
        tick();
        let streams = test();
        for context in streams.iter().chain(&[ROOT]) {
            callback(*context, || unsafe { proxy_on_delete(*context) });
        }
    });
    run.join().unwrap();
}

#[test]
fn a_request_that_waits_for_a_check_waits_with_its_body_unread() {
    in_a_filter(|| {
        let headers = begin(2, "/checked", "allowed", false);
        assert_eq!(headers, STOP_ALL_ITERATION_AND_WATERMARK);
        // Envoy need not send it, but may.
        assert_eq!(body(2, false), BODY_STOP_ITERATION_AND_WATERMARK);
        end_turn();
        assert_eq!(outcome_of(2), Continued);
        assert_eq!(body(2, true), CONTINUE);
        &[2]
    });
}

#[test]
fn a_request_that_waits_for_its_body_gets_it_and_then_waits_for_a_check() {
    in_a_filter(|| {
        assert_eq!(begin(2, "/reserving", "any", false), STOP_ITERATION);
        assert_eq!(body(2, false), BODY_STOP_ITERATION_AND_WATERMARK);
        // This applies to one request: the next one waits for its check.
        let next = begin(3, "/checked", "allowed", false);
        assert_eq!(next, STOP_ALL_ITERATION_AND_WATERMARK);
        end_turn();
        assert_eq!(body(2, true), BODY_STOP_ITERATION_AND_WATERMARK);
        end_turn();
        assert_eq!(outcome_of(2), Continued);
        assert_eq!(body(2, true), CONTINUE);
        &[2, 3]
    });
}

/// So many are decided at once that the last ones continue in the next callback. Until then, Envoy may
/// pass more of their bodies.
#[test]
fn a_body_waits_until_its_request_is_resumed() {
    const STREAMS: [u32; 80] = {
        let mut streams = [2; 80];
        let mut at = 1;
        while at < streams.len() {
            streams[at] = streams[at - 1] + 1;
            at += 1;
        }
        streams
    };
    in_a_filter(|| {
        for stream in STREAMS {
            begin(stream, "/reserving", "any", false);
            body(stream, false);
        }
        for stream in STREAMS {
            // Longer than the filter reads.
            large_body(stream);
        }
        end_turn();
        let [.., last] = STREAMS;
        assert_eq!(outcome_of(2), Continued);
        assert_eq!(outcome_of(last), Undecided);
        assert_eq!(body(2, true), CONTINUE);
        assert_eq!(body(last, true), BODY_STOP_ITERATION_AND_WATERMARK);
        end_turn();
        assert_eq!(outcome_of(last), Continued);
        &STREAMS
    });
}

#[test]
fn a_request_that_is_not_limited_does_not_wait() {
    in_a_filter(|| {
        assert_eq!(begin(2, "/unlimited", "any", false), CONTINUE);
        assert_eq!(body(2, true), CONTINUE);
        &[2]
    });
}
