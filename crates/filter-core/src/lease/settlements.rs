//! Granted units that were spent or returned, until the limiter is informed.

use protocol::Settlement;

use crate::codec::{Put, Reader};

/// The most grants at once. A bucket distinguishes two; the third is for a settlement in flight.
const EPOCHS: usize = 3;

const NOTHING: Settlement = Settlement {
    epoch: 0,
    spent: 0,
    returned: 0,
};

/// Units spent and returned, by the epoch of their grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settlements([Settlement; EPOCHS]);

impl Default for Settlements {
    fn default() -> Self {
        Self([NOTHING; EPOCHS])
    }
}

impl Settlements {
    /// Adds to an epoch. If there is no room, the oldest epoch is dropped, as its bucket has
    /// dropped it.
    pub(crate) fn add(&mut self, epoch: u64, spent: u64, returned: u64) {
        if spent == 0 && returned == 0 {
            return;
        }
        let known = self
            .0
            .iter()
            .position(|of| of.epoch == epoch && !is_nothing(of));
        let at = known.or_else(|| {
            let oldest = |(_, of): &(usize, &Settlement)| (!is_nothing(of)).then_some(of.epoch);
            let (at, of) = self.0.iter().enumerate().min_by_key(oldest)?;
            (is_nothing(of) || of.epoch < epoch).then_some(at)
        });
        let Some(of) = at.and_then(|at| self.0.get_mut(at)) else {
            return;
        };
        if known.is_none() {
            *of = NOTHING;
        }
        of.epoch = epoch;
        of.spent = of.spent.saturating_add(spent);
        of.returned = of.returned.saturating_add(returned);
    }

    /// Adds all of another one.
    pub(crate) fn merge(&mut self, other: &Self) {
        for of in &other.0 {
            self.add(of.epoch, of.spent, of.returned);
        }
    }

    /// Whether there is nothing to settle.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(is_nothing)
    }

    /// Takes all of them out, for the one call that sends them.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    /// The settlements as the limiter reads them.
    pub(crate) fn by_epoch(&self) -> Vec<Settlement> {
        let some = self.0.iter().filter(|of| !is_nothing(of));
        some.copied().collect()
    }

    /// The units spent and the units returned, over all epochs.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let sum = |of: fn(&Settlement) -> u64| self.0.iter().map(of).fold(0, u64::saturating_add);
        (sum(|of| of.spent), sum(|of| of.returned))
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        for of in &self.0 {
            out.put_u64(of.epoch);
            out.put_u64(of.spent);
            out.put_u64(of.returned);
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut settlements = Self::default();
        for of in &mut settlements.0 {
            *of = Settlement {
                epoch: reader.u64()?,
                spent: reader.u64()?,
                returned: reader.u64()?,
            };
        }
        Some(settlements)
    }
}

fn is_nothing(of: &Settlement) -> bool {
    of.spent == 0 && of.returned == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(settlements: &Settlements) -> Vec<(u64, u64, u64)> {
        let settlements = settlements.by_epoch().into_iter();
        settlements
            .map(|s| (s.epoch, s.spent, s.returned))
            .collect()
    }

    #[test]
    fn units_are_counted_by_epoch_and_settled_once() {
        let mut settlements = Settlements::default();
        settlements.add(7, 0, 0);
        assert!(settlements.is_empty());
        settlements.add(7, 2, 0);
        settlements.add(8, 1, 4);
        settlements.add(7, 1, 1);
        let mut other = Settlements::default();
        other.merge(&settlements);
        assert_eq!(entries(&other.take()), [(7, 3, 1), (8, 1, 4)]);
        assert!(other.is_empty());
        assert_eq!(settlements.totals(), (4, 5));
    }

    #[test]
    fn a_new_epoch_evicts_the_oldest_and_an_older_one_is_dropped() {
        let mut settlements = Settlements::default();
        for epoch in [5, 4, 6] {
            settlements.add(epoch, epoch, 0);
        }
        settlements.add(3, 1, 0);
        settlements.add(7, 7, 0);
        let mut epochs: Vec<u64> = settlements.by_epoch().iter().map(|s| s.epoch).collect();
        epochs.sort_unstable();
        assert_eq!(epochs, [5, 6, 7]);
        assert_eq!(settlements.totals(), (18, 0));
    }
}
