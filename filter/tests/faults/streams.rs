//! The limiter's side of check streams, and checks that the filter makes no forbidden host call.

use protocol::{StreamAnswer, StreamCall};

use crate::{
    Outcome::{Answered, Continued},
    begin, callback, decided, end_turn,
    host::{self, ROOT, Stream},
    outcome_of, proxy_on_delete, request, start, tick,
};

unsafe extern "C" {
    fn proxy_on_grpc_receive(root: u32, token: u32, size: usize);
    fn proxy_on_grpc_close(root: u32, token: u32, status: u32);
}

fn of<T>(token: u32, act: impl FnOnce(&mut Stream) -> T) -> Option<T> {
    host::with(|host| {
        let stream = host.streams.iter_mut().find(|stream| stream.token == token);
        stream.map(act)
    })
}

/// Opens streams, answers calls on them, and ends those that the filter closed.
pub fn deliver() {
    let tokens = host::with(|host| host.streams.iter().map(|s| s.token).collect::<Vec<_>>());
    for token in tokens {
        if of(token, |stream| std::mem::replace(&mut stream.opened, true)) == Some(false) {
            message(token, &StreamAnswer::OPEN.encode());
        }
        while let Some(sent) = of(token, |stream| stream.sent.pop_front()).flatten() {
            let call = StreamCall::decode(&sent).unwrap();
            if let Some(body) = decided(call.body) {
                let (id, status) = (call.id, 200);
                let body = &body;
                message(token, &StreamAnswer { id, status, body }.encode());
            }
        }
        if of(token, |stream| stream.closed) == Some(true) {
            end(token, 0);
        }
    }
}

/// A message of the limiter.
fn message(token: u32, message: &[u8]) {
    of(token, |stream| stream.message = Some(message.to_vec()));
    callback(ROOT, || unsafe {
        proxy_on_grpc_receive(ROOT, token, message.len());
    });
    of(token, |stream| stream.message = None);
}

/// The limiter ends a stream. Envoy's entry now points to an object that it deleted.
fn end(token: u32, status: u32) {
    callback(ROOT, || unsafe {
        proxy_on_grpc_close(ROOT, token, status);
    });
    assert!(of(token, |_| ()).is_none(), "Envoy still has an entry");
}

/// Runs a test in a filter of its own, with the token of an open stream.
fn in_a_filter(test: fn(u32)) {
    let run = std::thread::spawn(move || {
        assert!(start());
        tick();
        assert_eq!(request(2, "/checked", "allowed"), Continued);
        end_turn();
        test(host::with(|host| host.streams[0].token));
        callback(ROOT, || unsafe { proxy_on_delete(ROOT) });
    });
    run.join().unwrap();
}

fn calls() -> u32 {
    host::with(|host| host.check_calls)
}

#[test]
fn checks_are_sent_on_the_open_stream() {
    in_a_filter(|_| {
        let before = calls();
        assert_eq!(request(3, "/checked", "allowed"), Continued);
        assert_eq!(request(4, "/checked", "denied"), Answered(429));
        assert_eq!(calls(), before);
    });
}

#[test]
fn after_the_limiter_ends_a_stream_checks_are_callouts() {
    in_a_filter(|token| {
        let before = calls();
        end(token, 14);
        assert_eq!(request(3, "/checked", "allowed"), Continued);
        // The check, and the cost of the request.
        assert_eq!(calls(), before + 2);
    });
}

#[test]
fn calls_on_a_stream_that_breaks_are_decided_without_the_limiter() {
    in_a_filter(|token| {
        begin(3, "/strict", "any", true);
        // The end of the turn, in which the check is sent.
        callback(ROOT, || unsafe { crate::proxy_on_queue_ready(ROOT, 1) });
        assert_eq!(of(token, |stream| stream.sent.len()), Some(1));
        end(token, 14);
        assert_eq!(outcome_of(3), Answered(503));
        callback(3, || unsafe { proxy_on_delete(3) });
    });
}

#[test]
fn a_stream_whose_limiter_ends_in_an_orderly_way_is_closed_first() {
    in_a_filter(|token| {
        message(token, &StreamAnswer::ENDING.encode());
        assert_eq!(of(token, |stream| stream.closed), Some(true));
        deliver();
        assert_eq!(request(3, "/checked", "allowed"), Continued);
    });
}

/// Envoy delivers further messages of the same read to the entry that a cancellation would free.
#[test]
fn a_stream_is_cancelled_only_at_the_end_of_the_turn() {
    in_a_filter(|token| {
        message(token, b"none of a limiter");
        assert!(of(token, |_| ()).is_some());
        // The filter ignores it.
        message(token, &StreamAnswer::OPEN.encode());
        end_turn();
        assert!(of(token, |_| ()).is_none());
        assert_eq!(request(3, "/checked", "allowed"), Continued);
    });
}

#[test]
fn a_message_that_is_too_large_is_not_read() {
    in_a_filter(|token| {
        of(token, |stream| {
            stream.message = Some(StreamAnswer::OPEN.encode());
        });
        callback(ROOT, || unsafe {
            proxy_on_grpc_receive(ROOT, token, (1 << 20) + 1);
        });
        of(token, |stream| stream.message = None);
        end_turn();
        assert!(of(token, |_| ()).is_none());
    });
}
