//! The counters of a domain's limits, as checks find them.

use std::collections::HashMap;

use policy::Name;
use prometheus_client::metrics::counter::Counter;
use protocol::{DecidedBy, LimitAnswer, Outcome, Settlement, compact::Tally};
use store::LimitActivity;

use super::{
    costs::CostCounters, decisions::LimitDecisions, leases::LeaseCounters, slots::SlotCounters,
};

/// The counters of one domain at one revision, looked up once rather than for every check.
#[derive(Debug)]
pub(crate) struct DomainCounters {
    pub(super) unmatched: Counter,
    pub(super) undecided: Counter,
    pub(super) exempt: HashMap<Name, Counter>,
    pub(super) limits: HashMap<Name, LimitCounters>,
}

#[derive(Debug)]
pub(super) struct LimitCounters {
    pub(super) allowed: Counter,
    pub(super) denied: Counter,
    pub(super) would_deny: Counter,
    pub(super) degraded: Counter,
    pub(super) delayed: Counter,
    pub(super) decisions: LimitDecisions,
    pub(super) leases: LeaseCounters,
    /// Of a limit on requests in flight.
    pub(super) slots: Option<SlotCounters>,
    /// Of a limit whose responses say their cost.
    pub(super) costs: Option<CostCounters>,
    /// Of a limit with `penalty`: those that began.
    pub(super) penalties: Option<[Counter; 1]>,
}

/// The values of one limit's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LimitCounts {
    outcomes: [u64; Outcome::ALL.len()],
    delayed: u64,
    settled_units: u64,
    penalties: u64,
    slots_taken: u64,
}

impl LimitCounts {
    /// The increase since `before`; a limit that was removed meanwhile starts again at 0.
    pub(crate) fn since(self, before: Self) -> LimitActivity {
        let news = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        let mut activity = LimitActivity {
            delayed: news(self.delayed, before.delayed),
            settled_units: news(self.settled_units, before.settled_units),
            penalties: news(self.penalties, before.penalties),
            slots_taken: news(self.slots_taken, before.slots_taken),
            ..LimitActivity::default()
        };
        let counts = self.outcomes.into_iter().zip(before.outcomes);
        for (outcome, (now, before)) in Outcome::ALL.into_iter().zip(counts) {
            let count = news(now, before);
            if count > 0 {
                activity.add(outcome, DecidedBy::Limiter, count);
            }
        }
        activity
    }
}

impl DomainCounters {
    /// What the counters of each limit say.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (&Name, LimitCounts)> {
        self.limits.iter().map(|(name, counters)| {
            let LimitCounters {
                allowed,
                denied,
                would_deny,
                degraded,
                delayed,
                decisions: _,
                leases: _,
                slots,
                costs,
                penalties,
            } = counters;
            let counts = LimitCounts {
                // In the order of `Outcome::ALL`.
                outcomes: [allowed, denied, would_deny, degraded].map(Counter::get),
                delayed: delayed.get(),
                settled_units: costs.as_ref().map_or(0, |costs| costs.settled.get()),
                penalties: penalties.as_ref().map_or(0, |[begun]| begun.get()),
                slots_taken: slots.as_ref().map_or(0, |slots| slots.taken.get()),
            };
            (name, counts)
        })
    }

    /// Checks that no limit matched.
    pub(crate) fn unmatched_count(&self) -> u64 {
        self.unmatched.get()
    }

    /// Checks that got no decision.
    pub(crate) fn undecided_count(&self) -> u64 {
        self.undecided.get()
    }

    /// Counts the outcome under one limit.
    pub(crate) fn decided(&self, answer: &LimitAnswer) {
        let Some(counters) = self.limits.get(&answer.name) else {
            return;
        };
        let outcome = answer.outcome();
        let counter = match outcome {
            Outcome::Allowed => &counters.allowed,
            Outcome::Denied => &counters.denied,
            Outcome::WouldDeny => &counters.would_deny,
            Outcome::Degraded => &counters.degraded,
        };
        counter.inc();
        counters.decisions.decided(outcome);
        if answer.allowed && answer.delay_ms > 0 {
            counters.delayed.inc();
        }
    }

    /// Counts decisions that a proxy reports, for existing limits.
    pub(crate) fn reported(&self, tally: &Tally) {
        if let Some(counters) = self.limits.get(&tally.limit) {
            let decisions = &counters.decisions;
            decisions.reported(tally.outcome, tally.by, tally.count);
        }
    }

    /// Counts granted lease units.
    pub(crate) fn granted(&self, answer: &LimitAnswer) {
        if let (Some(lease), Some(counters)) = (answer.lease, self.limits.get(&answer.name)) {
            counters.leases.granted.inc_by(lease.units);
        }
    }

    /// Counts a slot that a request got, or slots that lapsed before they were renewed.
    pub(crate) fn slot(&self, answer: &LimitAnswer) {
        let counters = self.limits.get(&answer.name);
        let slots = counters.and_then(|counters| counters.slots.as_ref());
        if let (Some(slot), Some(slots)) = (answer.slot, slots) {
            if answer.charged > 0 {
                slots.taken.inc();
            } else {
                let gone = slot.start_ms.count_ones() + slot.parts.count_ones();
                slots.lapsed.inc_by(gone.into());
            }
        }
    }

    /// Counts reserved units and the results of settlements.
    pub(crate) fn reserved(&self, answer: &LimitAnswer) {
        let counters = self.limits.get(&answer.name);
        if let Some(costs) = counters.and_then(|counters| counters.costs.as_ref()) {
            let reserved = answer.reservation.map_or(0, |reserved| reserved.units);
            costs.reserved.inc_by(reserved);
            costs.given_back.inc_by(answer.settled.given_back);
            costs.excess.inc_by(answer.settled.excess);
        }
    }

    /// Counts a penalty that began.
    pub(crate) fn penalized(&self, answer: &LimitAnswer) {
        if answer.penalty.begun
            && let Some(counters) = self.limits.get(&answer.name)
            && let Some([begun]) = &counters.penalties
        {
            begun.inc();
        }
    }

    /// Counts a true cost of so many units.
    pub(crate) fn cost_settled(&self, limit: &Name, units: u64) {
        let counters = self.limits.get(limit);
        if let Some(costs) = counters.and_then(|counters| counters.costs.as_ref()) {
            costs.settlements.inc();
            costs.settled.inc_by(units);
        }
    }

    /// Counts a slot that was freed.
    pub(crate) fn freed(&self, limit: &Name) {
        let counters = self.limits.get(limit);
        if let Some(slots) = counters.and_then(|counters| counters.slots.as_ref()) {
            slots.freed.inc();
        }
    }

    /// Counts what a proxy settled of its leases.
    pub(crate) fn settled(&self, limit: &Name, settlement: &Settlement) {
        if let Some(counters) = self.limits.get(limit) {
            counters.leases.spent.inc_by(settlement.spent);
            counters.leases.returned.inc_by(settlement.returned);
        }
    }

    /// Counts checks that got no decision.
    pub(crate) fn undecided(&self, checks: usize) {
        let checks = u64::try_from(checks).unwrap_or(u64::MAX);
        self.undecided.inc_by(checks);
    }

    /// Counts a check, or a descriptor of one, that is exempt.
    pub(crate) fn exempted(&self, exemption: &Name) {
        if let Some(counter) = self.exempt.get(exemption) {
            counter.inc();
        }
    }

    /// Counts a check that no limit applies to, without an exemption.
    pub(crate) fn unmatched(&self) {
        self.unmatched.inc();
    }
}
