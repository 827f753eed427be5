//! A check resolved against a policy: which buckets it touches, and with what numbers.

mod service;

use std::{fmt, ops::RangeFrom, sync::Arc};

use algorithms::{
    Algorithm, CostSettlement, Denials, InFlightSlot, Kind, LeaseRequest, LimitVerdict, Penalty,
    Reservation, ReserveRequest, RetryAfter, SlotAct, SlotId, SlotOp,
    check::{Options, Part, PenaltyRequest, Stored, Verdict},
};
use policy::{Compiled, Limit, Match, Mode, Name, ResponsePrice};
use protocol::{Answer, Check, LimitAnswer, LimitRequest, OwnUnits, ServicePart};
use ring::hmac;

use crate::plan::{
    Keys,
    script::{ScriptCheck, ScriptLimit},
};

/// One check, ready to be decided.
#[derive(Debug)]
pub struct CheckPlan<'p> {
    /// The limits that match, in the order of the policy.
    parts: Vec<LimitPlan<'p>>,
    /// For Envoy's rate limit service: how many of the parts belong to each descriptor.
    counts: Vec<usize>,
    /// Peek and force.
    pub options: Options,
}

/// One limit's part in a check.
#[derive(Debug)]
struct LimitPlan<'p> {
    limit: &'p Limit,
    values: Vec<Option<Vec<u8>>>,
    mode: Mode,
    what: Target<'p>,
}

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are buckets, and a box of each would be an allocation for each check"
)]
enum Target<'p> {
    /// A bucket decides.
    Bucket(Bucket<'p>),
    /// The bucket at this index, which other parts of the check charge as well.
    Same(usize, Box<Bucket<'p>>),
    /// The request lacks an entry without which the limit lets nothing pass.
    Missing,
    /// An override lifts the limit.
    Unlimited,
}

/// Why a check names no buckets. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckPlanError {
    /// `only` names a limit that the domain does not have.
    #[error("the domain has no limit named {0}")]
    UnknownLimit(Name),
    /// `require_match` was set and no limit matched.
    #[error("no limit matches this descriptor")]
    NoMatch,
    /// A bucket is named by one value for each of the limit's `per` entries.
    #[error("a bucket of {limit} has {expected} values, not {given}")]
    WrongBucket {
        /// The limit.
        limit: Name,
        /// How many there are in its `per`.
        expected: usize,
        /// How many were given.
        given: usize,
    },
}

/// Whether the plan of a check needs a [`Seal`].
pub fn reserves_or_settles(check: &Check) -> bool {
    let of_limit = |entry: &LimitRequest| {
        !entry.settle.is_empty() || entry.cost.is_some_and(|cost| cost.reserve)
    };
    check.reserve || check.limits.iter().any(of_limit)
}

impl<'p> CheckPlan<'p> {
    /// Resolves one check. `now_ms` decides which overrides are in force, nothing else. A check that
    /// [reserves or settles](reserves_or_settles) needs a `seal`.
    pub fn new(
        policy: &'p Compiled,
        check: &'p Check,
        keys: &Keys,
        seal: Option<&'p Seal>,
        now_ms: u64,
        force: bool,
    ) -> Result<Self, CheckPlanError> {
        if let Some(service) = &check.service {
            return Ok(Self::of_service(
                policy, check, service, keys, now_ms, force,
            ));
        }
        if let Some(unknown) = check
            .only
            .iter()
            .find(|n| policy.position(n.as_str()).is_none())
        {
            return Err(CheckPlanError::UnknownLimit(unknown.clone()));
        }
        let planned = |found: Match<'p, '_>| {
            let name = &found.limit.name;
            let entry = check.limit(name);
            let skips = entry.is_some_and(|entry| entry.skip && !entry.acts());
            let wanted = (check.only.is_empty() || check.only.contains(name)) && !skips;
            let query = Query::Check(check, entry, seal);
            wanted.then(|| LimitPlan::new(policy, found, query, keys, now_ms))
        };
        let matches = policy.matching(&check.descriptor, now_ms).into_iter();
        let parts: Vec<LimitPlan<'p>> = matches.filter_map(planned).collect();
        // Paused limits match nothing, and must not cause denials by that; nor must exemptions.
        if parts.is_empty()
            && check.require_match
            && !policy.any_paused(now_ms)
            && policy.exemption(&check.descriptor).is_none()
        {
            return Err(CheckPlanError::NoMatch);
        }
        // The check is denied in any case, so it charges nothing; it still queries the other
        // buckets, so that the answer names every limit that denies.
        let refused = parts.iter().any(LimitPlan::refuses);
        Ok(Self {
            parts,
            counts: Vec::new(),
            options: Options {
                peek: check.peek,
                denied: refused,
                // A check that is refused is not repeated.
                patience_ms: if refused { 0 } else { check.patience_ms },
                force,
                ..Options::default()
            },
        })
    }

