//! The calling conventions of `lua/check.lua` and `lua/refund.lua`: source, arguments, reply; and
//! which calls decide a check whose buckets are in several slots of a Cluster.
//!
//! They use only bytes and integers, so that any Redis client, or a Lua interpreter in a test, can
//! make the calls.

mod cross_slot;
mod refund;

use algorithms::{
    AdaptiveState, Algorithm, Debits, Decision, Kind, Lease, LeaseRequest, LimitVerdict,
    PROXY_MARKS, Pace, PenaltyStatus, ReserveRequest, Reserved, RetryAfter, Slot, SlotAct,
    check::{Mode, Options, Part, PenaltyRequest, Verdict},
};

pub use cross_slot::{CrossSlotCheck, Decided, SlotCheck};
pub use refund::{
    Charge, Credit, Credited, Refunded, decode_credited, decode_refunds, encode_credit,
    encode_refunds,
};

// ---- What the check script decides: one request, against limits.

/// A bucket that a check touches: the part of its limit, and its keys, which are in one slot.
#[derive(Clone, Debug)]
pub struct Bucket<'a> {
    /// Its key.
    pub key: String,
    /// The key of its reservations, where the part has costs.
    pub reservations: Option<String>,
    /// The key of its denials, where the part has a penalty.
    pub denials: Option<String>,
    /// Its numbers.
    pub part: Part<'a>,
}

impl<'a> Bucket<'a> {
    /// That of a limit without costs and penalty.
    pub fn new(key: impl Into<String>, part: Part<'a>) -> Self {
        Self {
            key: key.into(),
            reservations: None,
            denials: None,
            part,
        }
    }

    /// All its keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let beside = [&self.reservations, &self.denials].into_iter().flatten();
        std::iter::once(&self.key).chain(beside).map(String::as_str)
    }
}

/// One request against several limits, all or nothing. The keys are distinct.
#[derive(Clone, Debug)]
pub struct ScriptCheck<'a> {
    /// In the order of the answer.
    pub limits: Vec<Bucket<'a>>,
    /// Peek and force.
    pub options: Options,
}

// ---- One call of a script: KEYS, and ARGV in numbers that Lua holds exactly.

/// Which clock decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The server's, read once per call. The only one for production.
    #[default]
    Server,
    /// A test's or a simulation's, in milliseconds; keys then live for a day.
    Injected(u64),
}

impl Clock {
    /// ARGV 1.
    fn argument(self) -> i64 {
        match self {
            Self::Server => -1,
            Self::Injected(ms) => exact(ms),
        }
    }
}

/// The arguments of one EVALSHA of `check.lua` or `refund.lua`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptCall<'a> {
    /// KEYS.
    pub keys: Vec<&'a [u8]>,
    /// ARGV; that of `CHECK` is [`Self::packed`].
    pub args: Vec<i64>,
}

impl ScriptCall<'_> {
    /// All numbers as one argument.
    pub fn packed(&self) -> Vec<u8> {
        pack(&self.args)
    }
}

/// Larger than any limit, and still exact in Lua.
const COST_MAX: u64 = 1 << 52;

/// No bucket has an epoch of this name, nor a slot that starts then: they are times.
const EPOCH_MAX: u64 = (1 << 53) - 1;

/// For a calendar window: the label of the window in which the debit was admitted, and the ends of
/// the known windows.
fn encode_edges(args: &mut Vec<i64>, algorithm: &Algorithm, debit_serial: Option<u64>) {
    if let Some(edges) = algorithm.edges() {
        args.push(exact(debit_serial.unwrap_or(0)));
        args.extend(edges.starts_ms().into_iter().skip(1).map(time));
    }
}

/// Added to the kind of an adaptive limit.
const ADAPTIVE: i64 = 1024;

/// The kind of a limit, and whether it is adaptive.
fn encode_kind(algorithm: &Algorithm) -> i64 {
    let adaptive = algorithm.parameters().adaptive.map_or(0, |_| ADAPTIVE);
    i64::from(algorithm.numbers().kind) + adaptive
}

