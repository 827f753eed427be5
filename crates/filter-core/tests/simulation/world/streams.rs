//! Check streams: the limiter's side, and a network with the same faults as for callouts.

use filter_core::{Call, CallId, Callback, StreamStep};
use protocol::{StreamAnswer, StreamCall};

use super::{Event, World, network::Answer};

/// How long after its timeout a late answer arrives, in microseconds, at most.
const LATE_US: u64 = 30_000;

/// How a limiter reacts when a stream is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    Opens,
    /// It does not support streams, or only HTTP/1.1.
    Refuses,
    /// It does not answer.
    Hangs,
}

/// The stream of one worker.
#[derive(Clone, Copy)]
pub struct Stream {
    serial: u64,
    /// When the last answer is delivered.
    until_us: u64,
    ending: bool,
    /// Whether it leads to the limiter that has faults of its own.
    one: bool,
}

/// An event that a limiter or the network causes on a stream.
pub struct Delivery {
    envoy: usize,
    worker: usize,
    serial: u64,
    pub kind: Kind,
}

/// A message, and whether it is unmodified; or the end.
pub enum Kind {
    Message(Vec<u8>, bool),
    Closed(u32),
}

/// Envoy's gRPC status when a connection breaks.
const UNAVAILABLE: u32 = 14;

impl World {
    pub(super) fn stream_step(&mut self, envoy: usize, worker: usize, step: StreamStep) {
        match step {
            StreamStep::Open(bearer) => {
                assert_eq!(bearer.as_deref(), Some("Bearer secret"));
                assert!(self.envoys[envoy].streams[worker].is_none(), "two streams");
                let one = self.chooses_one();
                self.at_one(one, |world| world.open_stream(envoy, worker, one));
            }
            StreamStep::Send(id, message) => {
                let stream = self.envoys[envoy].streams[worker];
                let one = stream.is_some_and(|stream| stream.one);
                self.at_one(one, |world| world.send(envoy, worker, id, &message));
            }
            StreamStep::Close => {
                let stream = self.envoys[envoy].streams[worker].unwrap();
                let after_us = stream.until_us.saturating_sub(self.now_us) + 100;
                if self.faults.lost == 100 {
                    return;
                }
                self.deliver(envoy, worker, after_us, Kind::Closed(0));
            }
            StreamStep::Cancel => self.envoys[envoy].streams[worker] = None,
        }
    }

    fn open_stream(&mut self, envoy: usize, worker: usize, one: bool) {
        self.next += 1;
        let now = self.now();
        if self.chance.percent(self.faults.undeliverable) {
            let at = &mut self.envoys[envoy];
            return at.workers[worker].stream_failed(&at.shared, now, "no such cluster");
        }
        self.envoys[envoy].streams[worker] = Some(Stream {
            serial: self.next,
            until_us: self.now_us,
            ending: false,
            one,
        });
        if self.opening == Opening::Refuses || self.chance.percent(self.faults.refused) {
            return self.deliver(envoy, worker, 100, Kind::Closed(UNAVAILABLE));
        }
        if self.opening == Opening::Hangs || self.is_lost(envoy) {
            return;
        }
        let after_us = 200 + self.chance.below(self.slowest_us);
        let open = Kind::Message(StreamAnswer::OPEN.encode(), true);
        self.deliver(envoy, worker, after_us, open);
    }

    fn is_lost(&mut self, envoy: usize) -> bool {
        self.cut_off == Some(envoy) || self.chance.percent(self.faults.lost)
    }

