//! The network between Envoys and the limiter, with faults.

use filter_core::{Call, CallAnswer};
use protocol::{ErrorCode, compact::BatchAnswer};

use super::{Envoy, Event, World};

/// Shares of calls with a fault, in percent; the rest is answered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// The call is lost and times out.
    pub lost: u64,
    /// The answer is too late.
    pub late: u64,
    /// The worker does something else for so long that it finds the call timed out long ago.
    pub busy: u64,
    /// The response is not an answer of the limiter.
    pub garbled: u64,
    /// The response is truncated.
    pub truncated: u64,
    /// The connection is refused.
    pub refused: u64,
    /// The host refuses the call: the cluster does not exist.
    pub undeliverable: u64,
    /// The limiter's store refuses, without a charge.
    pub untouched: u64,
    /// A check arrives after later ones, perhaps after its timeout.
    pub delayed: u64,
    /// A check arrives once more.
    pub repeated: u64,
    /// The limiter ends the stream after the call.
    pub ending: u64,
}

impl Faults {
    pub const NONE: Self = Self {
        lost: 0,
        late: 0,
        busy: 0,
        garbled: 0,
        truncated: 0,
        refused: 0,
        undeliverable: 0,
        untouched: 0,
        delayed: 0,
        repeated: 0,
        ending: 0,
    };
    pub const DOWN: Self = Self {
        refused: 100,
        ..Self::NONE
    };
    pub const BLACK_HOLE: Self = Self {
        lost: 100,
        ..Self::NONE
    };
    pub const NO_STORE: Self = Self {
        untouched: 100,
        ..Self::NONE
    };
    pub const NO_CLUSTER: Self = Self {
        undeliverable: 100,
        ..Self::NONE
    };
}

/// The faults of one of two limiters that share a store. Envoy chooses one for each callout and each
/// stream, rather the one that answers faster, and leaves this one out for a while after three callouts
/// in a row got errors from it.
pub struct OneOfTwo {
    pub faults: Faults,
    errors: u32,
    ejections: u64,
    /// When Envoy's workers know that it is left out, and until when it is.
    out_us: std::ops::Range<u64>,
}

impl OneOfTwo {
    pub fn new(faults: Faults) -> Self {
        Self {
            faults,
            errors: 0,
            ejections: 0,
            out_us: 0..0,
        }
    }

    fn called(&mut self, now_us: u64, error: bool) {
        self.errors = if error { self.errors + 1 } else { 0 };
        if self.errors == 3 {
            self.errors = 0;
            self.ejections = (self.ejections + 1).min(5);
            // Outlier detection as in envoy.yaml.
            self.out_us = now_us + 3_000..now_us + self.ejections * 1_000_000;
        }
    }
}

/// A long poll at the limiter.
pub struct Held {
    envoy: usize,
    worker: usize,
    call: Call,
    sent_us: u64,
    /// The latest time of its answer.
    until_us: u64,
}

/// The longest time from an edit to the answers to long polls, in microseconds.
const EDIT_DELAY_US: u64 = 5_000;

#[derive(Clone)]
pub struct Answer {
    /// Whether a limiter sent it, unmodified.
    pub(super) genuine: bool,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Option<Vec<u8>>,
}

impl CallAnswer for Answer {
    fn header(&self, name: &str) -> Option<&[u8]> {
        let found = self.headers.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.as_bytes())
    }

    fn body(&self, max_len: usize) -> Option<Vec<u8>> {
        self.body.clone().filter(|body| body.len() <= max_len)
    }
}

impl World {
    /// Whether Envoy chooses the limiter that has faults of its own.
    pub(super) fn chooses_one(&mut self) -> bool {
        let Some(one) = &self.one_of_two else {
            return false;
        };
        let percent = if one.faults.untouched == 100 { 75 } else { 50 };
        !one.out_us.contains(&self.now_us) && self.chance.percent(percent)
    }

    /// Does something with the faults of one of two limiters.
    pub(super) fn at_one<T>(&mut self, one: bool, act: impl FnOnce(&mut Self) -> T) -> T {
        let own = self
            .one_of_two
            .as_ref()
            .filter(|_| one)
            .map(|one| one.faults);
        let both = own.map(|own| std::mem::replace(&mut self.faults, own));
        let done = act(self);
        self.faults = both.unwrap_or(self.faults);
        done
    }

    pub(super) fn call(&mut self, envoy: usize, worker: usize, call: &Call) {
        // Envoy itself calls the other one if a connection is refused.
        let refuses = |of: &OneOfTwo| of.faults.refused == 100;
        let one = self.chooses_one() && !self.one_of_two.as_ref().is_some_and(refuses);
        let now_us = self.now_us;
        if let Some(of) = self.one_of_two.as_mut().filter(|_| one) {
            of.called(
                now_us,
                of.faults.untouched == 100 && call.path == "/v1/check",
            );
        }
        self.at_one(one, |world| world.call_one(envoy, worker, call));
    }