/// A limit's own numbers.
fn encode_numbers(algorithm: &Algorithm) -> [i64; 4] {
    let numbers = algorithm.numbers();
    [numbers.limit, numbers.x, numbers.y, numbers.z].map(exact)
}

/// The numbers that only some limits have: see `lua/lib/parameters.lua`.
fn encode_own(args: &mut Vec<i64>, algorithm: &Algorithm, debit_serial: Option<u64>) {
    let parameters = algorithm.parameters();
    if let Some(rule) = &parameters.adaptive {
        let numbers = [parameters.rate.units, rule.min, rule.latency_ms, rule.share];
        args.extend(numbers.map(exact));
    }
    encode_edges(args, algorithm, debit_serial);
}

/// The four numbers that name a slot.
fn named(slot: &Slot) -> [i64; 4] {
    [
        time(slot.start_ms),
        exact(slot.parts),
        time(slot.since_ms),
        exact(slot.turn),
    ]
}

/// A time of a bucket's clock, which may be ahead of ours.
fn time(ms: u64) -> i64 {
    i64::try_from(ms.min(EPOCH_MAX)).unwrap_or(i64::MAX)
}

/// A number that Lua holds exactly.
fn exact(number: u64) -> i64 {
    i64::try_from(number.min(COST_MAX)).unwrap_or(i64::MAX)
}

