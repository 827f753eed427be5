//! Rates.

use serde::{Serialize, Serializer};

/// A rate per second, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

impl Rate {
    /// The rate of `count` in `covered_ms`.
    pub fn of(count: u64, covered_ms: u64) -> Self {
        let thousandths = u128::from(count) * 1_000_000 / u128::from(covered_ms.max(1));
        let rate = if covered_ms == 0 { 0 } else { thousandths };
        Self(rate.try_into().unwrap_or(u64::MAX))
    }

    /// `0`, `0.3`, `12`, `4.2k`: three digits at most; only a rate of 0 is `0`.
    pub fn text(self) -> String {
        const K: u64 = 1_000_000;
        const M: u64 = 1000 * K;
        let tenths = |n: u64, unit: u64| (n / unit, n % unit * 10 / unit);
        let short = |(whole, tenth): (u64, u64), unit: &str| match (whole, tenth) {
            (10.., _) | (_, 0) => format!("{whole}{unit}"),
            _ => format!("{whole}.{tenth}{unit}"),
        };
        match self.0 {
            0 => "0".to_owned(),
            1..100 => "<0.1".to_owned(),
            n @ 100..10_000 => short(tenths(n, 1000), ""),
            n @ 10_000..K => (n / 1000).to_string(),
            n @ K..M => short(tenths(n, K), "k"),
            n => short(tenths(n, M), "M"),
        }
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = format!("{}.{:03}", self.0 / 1000, self.0 % 1000);
        serializer.serialize_f64(text.parse().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_short_and_never_nothing_for_something() {
        let cases = [
            ((0, 1000), "0"),
            ((5, 0), "0"),
            ((1, 60_000), "<0.1"),
            ((1, 10_000), "0.1"),
            ((25, 10_000), "2.5"),
            ((120, 10_000), "12"),
            ((999_999, 1000), "999k"),
            ((42_000, 10_000), "4.2k"),
            ((30_000_000, 10_000), "3M"),
            ((u64::MAX, 1), "18446744073M"),
        ];
        for ((count, ms), text) in cases {
            assert_eq!(Rate::of(count, ms).text(), text, "{count} in {ms} ms");
        }
        assert_eq!(serde_json::to_string(&Rate::of(25, 10_000)).unwrap(), "2.5");
    }
}
