//! The circuit breaker, shared by the workers of one Envoy process.
//!
//! Closed: workers make calls and count failures. Several failures in a row, or half of the calls in a
//! window, open the breaker. Open: no worker calls. After the open interval, the one worker that wins a
//! compare-and-swap makes a single call as a probe. An answer closes the breaker; a failure opens it
//! for twice as long, or for as long again if some limiter answered recently. Intervals are jittered,
//! so that a fleet does not return all at once.
//!
//! A probe charges nothing. If it carried the debts of its buckets, each unanswered probe would lose
//! them, because they may have been charged. If it were a check without debts, each probe could admit a
//! request for which the debts leave no room. So the checks that wait for a probe are sent after its
//! answer, with their debts, or fall back if it fails.

use crate::host::{self, Change, Host, Now, Put, Random, Reader, Row, rows};

/// How long an answer proves that a limiter answers, in microseconds. If one of two limiters hangs and
/// Envoy still routes calls to it, the breaker opens whenever several calls to it fail together. This
/// is longer than a dozen probes take, each of which may reach the one that hangs.
pub(crate) const ANSWERED_LATELY_US: u64 = 10_000_000;
/// How long a worker may take to report the outcome of its probe, beyond the call's timeout.
const PROBE_GRACE_US: u64 = 100_000;

/// Whether the limiter may be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// Yes.
    Closed,
    /// Yes, one call, as a probe.
    Probe,
    /// No.
    Open,
}

/// The outcome of a call. An error of one shard of the store is an answer; a timeout is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallResult {
    /// `decides`: at least one check, so the limiter has a store.
    Answered {
        decides: bool,
    },
    Failed,
    /// It failed before anybody had waited long, or because the worker was busy, while other calls were
    /// answered. That opens no breaker: one limiter of several restarts, or has lost its store.
    OneFailed,
}

/// One worker's handle on the breaker of its process.
#[derive(Clone, Debug)]
pub(crate) struct Breaker {
    key: Vec<u8>,
    probe_us: u64,
    random: Random,
    /// When a failure or an open breaker was last seen.
    last_failure_us: u64,
    /// When a call of any worker was last answered after one had failed, as last read; 0: never.
    answered_us: u64,
}

impl Breaker {
    /// The breaker for a domain's limiter, whose calls time out after `timeout_ms`.
    pub(crate) fn new(domain: &str, timeout_ms: u64, random: Random) -> Self {
        Self {
            key: format!("rl1:{domain}:breaker").into_bytes(),
            probe_us: timeout_ms
                .saturating_mul(1000)
                .saturating_add(PROBE_GRACE_US),
            random,
            last_failure_us: 0,
            answered_us: 0,
        }
    }

    /// Decides whether to make a call. One worker gets [`Gate::Probe`], and must report the outcome.
    pub(crate) fn gate(&mut self, host: &impl Host, now: Now) -> Gate {
        let mut read = State::read(&[]);
        let elected = host::update(host, &self.key, |bytes| {
            read = State::read(bytes);
            match read {
                State::Closed(_) => Change::Keep(Gate::Closed),
                State::Open(waiting) | State::Probing(waiting)
                    if self.is_ahead(waiting.until_us, now) =>
                {
                    Change::Keep(Gate::Open)
                }
                // The open interval is over, or the probing worker is gone.
                State::Open(waiting) | State::Probing(waiting) => {
                    let until_us = now.mono_us.saturating_add(self.probe_us);
                    let probing = State::Probing(Waiting {
                        until_us,
                        ..waiting
                    });
                    Change::Write(probing.write(), Gate::Probe)
                }
            }
        });
        self.saw(read, now);
        // Contended: other workers are writing the value. Making no call is the safe choice.
        elected.unwrap_or(Gate::Open)
    }

    /// Whether an open interval or a probe still lasts. A value beyond the longest possible was written
    /// by another plugin, and is ignored.
    fn is_ahead(&self, until_us: u64, now: Now) -> bool {
        let left_us = until_us.saturating_sub(now.mono_us);
        left_us > 0 && left_us <= OPEN_MAX_US.saturating_mul(2).max(self.probe_us)
    }