    /// A peek at one bucket.
    pub fn of_bucket(
        policy: &'p Compiled,
        limit: &Name,
        values: &[Option<Vec<u8>>],
        cost: u64,
        keys: &Keys,
        now_ms: u64,
    ) -> Result<Self, CheckPlanError> {
        let unknown = || CheckPlanError::UnknownLimit(limit.clone());
        let index = policy.position(limit.as_str()).ok_or_else(unknown)?;
        let limit = policy.limit(index).ok_or_else(unknown)?;
        if values.len() != limit.per.len() {
            return Err(CheckPlanError::WrongBucket {
                limit: limit.name.clone(),
                expected: limit.per.len(),
                given: values.len(),
            });
        }
        let found = Match {
            index,
            limit,
            values: values.iter().map(Option::as_deref).collect(),
            shared: None,
            enforced: limit.enforces(values),
            suppresses: false,
            missing: None,
        };
        Ok(Self {
            parts: vec![LimitPlan::new(
                policy,
                found,
                Query::Peek(cost),
                keys,
                now_ms,
            )],
            counts: Vec::new(),
            options: Options {
                peek: true,
                force: true,
                ..Options::default()
            },
        })
    }

    /// The buckets to check, in the order of the verdict.
    pub fn buckets(&self) -> impl Iterator<Item = &Bucket<'p>> {
        self.parts.iter().filter_map(|part| match &part.what {
            Target::Bucket(bucket) => Some(bucket),
            Target::Same(..) | Target::Missing | Target::Unlimited => None,
        })
    }

    /// The check as the script takes it.
    pub fn script_check(&self) -> ScriptCheck<'_> {
        ScriptCheck {
            limits: self.buckets().map(Bucket::script_limit).collect(),
            options: self.options,
        }
    }

    /// The first limit.
    pub fn limit(&self) -> Option<&'p Limit> {
        self.parts.first().map(|part| part.limit)
    }

    /// The key of the first limit's bucket, whether or not it has to be checked.
    pub fn key_of(&self, domain: &Name, keys: &Keys) -> String {
        let first = self.parts.first();
        first.map_or_else(String::new, |part| {
            keys.bucket_of(domain, part.limit, &part.values)
        })
    }

    /// The limit of the bucket at an index of [`CheckPlan::buckets`], for messages.
    pub fn limit_name(&self, bucket: usize) -> Option<&Name> {
        let with_bucket = |part: &&LimitPlan<'_>| matches!(part.what, Target::Bucket(_));
        let part = self.parts.iter().filter(with_bucket).nth(bucket)?;
        Some(&part.limit.name)
    }

    /// The answer if no bucket has to be checked.
    pub fn without_buckets(self, policy: &Compiled, now_ms: u64) -> Answer {
        let nobody = Verdict {
            allowed: true,
            limits: Vec::new(),
        };
        self.answer(policy, &nobody, now_ms)
    }

    /// The verdicts of the buckets as an answer. `verdict` has one entry per bucket.
    pub fn answer(self, policy: &Compiled, verdict: &Verdict, now_ms: u64) -> Answer {
        let refused = self.parts.iter().any(LimitPlan::refuses);
        let together: Vec<bool> = self.parts.iter().map(LimitPlan::denies_together).collect();
        let mut buckets = 0..;
        let parts = self.parts.into_iter();
        let limits = parts.map(|part| part.answer(&mut buckets, &verdict.limits));
        let mut answer = Answer {
            revision: policy.revision().clone(),
            now_ms,
            allowed: verdict.allowed && !refused,
            limits: limits.collect(),
            parts: self.counts,
        };
        if together.contains(&true) {
            service::show_who_denied(&mut answer, &together);
        }
        answer
    }
}

