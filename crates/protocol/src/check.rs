//! A check, independent of its encoding.

use policy::{Descriptor, Name, Rate, SlotId};

use crate::Slot;

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
    /// Limits the caller has settled already (local ones, leased ones).
    pub skip: Vec<Name>,
    /// Refuse a check that matches no limit.
    pub require_match: bool,
    /// Units that were admitted without the limiter and are charged now, whatever is left.
    pub debits: Vec<Debit>,
    /// Units wanted in advance, and settlements of earlier ones; at most one entry per limit.
    ///
    /// A limit that is also in `skip` is tested with a cost of 0. Only the compact encoding has this
    /// field: clients of the JSON API have no leases.
    pub leases: Vec<LeaseRequest>,
    /// Slots of queues to free, and slots of requests in flight to free, renew or enter again. All of
    /// this is executed before the check is decided, and whatever the decision.
    pub free: Vec<Free>,
    /// Units that the check costs at single limits, instead of `cost` times the limit's own. At most
    /// one entry per limit.
    pub costs: Vec<LimitCost>,
    /// Reserve what the check costs at each limit whose cost the response determines and that `costs`
    /// does not name. The compact encoding has only `costs`.
    pub reserve: bool,
    /// Settlements of reservations: executed before the check is decided, and whatever the decision.
    pub settle: Vec<CostSettlement>,
    /// Denials that a proxy decided from its caches and that a penalty counts: counted before the check
    /// is decided, and whatever the decision.
    pub denied: Vec<Denied>,
    /// The id of the request at limits on requests in flight; its secret also names its reservations.
    /// `None`: the limiter makes one.
    pub slot: Option<SlotId>,
    /// For how long the caller waits for permits, in milliseconds: it repeats the check after a denial that
    /// [ends within that time](crate::Answer::is_denied_for_up_to), which therefore counts nowhere. No encoding
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
    GiveBack(u64),
    /// They are [`ServicePart::cost`], and charged only if they fit.
    Fitting,
}

/// Units that a proxy admitted by its fallback while no limiter answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Debit {
    /// The limit whose bucket (for this check's descriptor) is charged.
    pub limit: Name,
    /// Units.
    pub units: u64,
    /// For limits with calendar windows: the label of the window in which they were admitted.
    pub serial: Option<u64>,
}

/// The lease request of a proxy for one limit, besides the check's own cost.
///
/// The surplus is granted only if the check is allowed (a cost of 0 always fits) and is no `peek`.
/// Settlements are executed whatever the decision, and once: a check that carries one is never retried
/// if it may have arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    /// The limit whose bucket (for this check's descriptor) is leased.
    pub limit: Name,
    /// Surplus units wanted for future requests; 0: none.
    pub want: u64,
    /// Settlements of earlier grants; executed before the check is decided, in this order.
    pub settle: Vec<Settlement>,
}

/// The settlement of granted units. Units that are neither spent nor returned stay reserved until the
/// bucket forgets the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The grant's [`Lease::epoch`]; one that the bucket no longer holds is ignored.
    pub epoch: u64,
    /// Units that requests used.
    pub spent: u64,
    /// Units returned unused. They must not be used afterwards.
    pub returned: u64,
}

/// Units taken from a bucket in advance, for one proxy's future requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// How many units were granted, besides those charged for the check itself.
    pub units: u64,
    /// Names the units when they are settled.
    pub epoch: u64,
    /// For how long they may be used, in milliseconds from the *sending* of this very attempt.
    pub ttl_ms: u64,
}

/// A slot that its request does not need, because the request ended before the slot started. Freeing a
/// slot twice changes nothing, so a client that got no answer may repeat it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Free {
    /// The limit whose bucket (for this check's descriptor) gave it.
    pub limit: Name,
    /// Its name.
    pub slot: Slot,
    /// What its request was charged; for a request in flight, the operation on the slot
    /// (`algorithms::SlotAct`).
    pub units: u64,
}

/// What a check costs at one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitCost {
    /// The limit.
    pub limit: Name,
    /// Units.
    pub units: u64,
    /// They are a reservation, which a [`CostSettlement`] replaces by the true cost. Only limits whose
    /// cost the response determines reserve; the others charge.
    pub reserve: bool,
}

/// The name of the units that a check reserved in a bucket. Only the bucket interprets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    /// A random number, drawn before they were reserved.
    pub secret: u64,
    /// The bucket's count of reservations, including this one.
    pub number: u64,
    /// How many units.
    pub units: u64,
    /// Proves that the store's limiters gave this reservation: see `store_plan::Seal`.
    pub seal: u64,
}

/// The true cost of a request whose check reserved units. Unused units are refunded as far as they
/// still count; an excess is charged whatever is left. A repetition changes nothing. If the bucket no
/// longer has a record of the reservation, nothing is refunded, and the excess counts only if the
/// reservation's seal is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostSettlement {
    /// The limit whose bucket (for this check's descriptor) reserved them.
    pub limit: Name,
    /// The reservation.
    pub reservation: Reservation,
    /// The actual cost in units, capped at the limit's `max`.
    pub units: u64,
}

/// Requests that a proxy denied from its caches, because the limiter had denied one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The limit whose bucket (for this check's descriptor) denied them.
    pub limit: Name,
    /// How many.
    pub count: u64,
}
