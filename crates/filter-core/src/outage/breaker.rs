//! When to stop asking a limiter that does not answer, shared by the workers of one Envoy.
//!
//! Closed, calls are made and failures counted; several in a row, or half of
//! those in a window, open it. Open, nobody calls. When its spell is over, the
//! one worker that writes so first makes a single call as a probe: an answer
//! closes the breaker, a failure opens it for a spell twice as long. Spells are
//! jittered, so that a fleet does not come back all at once.
//!
//! A probe asks without charging. Were it a check with the debts of its buckets,
//! these would be lost with every probe that gets no answer (they may have been
//! charged); were it a check without them, each probe could let a request through
//! that the debts leave no room for. So the requests that wait for a probe are
//! asked for when it was answered, with their debts, and decided here if not.

use crate::{
    codec::{Put, Reader},
    host::{self, Change, Host},
    random::Random,
    time::Now,
};

/// Failures without an answer in between that open the breaker.
const FAILURES_IN_A_ROW: u64 = 5;
/// How long failures and answers are counted from the first failure on.
const WINDOW_US: u64 = 2_000_000;
/// The least failures in a window that open the breaker, if they are half of all calls.
const FAILURES_IN_WINDOW: u64 = 10;
/// The first spell.
const SPELL_MIN_US: u64 = 250_000;
/// The longest spell: what a limiter that is back waits for the traffic, at most.
const SPELL_MAX_US: u64 = 2_000_000;
/// How much longer than a call may take a worker has to report on its probe.
const PROBE_GRACE_US: u64 = 100_000;

/// Whether the limiter may be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// Yes.
    Closed,
    /// Yes, this once, to see if it answers.
    Probe,
    /// No.
    Open,
}

/// What became of a call. One shard that is down is an answer; no answer at all is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallResult {
    Answered,
    Failed,
}

/// What the workers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed(Counts),
    Open { until_us: u64, spell_us: u64 },
    Probing { until_us: u64, spell_us: u64 },
}

/// Calls since the first failure of the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    since_us: u64,
    failed_in_a_row: u64,
    failed: u64,
    answered: u64,
}

/// One worker's hold on the breaker of its Envoy.
#[derive(Clone, Debug)]
pub(crate) struct Breaker {
    key: Vec<u8>,
    probe_us: u64,
    random: Random,
    /// When failures were last seen.
    last_failure_us: u64,
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
        }
    }

    /// Asks before a call. [`Gate::Probe`] is given to one worker, which must report.
    pub(crate) fn gate(&mut self, host: &impl Host, now: Now) -> Gate {
        let mut calm = false;
        let elected = host::update(host, &self.key, |bytes| {
            let state = State::read(bytes);
            calm = state.is_calm();
            match state {
                State::Closed(_) => Change::Keep(Gate::Closed),
                State::Open { until_us, .. } | State::Probing { until_us, .. }
                    if self.is_ahead(until_us, now) =>
                {
                    Change::Keep(Gate::Open)
                }
                // Its spell is over, or whoever probed is gone.
                State::Open { spell_us, .. } | State::Probing { spell_us, .. } => {
                    let until_us = now.mono_us.saturating_add(self.probe_us);
                    Change::Write(State::Probing { until_us, spell_us }.write(), Gate::Probe)
                }
            }
        });
        self.record(calm, now);
        // Contended: others are busy electing or counting. Not calling is the safe side.
        elected.unwrap_or(Gate::Open)
    }

    /// Whether a spell or a probe lasts. No spell is so long that a value another plugin wrote
    /// could keep it open for ever.
    fn is_ahead(&self, until_us: u64, now: Now) -> bool {
        let left_us = until_us.saturating_sub(now.mono_us);
        left_us > 0 && left_us <= SPELL_MAX_US.saturating_mul(2).max(self.probe_us)
    }

    /// Whether nobody may call now. Elects no one.
    pub(crate) fn is_open(&mut self, host: &impl Host, now: Now) -> bool {
        let read = host.load(&self.key);
        let state = State::read(read.as_ref().map_or(&[], |read| &read.bytes));
        self.record(state.is_calm(), now);
        !matches!(state, State::Closed(_))
    }

    /// When any worker's call was last seen to fail, or the breaker to be open: before that, others
    /// may have decided without the limiter. 0: never.
    pub(crate) fn last_failure_us(&self) -> u64 {
        self.last_failure_us
    }

    /// Whether that was only just.
    pub(crate) fn failed_lately(&self, now: Now) -> bool {
        self.last_failure_us > 0 && now.mono_us.saturating_sub(self.last_failure_us) <= WINDOW_US
    }

    /// Notes whether all was well when it was last looked at.
    pub(crate) fn record(&mut self, calm: bool, now: Now) {
        if !calm {
            self.last_failure_us = now.mono_us;
        }
    }

    /// Reports what became of a call that `gate` let through.
    pub(crate) fn report(&mut self, host: &impl Host, now: Now, gate: Gate, result: CallResult) {
        self.record(result == CallResult::Answered, now);
        let jitter = &mut self.random;
        // Contended: other workers are reporting; their counts will do.
        let _ = host::update(host, &self.key, |bytes| {
            let old = State::read(bytes);
            let new = old.after(now, gate, result, |spell_us| jitter.jittered(spell_us));
            if new == old {
                Change::Keep(())
            } else {
                Change::Write(new.write(), ())
            }
        });
    }
}