impl<'p> LimitPlan<'p> {
    fn new(
        policy: &'p Compiled,
        found: Match<'p, '_>,
        asked: Query<'p>,
        keys: &Keys,
        now_ms: u64,
    ) -> Self {
        let limit = found.limit;
        // Together with others, such a limit may still deny.
        let of_quota = limit.has_quota_mode();
        let (index, missing) = (found.index, found.missing);
        let mode = match found.mode() {
            _ if of_quota => Mode::Shadow,
            // A request that lacks an entry is not over the limit, but refused.
            Mode::Degrade if missing.is_some() => Mode::Enforce,
            mode => mode,
        };
        let values = found.into_values();
        let what = match policy.quota_for(index, &values, now_ms) {
            _ if missing.is_some() => Target::Missing,
            None => Target::Unlimited,
            Some(quota) => {
                let algorithm = calendar::at(&quota, now_ms);
                Target::Bucket(Bucket::new(
                    policy, limit, &values, &algorithm, asked, mode, keys,
                ))
            }
        };
        Self {
            limit,
            values,
            mode,
            what,
        }
    }

    /// Whether it denies the check together with others.
    fn denies_together(&self) -> bool {
        match &self.what {
            Target::Bucket(bucket) => bucket.mode == algorithms::check::Mode::Together,
            Target::Same(_, bucket) => bucket.mode == algorithms::check::Mode::Together,
            Target::Missing | Target::Unlimited => false,
        }
    }

    /// Whether the check is denied whatever the buckets say.
    fn refuses(&self) -> bool {
        matches!(self.what, Target::Missing) && self.mode == Mode::Enforce
    }
}

// ---- What a check asks of one limit.

/// A query to a limit.
#[derive(Clone, Copy)]
enum Query<'c> {
    /// A check, what it says about this limit, and what seals its reservations.
    Check(&'c Check, Option<&'c LimitRequest>, Option<&'c Seal>),
    /// Whether so many requests would pass.
    Peek(u64),
    /// A check of one descriptor of Envoy's rate limit service.
    ServiceDescriptor(&'c ServicePart, Option<OwnUnits>, Option<SlotId>),
}

impl<'c> Query<'c> {
    fn entry(self) -> Option<&'c LimitRequest> {
        match self {
            Self::Check(_, entry, _) => entry,
            Self::Peek(_) | Self::ServiceDescriptor(..) => None,
        }
    }

    /// The number of requests; 0 at a limit that the check skips.
    fn cost(self, kind: Kind) -> u64 {
        match self {
            Self::Check(_, Some(LimitRequest { skip: true, .. }), _) => 0,
            Self::Check(check, ..) => check.cost,
            Self::Peek(cost) => cost,
            Self::ServiceDescriptor(part, own, _) => units(part, own, kind).0,
        }
    }

    /// The units to charge: those that the check names for this limit, or the limit's cost for each
    /// request. A reservation is at most what its limit gives to one request.
    fn units(self, limit: &Limit, algorithm: &Algorithm) -> u64 {
        let (requests, capacity) = (self.cost(algorithm.kind()), algorithm.limit());
        let Self::Check(check, entry, _) = self else {
            return match limit.response_price() {
                None => requests.saturating_mul(limit.cost),
                Some(_) => requests,
            };
        };
        let own = entry.filter(|entry| !entry.skip).and_then(|e| e.cost);
        match (own, limit.response_price()) {
            (Some(own), Some(price)) if own.reserve => price.reserve.capped(own.units, capacity),
            (Some(own), _) => own.units,
            (None, _) => requests.saturating_mul(limit.units_of(&check.descriptor, capacity)),
        }
    }

    /// Units admitted earlier, and the calendar window that they were admitted in.
    fn debit(self, limit: &Limit, kind: Kind) -> (u64, Option<u64>) {
        match self {
            // A slot that was given elsewhere is held elsewhere.
            Self::Check(..) if kind == Kind::Concurrency => (0, None),
            Self::Check(..) => { self.entry().and_then(|entry| entry.debit) }
                .map_or((0, None), |debit| (debit.units, debit.serial)),
            Self::Peek(_) => (0, None),
            Self::ServiceDescriptor(part, own, _) => {
                let (_, units) = units(part, own, kind);
                (units.saturating_mul(limit.cost), None)
            }
        }
    }

    /// Denials that proxies decided from their caches.
    fn denied(self) -> u64 {
        self.entry().map_or(0, |entry| entry.denied)
    }

    /// The operations on slots that the limit can have. What cannot be a slot of its kind is left out:
    /// only a client that makes up names sends such operations.
    fn slots(self, reset_generation: u64, algorithm: &Algorithm) -> Vec<SlotOp> {
        let ops = self.entry().into_iter().flat_map(|entry| &entry.slots);
        let kind = algorithm.kind();
        let known = ops.filter(|op| match kind {
            Kind::Concurrency => is_known(op, reset_generation),
            _ => matches!(op.act, SlotAct::Free(_)),
        });
        let took = match self {
            Self::Check(check, ..) => check.took,
            Self::Peek(_) | Self::ServiceDescriptor(..) => None,
        };
        let pace = took.zip(algorithm.parameters().adaptive);
        let pace = pace.map(|(took, rule)| SlotAct::Answered(took.pace(&rule)));
        known
            .map(|op| SlotOp {
                act: pace.filter(|_| op.act.frees()).unwrap_or(op.act),
                ..*op
            })
            .collect()
    }

    /// The limit's algorithm, or one with a shorter maximum delay.
    fn algorithm(self, algorithm: &Algorithm) -> Algorithm {
        let (id, max_delay_ms) = match self {
            Self::Check(check, ..) => (check.slot, check.max_delay_ms),
            Self::Peek(_) => (None, None),
            // That service cannot hold a request.
            Self::ServiceDescriptor(_, _, id) => (id, Some(0)),
        };
        let algorithm = id.map_or(*algorithm, |id| algorithm.for_request(id));
        max_delay_ms.map_or(algorithm, |ms| algorithm.within_delay(ms))
    }

    /// What the check wants of leases and settles. `None` if that is nothing: then the bucket's plain
    /// form is enough, because its state shows what is outstanding.
    fn lease(self, limit: &Limit, algorithm: &Algorithm) -> Option<LeaseRequest<'c>> {
        // With an override, a bucket may fill too fast for the limit's ttl: it is not leased.
        let longest = algorithm.lease_max_ms().unwrap_or(0);
        let ttl_ms = limit.lease_ttl_ms.filter(|ttl_ms| *ttl_ms <= longest);
        let ttl_ms = ttl_ms.unwrap_or(0);
        match self {
            Self::Check(check, entry, _) => {
                let lease = entry?.lease.as_ref()?;
                let wants = lease.want > 0 && ttl_ms > 0;
                (wants || !lease.settle.is_empty()).then_some(LeaseRequest {
                    ttl_ms,
                    want: lease.want,
                    proxy: check.proxy,
                    settle: &lease.settle,
                })
            }
            // The reply to a peek includes outstanding units.
            Self::Peek(_) => Some(LeaseRequest {
                ttl_ms,
                ..LeaseRequest::default()
            }),
            Self::ServiceDescriptor(..) => None,
        }
    }
}