    /// Whether the breaker is open or probing. Never starts a probe.
    pub(crate) fn is_open(&mut self, host: &impl Host, now: Now) -> bool {
        let read = host.load(&self.key);
        let state = State::read(read.as_ref().map_or(&[], |read| &read.bytes));
        self.saw(state, now);
        !matches!(state, State::Closed(_))
    }

    /// When a failure or an open breaker was last seen, on the monotonic clock; 0: never. Until then,
    /// other workers may have decided without the limiter.
    pub(crate) fn last_failure_us(&self) -> u64 {
        self.last_failure_us
    }

    /// Whether that was within the window.
    pub(crate) fn failed_lately(&self, now: Now) -> bool {
        self.last_failure_us > 0 && now.mono_us.saturating_sub(self.last_failure_us) <= WINDOW_US
    }

    /// Records whether the breaker was without failures when it was last read.
    pub(crate) fn record(&mut self, healthy: bool, now: Now) {
        if !healthy {
            self.last_failure_us = now.mono_us;
        }
    }

    fn saw(&mut self, state: State, now: Now) {
        self.record(state.has_no_failures(), now);
        self.answered_us = state.answered_us();
    }

    /// Whether calls fail, and others have been answered since, the last one not long ago.
    pub(crate) fn others_are_answered(&self, now: Now) -> bool {
        self.answered_us > 0 && now.mono_us.saturating_sub(self.answered_us) <= ANSWERED_LATELY_US
    }

    /// Reports the outcome of a call that `gate` permitted. `answering`: some limiter answered
    /// recently, so a failed probe may have reached the only one that does not.
    pub(crate) fn report(
        &mut self,
        host: &impl Host,
        now: Now,
        gate: Gate,
        result: CallResult,
        answering: bool,
    ) {
        self.record(matches!(result, CallResult::Answered { .. }), now);
        let jitter = &mut self.random;
        // Contended: other workers report, and their counts suffice.
        let known = host::update(host, &self.key, |bytes| {
            let old = State::read(bytes);
            let new = old.after(now, gate, result, answering, |interval_us| {
                jitter.jittered(interval_us)
            });
            if new == old {
                Change::Keep(new.answered_us())
            } else {
                Change::Write(new.write(), new.answered_us())
            }
        });
        if let Ok(answered_us) = known {
            self.answered_us = answered_us;
        }
    }
}

// --- The breaker's state in shared data, and its transitions.

/// Failures in a row that open the breaker.
const FAILURES_IN_A_ROW: u64 = 5;
/// The window: how long failures and answers are counted after the first failure.
const WINDOW_US: u64 = 2_000_000;
/// Failures in a window that open the breaker, if they are half of all calls.
const FAILURES_IN_WINDOW: u64 = 10;
/// The first open interval.
const OPEN_MIN_US: u64 = 250_000;
/// The longest open interval: the most time that a recovered limiter waits for traffic.
const OPEN_MAX_US: u64 = 2_000_000;

/// The value in shared data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed(Counts),
    Open(Waiting),
    Probing(Waiting),
}

/// An open breaker, or one whose probe is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "names end with their unit")]
struct Waiting {
    pub(super) until_us: u64,
    interval_us: u64,
    /// As in [`Counts`], when the breaker opened.
    pub(super) answered_us: u64,
}

/// Calls since the first failure of the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    since_us: u64,
    failed_in_a_row: u64,
    failed: u64,
    answered: u64,
    /// When a check was last decided after a call had failed; 0: never.
    answered_us: u64,
}

rows! {
    Waiting { until_us, interval_us, answered_us }
    Counts { since_us, failed_in_a_row, failed, answered, answered_us }
}

