//! Units that were admitted without the limiter and are not charged yet.

use algorithms::Algorithm;

use crate::{
    codec::{Put, Reader},
    time::Now,
};

/// For how long a debt counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DebtSpan {
    /// For this many microseconds after the units were admitted.
    Rolling(u64),
    /// To the end of the calendar window they were admitted in.
    Window {
        /// The label of the window; 0: not known.
        serial: u64,
        /// The end, on the monotonic clock.
        ends_us: u64,
    },
}

impl DebtSpan {
    /// The span of a bucket.
    pub(crate) fn of(algorithm: &Algorithm, now: Now) -> Self {
        match algorithm.calendar_window(now.wall_ms) {
            Some(window) => Self::Window {
                serial: window.serial,
                ends_us: now.after_ms(window.end_ms.saturating_sub(now.wall_ms)),
            },
            None => Self::Rolling(algorithm.window_ms().saturating_mul(1000)),
        }
    }

    /// The same window by another label, or none.
    pub(crate) fn labelled(self, label: Option<u64>) -> Self {
        match self {
            Self::Window { ends_us, .. } => Self::Window {
                serial: label.unwrap_or(0),
                ends_us,
            },
            Self::Rolling(_) => self,
        }
    }
}

/// Units admitted without the limiter, over two spans. A span is the time in which a used-up bucket
/// becomes unused: by then the bucket itself has forgiven the units. For calendar windows only the
/// latest counts, as `current`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Debt {
    /// When the current span began; for a calendar window, its label.
    pub(crate) since_us: u64,
    /// Units in the current span.
    pub(crate) current: u64,
    /// Units in the span before it.
    pub(crate) previous: u64,
    /// When all of it is forgiven.
    pub(crate) until_us: u64,
}

impl Debt {
    /// Adds units admitted now, to a bucket with this span.
    pub(crate) fn add(&mut self, units: u64, span: DebtSpan, now_us: u64) {
        let span_us = match span {
            DebtSpan::Rolling(span_us) => span_us,
            DebtSpan::Window { serial, ends_us } => {
                if self.since_us != serial || self.until_us <= now_us {
                    *self = Self {
                        since_us: serial,
                        ..Self::default()
                    };
                }
                self.current = self.current.saturating_add(units);
                self.until_us = ends_us;
                return;
            }
        };
        self.roll(span_us, now_us);
        self.current = self.current.saturating_add(units);
        self.until_us = now_us.saturating_add(span_us);
    }

    /// Units admitted in the last span. Units of the previous span count in proportion to the overlap.
    pub(crate) fn units(mut self, span: DebtSpan, now_us: u64) -> u64 {
        let span_us = match span {
            DebtSpan::Rolling(span_us) => span_us,
            DebtSpan::Window { .. } if now_us < self.until_us => return self.current,
            DebtSpan::Window { .. } => return 0,
        };
        self.roll(span_us, now_us);
        let left_us = span_us.saturating_sub(now_us.saturating_sub(self.since_us));
        let weighted = u128::from(self.previous) * u128::from(left_us);
        let previous = weighted.div_ceil(u128::from(span_us.max(1)));
        self.current
            .saturating_add(u64::try_from(previous).unwrap_or(u64::MAX))
    }

    /// The label of the calendar window in which the units were admitted, if it is known.
    pub(crate) fn serial(&self, span: DebtSpan) -> Option<u64> {
        let calendar = matches!(span, DebtSpan::Window { .. });
        (calendar && self.since_us > 0).then_some(self.since_us)
    }

    fn roll(&mut self, span_us: u64, now_us: u64) {
        let elapsed_us = now_us.saturating_sub(self.since_us);
        if elapsed_us >= span_us.saturating_mul(2) {
            *self = Self {
                since_us: now_us,
                ..Self::default()
            };
        } else if elapsed_us >= span_us {
            self.since_us = self.since_us.saturating_add(span_us);
            self.previous = std::mem::take(&mut self.current);
        }
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(self.since_us);
        out.put_u64(self.current);
        out.put_u64(self.previous);
        out.put_u64(self.until_us);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            since_us: reader.u64()?,
            current: reader.u64()?,
            previous: reader.u64()?,
            until_us: reader.u64()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debt_fades_within_two_spans() {
        let mut debt = Debt::default();
        let span = DebtSpan::Rolling(1000);
        debt.add(10, span, 50_000);
        assert_eq!(debt.units(span, 50_000), 10);
        assert_eq!(debt.units(span, 50_999), 10);
        assert_eq!(debt.units(span, 51_000), 10);
        assert_eq!(debt.units(span, 51_500), 5);
        assert_eq!(debt.units(span, 51_999), 1);
        assert_eq!(debt.units(span, 52_000), 0);
        debt.add(3, span, 51_500);
        assert_eq!(debt.units(span, 51_500), 8);
        assert_eq!(debt.serial(span), None);
    }

    #[test]
    fn a_debt_of_a_calendar_window_ends_with_it() {
        let window = |serial, ends_us| DebtSpan::Window { serial, ends_us };
        let (today, tomorrow) = (window(7, 60_000), window(8, 90_000));
        let mut debt = Debt::default();
        debt.add(10, today, 50_000);
        debt.add(5, today, 59_999);
        assert_eq!(debt.units(today, 59_999), 15);
        assert_eq!(debt.serial(today), Some(7));
        assert_eq!(debt.units(tomorrow, 60_000), 0);
        debt.add(2, tomorrow, 60_000);
        assert_eq!(debt.units(tomorrow, 60_000), 2);
        assert_eq!(debt.serial(tomorrow), Some(8));
    }
}
