//! The accounting of leases, from outside: what each proxy was granted, admitted and settled, and
//! when.

use std::collections::HashMap;

use crate::{
    limiter::LeaseRecord,
    world::{EPOCH_MS, Outcome, World},
};

/// The records of a run with one leased limit and one bucket.
pub struct Accounting<'w> {
    lease_record: &'w LeaseRecord,
    /// Envoy and moment of each request that leased units admitted: at once, or after other limits
    /// were checked.
    uses: Vec<(usize, u64)>,
    cost: u64,
}

impl<'w> Accounting<'w> {
    pub fn new(world: &'w World, cost: u64) -> Self {
        let lease_record = &world.limiter.lease_record;
        let uses = world
            .requests
            .iter()
            .filter_map(|sent| match &sent.outcome {
                Some(Outcome::Passed { at_us, .. })
                    if *at_us == sent.at_us || lease_record.leased_users.contains(&sent.user) =>
                {
                    Some((sent.envoy, sent.at_us))
                }
                _ => None,
            });
        let uses = uses.collect();
        Self {
            lease_record,
            uses,
            cost,
        }
    }

    /// Units of the requests that leased units admitted.
    pub fn used(&self) -> u64 {
        u64::try_from(self.uses.len()).unwrap() * self.cost
    }

    /// Units granted, settled as spent, and returned.
    pub fn totals(&self) -> (u64, u64, u64) {
        let granted = self
            .lease_record
            .granted
            .iter()
            .map(|(.., lease)| lease.units)
            .sum();
        let spent = self
            .lease_record
            .settled
            .iter()
            .map(|(.., settled)| settled.spent)
            .sum();
        let returned = self
            .lease_record
            .settled
            .iter()
            .map(|(.., settled)| settled.returned)
            .sum();
        (granted, spent, returned)
    }

    /// Each unit that a proxy used was granted to it before, was not returned, and was within its
    /// deadline by the limiter's clock. (The units with the earliest deadline are used first: if
    /// that is impossible, any order is.)
    pub fn assert_used_in_time(&self) {
        let mut events: Vec<(u64, u8, usize, u64, u64, u64)> = Vec::new();
        for (_, envoy, at_us, lease) in &self.lease_record.granted {
            events.push((
                *at_us,
                0,
                *envoy,
                lease.units,
                lease.epoch,
                at_us + lease.ttl_ms * 1000,
            ));
        }
        for (envoy, at_us) in &self.uses {
            events.push((*at_us, 1, *envoy, self.cost, 0, 0));
        }
        for (_, envoy, at_us, settled) in &self.lease_record.settled {
            events.push((*at_us, 2, *envoy, settled.returned, settled.epoch, 0));
        }
        events.sort_unstable();
        let mut held: HashMap<usize, Vec<(u64, u64, u64)>> = HashMap::new();
        for (at_us, kind, envoy, mut units, epoch, until_us) in events {
            let grants = held.entry(envoy).or_default();
            if kind == 0 {
                grants.push((until_us, epoch, units));
                grants.sort_unstable();
                continue;
            }
            for (until_us, of, left) in grants.iter_mut() {
                if if kind == 1 {
                    *until_us > at_us
                } else {
                    *of == epoch
                } {
                    let taken = units.min(*left);
                    *left -= taken;
                    units -= taken;
                }
            }
            assert!(
                kind == 2 || units == 0,
                "envoy {envoy} used {units} units too many at {at_us} us: {grants:?}"
            );
        }
    }

    /// No unit is settled twice, and none without a grant.
    pub fn assert_settled_once(&self) {
        let mut left: HashMap<u64, u64> = HashMap::new();
        for (.., lease) in &self.lease_record.granted {
            *left.entry(lease.epoch).or_default() += lease.units;
        }
        for (.., settled) in &self.lease_record.settled {
            let of = left.entry(settled.epoch).or_default();
            let units = settled.spent + settled.returned;
            assert!(units <= *of, "{settled:?} where {of} are left");
            *of -= units;
        }
    }

    /// All admitted units in order: when, in microseconds, and how many.
    fn admitted(&self) -> Vec<(u64, u64)> {
        let charged = self.lease_record.charged.iter();
        let mut all: Vec<_> = charged.map(|(_, at_us, units)| (*at_us, *units)).collect();
        all.extend(self.uses.iter().map(|(_, at_us)| (*at_us, self.cost)));
        all.sort_unstable();
        all
    }

    /// At most C + rΔ in any interval: a bucket that fills with admitted units and drains at r never
    /// exceeds C. Clocks are read in whole milliseconds.
    pub fn assert_within_bucket(&self, rate: u64, capacity: u64) {
        let mut level: u64 = 0;
        let mut last_us = 0;
        for (at_us, units) in self.admitted() {
            level = level.saturating_sub((at_us - last_us) * rate) + units * 1_000_000;
            last_us = at_us;
            assert!(
                level <= (capacity + rate.div_ceil(1000)) * 1_000_000,
                "{level} millionths of {capacity} at {at_us} us"
            );
        }
    }

    /// Never more than N in a window.
    pub fn assert_within_windows(&self, most: u64, window_ms: u64) {
        let mut windows: HashMap<u64, u64> = HashMap::new();
        for (at_us, units) in self.admitted() {
            let window = (EPOCH_MS + at_us / 1000) / window_ms;
            let used = windows.entry(window).or_default();
            *used += units;
            assert!(*used <= most, "{used} of {most} at {at_us} us");
        }
    }
}
