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
    Open { until_us: u64, interval_us: u64 },
    Probing { until_us: u64, interval_us: u64 },
}

/// Calls since the first failure of the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    since_us: u64,
    failed_in_a_row: u64,
    failed: u64,
    answered: u64,
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
        let mut open = |interval_us: u64| {
            let interval_us = interval_us.min(OPEN_MAX_US);
            Self::Open {
                until_us: now.mono_us.saturating_add(jittered(interval_us)),
                interval_us,
            }
        };
        match (self, result) {
            (Self::Closed(counts), CallResult::Answered) => Self::Closed(counts.answered(now)),
            (Self::Closed(counts), CallResult::Failed) => {
                let counts = counts.failed(now);
                if counts.is_too_much() {
                    open(OPEN_MIN_US)
                } else {
                    Self::Closed(counts)
                }
            }
            (Self::Probing { .. }, CallResult::Answered) if gate == Gate::Probe => {
                Self::Closed(Counts::default())
            }
            (Self::Probing { interval_us, .. }, CallResult::Failed) if gate == Gate::Probe => {
                open(interval_us.saturating_mul(if answering { 1 } else { 2 }))
            }
            // These calls were made before the breaker opened.
            (Self::Open { .. } | Self::Probing { .. }, _) => self,
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
            }),
            1 | 2 => {
                let until_us = reader.u64()?;
                let interval_us = reader.u64()?.clamp(OPEN_MIN_US, OPEN_MAX_US);
                if kind == 1 {
                    Self::Open {
                        until_us,
                        interval_us,
                    }
                } else {
                    Self::Probing {
                        until_us,
                        interval_us,
                    }
                }
            }
            _ => return None,
        };
        reader.is_empty().then_some(state)
    }

    pub(super) fn write(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(33);
        match self {
            Self::Closed(counts) => {
                out.put_u8(0);
                out.put_u64(counts.since_us);
                out.put_u64(counts.failed_in_a_row);
                out.put_u64(counts.failed);
                out.put_u64(counts.answered);
            }
            Self::Open {
                until_us,
                interval_us,
            } => {
                out.put_u8(1);
                out.put_u64(until_us);
                out.put_u64(interval_us);
            }
            Self::Probing {
                until_us,
                interval_us,
            } => {
                out.put_u8(2);
                out.put_u64(until_us);
                out.put_u64(interval_us);
            }
        }
        out
    }
}

impl Counts {
    /// Before the first failure of a window, nothing is counted or written.
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
