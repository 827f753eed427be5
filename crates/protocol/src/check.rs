//! A check, independent of its encoding.

use algorithms::{Adaptive, CostSettlement, Pace, Settlement, SlotId, SlotOp};
use policy::{Descriptor, Name, Rate};

/// One request to be tested against every limit of the domain that matches it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// The entries that describe the request.
    pub descriptor: Descriptor,
    /// How many requests this stands for; each limit multiplies it by its own cost. 0 is a peek.
    pub cost: u64,
    /// Report whether `cost` would pass, and charge nothing.
    pub peek: bool,
    /// Test only these limits; empty: all that match.
    pub only: Vec<Name>,
    /// Refuse a check that matches no limit.
    pub require_match: bool,
    /// What the check says about single limits: at most one entry for each.
    pub limits: Vec<LimitRequest>,
    /// Reserve what the check costs at each limit whose cost the response determines and whose entry
    /// has no cost. The compact encoding has only the costs of entries.
    pub reserve: bool,
    /// The id of the request at limits on requests in flight; its secret also names its reservations.
    /// `None`: the limiter makes one.
    pub slot: Option<SlotId>,
    /// How the service answered the request whose slots are freed. Only JSON has it: proxies say it of each
    /// slot ([`SlotAct::Answered`](algorithms::SlotAct)).
    pub took: Option<Took>,
    /// For how long the caller waits for permits, in milliseconds: it repeats the check after a denial that
    /// [ends within that time](crate::Answer::is_repeated), which therefore counts nowhere. No encoding
    /// has it.
    pub patience_ms: u64,
    /// The longest that a queue may delay the request, if less than its limit permits.
    pub max_delay_ms: Option<u64>,
    /// The proxy that requests leases: [`crate::compact::Batch::proxy_mark`].
    pub proxy: u8,
    /// The descriptors of a call of Envoy's rate limit service, which replace `descriptor` and `cost`.
    /// No encoding has them.
    pub service: Option<Box<ServiceCheck>>,
}

/// How a service answered a request, as its caller says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Took {
    /// After so many milliseconds.
    Ms(u64),
    /// Slow or not, by the caller's own measure.
    Slow(bool),
}

impl Took {
    /// What it says to an adaptive limit.
    pub const fn pace(self, rule: &Adaptive) -> Pace {
        match self {
            Self::Ms(ms) => rule.pace(ms),
            Self::Slow(true) => Pace::Slow,
            Self::Slow(false) => Pace::InTime,
        }
    }
}

/// What a check says about one limit, whose bucket is that of the check's descriptor.
///
/// Debits, settlements, operations on slots and reported denials are executed before the check is decided,
/// and whatever the decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitRequest {
    /// The limit.
    pub limit: Name,
    /// The caller has settled it already (a local or a leased one): it is not tested, or with a cost of
    /// 0 if the entry has something else to do there.
    pub skip: bool,
    /// What the check costs, instead of its `cost` times the limit's own.
    pub cost: Option<LimitCost>,
    /// Units that were admitted without the limiter and are charged now, whatever is left.
    pub debit: Option<Debit>,
    /// Units wanted in advance, and settlements of earlier ones. Only the compact encoding has this
    /// field: clients of the JSON API have no leases.
    pub lease: Option<LeaseRequest>,
    /// Slots to free, renew or enter.
    pub slots: Vec<SlotOp>,
    /// True costs of requests that had reserved units. If the bucket no longer has a record of a
    /// reservation, nothing is refunded, and the excess counts only if the reservation's seal is right.
    pub settle: Vec<CostSettlement>,
    /// Requests that a proxy denied from its caches, because the limiter had denied one before; a penalty
    /// counts them.
    pub denied: u64,
}

impl Check {
    /// What the check says about a limit.
    pub fn limit(&self, limit: &Name) -> Option<&LimitRequest> {
        self.limits.iter().find(|entry| entry.limit == *limit)
    }

    /// The names of limits that it skips.
    pub fn skipped(&self) -> impl Iterator<Item = &Name> {
        let skipped = self.limits.iter().filter(|entry| entry.skip);
        skipped.map(|entry| &entry.limit)
    }
}

impl LimitRequest {
    /// An entry that says nothing.
    pub const fn new(limit: Name) -> Self {
        Self {
            limit,
            skip: false,
            cost: None,
            debit: None,
            lease: None,
            slots: Vec::new(),
            settle: Vec::new(),
            denied: 0,
        }
    }

    /// Changes the entry of a limit in a list, which gets one if it has none.
    pub fn change(limits: &mut Vec<Self>, limit: &Name, change: impl FnOnce(&mut Self)) {
        if let Some(entry) = limits.iter_mut().find(|entry| entry.limit == *limit) {
            return change(entry);
        }
        let mut entry = Self::new(limit.clone());
        change(&mut entry);
        limits.push(entry);
    }

    /// Whether the limit is called even if it is skipped: something happens in its bucket.
    pub fn acts(&self) -> bool {
        self.lease.is_some() || !self.slots.is_empty() || !self.settle.is_empty() || self.denied > 0
    }
}

/// Descriptors of one call of Envoy's rate limit service that are decided together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceCheck {
    /// Each limit that applies to one of them is tested, all or nothing.
    pub parts: Vec<ServicePart>,
    /// How to treat the units of a descriptor that brings its own; `None`: like the call's.
    pub own: Option<OwnUnits>,
    /// Whether another check of the call has limits with `quota_mode`: then those of this check alone
    /// do not deny it.
    pub quotas_elsewhere: bool,
}

/// A descriptor of such a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePart {
    /// Its entries, and all of it as the entry [`policy::DESCRIPTOR`].
    pub descriptor: Descriptor,
    /// Units that it costs.
    pub cost: u64,
    /// The limit that it brings itself, which replaces those that have a `descriptor`: a fixed window.
    pub rate: Option<Rate>,
}

/// How to treat units that a descriptor brings itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnUnits {
    /// None: it only tests whether anything is left.
    Look,
    /// They were used: charged whatever is left.
    Charge(u64),
    /// They are refunded.
    Refund(u64),
    /// They are [`ServicePart::cost`], and charged only if they fit.
    Fitting,
}

/// Units that a proxy admitted by its fallback while no limiter answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Debit {
    /// Units.
    pub units: u64,
    /// For limits with calendar windows: the label of the window in which they were admitted.
    pub serial: Option<u64>,
}

/// The lease request of a proxy for one limit, besides the check's own cost.
///
/// The surplus is granted only if the check is allowed (a cost of 0 always fits) and is no `peek`.
/// Settlements are executed once: a check that carries one is never retried if it may have arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    /// Surplus units wanted for future requests; 0: none.
    pub want: u64,
    /// Settlements of earlier grants, in this order. Units that are neither spent nor returned stay
    /// reserved until the bucket forgets the epoch.
    pub settle: Vec<Settlement>,
}

/// What a check costs at one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitCost {
    /// Units.
    pub units: u64,
    /// They are a reservation, which a [`CostSettlement`] replaces by the true cost. Only limits whose
    /// cost the response determines reserve; the others charge.
    pub reserve: bool,
}