/// Whether a slot can be one of a request in flight at a limit. It is not entered again if its bucket was
/// reset since it was given; after an edit it is, because its request still runs.
fn is_known(op: &SlotOp, reset_generation: u64) -> bool {
    let old = op.act == SlotAct::Enter && op.slot.turn < reset_generation;
    InFlightSlot::from(op.slot).is_valid() && !old
}

/// A descriptor's cost at one limit, and its units that are charged whatever is left.
fn units(part: &ServicePart, own: Option<OwnUnits>, kind: Kind) -> (u64, u64) {
    match own {
        // A slot is either given or not: there is no charge beyond the limit.
        Some(OwnUnits::Charge(units)) if kind == Kind::Concurrency => (units, 0),
        Some(OwnUnits::Charge(units) | OwnUnits::Refund(units)) => (0, units),
        // A fixed window counts beyond its limit, so a cost of 0 shows whether it did; the others
        // have nothing left then, not even 1.
        Some(OwnUnits::Look) => (u64::from(kind != Kind::FixedWindow), 0),
        Some(OwnUnits::Fitting) | None => (part.cost, 0),
    }
}

// ---- A bucket of a check, with its numbers.

/// A bucket that a check touches: what its [`Part`] borrows, and its keys.
#[derive(Debug)]
pub struct Bucket<'p> {
    /// Its key.
    pub key: String,
    /// The limit's numbers, or those of the bucket's override.
    pub algorithm: Algorithm,
    /// The generation they belong to.
    pub generation: u64,
    cost: u64,
    debit: u64,
    debit_serial: Option<u64>,
    /// What the check wants of leases, and settles.
    pub lease: Option<LeaseRequest<'p>>,
    costs: Option<Box<BucketCosts>>,
    /// The key of its denials, and when it is penalized.
    penalty: Option<Box<(String, PenaltyRequest<'p>)>>,
    free: Vec<SlotOp>,
    mode: algorithms::check::Mode,
}