fn integer(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

// ---- Checks as KEYS and ARGV.

/// How many of the latest forms a check is compared with: the checks of a batch usually have few
/// forms, and if they have many, comparing with more would cost more than it saves.
const FORMS_COMPARED: usize = 8;

/// Lays out a batch of checks, to be decided in this order. A form that several checks have is
/// encoded once.
pub fn encode<'a>(checks: &[&'a ScriptCheck<'_>], clock: Clock) -> ScriptCall<'a> {
    let limits = checks.iter().map(|check| check.limits.len()).sum();
    let mut keys = Vec::with_capacity(limits);
    let mut args = Vec::with_capacity(32 + checks.len());
    args.extend([clock.argument(), 0]);
    let mut forms = Vec::new();
    let mut asked = Vec::with_capacity(checks.len());
    for check in checks {
        keys.extend(check.limits.iter().map(|limit| limit.key.as_bytes()));
        for limit in &check.limits {
            let reservations = limit.part.costs.as_ref().and(limit.reservations.as_ref());
            let denials = limit.part.penalty.as_ref().and(limit.denials.as_ref());
            keys.extend(
                reservations
                    .into_iter()
                    .chain(denials)
                    .map(String::as_bytes),
            );
        }
        let start = args.len();
        encode_form(&mut args, check);
        asked.push(number_of_last(&mut forms, &mut args, start));
    }
    if let Some(count) = args.get_mut(1) {
        *count = integer(forms.len());
    }
    args.extend(asked);
    ScriptCall { keys, args }
}

/// The number, from 1, of the form at the end of `args`, from `start` on; cuts it off if it is
/// there already. `forms` has the starts of all forms.
fn number_of_last(forms: &mut Vec<usize>, args: &mut Vec<i64>, start: usize) -> i64 {
    let form = args.get(start..);
    let ends = forms.iter().skip(1).copied().chain([start]);
    let known = forms.iter().copied().zip(ends).enumerate();
    let mut latest = known.skip(forms.len().saturating_sub(FORMS_COMPARED));
    if let Some((index, _)) = latest.find(|(_, (from, to))| args.get(*from..*to) == form) {
        args.truncate(start);
        return integer(index + 1);
    }
    forms.push(start);
    integer(forms.len())
}

// ---- The numbers of one check, without its keys.

const PEEK: i64 = 1;
const FORCE: i64 = 2;
const REPORTED: i64 = 4;
const GIVEN_BACK: i64 = 8;
const DENIED_ANYWAY: i64 = 16;
/// For each millisecond that the caller waits for permits.
const PATIENCE: i64 = 32;
/// Longer than any wait, and exact in Lua with the other flags.
const PATIENCE_MAX_MS: u64 = 1 << 40;
const OBSERVED: i64 = 16;
const LEASED: i64 = 32;
const FREEING: i64 = 64;
const PRICED: i64 = 128;
const PENALIZING: i64 = 256;
const TOGETHER: i64 = 512;

/// In the place of a reservation's secret: make none, and add up those that are open.
const COUNT_OPEN: i64 = -2;

/// Appends the form of a check: everything but its keys.
fn encode_form(args: &mut Vec<i64>, check: &ScriptCheck<'_>) {
    args.extend([flags(check), integer(check.limits.len())]);
    for Bucket { part, .. } in &check.limits {
        let observed = match part.mode {
            Mode::Enforce => 0,
            Mode::Observe => OBSERVED,
            Mode::Together => OBSERVED + TOGETHER,
        };
        let leased = part.lease.as_ref().map_or(0, |_| LEASED);
        let freeing = if part.free.is_empty() { 0 } else { FREEING };
        let priced = part.costs.as_ref().map_or(0, |_| PRICED);
        let penalizing = part.penalty.as_ref().map_or(0, |_| PENALIZING);
        args.extend([
            encode_kind(&part.algorithm) + observed + leased + freeing + priced + penalizing,
            exact(part.generation),
            exact(part.cost),
            exact(part.debit),
        ]);
        args.extend(encode_numbers(&part.algorithm));
        if let Some(lease) = &part.lease {
            encode_lease(args, lease);
        }
        if !part.free.is_empty() {
            args.push(integer(part.free.len()));
            for op in &part.free {
                args.extend(named(&op.slot));
                args.push(act(op.act, part.algorithm.kind()));
            }
        }
        if let Some(costs) = &part.costs {
            encode_costs(args, costs);
        }
        if let Some(PenaltyRequest {
            penalty,
            reported,
            counts,
        }) = &part.penalty
        {
            let reported = exact(*reported);
            args.extend([
                exact(penalty.after),
                exact(penalty.within_ms),
                exact(penalty.for_ms),
                exact(penalty.grow),
                exact(penalty.longest_ms()),
                if *counts { reported } else { -1 - reported },
            ]);
        }
        encode_own(args, &part.algorithm, part.debit_serial);
    }
}

/// The number behind the name of a slot: what its request was charged, or for a request in flight one of
/// the operations of `lua/lib/concurrency.lua`.
fn act(act: SlotAct, kind: Kind) -> i64 {
    match (act, kind) {
        (SlotAct::Free(_), Kind::Concurrency) => 1,
        (SlotAct::Renew, Kind::Concurrency) => 2,
        (SlotAct::Enter, Kind::Concurrency) => 3,
        (SlotAct::Answered(Pace::InTime), Kind::Concurrency) => 4,
        (SlotAct::Answered(Pace::Late), Kind::Concurrency) => 5,
        (SlotAct::Answered(Pace::Slow), Kind::Concurrency) => 6,
        (SlotAct::Free(units), _) => exact(units),
        // A slot of no units, which frees nothing.
        (SlotAct::Renew | SlotAct::Enter | SlotAct::Answered(_), _) => 0,
    }
}

fn flags(check: &ScriptCheck<'_>) -> i64 {
    let peek = if check.options.peek { PEEK } else { 0 };
    let force = if check.options.force { FORCE } else { 0 };
    let debits = match check.options.debits {
        Debits::Admitted => 0,
        Debits::Reported => REPORTED,
        Debits::Refunded => GIVEN_BACK,
    };
    let denied = if check.options.denied {
        DENIED_ANYWAY
    } else {
        0
    };
    // It only matters to penalties, and checks without flags are cheaper.
    let patience = if check
        .limits
        .iter()
        .any(|limit| limit.part.penalty.is_some())
    {
        PATIENCE * exact(check.options.patience_ms.min(PATIENCE_MAX_MS))
    } else {
        0
    };
    peek + force + debits + denied + patience
}

fn encode_costs(args: &mut Vec<i64>, costs: &ReserveRequest) {
    let unreserved = if costs.count_open { COUNT_OPEN } else { -1 };
    let secret = costs.secret.map_or(unreserved, exact);
    args.extend([secret, integer(costs.settle.len())]);
    for settlement in &costs.settle {
        args.extend([
            exact(settlement.reservation.number),
            exact(settlement.reservation.secret),
            exact(settlement.reservation.units),
            exact(settlement.units),
        ]);
    }
}

fn encode_lease(args: &mut Vec<i64>, lease: &LeaseRequest<'_>) {
    args.extend([
        exact(lease.ttl_ms),
        exact(lease.want),
        i64::from(lease.proxy % PROXY_MARKS),
        integer(lease.settle.len()),
    ]);
    for settlement in lease.settle {
        args.extend([
            time(settlement.epoch),
            exact(settlement.spent),
            exact(settlement.returned),
        ]);
    }
}

// ---- Numbers as `lua/check.lua` receives and returns them: one string of Lua's own numbers.
//
// Redis makes a string of each argument and examines each item of a reply; in a check of one limit, that was
// a third of the work. Every number is an integer below 2^53, so a double holds it exactly.

/// Eight bytes per number, little-endian, whatever the server's byte order.
fn pack(numbers: &[i64]) -> Vec<u8> {
    #[expect(
        clippy::cast_precision_loss,
        reason = "exact: what is encoded is below 2^53"
    )]
    let bytes = |number: &i64| (*number as f64).to_le_bytes();
    numbers.iter().flat_map(bytes).collect()
}

