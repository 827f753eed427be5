//! A check resolved against a policy: which buckets it touches, and with what numbers.

mod service;

use std::{fmt, sync::Arc};

use algorithms::{
    Algorithm, InFlightSlot, Kind, LeaseRequest, LimitVerdict, Reservation, ReserveRequest,
    RetryAfter, SlotAct, SlotId, SlotOp,
    check::{Options, Part, PenaltyRequest, Verdict},
};
use policy::{Compiled, Limit, Match, Mode, Name, ResponsePrice};
use protocol::{Answer, Check, LimitAnswer, LimitRequest, OwnUnits, ServicePart};
use ring::hmac;

use crate::plan::{
    Keys,
    script::{Bucket, ScriptCheck},
};

/// One check, ready to be decided.
#[derive(Debug)]
pub struct CheckPlan<'p> {
    /// The limits that match, in the order of the policy.
    parts: Vec<LimitPlan<'p>>,
    /// For Envoy's rate limit service: how many of the parts belong to each descriptor.
    counts: Vec<usize>,
    /// Whether its limits with `quota_mode` deny it together.
    together: bool,
    /// What seals its reservations.
    seal: Option<&'p Seal>,
    /// The buckets to check, each once, in the order of the verdict.
    pub check: ScriptCheck<'p>,
}

/// One limit's part in a check.
#[derive(Debug)]
struct LimitPlan<'p> {
    limit: &'p Limit,
    values: Vec<Option<Vec<u8>>>,
    mode: Mode,
    what: Target,
}

#[derive(Debug)]
enum Target {
    /// The bucket at this index decides.
    Bucket(usize),
    /// The bucket at this index, which other parts of the check charge as well, and this part's numbers.
    Same(usize, Box<Algorithm>),
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
        let mut buckets = Vec::new();
        let planned = |found: Match<'p, '_>| {
            let name = &found.limit.name;
            let entry = check.limit(name);
            let skips = entry.is_some_and(|entry| entry.skip && !entry.acts());
            let wanted = (check.only.is_empty() || check.only.contains(name)) && !skips;
            let query = Query::Check(check, entry, seal);
            wanted.then(|| LimitPlan::new(policy, found, query, keys, now_ms, &mut buckets))
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
        let options = Options {
            peek: check.peek,
            denied: refused,
            // A check that is refused is not repeated.
            patience_ms: if refused { 0 } else { check.patience_ms },
            force,
            ..Options::default()
        };
        Ok(Self::of(parts, buckets, options, seal))
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
        let (query, mut buckets) = (Query::Peek(cost), Vec::new());
        let parts = vec![LimitPlan::new(
            policy,
            found,
            query,
            keys,
            now_ms,
            &mut buckets,
        )];
        let options = Options {
            peek: true,
            force: true,
            ..Options::default()
        };
        Ok(Self::of(parts, buckets, options, None))
    }