    fn send(&mut self, envoy: usize, worker: usize, id: CallId, message: &[u8]) {
        let now = self.now();
        if self.envoys[envoy].streams[worker].is_none() {
            let at = &mut self.envoys[envoy];
            return at.workers[worker].on_call_refused(&at.shared, now, id);
        }
        let sent = StreamCall::decode(message).unwrap();
        let call = Call {
            id,
            method: "POST",
            path: "/v1/check".to_owned(),
            headers: Vec::new(),
            body: Some(sent.body.to_vec()),
            timeout_ms: 20,
        };
        let faults = self.faults;
        if self.is_lost(envoy) || self.is_overtaken(envoy, worker, &call) {
            return;
        }
        if self.chance.percent(faults.refused) {
            // The connection broke before, and Envoy has not reported it yet.
            self.deliver(envoy, worker, 100, Kind::Closed(UNAVAILABLE));
            let at = &mut self.envoys[envoy];
            return at.workers[worker].on_call_refused(&at.shared, now, id);
        }
        let mut after_us = 200 + self.chance.below(self.slowest_us);
        let untouched = self.chance.percent(faults.untouched);
        let mut answer = if untouched {
            self.untouched(&call)
        } else {
            self.execute(envoy, &call)
        };
        if self.chance.percent(faults.truncated) {
            return self.deliver(envoy, worker, after_us, Kind::Closed(UNAVAILABLE));
        }
        if self.chance.percent(faults.late) {
            after_us = call.timeout_ms * 1000 + self.chance.below(LATE_US);
        }
        let garbled = self.chance.percent(faults.garbled);
        if garbled {
            answer = self.damaged(answer);
        }
        let mut message = encode(sent.id, &answer);
        if garbled {
            self.garble(&mut message);
        }
        self.deliver(
            envoy,
            worker,
            after_us,
            Kind::Message(message, !garbled && !untouched),
        );
        let ends = self.chance.percent(faults.ending);
        let stream = self.envoys[envoy].streams[worker].as_mut();
        if ends && stream.is_some_and(|stream| !std::mem::replace(&mut stream.ending, true)) {
            let after_us = self.chance.below(self.slowest_us);
            let ending = Kind::Message(StreamAnswer::ENDING.encode(), true);
            self.deliver(envoy, worker, after_us, ending);
        }
    }

    /// A worker receives a message on its stream.
    pub fn message(&mut self, envoy: usize, worker: usize, message: &[u8]) {
        let now = self.now();
        let at = &mut self.envoys[envoy];
        at.workers[worker].on_stream_message(&at.shared, now, message);
        self.carry_out(envoy, worker, Callback::of_root());
    }

    /// A faulty limiter: answers to no call in flight, to other calls, twice, or truncated.
    fn garble(&mut self, message: &mut Vec<u8>) {
        match self.chance.below(4) {
            0 => message[3] ^= 0x40,
            1 => message[..4].fill(0),
            2 => message.truncate(usize::try_from(self.chance.below(6)).unwrap()),
            _ => {}
        }
    }

    fn deliver(&mut self, envoy: usize, worker: usize, after_us: u64, kind: Kind) {
        let until_us = self.now_us + after_us;
        let Some(stream) = &mut self.envoys[envoy].streams[worker] else {
            return;
        };
        // A limiter answers before it ends a stream; a connection breaks at any time.
        if matches!(kind, Kind::Message(..)) {
            stream.until_us = stream.until_us.max(until_us);
        }
        let delivery = Delivery {
            envoy,
            worker,
            serial: stream.serial,
            kind,
        };
        self.schedule(after_us, Event::Stream(delivery));
    }

    /// An event arrives at a worker on its stream, if that is still the same stream.
    pub(super) fn arrive_on_stream(&mut self, delivery: Delivery) {
        let now = self.now();
        let Delivery {
            envoy,
            worker,
            serial,
            kind,
        } = delivery;
        let at = &mut self.envoys[envoy];
        let stream = &mut at.streams[worker];
        if stream.is_none_or(|stream| stream.serial != serial) {
            return;
        }
        match kind {
            Kind::Message(message, genuine) => {
                self.answering = genuine;
                at.workers[worker].on_stream_message(&at.shared, now, &message);
            }
            Kind::Closed(status) => {
                *stream = None;
                at.workers[worker].on_stream_closed(&at.shared, now, status);
            }
        }
        self.carry_out(envoy, worker, Callback::of_root());
        self.answering = false;
    }
}

fn encode(id: u32, answer: &Answer) -> Vec<u8> {
    let status = answer.headers.iter().find(|(name, _)| *name == ":status");
    let message = StreamAnswer {
        id,
        status: status.unwrap().1.parse().unwrap(),
        body: answer.body.as_deref().unwrap_or_default(),
    };
    message.encode()
}
