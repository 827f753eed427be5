//! A check, whatever the encoding.

use policy::{Descriptor, Name, Rate, SlotId};

use crate::Slot;

/// One request to be tested against every limit of the domain that matches it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// The entries that describe the request.
    pub descriptor: Descriptor,
    /// How many requests this stands for; each limit multiplies it by its own cost. 0 is a peek.
    pub cost: u64,
    /// Ask whether `cost` would pass, and charge nothing.
    pub peek: bool,
    /// Test only these limits; empty: all that match.
    pub only: Vec<Name>,
    /// Limits the caller has settled already (local ones, leased ones).
    pub skip: Vec<Name>,
    /// Refuse a check that matches no limit.
    pub require_match: bool,
    /// What was admitted without the limiter and is charged now, whatever is left.
    pub debits: Vec<Debit>,
    /// Units wanted in advance, and what became of earlier ones; at most one entry per limit.
    ///
    /// A limit that is also in `skip` is tested with a cost of 0. Only in the compact
    /// encoding: clients of the JSON API have no leases.
    pub leases: Vec<LeaseRequest>,
    /// Slots of queues that requests with this descriptor gave up, and what becomes of slots of
    /// requests in flight: freed, renewed or entered again before the check is decided, and
    /// whatever the decision.
    pub free: Vec<Free>,
    /// Units that the check costs at single limits, in the place of `cost` times the limit's own.
    /// At most one entry a limit.
    pub costs: Vec<LimitCost>,
    /// Reserve what the check costs at each limit whose response says the cost and that `costs`
    /// does not name. The compact encoding has only `costs`.
    pub reserve: bool,
    /// What became of reservations: executed before the check is decided, and whatever the decision.
    pub settle: Vec<CostSettlement>,
    /// Denials that a proxy decided from its caches, where a penalty counts them: counted before the
    /// check is decided, and whatever the decision.
    pub denied: Vec<Denied>,
    /// The id of the request at limits on requests in flight, whose secret also names its
    /// reservations; `None`: the limiter makes one.
    pub slot: Option<SlotId>,
    /// The longest that a queue may delay the request, if that is less than what its limit says.
    pub max_delay_ms: Option<u64>,
    /// The proxy that requests leases: [`crate::compact::Batch::proxy_mark`].
    pub proxy: u8,
    /// The descriptors of a call of Envoy's rate limit service, which take the place of
    /// `descriptor` and `cost`. No encoding has them.
    pub service: Option<Box<ServiceCheck>>,
}

/// Descriptors of one call of Envoy's rate limit service that are decided together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceCheck {
    /// Each limit that applies to one of them is tested, all or nothing.
    pub parts: Vec<ServicePart>,
    /// What the units of a descriptor are that brings its own; `None`: the call's.
    pub own: Option<OwnUnits>,
}

/// A descriptor of such a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePart {
    /// Its entries, and all of it as the entry [`policy::DESCRIPTOR`].
    pub descriptor: Descriptor,
    /// Units that it costs.
    pub cost: u64,
    /// The limit that it brings itself, in the place of those that have a `descriptor`: a fixed
    /// window.
    pub rate: Option<Rate>,
}

/// Units that a descriptor brings itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnUnits {
    /// None: it looks whether anything is left.
    Look,
    /// They were used: charged whatever is left.
    Charge(u64),
    /// They are given back.
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
    /// Of a limit whose windows are the calendar's: the label of the window they were admitted in.
    pub serial: Option<u64>,
}

/// What a proxy requests of a limit with `lease`, beside the check's own cost.
///
/// The surplus is granted only if the check is allowed (a cost of 0 always fits) and is no `peek`.
/// Settlements are executed whatever the decision, once: a check that carries one is never sent
/// again after it may have arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    /// The limit whose bucket (for this check's descriptor) is meant.
    pub limit: Name,
    /// Surplus units wanted for requests to come; 0: none.
    pub want: u64,
    /// What became of earlier grants; executed before the check is decided, in this order.
    pub settle: Vec<Settlement>,
}

/// What became of granted units. What is neither spent nor returned stays reserved until the
/// bucket forgets the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The grant's [`Lease::epoch`]; one that the bucket no longer holds is ignored.
    pub epoch: u64,
    /// Units that requests used.
    pub spent: u64,
    /// Units given back, unused. They must not be used afterwards.
    pub returned: u64,
}

/// Units taken from a bucket in advance, for one proxy's requests to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// How many units were granted, beside what the check itself was charged.
    pub units: u64,
    /// What to name them by when they are settled.
    pub epoch: u64,
    /// For how long they may be used, in milliseconds from the *sending* of this very attempt.
    pub ttl_ms: u64,
}

/// A slot that its request does not need, because it ended before it started. Freeing one again
/// changes nothing, so a client that got no answer may repeat it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Free {
    /// The limit whose bucket (for this check's descriptor) gave it.
    pub limit: Name,
    /// Its name.
    pub slot: Slot,
    /// What its request was charged; of a request in flight, what becomes of the slot
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
    /// They are a reservation, which a [`CostSettlement`] replaces by the true cost. Only limits
    /// whose response says the cost reserve; the others charge.
    pub reserve: bool,
}

/// The name of the units that a check reserved in a bucket. Nobody but the bucket reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    /// A random number, drawn before they were reserved.
    pub secret: u64,
    /// The bucket's count of reservations, with this one.
    pub number: u64,
    /// How many units.
    pub units: u64,
}

/// The true cost of a request whose check reserved units. What is less than those is given back, as
/// far as it still counts; what is more is charged whatever is left. A repeat changes nothing, and
/// where the bucket has no record of the reservation any more, nothing is given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostSettlement {
    /// The limit whose bucket (for this check's descriptor) reserved them.
    pub limit: Name,
    /// Which reservation.
    pub reservation: Reservation,
    /// What the request cost, in units; more than the limit's `max` counts as that.
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
