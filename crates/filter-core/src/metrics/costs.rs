//! What responses cost, counted by limit.

use policy::Name;

use super::{MAX_LIMITS, Metrics, OTHERS};
use crate::cost::Settled;

/// Of requests that reserved units and have ended.
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
pub(super) struct Costs {
    limits: Vec<(Name, [u64; COUNTS.len()])>,
    others: [u64; COUNTS.len()],
}

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
        for (count, by) in self.of(limit).iter_mut().zip(counted) {
            *count = count.saturating_add(by);
        }
    }

    /// Whether there is nothing to flush.
    pub(super) fn is_flushed(&self) -> bool {
        let mut named = self.limits.iter().map(|(_, counts)| counts);
        named.all(|counts| *counts == [0; COUNTS.len()]) && self.others == [0; COUNTS.len()]
    }

    /// Writes all counters to the host.
    pub(super) fn flush(&mut self, metrics: &mut impl Metrics) {
        // Names stay, so that there are never more of them.
        let named = self
            .limits
            .iter_mut()
            .map(|(name, counts)| (name.as_str(), counts));
        for (limit, counts) in named.chain([(OTHERS, &mut self.others)]) {
            for (name, by) in COUNTS.iter().zip(counts).filter(|(_, by)| **by > 0) {
                metrics.count(&[name, limit].join("."), std::mem::take(by));
            }
        }
    }

    fn of(&mut self, limit: &Name) -> &mut [u64; COUNTS.len()] {
        let known = self.limits.iter().position(|(name, _)| name == limit);
        let at = known.unwrap_or(self.limits.len());
        if known.is_none() && at < MAX_LIMITS {
            self.limits.push((limit.clone(), [0; COUNTS.len()]));
        }
        match self.limits.get_mut(at) {
            Some((_, counts)) => counts,
            None => &mut self.others,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Default)]
    struct Recorded(BTreeMap<String, u64>);

    impl Metrics for Recorded {
        fn count(&mut self, name: &str, by: u64) {
            *self.0.entry(name.to_owned()).or_default() += by;
        }
        fn gauge(&mut self, _: &str, _: u64) {}
        fn sample(&mut self, _: &str, _: u64) {}
    }

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
        assert_eq!(metrics.0.len(), 2 * (MAX_LIMITS + 1));
        assert_eq!(metrics.0["rl_costs.reserved._others"], 10 * (1000 - 256));
        assert_eq!(metrics.0.values().sum::<u64>(), 11_000);
    }
}