impl State {
    pub(super) fn after(
        self,
        now: Now,
        gate: Gate,
        result: CallResult,
        answering: bool,
        mut jittered: impl FnMut(u64) -> u64,
    ) -> Self {
        let mut open = |interval_us: u64, answered_us: u64| {
            let interval_us = interval_us.min(OPEN_MAX_US);
            Self::Open(Waiting {
                until_us: now.mono_us.saturating_add(jittered(interval_us)),
                interval_us,
                answered_us,
            })
        };
        match (self, result) {
            (Self::Closed(counts), CallResult::Answered { decides }) => {
                Self::Closed(counts.answered(now, decides))
            }
            (Self::Closed(counts), CallResult::Failed) => {
                let counts = counts.failed(now);
                if counts.is_too_much() {
                    open(OPEN_MIN_US, counts.answered_us)
                } else {
                    Self::Closed(counts)
                }
            }
            (Self::Closed(counts), CallResult::OneFailed) => Self::Closed(counts.one_failed(now)),
            (Self::Probing { .. }, CallResult::Answered { .. }) if gate == Gate::Probe => {
                Self::Closed(Counts::default())
            }
            (Self::Probing(waiting), _) if gate == Gate::Probe => {
                let factor = if answering { 1 } else { 2 };
                let interval_us = waiting.interval_us.saturating_mul(factor);
                open(interval_us, waiting.answered_us)
            }
            // These calls were made before the breaker opened.
            (Self::Open { .. } | Self::Probing { .. }, _) => self,
        }
    }

    /// When a check was last decided after a call had failed; 0: never.
    pub(super) fn answered_us(self) -> u64 {
        match self {
            Self::Closed(counts) => counts.answered_us,
            Self::Open(waiting) | Self::Probing(waiting) => waiting.answered_us,
        }
    }

    /// Whether no call failed in the window.
    fn has_no_failures(self) -> bool {
        matches!(self, Self::Closed(counts) if counts.failed == 0)
    }

    /// Reads the shared value. Invalid bytes are a closed breaker, which costs a few calls.
    pub(super) fn read(bytes: &[u8]) -> Self {
        Self::parse(bytes).unwrap_or(Self::Closed(Counts::default()))
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let kind = reader.u8()?;
        let state = match kind {
            0 => Self::Closed(Counts::read(&mut reader)?),
            1 | 2 => {
                let mut waiting = Waiting::read(&mut reader)?;
                waiting.interval_us = waiting.interval_us.clamp(OPEN_MIN_US, OPEN_MAX_US);
                if kind == 1 {
                    Self::Open(waiting)
                } else {
                    Self::Probing(waiting)
                }
            }
            _ => return None,
        };
        reader.is_empty().then_some(state)
    }

    pub(super) fn write(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(41);
        let (kind, waiting) = match self {
            Self::Closed(counts) => {
                out.put_u8(0);
                counts.write(&mut out);
                return out;
            }
            Self::Open(waiting) => (1, waiting),
            Self::Probing(waiting) => (2, waiting),
        };
        out.put_u8(kind);
        waiting.write(&mut out);
        out
    }
}

impl Counts {
    /// Before the first failure of a window, nothing is counted or written.
    fn answered(self, now: Now, decides: bool) -> Self {
        if self.failed == 0 || self.is_over(now) {
            return Self::default();
        }
        Self {
            failed_in_a_row: 0,
            answered: self.answered.saturating_add(1),
            answered_us: if decides {
                now.mono_us
            } else {
                self.answered_us
            },
            ..self
        }
    }

    fn failed(self, now: Now) -> Self {
        let before = self.in_window(now);
        Self {
            failed_in_a_row: before.failed_in_a_row.saturating_add(1),
            failed: before.failed.saturating_add(1),
            ..before
        }
    }

    /// A call failed that costs nobody time: it only begins a window.
    fn one_failed(self, now: Now) -> Self {
        let before = self.in_window(now);
        Self {
            failed: before.failed.max(1),
            ..before
        }
    }

    /// These counts, or those of a new window.
    fn in_window(self, now: Now) -> Self {
        if !self.is_over(now) {
            return self;
        }
        Self {
            since_us: now.mono_us,
            failed_in_a_row: self.failed_in_a_row,
            answered_us: self.answered_us,
            ..Self::default()
        }
    }

    fn is_over(self, now: Now) -> bool {
        self.failed == 0 || now.mono_us.saturating_sub(self.since_us) > WINDOW_US
    }

    fn is_too_much(self) -> bool {
        self.failed_in_a_row >= FAILURES_IN_A_ROW
            || (self.failed >= FAILURES_IN_WINDOW && self.failed >= self.answered)
    }
}

#[cfg(test)]
mod tests;
