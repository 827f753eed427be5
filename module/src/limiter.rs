//! Calls and check streams of the workers, on Envoy's main thread and over its cluster.
//!
//! Envoy's answers name a call or a stream by its id. What belongs to a state that a panic ended is
//! recognised by its epoch.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use filter_core::{Call, CallId, LimiterConfig, MAX_MESSAGE};
use protocol::CHECK_STREAM;

use crate::abi::{AnswerHeaders, Chunks, Config, Refused, Target};

/// A worker, as of one of its states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Of {
    /// Its number.
    pub worker: usize,
    /// How many states it had before.
    pub epoch: u32,
}

/// What is under way.
#[derive(Debug, Default)]
pub struct Limiter(Mutex<Pending>);

#[derive(Debug, Default)]
struct Pending {
    calls: HashMap<u64, (Of, CallId)>,
    /// At most one for each worker.
    streams: Vec<Open>,
    /// Streams to reset, outside of the hooks of a stream: Envoy would delete it under the hook.
    given_up: Vec<u64>,
}

/// A check stream.
#[derive(Debug)]
struct Open {
    of: Of,
    id: u64,
    /// What was received and is not a whole message yet.
    received: Vec<u8>,
}

impl Limiter {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call. Nothing was sent if Envoy refuses it.
    pub fn call(
        &self,
        config: &mut Config<'_>,
        limiter: &LimiterConfig,
        of: Of,
        call: &Call,
    ) -> Result<(), Refused> {
        let mut headers = vec![
            (":method", call.method),
            (":path", call.path.as_str()),
            (":authority", limiter.authority.as_str()),
        ];
        let more = call.headers.iter();
        headers.extend(more.map(|(name, value)| (*name, value.as_str())));
        let target = Target {
            cluster: &limiter.cluster,
            headers: &headers,
            // Envoy treats 0 ms as no timeout.
            timeout_ms: call.timeout_ms.max(1),
        };
        let id = config.call(&target, call.body.as_deref().unwrap_or_default())?;
        self.pending().calls.insert(id, (of, call.id));
        Ok(())
    }

    /// Whose call was answered.
    pub fn answered(&self, id: u64) -> Option<(Of, CallId)> {
        self.pending().calls.remove(&id)
    }

    /// Opens the stream of a worker.
    pub fn open(
        &self,
        config: &mut Config<'_>,
        limiter: &LimiterConfig,
        of: Of,
        bearer: Option<&str>,
    ) -> Result<(), Refused> {
        let mut headers = vec![
            (":method", "POST"),
            (":path", CHECK_STREAM),
            (":scheme", "http"),
            (":authority", limiter.authority.as_str()),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ];
        headers.extend(bearer.map(|bearer| ("authorization", bearer)));
        let target = Target {
            cluster: &limiter.cluster,
            headers: &headers,
            timeout_ms: 0,
        };
        let id = config.open(&target)?;
        self.give_up(of.worker);
        self.pending().streams.push(Open {
            of,
            id,
            received: Vec::new(),
        });
        Ok(())
    }

    /// Sends a message on the stream of a worker.
    pub fn send(&self, config: &mut Config<'_>, of: Of, message: &[u8]) -> Result<(), Refused> {
        let id = self.stream_of(of).ok_or(Refused)?;
        let len = u32::try_from(message.len()).map_err(|_| Refused)?;
        let mut framed = Vec::with_capacity(HEAD + message.len());
        framed.push(PLAIN);
        framed.extend_from_slice(&len.to_be_bytes());
        framed.extend_from_slice(message);
        config.send(id, &framed, false)
    }

    /// Closes this side of the stream of a worker.
    pub fn close(&self, config: &mut Config<'_>, of: Of) {
        if let Some(id) = self.stream_of(of) {
            let _ = config.send(id, &[], true);
        }
    }