/// The numbers of a reply.
///
/// # Errors
/// [`MalformedReply`] where it does not consist of integers.
pub fn unpack(bytes: &[u8]) -> Result<Vec<i64>, MalformedReply> {
    let (numbers, []) = bytes.as_chunks() else {
        return Err(MalformedReply);
    };
    numbers.iter().map(|number| unpack_one(*number)).collect()
}

fn unpack_one(bytes: [u8; 8]) -> Result<i64, MalformedReply> {
    let number = f64::from_le_bytes(bytes);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "what it cuts off is seen by packing the integer again"
    )]
    let integer = number as i64;
    if pack(&[integer]) == bytes && integer.unsigned_abs() < 1 << 53 {
        Ok(integer)
    } else {
        Err(MalformedReply)
    }
}

// ---- The reply's integers as verdicts.

/// The reply to a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptReply {
    /// The time that decided, in milliseconds since the epoch.
    pub now_ms: u64,
    /// One per check, in order.
    pub results: Vec<Result<Verdict, ScriptError>>,
}

/// Why one check of a batch was not decided; it changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// The caller's limit is older than the bucket's state: reload the policy and send the check again.
    #[error("limit {limit} is older than its bucket, which has generation {generation}")]
    Stale {
        /// Which limit, as an index into the check.
        limit: usize,
        /// The generation found in the state.
        generation: u64,
    },
    /// The key holds something that is not a bucket.
    #[error("the key of limit {limit} holds something that is not a bucket")]
    Corrupt {
        /// Which limit, as an index into the check.
        limit: usize,
    },
}

/// The reply does not have the shape of the call: another script answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the script's reply does not fit the checks that were sent")]
pub struct MalformedReply;

const DENIED: i64 = 0;
const ALLOWED: i64 = 1;
const STALE: i64 = 2;
const CORRUPT: i64 = 3;
const CHARGED: i64 = 4;