    fn call_one(&mut self, envoy: usize, worker: usize, call: &Call) {
        assert!(
            call.headers
                .contains(&("authorization", "Bearer secret".to_owned()))
        );
        let id = call.id;
        self.polls += u64::from(wait_ms(call).is_some());
        if self.chance.percent(self.faults.undeliverable) {
            let now = self.now();
            let Envoy {
                shared, workers, ..
            } = &mut self.envoys[envoy];
            workers[worker].on_call_refused(shared, now, id);
            return;
        }
        let timeout_us = call.timeout_ms * 1000;
        let faults = self.faults;
        let lost = wait_ms(call).is_some() && self.lost_polls > 0;
        self.lost_polls -= u64::from(lost);
        let lost = lost || self.cut_off == Some(envoy);
        if !lost && self.is_overtaken(envoy, worker, call) {
            return;
        }
        let (after_us, answer) = if self.chance.percent(faults.refused) {
            (100, Some(synthesised("503", "remote connection failure")))
        } else if lost || self.chance.percent(faults.lost) {
            (timeout_us, Some(synthesised("504", "response timeout")))
        } else if faults.busy > 0 && self.chance.percent(faults.busy) {
            let found_us = timeout_us + 11_000;
            (found_us, Some(synthesised("504", "response timeout")))
        } else if let Some(wait_ms) = wait_ms(call).filter(|wait_ms| *wait_ms > 0 && self.holds) {
            return self.release(Held {
                envoy,
                worker,
                call: call.clone(),
                sent_us: self.now_us,
                until_us: self.now_us + wait_ms * 1000,
            });
        } else if faults.untouched > 0
            && call.path == "/v1/check"
            && self.chance.percent(faults.untouched)
        {
            (200, Some(self.untouched(call)))
        } else {
            self.answered(envoy, call, timeout_us)
        };
        self.schedule(
            after_us,
            Event::Answer {
                envoy,
                worker,
                id,
                answer,
            },
        );
    }

    /// The limiter's answer with faults, and its delay.
    pub(super) fn answered(
        &mut self,
        envoy: usize,
        call: &Call,
        timeout_us: u64,
    ) -> (u64, Option<Answer>) {
        let faults = self.faults;
        let answer = self.execute(envoy, call);
        let after_us = 200 + self.chance.below(self.slowest_us);
        if self.chance.percent(faults.late) || after_us > timeout_us {
            (timeout_us, Some(synthesised("504", "response timeout")))
        } else if self.chance.percent(faults.garbled) {
            (after_us, Some(self.garbled(answer)))
        } else if self.chance.percent(faults.truncated) {
            (after_us, None)
        } else {
            let genuine = true;
            (after_us, Some(Answer { genuine, ..answer }))
        }
    }

    /// Continues to hold a poll, or answers it. A limiter that dies closes the connection; one that
    /// hangs lets the poll time out.
    pub(super) fn release(&mut self, held: Held) {
        let timeout_us = held.sent_us + held.call.timeout_ms * 1000 - self.now_us;
        let silent = held.sent_us < self.silent_us || self.faults.lost == 100;
        let (after_us, answer) = if silent {
            (timeout_us, Some(synthesised("504", "response timeout")))
        } else if self.faults.refused == 100 {
            (100, Some(synthesised("503", "connection termination")))
        } else if self.now_us < held.until_us && self.is_current(&held.call) {
            let look_us = self
                .chance
                .below(EDIT_DELAY_US)
                .min(held.until_us - self.now_us);
            return self.schedule(look_us.max(1), Event::Held(held));
        } else {
            self.answered(held.envoy, &held.call, timeout_us)
        };
        let answer = Event::Answer {
            envoy: held.envoy,
            worker: held.worker,
            id: held.call.id,
            answer,
        };
        self.schedule(after_us, answer);
    }

    /// An answer that an intermediary changed, or a response of another server.
    fn garbled(&mut self, mut answer: Answer) -> Answer {
        match self.chance.below(6) {
            0 => {
                answer.headers.retain(|(name, _)| *name != "x-rl-api");
                answer.body = answer.body.map(|body| lie(&body, |_| {}));
                answer
            }
            _ => self.damaged(answer),
        }
    }

    /// An answer that is no longer valid.
    pub(super) fn damaged(&mut self, mut answer: Answer) -> Answer {
        match self.chance.below(5) {
            0 => answer.body = Some(b"<html>".to_vec()),
            1 => answer.headers[0] = (":status", "500".to_owned()),
            2 => {
                let fewer = |results: &mut Results| drop(results.pop());
                answer.body = answer.body.map(|body| lie(&body, fewer));
            }
            3 => {
                let twice = |results: &mut Results| results.extend(results.clone());
                answer.body = answer.body.map(|body| lie(&body, twice));
            }
            _ => {
                let body = answer.body.get_or_insert_default();
                body.truncate(body.len() / 2);
            }
        }
        answer
    }
}

/// How long the limiter may hold a call; `None`: it is not a poll.
fn wait_ms(call: &Call) -> Option<u64> {
    let (_, rest) = call.path.split_once("&wait_ms=")?;
    rest.split('&').next()?.parse().ok()
}

type Results = Vec<Result<protocol::Answer, ErrorCode>>;

/// An answer that allows everything, perhaps for a wrong number of checks.
fn lie(body: &[u8], edit: impl FnOnce(&mut Results)) -> Vec<u8> {
    let Ok(mut answer) = BatchAnswer::decode(body) else {
        return body.to_vec();
    };
    for result in answer.results.iter_mut().flatten() {
        result.allowed = true;
        result.limits.clear();
    }
    edit(&mut answer.results);
    answer.encode()
}

/// Envoy's response in place of the limiter's.
pub(super) fn synthesised(status: &str, reason: &str) -> Answer {
    let said = "upstream connect error or disconnect/reset before headers. reset reason: ";
    Answer {
        genuine: false,
        headers: vec![(":status", status.to_owned())],
        body: Some([said, reason].concat().into_bytes()),
    }
}
