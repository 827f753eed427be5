//! Units that were admitted without the limiter and are still to be charged.

use crate::codec::{Put, Reader};

/// Units admitted without the limiter, over two spans. A span is the time in which a full bucket
/// becomes unused: by then the bucket itself has forgiven the units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Debt {
    /// When the current span began.
    pub(crate) since_us: u64,
    /// Units in the current span.
    pub(crate) current: u64,
    /// Units in the span before it.
    pub(crate) previous: u64,
    /// When all of it is forgiven.
    pub(crate) until_us: u64,
}

impl Debt {
    /// Adds units admitted now, of a bucket with this span.
    pub(crate) fn add(&mut self, units: u64, span_us: u64, now_us: u64) {
        self.roll(span_us, now_us);
        self.current = self.current.saturating_add(units);
        self.until_us = now_us.saturating_add(span_us);
    }

    /// Units admitted in the last span. Those of the previous span count by the share of it that
    /// the last span covers.
    pub(crate) fn units(mut self, span_us: u64, now_us: u64) -> u64 {
        self.roll(span_us, now_us);
        let left_us = span_us.saturating_sub(now_us.saturating_sub(self.since_us));
        let weighted = u128::from(self.previous) * u128::from(left_us);
        let previous = weighted.div_ceil(u128::from(span_us.max(1)));
        self.current
            .saturating_add(u64::try_from(previous).unwrap_or(u64::MAX))
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
        debt.add(10, 1000, 50_000);
        assert_eq!(debt.units(1000, 50_000), 10);
        assert_eq!(debt.units(1000, 50_999), 10);
        assert_eq!(debt.units(1000, 51_000), 10);
        assert_eq!(debt.units(1000, 51_500), 5);
        assert_eq!(debt.units(1000, 51_999), 1);
        assert_eq!(debt.units(1000, 52_000), 0);
        debt.add(3, 1000, 51_500);
        assert_eq!(debt.units(1000, 51_500), 8);
    }
}