impl<'p> Bucket<'p> {
    fn new(
        policy: &Compiled,
        limit: &Limit,
        values: &[Option<Vec<u8>>],
        algorithm: &Algorithm,
        asked: Query<'p>,
        mode: Mode,
        keys: &Keys,
    ) -> Self {
        let owing = algorithm.owing_beyond();
        let algorithm = if limit.settles() { &owing } else { algorithm };
        let kind = algorithm.kind();
        let (debit, debit_serial) = asked.debit(limit, kind);
        let key = keys.bucket_of(policy.domain(), limit, values);
        let costs = limit.response_price().map(|price| {
            let key = keys.reservations_of(&key);
            Box::new(BucketCosts::new(key, price, asked))
        });
        let penalty = limit.penalty.map(|penalty| {
            let request = PenaltyRequest {
                penalty,
                stored: None,
                reported: asked.denied(),
                counts: asked.cost(kind) > 0,
            };
            Box::new((keys.denials_of(&key), request))
        });
        Self {
            key,
            costs,
            penalty,
            algorithm: asked.algorithm(algorithm),
            generation: limit.generation_of(values),
            cost: match kind {
                Kind::Concurrency => asked.cost(kind).min(1),
                _ => asked.units(limit, algorithm),
            },
            debit,
            debit_serial,
            lease: asked.lease(limit, algorithm),
            free: asked.slots(limit.reset_generation_of(values), algorithm),
            mode: match mode {
                // `CheckPlan::of_service` changes it where limits deny together.
                Mode::Enforce => algorithms::check::Mode::Enforce,
                Mode::Shadow | Mode::Degrade => algorithms::check::Mode::Observe,
            },
        }
    }

    /// The bucket's part in the check, with what is stored of it.
    pub fn part<'a>(
        &'a self,
        stored: Option<&'a Stored>,
        denials: Option<&'a Denials>,
    ) -> Part<'a> {
        Part {
            algorithm: &self.algorithm,
            generation: self.generation,
            stored,
            cost: self.cost,
            debit: self.debit,
            debit_serial: self.debit_serial,
            lease: self.lease,
            free: &self.free,
            costs: self.costs.as_deref().map(BucketCosts::request),
            penalty: self.penalty.as_deref().map(|(_, penalty)| PenaltyRequest {
                stored: denials,
                ..*penalty
            }),
            mode: self.mode,
        }
    }

    /// The bucket as a script takes it.
    pub fn script_limit(&self) -> ScriptLimit<'_> {
        ScriptLimit {
            key: self.key.as_bytes(),
            reservations: self.reservations().map(str::as_bytes),
            denials: self.denials().map(str::as_bytes),
            part: self.part(None, None),
        }
    }

    /// The key of its reservations, if its limit's responses state their cost.
    pub fn reservations(&self) -> Option<&str> {
        self.costs.as_deref().map(|costs| costs.key.as_str())
    }

    /// When its limit penalizes it.
    pub fn penalty(&self) -> Option<Penalty> {
        self.penalty.as_deref().map(|(_, request)| request.penalty)
    }

    /// The key of its denials, if its limit has a penalty.
    pub fn denials(&self) -> Option<&str> {
        self.penalty.as_deref().map(|(key, _)| key.as_str())
    }
}

// ---- What a check reserves and settles at a limit whose responses state their cost.

/// Seals the names of reservations, so that nobody can make one up.
///
/// A settlement whose record is gone charges its excess all the same, or whoever makes many reservations
/// could let the records of expensive ones be replaced. Only a name with a seal proves that there was such a
/// reservation. All limiters of a store have the same key ([`crate::plan::Keys::seal`]).
#[derive(Clone)]
pub struct Seal(Arc<hmac::Key>);

impl Seal {
    /// Seals by a key that nobody can guess.
    pub fn new(key: &[u8]) -> Self {
        Self(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, key)))
    }

    /// The seal of a reservation in the bucket whose reservations have this key.
    fn of(&self, key: &str, reservation: &Reservation) -> u64 {
        let Reservation {
            secret,
            number,
            units,
            seal: _,
        } = *reservation;
        let mut text = key.as_bytes().to_vec();
        for number in [secret, number, units] {
            text.extend(number.to_le_bytes());
        }
        let tag = hmac::sign(&self.0, &text);
        let start = tag.as_ref().first_chunk().copied().unwrap_or_default();
        u64::from_le_bytes(start)
    }
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seal").finish_non_exhaustive()
    }
}

