//! Costs of responses, counted by limit.

use policy::Name;

use super::{Metrics, by_name::ByName};
use crate::cost::Settled;

/// Counters of requests that reserved units and have ended.
const COUNTS: [&str; 7] = [
    "rl_costs.settlements",
    "rl_costs.reserved",
    "rl_costs.settled",
    "rl_costs.unused",
    "rl_costs.excess",
    "rl_costs.absent",
    "rl_costs.estimated",
];

/// Counters since the last flush.
#[derive(Debug, Default)]
pub(super) struct Costs(ByName<{ COUNTS.len() }>);

impl Costs {
    /// Counts what a request cost in one bucket.
    pub(super) fn settled(&mut self, settled: &Settled) {
        let (reserved, units) = (
            settled.settlement.reservation.units,
            settled.settlement.units,
        );
        let counted = [
            1,
            reserved,
            units,
            reserved.saturating_sub(units),
            units.saturating_sub(reserved),
            u64::from(settled.absent),
            u64::from(settled.estimated),
        ];
        self.add(&settled.settlement.limit, counted);
    }

    fn add(&mut self, limit: &Name, counted: [u64; COUNTS.len()]) {
        for (count, by) in self.0.of(limit).iter_mut().zip(counted) {
            *count = count.saturating_add(by);
        }
    }

    /// Whether there is nothing to flush.
    pub(super) fn is_flushed(&self) -> bool {
        self.0.is_zero()
    }

    /// Writes all counters to the host.
    pub(super) fn flush(&mut self, metrics: &mut impl Metrics) {
        self.0.take(|limit, at, by| {
            if let Some(name) = COUNTS.get(at) {
                metrics.count(&[name, limit].join("."), by);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{by_name::MAX_NAMES, tests::Recorded};

    #[test]
    fn any_number_of_limits_makes_a_bounded_number_of_names_over_time() {
        let (mut costs, mut metrics) = (Costs::default(), Recorded::default());
        for n in 0..1000 {
            let limit = format!("limit-{n}").parse().unwrap();
            costs.add(&limit, [1, 10, 0, 0, 0, 0, 0]);
            if n % 100 == 0 {
                assert!(!costs.is_flushed());
                costs.flush(&mut metrics);
                assert!(costs.is_flushed());
            }
        }
        costs.flush(&mut metrics);
        assert_eq!(metrics.0.len(), 2 * (MAX_NAMES + 1));
        assert_eq!(metrics.0["rl_costs.reserved._others"], 10 * (1000 - 256));
        assert_eq!(metrics.0.values().sum::<u64>(), 11_000);
    }
}