    /// Gives up the stream of a worker, in whichever state.
    pub fn give_up(&self, worker: usize) {
        let mut pending = self.pending();
        let at = { pending.streams.iter() }.position(|open| open.of.worker == worker);
        if let Some(at) = at {
            let open = pending.streams.swap_remove(at);
            pending.given_up.push(open.id);
        }
    }

    /// Resets the streams that were given up. Only in a hook of no stream.
    pub fn reset_given_up(&self, config: &mut Config<'_>) {
        let given_up = std::mem::take(&mut self.pending().given_up);
        for id in given_up {
            config.reset(id);
        }
    }

    fn stream_of(&self, of: Of) -> Option<u64> {
        let pending = self.pending();
        let mut streams = pending.streams.iter();
        streams.find(|open| open.of == of).map(|open| open.id)
    }

    /// The worker of a stream, unless it was given up.
    pub fn worker_of(&self, id: u64) -> Option<Of> {
        let pending = self.pending();
        let mut streams = pending.streams.iter();
        streams.find(|open| open.id == id).map(|open| open.of)
    }

    /// The stream has ended. Returns its worker, unless it was given up. `gone`: Envoy has deleted it.
    pub fn ended(&self, id: u64, gone: bool) -> Option<Of> {
        let mut pending = self.pending();
        if gone {
            pending.given_up.retain(|given_up| *given_up != id);
        }
        let at = pending.streams.iter().position(|open| open.id == id)?;
        let open = pending.streams.swap_remove(at);
        if !gone {
            pending.given_up.push(id);
        }
        Some(open.of)
    }

    /// Receives data of a stream. Returns the messages that are whole now; an empty one, which no limiter
    /// sends, in place of one that is too large or compressed.
    pub fn received(&self, id: u64, chunks: Chunks<'_>) -> Vec<Vec<u8>> {
        let mut pending = self.pending();
        let Some(open) = pending.streams.iter_mut().find(|open| open.id == id) else {
            return Vec::new();
        };
        for chunk in chunks.iter() {
            open.received.extend_from_slice(chunk);
        }
        let mut messages = Vec::new();
        let mut left = open.received.as_slice();
        while let Some((message, rest)) = next_message(left) {
            messages.push(message.to_vec());
            left = rest;
        }
        let read = open.received.len() - left.len();
        open.received.drain(..read);
        messages
    }
}

// --- gRPC's framing: a flag, and the length of the message, big-endian.

/// Bytes before a message.
const HEAD: usize = 5;
/// The flag of a message that is not compressed.
const PLAIN: u8 = 0;

/// The first whole message, and what follows it.
fn next_message(received: &[u8]) -> Option<(&[u8], &[u8])> {
    let ([flag, len @ ..], rest) = received.split_first_chunk::<HEAD>()?;
    let len = u32::from_be_bytes(*len);
    if *flag != PLAIN || len > MAX_MESSAGE {
        // The state machine ends the stream: what follows is not read.
        return Some((&[], &[]));
    }
    rest.split_at_checked(usize::try_from(len).ok()?)
}

/// The gRPC status of a stream whose headers or trailers end it.
pub fn grpc_status(headers: AnswerHeaders<'_>) -> u32 {
    const UNKNOWN: u32 = 2;
    let number = |name| {
        let value = str::from_utf8(headers.first(name)?).ok()?;
        value.parse::<u32>().ok()
    };
    number("grpc-status").unwrap_or_else(|| match number(":status") {
        Some(status) => of_http(status),
        None => UNKNOWN,
    })
}

/// The gRPC status of a stream that a response without gRPC answered; `None`: it is gRPC.
pub fn refused_status(headers: AnswerHeaders<'_>) -> Option<u32> {
    let status = headers.first(":status")?;
    (status != b"200").then(|| grpc_status(headers))
}

/// What gRPC makes of an HTTP status.
fn of_http(status: u32) -> u32 {
    match status {
        400 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        429 | 502 | 503 | 504 => UNAVAILABLE,
        _ => 2,
    }
}

/// The status of a stream that was reset.
pub const UNAVAILABLE: u32 = 14;