/// The reservations and settlements of one bucket.
#[derive(Debug)]
struct BucketCosts {
    /// The key of its reservations.
    key: String,
    /// `None`: the check neither reserves nor settles.
    seal: Option<Seal>,
    secret: Option<u64>,
    settle: Vec<CostSettlement>,
    count_open: bool,
}

impl BucketCosts {
    fn new(key: String, price: &ResponsePrice, asked: Query<'_>) -> Self {
        let Query::Check(check, entry, seal) = asked else {
            return Self {
                key,
                seal: None,
                secret: None,
                settle: Vec::new(),
                count_open: matches!(asked, Query::Peek(_)),
            };
        };
        let own = entry.and_then(|entry| entry.cost);
        let reserves = own.map_or(check.reserve, |cost| cost.reserve);
        let id = check.slot.filter(|_| reserves).map(SlotId::bounded);
        let settle = entry.into_iter().flat_map(|entry| &entry.settle);
        let settle = settle.map(|settled| {
            let mut settled = *settled;
            settled.units = price.cut(settled.units);
            let reservation = &mut settled.reservation;
            if seal.is_none_or(|seal| seal.of(&key, reservation) != reservation.seal) {
                // Without its record, a reservation that was made up has no excess.
                reservation.units = settled.units;
            }
            settled
        });
        let settle = settle.collect();
        Self {
            key,
            seal: seal.cloned(),
            secret: id.map(|id| id.secret),
            settle,
            count_open: false,
        }
    }

    fn request(&self) -> ReserveRequest<'_> {
        ReserveRequest {
            secret: self.secret,
            settle: &self.settle,
            count_open: self.count_open,
            ..ReserveRequest::default()
        }
    }

    /// The name of a reservation that was made.
    fn reservation(&self, number: u64, units: u64) -> Option<Reservation> {
        let reservation = Reservation {
            secret: self.secret.filter(|_| number > 0)?,
            number,
            units,
            seal: 0,
        };
        let seal = self.seal.as_ref();
        Some(Reservation {
            seal: seal.map_or(0, |seal| seal.of(&self.key, &reservation)),
            ..reservation
        })
    }
}

// ---- The verdict on one limit as its part of an answer.

impl LimitPlan<'_> {
    /// `buckets` counts the buckets of the parts before.
    fn answer(self, buckets: &mut RangeFrom<usize>, verdicts: &[LimitVerdict]) -> LimitAnswer {
        let mut answer = LimitAnswer {
            generation: self.limit.generation_of(&self.values),
            bucket: self.limit.per.iter().cloned().zip(self.values).collect(),
            mode: self.mode,
            hidden: self.limit.hidden,
            ..LimitAnswer::new(self.limit.name.clone())
        };
        match self.what {
            Target::Unlimited => {}
            Target::Missing => {
                answer.verdict.decision.allowed = false;
                answer.verdict.decision.retry_after = RetryAfter::Never;
                answer.limit = Some(0);
            }
            Target::Bucket(bucket) => {
                let verdict = buckets.next().and_then(|at| verdicts.get(at));
                fill(&mut answer, &bucket.algorithm, verdict);
                let (number, units) = (answer.verdict.reserved.number, answer.verdict.charged);
                let costs = bucket.costs.as_deref();
                answer.reservation = costs.and_then(|c| c.reservation(number, units));
                if bucket.algorithm.kind() == Kind::Concurrency {
                    complete(&mut answer);
                }
            }
            Target::Same(at, bucket) => fill(&mut answer, &bucket.algorithm, verdicts.get(at)),
        }
        answer
    }
}

/// The longest `retry_after` of a limit on requests in flight: a request may end at any moment.
const RETRY_MAX_MS: u64 = 1000;

/// Adds to the answer of a limit on requests in flight what its bucket cannot supply.
fn complete(answer: &mut LimitAnswer) {
    let verdict = &mut answer.verdict;
    if let RetryAfter::Millis(ms) = &mut verdict.decision.retry_after {
        *ms = (*ms).min(RETRY_MAX_MS);
    }
    if let Some(slot) = verdict.slot.as_mut().filter(|_| verdict.charged > 0) {
        slot.turn = answer.generation;
    }
}

fn fill(answer: &mut LimitAnswer, algorithm: &Algorithm, verdict: Option<&LimitVerdict>) {
    answer.limit = Some(algorithm.limit());
    answer.window_ms = algorithm.window_ms();
    if let Some(verdict) = verdict {
        answer.verdict = verdict.clone();
    }
    if let Some(limit_milli) = answer.verdict.limit_milli {
        answer.limit = Some(limit_milli / 1000);
    }
}