/// Reads the reply, one string, to [`super::script`] of the same checks.
///
/// # Errors
/// [`MalformedReply`] where it is not one.
pub fn decode(reply: &[u8], checks: &[&ScriptCheck<'_>]) -> Result<ScriptReply, MalformedReply> {
    let mut numbers = unpack(reply)?.into_iter();
    let now_ms = unsigned(numbers.next().ok_or(MalformedReply)?)?;
    let mut results = Vec::with_capacity(checks.len());
    for check in checks {
        results.push(decode_check(&mut numbers, check)?);
    }
    match numbers.next() {
        None => Ok(ScriptReply { now_ms, results }),
        Some(_) => Err(MalformedReply),
    }
}

fn decode_check(
    numbers: &mut impl Iterator<Item = i64>,
    check: &ScriptCheck<'_>,
) -> Result<Result<Verdict, ScriptError>, MalformedReply> {
    let status = numbers.next().ok_or(MalformedReply)?;
    if status == CHARGED {
        return charged(numbers, check).map(Ok);
    }
    let mut limits = Vec::with_capacity(check.limits.len());
    let mut culprit = None;
    for (limit, asked) in check.limits.iter().enumerate() {
        match limit_verdict(numbers, &asked.part, check.options.peek)? {
            (STALE, found) => {
                let generation = found.charged;
                culprit = Some(ScriptError::Stale { limit, generation });
            }
            (CORRUPT, _) => culprit = Some(ScriptError::Corrupt { limit }),
            (_, verdict) => limits.push(verdict),
        }
    }
    match (status, culprit) {
        (DENIED | ALLOWED, None) => Ok(Ok(Verdict {
            allowed: status == ALLOWED,
            limits,
        })),
        (STALE | CORRUPT, Some(error)) => Ok(Err(error)),
        _ => Err(MalformedReply),
    }
}

/// Whether the check fits a limit, or what is wrong there, and the limit's verdict.
fn limit_verdict(
    numbers: &mut impl Iterator<Item = i64>,
    part: &Part<'_>,
    peek: bool,
) -> Result<(i64, LimitVerdict), MalformedReply> {
    let fits = numbers.next().ok_or(MalformedReply)?;
    let mut verdict = LimitVerdict {
        charged: next(numbers)?,
        decision: decision(numbers, fits == ALLOWED)?,
        ..LimitVerdict::default()
    };
    if part.lease.is_some() {
        (verdict.lease, verdict.leased) = lease(numbers)?;
    }
    if part.algorithm.gives_slots() {
        verdict.slot = slot(numbers)?;
    }
    if part.algorithm.parameters().adaptive.is_some() {
        (verdict.limit_milli, verdict.adaptive) = adaptive(numbers, peek)?;
    }
    if part.costs.is_some() {
        verdict.reserved = reserved(numbers)?;
    }
    if part.penalty.is_some() {
        verdict.penalty = penalty(numbers)?;
    }
    Ok((fits, verdict))
}

/// A check that every limit charged.
fn charged(
    numbers: &mut impl Iterator<Item = i64>,
    check: &ScriptCheck<'_>,
) -> Result<Verdict, MalformedReply> {
    let mut limits = Vec::with_capacity(check.limits.len());
    for limit in &check.limits {
        limits.push(LimitVerdict {
            decision: Decision {
                remaining: next(numbers)?,
                reset_after_ms: next(numbers)?,
                ..Decision::default()
            },
            charged: limit.part.cost,
            ..LimitVerdict::default()
        });
    }
    Ok(Verdict {
        allowed: true,
        limits,
    })
}

/// The decision of one limit, after whether the check fits it and what it was charged.
fn decision(
    numbers: &mut impl Iterator<Item = i64>,
    allowed: bool,
) -> Result<Decision, MalformedReply> {
    Ok(Decision {
        allowed,
        remaining: next(numbers)?,
        retry_after: match numbers.next().ok_or(MalformedReply)? {
            -1 => RetryAfter::Never,
            0 => RetryAfter::Now,
            ms => RetryAfter::Millis(unsigned(ms)?),
        },
        reset_after_ms: next(numbers)?,
        delay_ms: next(numbers)?,
    })
}

/// A struct whose fields are the next numbers, in this order.
macro_rules! read {
    ($numbers:ident as $type:ident { $($field:ident),+ } $($more:tt)*) => {
        $type { $($field: next($numbers)?,)+ $($more)* }
    };
}

/// What was granted, and all units leased out.
fn lease(numbers: &mut impl Iterator<Item = i64>) -> Result<(Option<Lease>, u64), MalformedReply> {
    let granted = read!(numbers as Lease { units, epoch, ttl_ms });
    Ok(((granted.units > 0).then_some(granted), next(numbers)?))
}

/// An adaptive limit, in thousandths of a slot; of a peek, with how it was found.
fn adaptive(
    numbers: &mut impl Iterator<Item = i64>,
    peek: bool,
) -> Result<(Option<u64>, Option<Box<AdaptiveState>>), MalformedReply> {
    let limit_milli = next(numbers)?;
    if !peek {
        return Ok((Some(limit_milli), None));
    }
    let state = read!(numbers as AdaptiveState {
        latency_ms, share, start_ms, answers, late, slow, most, own_late, own_slow, moved_ms,
        moved_from_milli, moved_late, moved_slow
    } limit_milli);
    let found = (state.latency_ms > 0).then(|| Box::new(state));
    Ok((Some(limit_milli), found))
}

/// What was reserved and settled.
fn reserved(numbers: &mut impl Iterator<Item = i64>) -> Result<Reserved, MalformedReply> {
    Ok(read!(numbers as Reserved { number, given_back, excess, open }))
}

/// The status of a penalty.
fn penalty(numbers: &mut impl Iterator<Item = i64>) -> Result<PenaltyStatus, MalformedReply> {
    Ok(PenaltyStatus {
        left_ms: next(numbers)?,
        denials: next(numbers)?,
        begun: next(numbers)? == 1,
        next_ms: next(numbers)?,
        anew_ms: next(numbers)?,
        unread: false,
    })
}

/// The name of a slot; all zeros mean that there is none, because `since_ms` of a name is never 0.
fn slot(numbers: &mut impl Iterator<Item = i64>) -> Result<Option<Slot>, MalformedReply> {
    let slot = read!(numbers as Slot { start_ms, parts, since_ms, turn });
    Ok((slot != Slot::default()).then_some(slot))
}

fn next(numbers: &mut impl Iterator<Item = i64>) -> Result<u64, MalformedReply> {
    unsigned(numbers.next().ok_or(MalformedReply)?)
}

fn unsigned(number: i64) -> Result<u64, MalformedReply> {
    u64::try_from(number).map_err(|_| MalformedReply)
}

// ---- What a check costs the server, so that one script call takes a bounded time.

/// Bound: what one script call may cost, in checks of a token bucket. Beyond it, further checks go
/// in further calls; a check that costs more is called alone.
///
/// About half a millisecond of the server's time.
pub const CALL_MAX: usize = 64;

/// The work of a bucket as a multiple of a token bucket's, as measured on Redis 7.0: twice what a
/// check of cost 1 takes. A check that has to read its whole window takes up to five times as long
/// as this; a call of such checks, up to two milliseconds.
pub fn weight(algorithm: &Algorithm, leased: bool) -> usize {
    let sub_windows = sub_windows(algorithm);
    match (algorithm.kind(), leased) {
        (Kind::SlidingWindowLog, _) => 8,
        (Kind::Concurrency, _) => 2,
        (Kind::SlidingWindowBuckets, false) => 2 + sub_windows / 64,
        (Kind::SlidingWindowBuckets, true) => 4 + sub_windows / 8,
        _ if algorithm.parameters().max_delay_ms.is_some() => 4,
        (_, false) if algorithm.edges().is_some() => 2,
        (_, false) => 1,
        (_, true) => 3,
    }
}

/// The work of the keys beside the bucket's, of its reservations and its denials, in the same unit.
pub fn more_keys_weight(reserves: bool, has_penalty: bool) -> usize {
    2 * (usize::from(reserves) + usize::from(has_penalty))
}

/// The work of what a check frees and settles at one limit, in the same unit. A settlement reads the whole window of
/// sub-windows once, and writes it. A free of a queue's slot goes through the turns of what was freed before: with
/// as many of those as a queue has, it takes up to five times as long as this.
pub fn settled_weight(algorithm: &Algorithm, slots: usize, settlements: usize) -> usize {
    let sub_windows = match algorithm.kind() {
        Kind::SlidingWindowBuckets if settlements > 0 => sub_windows(algorithm),
        _ => 0,
    };
    let freed = match algorithm.parameters().max_delay_ms {
        Some(_) => slots.saturating_mul(4),
        None => slots / 4,
    };
    freed + settlements / 4 + sub_windows / 4
}

fn sub_windows(algorithm: &Algorithm) -> usize {
    let sub_windows = algorithm.parameters().sub_windows.unwrap_or(1);
    usize::try_from(sub_windows).unwrap_or(usize::MAX)
}

impl ScriptCheck<'_> {
    /// The weight of all its limits, freed slots, settlements and penalties.
    pub fn weight(&self) -> usize {
        let limits = self.limits.iter();
        limits
            .map(|limit| {
                let part = &limit.part;
                let settlements = part.costs.as_ref().map_or(0, |costs| costs.settle.len());
                weight(&part.algorithm, part.lease.is_some())
                    + settled_weight(&part.algorithm, part.free.len(), settlements)
                    + more_keys_weight(part.costs.is_some(), part.penalty.is_some())
            })
            .sum()
    }
}