    fn of(
        parts: Vec<LimitPlan<'p>>,
        limits: Vec<Bucket<'p>>,
        options: Options,
        seal: Option<&'p Seal>,
    ) -> Self {
        Self {
            parts,
            counts: Vec::new(),
            together: false,
            seal,
            check: ScriptCheck { limits, options },
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

    /// The limit of the bucket at an index of the check, for messages.
    pub fn limit_name(&self, bucket: usize) -> Option<&Name> {
        let with_bucket =
            |part: &&LimitPlan<'_>| matches!(part.what, Target::Bucket(at) if at == bucket);
        let part = self.parts.iter().find(with_bucket)?;
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
        let together = |part: &LimitPlan<'_>| self.together && part.limit.has_quota_mode();
        let together: Vec<bool> = self.parts.iter().map(together).collect();
        let parts = self.parts.into_iter();
        let limits = parts.map(|part| part.answer(&self.check.limits, &verdict.limits, self.seal));
        let mut answer = Answer {
            revision: policy.revision().clone(),
            now_ms,
            allowed: verdict.allowed && !refused,
            limits: limits.collect(),
            parts: self.counts,
        };
        if self.together {
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
        buckets: &mut Vec<Bucket<'p>>,
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
                buckets.push(asked.bucket(policy, limit, &values, &algorithm, mode, keys));
                Target::Bucket(buckets.len() - 1)
            }
        };
        Self {
            limit,
            values,
            mode,
            what,
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

impl<'c> Query<'c> {
    fn bucket(
        self,
        policy: &Compiled,
        limit: &Limit,
        values: &[Option<Vec<u8>>],
        algorithm: &Algorithm,
        mode: Mode,
        keys: &Keys,
    ) -> Bucket<'c> {
        let owing = algorithm.owing_beyond();
        let algorithm = if limit.settles() { &owing } else { algorithm };
        let kind = algorithm.kind();
        let (debit, debit_serial) = self.debit(limit, kind);
        let key = keys.bucket_of(policy.domain(), limit, values);
        let price = limit.response_price();
        let reservations = price.map(|_| keys.reservations_of(&key));
        let priced = price.zip(reservations.as_deref());
        let part = Part {
            algorithm: self.algorithm(algorithm),
            generation: limit.generation_of(values),
            cost: match kind {
                Kind::Concurrency => self.cost(kind).min(1),
                _ => self.units(limit, algorithm),
            },
            debit,
            debit_serial,
            lease: self.lease(limit, algorithm),
            free: self.slots(limit.reset_generation_of(values), algorithm),
            costs: priced.map(|(price, key)| self.costs(price, key)),
            penalty: limit.penalty.map(|penalty| PenaltyRequest {
                penalty,
                reported: self.denied(),
                counts: self.cost(kind) > 0,
            }),
            mode: match mode {
                // `CheckPlan::of_service` changes it where limits deny together.
                Mode::Enforce => algorithms::check::Mode::Enforce,
                Mode::Shadow | Mode::Degrade => algorithms::check::Mode::Observe,
            },
        };
        Bucket {
            denials: part.penalty.map(|_| keys.denials_of(&key)),
            key,
            reservations,
            part,
        }
    }

    /// What it reserves and settles in the bucket whose reservations have this key.
    fn costs(self, price: &ResponsePrice, key: &str) -> ReserveRequest {
        let Self::Check(check, entry, seal) = self else {
            return ReserveRequest {
                count_open: matches!(self, Self::Peek(_)),
                ..ReserveRequest::default()
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
            if seal.is_none_or(|seal| seal.of(key, reservation) != reservation.seal) {
                // Without its record, a reservation that was made up has no excess.
                reservation.units = settled.units;
            }
            settled
        });
        ReserveRequest {
            secret: id.map(|id| id.secret),
            settle: settle.collect(),
            count_open: false,
        }
    }
}

// ---- What makes a reservation one that a limiter gave.

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

// ---- The verdict on one limit as its part of an answer.

impl LimitPlan<'_> {
    fn answer(
        self,
        buckets: &[Bucket<'_>],
        verdicts: &[LimitVerdict],
        seal: Option<&Seal>,
    ) -> LimitAnswer {
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
            Target::Bucket(at) => {
                if let Some(bucket) = buckets.get(at) {
                    fill(&mut answer, &bucket.part.algorithm, verdicts.get(at));
                    answer.reservation = reservation(bucket, &answer.verdict, seal);
                    if bucket.part.algorithm.kind() == Kind::Concurrency {
                        complete(&mut answer);
                    }
                }
            }
            Target::Same(at, algorithm) => fill(&mut answer, &algorithm, verdicts.get(at)),
        }
        answer
    }
}

/// The name of a reservation that was made.
fn reservation(
    bucket: &Bucket<'_>,
    verdict: &LimitVerdict,
    seal: Option<&Seal>,
) -> Option<Reservation> {
    let costs = bucket.part.costs.as_ref()?;
    let number = verdict.reserved.number;
    let mut reservation = Reservation {
        secret: costs.secret.filter(|_| number > 0)?,
        number,
        units: verdict.charged,
        seal: 0,
    };
    if let Some((seal, key)) = seal.zip(bucket.reservations.as_deref()) {
        reservation.seal = seal.of(key, &reservation);
    }
    Some(reservation)
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
