//! The breaker's state in shared data, and its transitions.

use super::{CallResult, Gate};
use crate::{
    codec::{Put, Reader},
    time::Now,
};

/// Failures in a row that open the breaker.
pub(super) const FAILURES_IN_A_ROW: u64 = 5;
/// The window: how long failures and answers are counted after the first failure.
pub(super) const WINDOW_US: u64 = 2_000_000;
/// Failures in a window that open the breaker, if they are half of all calls.
const FAILURES_IN_WINDOW: u64 = 10;
/// The first open interval.
const OPEN_MIN_US: u64 = 250_000;
/// The longest open interval: the most time that a recovered limiter waits for traffic.
pub(super) const OPEN_MAX_US: u64 = 2_000_000;

/// The value in shared data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Closed(Counts),
    Open(Waiting),
    Probing(Waiting),
}

/// An open breaker, or one whose probe is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "names end with their unit")]
pub(super) struct Waiting {
    pub(super) until_us: u64,
    pub(super) interval_us: u64,
    /// As in [`Counts`], when the breaker opened.
    pub(super) answered_us: u64,
}

/// Calls since the first failure of the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    since_us: u64,
    failed_in_a_row: u64,
    failed: u64,
    answered: u64,
    /// When a check was last decided after a call had failed; 0: never.
    answered_us: u64,
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
    pub(super) fn has_no_failures(self) -> bool {
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
            0 => Self::Closed(Counts {
                since_us: reader.u64()?,
                failed_in_a_row: reader.u64()?,
                failed: reader.u64()?,
                answered: reader.u64()?,
                answered_us: reader.u64()?,
            }),
            1 | 2 => {
                let waiting = Waiting {
                    until_us: reader.u64()?,
                    interval_us: reader.u64()?.clamp(OPEN_MIN_US, OPEN_MAX_US),
                    answered_us: reader.u64()?,
                };
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
                out.put_u64(counts.since_us);
                out.put_u64(counts.failed_in_a_row);
                out.put_u64(counts.failed);
                out.put_u64(counts.answered);
                out.put_u64(counts.answered_us);
                return out;
            }
            Self::Open(waiting) => (1, waiting),
            Self::Probing(waiting) => (2, waiting),
        };
        out.put_u8(kind);
        out.put_u64(waiting.until_us);
        out.put_u64(waiting.interval_us);
        out.put_u64(waiting.answered_us);
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