/// Cuts a list of checks so that no part weighs more than [`CALL_MAX`], unless it is one check. Calls are
/// pipelined, so larger ones gain little, and a call blocks the server.
pub fn in_batches<'a, 'c>(checks: &'a [&'c ScriptCheck<'c>]) -> Vec<&'a [&'c ScriptCheck<'c>]> {
    let mut batches = Vec::new();
    let mut rest = checks;
    while !rest.is_empty() {
        let mut sum = 0;
        let full = rest.iter().position(|check| {
            sum += check.weight();
            sum > CALL_MAX
        });
        let (batch, more) = rest.split_at(full.map_or(rest.len(), |over| over.max(1)));
        batches.push(batch);
        rest = more;
    }
    batches
}

#[cfg(test)]
mod tests {
    use algorithms::Parameters;

    use super::*;

    fn algorithm() -> Algorithm {
        Algorithm::new(&Parameters::new(Kind::TokenBucket, 10, 1000)).unwrap()
    }

    fn check(key: &str, cost: u64) -> ScriptCheck<'static> {
        let part = Part {
            cost,
            ..Part::new(&algorithm(), 7)
        };
        ScriptCheck {
            limits: vec![Bucket::new(key, part)],
            options: Options::default(),
        }
    }

    #[test]
    fn what_is_asked_again_is_said_once() {
        let checks = [("a", 1), ("b", 2), ("c", 1)];
        let checks = checks.map(|(key, cost)| check(key, cost));
        let call = encode(&checks.each_ref(), Clock::Server);
        assert_eq!(call.keys, [b"a", b"b", b"c"]);
        let forms = [
            [0, 1, 1, 7, 1, 0, 10, 100, 1, 0],
            [0, 1, 1, 7, 2, 0, 10, 100, 1, 0],
        ];
        assert_eq!(
            call.args,
            [&[-1, 2], &forms[0][..], &forms[1], &[1, 2, 1]].concat()
        );
    }

    #[test]
    fn forms_beyond_those_compared_are_said_again() {
        let costs = (0..=FORMS_COMPARED).chain([1, 0]);
        let checks: Vec<_> = costs.map(|cost| check("k", cost as u64)).collect();
        let call = encode(&checks.iter().collect::<Vec<_>>(), Clock::Server);
        let last = integer(FORMS_COMPARED) + 2;
        assert_eq!(call.args[1], last);
        assert!(call.args.ends_with(&[last - 1, 2, last]), "{:?}", call.args);
    }
}