impl State {
    fn after(
        self,
        now: Now,
        gate: Gate,
        result: CallResult,
        mut jittered: impl FnMut(u64) -> u64,
    ) -> Self {
        let mut open = |spell_us: u64| {
            let spell_us = spell_us.min(SPELL_MAX_US);
            Self::Open {
                until_us: now.mono_us.saturating_add(jittered(spell_us)),
                spell_us,
            }
        };
        match (self, result) {
            (Self::Closed(counts), CallResult::Answered) => Self::Closed(counts.answered(now)),
            (Self::Closed(counts), CallResult::Failed) => {
                let counts = counts.failed(now);
                if counts.is_too_much() {
                    open(SPELL_MIN_US)
                } else {
                    Self::Closed(counts)
                }
            }
            (Self::Probing { .. }, CallResult::Answered) if gate == Gate::Probe => {
                Self::Closed(Counts::default())
            }
            (Self::Probing { spell_us, .. }, CallResult::Failed) if gate == Gate::Probe => {
                open(spell_us.saturating_mul(2))
            }
            // Calls that were made before it opened say nothing about now.
            (Self::Open { .. } | Self::Probing { .. }, _) => self,
        }
    }

    /// Whether no call has failed lately.
    fn is_calm(self) -> bool {
        matches!(self, Self::Closed(counts) if counts.failed == 0)
    }

    /// Reads the shared value; what is not one is a closed breaker, which errs by a few calls.
    fn read(bytes: &[u8]) -> Self {
        Self::parse(bytes).unwrap_or(Self::Closed(Counts::default()))
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let kind = reader.u8()?;
        let state = match kind {
            0 => Self::Closed(Counts {
                since_us: reader.u64()?,
                failed_in_a_row: reader.u64()?,
                failed: reader.u64()?,
                answered: reader.u64()?,
            }),
            1 | 2 => {
                let until_us = reader.u64()?;
                let spell_us = reader.u64()?.clamp(SPELL_MIN_US, SPELL_MAX_US);
                if kind == 1 {
                    Self::Open { until_us, spell_us }
                } else {
                    Self::Probing { until_us, spell_us }
                }
            }
            _ => return None,
        };
        reader.is_empty().then_some(state)
    }

    fn write(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(33);
        match self {
            Self::Closed(counts) => {
                out.put_u8(0);
                out.put_u64(counts.since_us);
                out.put_u64(counts.failed_in_a_row);
                out.put_u64(counts.failed);
                out.put_u64(counts.answered);
            }
            Self::Open { until_us, spell_us } => {
                out.put_u8(1);
                out.put_u64(until_us);
                out.put_u64(spell_us);
            }
            Self::Probing { until_us, spell_us } => {
                out.put_u8(2);
                out.put_u64(until_us);
                out.put_u64(spell_us);
            }
        }
        out
    }
}

impl Counts {
    /// Without a failure in the window there is nothing to count, and nothing to write.
    fn answered(self, now: Now) -> Self {
        if self.failed == 0 || self.is_over(now) {
            return Self::default();
        }
        Self {
            failed_in_a_row: 0,
            answered: self.answered.saturating_add(1),
            ..self
        }
    }

    fn failed(self, now: Now) -> Self {
        let before = if self.is_over(now) {
            Self {
                since_us: now.mono_us,
                failed_in_a_row: self.failed_in_a_row,
                ..Self::default()
            }
        } else {
            self
        };
        Self {
            failed_in_a_row: before.failed_in_a_row.saturating_add(1),
            failed: before.failed.saturating_add(1),
            ..before
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