#[cfg(test)]
mod packed_tests {
    use super::*;

    #[test]
    fn integers_come_back_and_nothing_else_does() {
        let edges = [0, 1, -1, 1 << 52, (1 << 53) - 1, 1 - (1 << 53)];
        assert_eq!(unpack(&pack(&edges)), Ok(edges.to_vec()));
        assert_eq!(unpack(&[]), Ok(Vec::new()));
        for other in [
            0.5,
            -0.0,
            f64::NAN,
            f64::INFINITY,
            9_007_199_254_740_992.0,
            1e300,
        ] {
            assert_eq!(unpack(&other.to_le_bytes()), Err(MalformedReply), "{other}");
        }
        assert_eq!(unpack(&[0; 9]), Err(MalformedReply));
    }
}

#[cfg(test)]
mod weight_tests {
    use algorithms::{
        CostSettlement, Parameters, Reservation, Slot, SlotAct, SlotOp, check::Options,
    };

    use super::{Bucket, *};

    fn algorithm(kind: Kind, sub_windows: Option<u64>) -> Algorithm {
        let parameters = Parameters {
            sub_windows,
            ..Parameters::new(kind, 10, 60_000)
        };
        Algorithm::new(&parameters).unwrap()
    }

    #[test]
    fn batches_keep_every_check_once_and_in_order_and_weigh_little() {
        let plain = algorithm(Kind::TokenBucket, None);
        let log = algorithm(Kind::SlidingWindowLog, None);
        let heavy = algorithm(Kind::SlidingWindowBuckets, Some(1000));
        let queue = Algorithm::new(&Parameters {
            max_delay_ms: Some(500),
            ..Parameters::new(Kind::TokenBucket, 10, 60_000)
        });
        let queue = queue.unwrap();
        let check = |limits: &[&'static str]| {
            let of = |name: &&str| match *name {
                "plain" => Bucket::new("k", Part::new(&plain, 1)),
                "log" => Bucket::new("k", Part::new(&log, 1)),
                "queue" => Bucket::new("k", Part::new(&queue, 1)),
                _ => Bucket::new("k", Part::new(&heavy, 1)),
            };
            ScriptCheck {
                limits: limits.iter().map(of).collect(),
                options: Options::default(),
            }
        };
        assert!(in_batches(&[]).is_empty());
        let sizes = |checks: &[ScriptCheck<'_>]| -> Vec<usize> {
            let checks: Vec<&ScriptCheck<'_>> = checks.iter().collect();
            let batches = in_batches(&checks);
            assert_eq!(batches.concat().len(), checks.len());
            batches.iter().map(|batch| batch.len()).collect()
        };
        assert_eq!(sizes(&vec![check(&["plain"]); 130]), [64, 64, 2]);
        assert_eq!(sizes(&vec![check(&["log", "plain"]); 10]), [7, 3]);
        assert_eq!(sizes(&vec![check(&["heavy", "heavy"]); 3]), [1, 1, 1]);
        assert_eq!(sizes(&vec![check(&["heavy"]); 7]), [3, 3, 1]);
        assert_eq!(sizes(&vec![check(&["queue"]); 20]), [16, 4]);
        let mut freeing = check(&["queue"]);
        let free = SlotOp {
            slot: Slot::default(),
            act: SlotAct::Free(1),
        };
        freeing.limits[0].part.free = vec![free; 8];
        assert_eq!(sizes(&vec![freeing; 3]), [1, 1, 1]);
        let settlement = CostSettlement {
            reservation: Reservation::default(),
            units: 1,
        };
        let costs = ReserveRequest {
            settle: vec![settlement],
            ..ReserveRequest::default()
        };
        let mut settling = check(&["heavy"]);
        settling.limits[0].part.costs = Some(costs);
        assert_eq!(sizes(&vec![settling; 3]), [1, 1, 1]);
        let mixed = [check(&["plain"; 60]), check(&["heavy"]), check(&["plain"])];
        assert_eq!(sizes(&mixed), [1, 2]);
    }
}
