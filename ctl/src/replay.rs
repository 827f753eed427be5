//! Requests of a log decided by limits, at the times at which they came; and what is counted of that.
//!
//! [`Replay`] decides by one policy, or by two beside each other; [`Replay::report`] says by limit what they
//! denied, whom, and when. The decisions are [`Engine`]'s, so they are a limiter's.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, BuildHasherDefault, Hash as _, Hasher, RandomState};

use access_log::{Request, Service};
use algorithms::{Adaptive, Pace};
use policy::{Limit, Mode, Name, Node, Pause, Policy, Pricing, ResponsePrice, value_to_node};
use protocol::{Check, LimitAnswer, LimitCost, LimitRequest, Outcome};
use serde::Serialize;
use store::{CheckError, Decision, Engine};

/// Bound: buckets that a replay has in use at once. Beyond it, the replay ends with an error.
const BUCKETS_MAX: usize = 1 << 26;

/// Buckets that lose most, of which names are kept.
const NAMED_MAX: usize = 100;

/// One policy, the buckets of its limits, and what it decided so far.
#[derive(Debug)]
pub struct Side {
    engine: Engine,
    /// By position of the limit.
    limits: Vec<LimitResult>,
    totals: Totals,
    hasher: RandomState,
    /// Hashes of the buckets that requests had.
    seen: HashSet<u64, BuildHasherDefault<OfHash>>,
    over: Losses,
    /// Limits whose requests cost what the log says, each with the number of a place in the log. Those of one limit
    /// are in the order of its `from`.
    costs: Vec<(Name, usize)>,
}

/// Has limits judge a log as they are written, whatever is in force when: pauses are left out, and so are overrides
/// that ended; others never end. A pause says only when it ends, so all of a log from before that would be paused.
/// Returns the limits that are paused at the time, in milliseconds since the epoch; `None` stands for all of them.
pub fn as_written(policy: &mut Policy, now_ms: u64) -> Vec<Option<Name>> {
    let holds = |pause: Option<Pause>| pause.is_some_and(|pause| pause.holds(now_ms));
    let mut paused = Vec::new();
    if holds(policy.paused.take()) {
        paused.push(None);
    }
    for limit in &mut policy.limits {
        if holds(limit.paused.take()) {
            paused.push(Some(limit.name.clone()));
        }
        let in_force = |until_ms: Option<u64>| until_ms.is_none_or(|until_ms| now_ms < until_ms);
        limit.overrides.retain(|one| in_force(one.until_ms));
        for one in &mut limit.overrides {
            one.until_ms = None;
        }
    }
    paused
}

/// What a policy decided, of all its limits together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Requests.
    pub requests: u64,
    /// Requests that it denied.
    pub denied: u64,
    /// Requests that went on, and were over a limit that degrades.
    pub degraded: u64,
    /// Requests that went on, and were over a limit that only reports.
    pub reported: u64,
    /// Requests that a queue held.
    pub held: u64,
    /// Requests that an exemption exempts.
    pub exempt: u64,
}

/// A bucket, named by its limit and its values.
type Bucket = (Name, Vec<(Name, Option<Vec<u8>>)>);

/// How many requests buckets lost. Counts are exact; only of those with the most the names are kept.
#[derive(Debug, Default)]
struct Losses {
    counts: HashMap<u64, u64, BuildHasherDefault<OfHash>>,
    named: HashMap<u64, Bucket, BuildHasherDefault<OfHash>>,
    /// A bucket with no more than this is not among those that are named.
    floor: u64,
}

impl Losses {
    /// Counts a request; `true`: it is the bucket's first.
    fn add(&mut self, hash: u64, limit: &LimitAnswer) -> bool {
        let count = self.counts.entry(hash).or_insert(0);
        *count += 1;
        let first = *count == 1;
        if *count > self.floor && !self.named.contains_key(&hash) {
            let bucket = (limit.name.clone(), limit.bucket.clone());
            self.named.insert(hash, bucket);
            if self.named.len() > 2 * NAMED_MAX {
                self.forget();
            }
        }
        first
    }

    /// Keeps the names of those with the most only: any other has to pass the least of them first. Among
    /// equals the hash decides, so that as many are kept as are shown.
    fn forget(&mut self) {
        let all = &self.counts;
        let rank = |hash: &u64| (all.get(hash).copied().unwrap_or(0), *hash);
        let mut ranks: Vec<(u64, u64)> = self.named.keys().map(rank).collect();
        ranks.sort_unstable_by(|a, b| b.cmp(a));
        if let Some(least) = ranks.get(NAMED_MAX - 1) {
            self.floor = least.0;
            self.named.retain(|hash, _| rank(hash) >= *least);
        }
    }

    fn most(&self) -> Vec<(&Bucket, u64)> {
        let named = self.named.iter();
        let mut most: Vec<(&Bucket, u64)> = named
            .filter_map(|(hash, bucket)| Some((bucket, *self.counts.get(hash)?)))
            .collect();
        most.sort_unstable_by(|(a, most), (b, more)| more.cmp(most).then(a.cmp(b)));
        most.truncate(NAMED_MAX);
        most
    }
}

impl Side {
    /// Limits without usage. `costs` are the limits whose requests cost what the log says, in the order of
    /// its places.
    pub fn new(policy: Policy, costs: &[Name]) -> Self {
        let engine = Engine::new(policy, BUCKETS_MAX);
        let limits = engine.policy().limits().iter();
        let limits = limits.map(|limit| LimitResult {
            name: limit.name.to_string(),
            action: action(limit),
            ..LimitResult::default()
        });
        Self {
            limits: limits.collect(),
            engine,
            totals: Totals::default(),
            hasher: RandomState::new(),
            seen: HashSet::default(),
            over: Losses::default(),
            costs: costs.iter().cloned().zip(0..).collect(),
        }
    }

    /// Decides a request, and counts it.
    ///
    /// # Errors
    /// As [`Engine::decide`].
    pub async fn decide(&mut self, request: &mut Request) -> Result<Decision, CheckError> {
        // Lent, not copied: that would be a twentieth of the time.
        let descriptor = std::mem::take(&mut request.descriptor);
        let mut check = self.engine.request(descriptor);
        self.price(&mut check, request);
        let decided = self.decide_check(&check, request).await;
        request.descriptor = check.descriptor;
        decided
    }

    async fn decide_check(
        &mut self,
        check: &Check,
        request: &Request,
    ) -> Result<Decision, CheckError> {
        let decision = self.engine.decide(request.at_ms, check).await?;
        self.count(request, &decision);
        if decision.answer.allowed && decision.holds() {
            let used = self.used(&decision, request);
            let limits = decision.answer.limits.iter();
            let delay_ms = limits.map(|limit| limit.verdict.decision.delay_ms);
            let delay_ms = delay_ms.max().unwrap_or(0);
            let start_ms = request.at_ms.saturating_add(delay_ms);
            let took = (start_ms, request.took_ms);
            let (check, ended) = (check.clone(), decision.clone());
            let pace = |rule: &Adaptive| pace(rule, request);
            self.engine.end_paced(took, check, ended, used, pace);
        }
        Ok(decision)
    }

    /// Sets the cost of a request at limits that read it from the request.
    fn price(&self, check: &mut Check, request: &Request) {
        for (name, _) in &self.costs {
            let policy = self.engine.policy();
            let pricing = policy
                .named(name)
                .and_then(|limit| limit.pricing.as_deref());
            let Some(Pricing::Request(price)) = pricing else {
                continue;
            };
            let Some((nth, units)) = said(&self.costs, name, request) else {
                continue;
            };
            let bounds = price.from.get(nth);
            let units = bounds.map_or(units, |from| units.min(from.max).max(from.min));
            LimitRequest::change(&mut check.limits, name, |entry| {
                entry.cost = Some(LimitCost {
                    units,
                    reserve: false,
                });
            });
        }
    }

    /// What the response cost at each limit that reserved units for it.
    fn used(&self, decision: &Decision, request: &Request) -> Vec<(Name, u64)> {
        let policy = self.engine.policy();
        let of = |answer: &LimitAnswer| {
            answer.reservation?;
            let limit = policy.named(&answer.name)?;
            let price = limit.response_price()?;
            let said = said(&self.costs, &answer.name, request).map(|(_, units)| units);
            Some((
                answer.name.clone(),
                response_cost(price, answer, request, said),
            ))
        };
        decision.answer.limits.iter().filter_map(of).collect()
    }

    fn count(&mut self, request: &Request, decision: &Decision) {
        let totals = &mut self.totals;
        totals.requests += 1;
        totals.exempt += u64::from(decision.exempt.is_some());
        totals.denied += u64::from(!decision.answer.allowed);
        let (mut degraded, mut reported, mut held) = (false, false, false);
        for answer in &decision.answer.limits {
            let Some(at) = self.engine.policy().position(answer.name.as_str()) else {
                continue;
            };
            let Some(tally) = self.limits.get_mut(at) else {
                continue;
            };
            let hash = bucket_hash(&self.hasher, at, answer);
            let limit = self.engine.policy().limit(at);
            if limit.is_some_and(|limit| needs_number(limit, answer, request)) {
                let said = said(&self.costs, &answer.name, request).is_some();
                tally.priced += u64::from(said);
                tally.unpriced += u64::from(!said);
            }
            tally.requests += 1;
            tally.buckets += u64::from(self.seen.insert(hash));
            let own = &answer.verdict.decision;
            held |= own.allowed && own.delay_ms > 0;
            if !own.allowed {
                tally.over += 1;
                tally.first_ms.get_or_insert(request.at_ms);
                tally.buckets_over += u64::from(self.over.add(hash, answer));
                degraded |= answer.mode == Mode::Degrade;
                reported |= answer.mode == Mode::Shadow;
            }
        }
        if decision.answer.allowed {
            totals.degraded += u64::from(degraded);
            totals.reported += u64::from(reported);
            totals.held += u64::from(held);
        }
    }
}

/// A hash of a bucket. It depends on a secret, so that no log can have many alike.
fn bucket_hash(hasher: &RandomState, limit: usize, answer: &LimitAnswer) -> u64 {
    let mut hasher = hasher.build_hasher();
    limit.hash(&mut hasher);
    for (_, value) in &answer.bucket {
        value.hash(&mut hasher);
    }
    hasher.finish()
}

/// The hash of what is a hash.
#[derive(Debug, Default)]
struct OfHash(u64);

impl Hasher for OfHash {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

// --- What a log says of a request's end, as proxies report it.

/// The number that the log has for a limit's cost, and in which of its places.
fn said(costs: &[(Name, usize)], limit: &Name, request: &Request) -> Option<(usize, u64)> {
    let mut places = { costs.iter().filter(|(name, _)| name == limit) }.enumerate();
    places.find_map(|(nth, (_, at))| Some((nth, request.costs.get(*at).copied().flatten()?)))
}

/// Whether a number of the request or of its response is its cost.
fn needs_number(limit: &Limit, answer: &LimitAnswer, request: &Request) -> bool {
    match limit.pricing.as_deref() {
        None => false,
        Some(Pricing::Request(price)) => !price.from.is_empty(),
        Some(Pricing::Response(price)) => {
            let failed = request.status.is_some_and(|status| status >= 400);
            let by_status = price.has_status() || (failed && price.on_error.is_some());
            answer.reservation.is_some() && !by_status && request.status != Some(0)
        }
    }
}

/// What a response cost, as `cost.rs` of the filter has it. Of what is in its body the log has only the number that
/// `--cost-from` names.
fn response_cost(
    price: &ResponsePrice,
    answer: &LimitAnswer,
    request: &Request,
    said: Option<u64>,
) -> u64 {
    // Without a response nothing states a cost.
    let said = said.filter(|_| request.status != Some(0));
    let status = request.status.filter(|status| *status > 0);
    let of_error = price
        .on_error
        .filter(|_| status.is_some_and(|status| status >= 400));
    let of_status = || price.said(status?, |_| None);
    let absent = || {
        let bytes = match status {
            // The body of a redirect is no answer.
            Some(300..400) => Some(0),
            // The length of a part, or of none, says nothing.
            Some(206 | 226) => None,
            _ if request.is_head => None,
            _ => request.bytes_sent,
        };
        price.absent(answer.verdict.charged, bytes, answer.limit.unwrap_or(0))
    };
    let units = of_error.or(said).or_else(of_status).unwrap_or_else(absent);
    price.cut(units)
}

/// What an adaptive limit learns, as `in_flight.rs` of the filter has it: by the time until the answer began or, where
/// the log lacks that, the request's duration. Of gRPC's own statuses the log says nothing.
fn pace(rule: &Adaptive, request: &Request) -> Option<Pace> {
    let began_ms = match request.service {
        Service::Took(ms) => Some(ms),
        Service::Silent | Service::Unknown => None,
    };
    let pace = || Some(rule.pace(began_ms.or(request.took_ms)?));
    let unless_quick = || pace().filter(|pace| *pace != Pace::InTime);
    let silent = request.service == Service::Silent;
    match request.status {
        Some(101) => None,
        _ if request.is_connect => None,
        Some(503 | 504) => Some(Pace::Slow),
        // The proxy did not reach it.
        Some(502) if silent => Some(Pace::Slow),
        // The client left: NGINX has a status for that.
        Some(0 | 499) if began_ms.is_none() => unless_quick().map(|_| Pace::Slow),
        // A limit, mostly, and nothing that the service took time for.
        Some(429) if began_ms.is_none() => None,
        Some(300..) if silent => None,
        Some(500..) => unless_quick(),
        _ => pace(),
    }
}

// --- Policies beside each other.

/// One policy, and perhaps another that it is compared with.
#[derive(Debug)]
pub struct Replay {
    /// What would be in force.
    side: Side,
    /// What it is compared with.
    against: Option<Comparison>,
    timeline: Timeline,
    first_ms: Option<u64>,
    last_ms: u64,
    /// Requests that the log says were answered 429.
    refused: u64,
}

#[derive(Debug)]
struct Comparison {
    side: Side,
    denied_now: u64,
    allowed_now: u64,
    /// Buckets whose requests are denied now, and were not.
    loses: Losses,
    /// Buckets whose requests were denied, and are not now.
    gains: Losses,
}

impl Replay {
    /// A replay by one side, compared with another if there is one.
    pub fn new(side: Side, against: Option<Side>) -> Self {
        Self {
            side,
            against: against.map(|side| Comparison {
                side,
                denied_now: 0,
                allowed_now: 0,
                loses: Losses::default(),
                gains: Losses::default(),
            }),
            timeline: Timeline::default(),
            first_ms: None,
            last_ms: 0,
            refused: 0,
        }
    }

    /// Decides a request by each side. Requests come in the order of their times.
    ///
    /// # Errors
    /// As [`Engine::decide`].
    pub async fn take(&mut self, request: &mut Request) -> Result<(), CheckError> {
        let decision = self.side.decide(request).await?;
        let denied = !decision.answer.allowed;
        if let Some(against) = &mut self.against {
            against.take(request, &decision).await?;
        }
        self.first_ms.get_or_insert(request.at_ms);
        self.last_ms = request.at_ms;
        self.refused += u64::from(request.status == Some(429));
        self.timeline.add(request.at_ms, denied);
        Ok(())
    }

    /// What was decided so far.
    pub fn report(&self) -> Decided {
        let against = self.against.as_ref().map(|against| Compared {
            result: against.side.result(),
            newly_denied: against.denied_now,
            newly_allowed: against.allowed_now,
            newly_denied_buckets: against.loses.most().into_iter().map(bucket_loss).collect(),
            newly_allowed_buckets: against.gains.most().into_iter().map(bucket_loss).collect(),
        });
        Decided {
            first_ms: self.first_ms,
            last_ms: self.first_ms.map(|_| self.last_ms),
            denied_in_log: self.refused,
            result: self.side.result(),
            against,
            timeline: self.timeline.clone(),
        }
    }
}

impl Comparison {
    async fn take(&mut self, request: &mut Request, now: &Decision) -> Result<(), CheckError> {
        let before = self.side.decide(request).await?;
        let (by, losses, count) = match (before.answer.allowed, now.answer.allowed) {
            (true, false) => (now, &mut self.loses, &mut self.denied_now),
            (false, true) => (&before, &mut self.gains, &mut self.allowed_now),
            _ => return Ok(()),
        };
        *count += 1;
        let denies = |limit: &&LimitAnswer| limit.outcome() == Outcome::Denied;
        for limit in by.answer.limits.iter().filter(denies) {
            // The sides have other positions for one limit; its name is the same.
            let hasher = &self.side.hasher;
            let name = hasher.hash_one(limit.name.as_str());
            losses.add(bucket_hash(hasher, 0, limit) ^ name, limit);
        }
        Ok(())
    }
}

// --- What is reported.

/// What policies decided about a log.
#[derive(Clone, Debug, Serialize)]
pub struct Decided {
    /// When the first request started, in milliseconds since the epoch.
    pub first_ms: Option<u64>,
    /// When the last one started.
    pub last_ms: Option<u64>,
    /// Requests whose answer in the log is 429.
    pub denied_in_log: u64,
    /// By the limits in question.
    #[serde(flatten)]
    pub result: SideResult,
    /// By the limits that they are compared with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<Compared>,
    /// Requests and denials over time.
    pub timeline: Timeline,
}

/// What one policy decided.
#[derive(Clone, Debug, Serialize)]
pub struct SideResult {
    /// Of all limits together.
    #[serde(flatten)]
    pub totals: Totals,
    /// By limit, in the order of the policy.
    pub limits: Vec<LimitResult>,
    /// The buckets that were over their limit most often.
    pub buckets: Vec<BucketLoss>,
}

/// What one limit decided.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LimitResult {
    /// The limit.
    pub name: String,
    /// What it does over the limit: `deny`, `report`, `degrade`, or `deny` for a share of its buckets.
    pub action: String,
    /// Requests that it applies to.
    pub requests: u64,
    /// Requests that were over it, whatever it does then.
    pub over: u64,
    /// Buckets that these requests have.
    pub buckets: u64,
    /// Buckets that were over it at least once.
    pub buckets_over: u64,
    /// When it was exceeded first, in milliseconds since the epoch.
    pub first_ms: Option<u64>,
    /// Requests whose cost is a number that the log has.
    pub priced: u64,
    /// Requests whose cost is a number that the log lacks.
    pub unpriced: u64,
}

/// Requests that a bucket lost.
#[derive(Clone, Debug, Serialize)]
pub struct BucketLoss {
    /// The limit.
    pub limit: String,
    /// The values of its `per`.
    pub bucket: Node,
    /// The bucket as text.
    #[serde(skip)]
    pub text: String,
    /// How many.
    pub requests: u64,
}

/// The limits that others are compared with, and who changes sides.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// What they decided.
    #[serde(flatten)]
    pub result: SideResult,
    /// Requests that they allow, and that the limits in question deny.
    pub newly_denied: u64,
    /// Requests that they deny, and that the limits in question allow.
    pub newly_allowed: u64,
    /// The buckets of the former, by the limits that deny them.
    pub newly_denied_buckets: Vec<BucketLoss>,
    /// The buckets of the latter, by the limits that denied them.
    pub newly_allowed_buckets: Vec<BucketLoss>,
}

impl Side {
    fn result(&self) -> SideResult {
        SideResult {
            totals: self.totals,
            limits: self.limits.clone(),
            buckets: self.over.most().into_iter().map(bucket_loss).collect(),
        }
    }
}

fn action(limit: &Limit) -> String {
    use policy::OverLimit::{Degrade, Queue, Reject};
    let what = match limit.over_limit {
        Reject | Queue => "deny",
        Degrade => "degrade",
    };
    match limit.enforce_percent {
        0 => "report".to_owned(),
        100 => what.to_owned(),
        percent => format!("{what} {percent}%"),
    }
}

fn bucket_loss(((limit, bucket), requests): (&Bucket, u64)) -> BucketLoss {
    let pairs = bucket.iter();
    let pairs = pairs.map(|(name, value)| (name.as_str(), value_to_node(value.as_deref())));
    let (names, values): (Vec<Name>, Vec<_>) = bucket.iter().cloned().unzip();
    BucketLoss {
        limit: limit.to_string(),
        bucket: Node::map(pairs),
        text: crate::bucket::display(&names, &values),
        requests,
    }
}

// --- Requests over time.

/// Slots of a timeline: beyond them, slots get longer.
const SLOTS_MAX: usize = 48;

/// Lengths of slots, in milliseconds; each is a multiple of the one before.
const LENGTHS_MS: [u64; 10] = [
    1000,
    5000,
    15_000,
    60_000,
    300_000,
    900_000,
    3_600_000,
    21_600_000,
    86_400_000,
    7 * 86_400_000,
];

/// Requests and denials in time slots of equal length.
#[derive(Clone, Debug, Serialize)]
pub struct Timeline {
    /// When the first slot begins, in milliseconds since the epoch.
    pub start_ms: u64,
    /// The length of each.
    pub slot_ms: u64,
    /// In order.
    pub slots: Vec<Slot>,
}

/// What happened in one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Slot {
    /// Requests.
    pub requests: u64,
    /// Those that were denied.
    pub denied: u64,
}

impl Default for Timeline {
    fn default() -> Self {
        Self {
            start_ms: 0,
            slot_ms: 1000,
            slots: Vec::new(),
        }
    }
}

impl Timeline {
    /// Counts a request. Times do not step back.
    pub fn add(&mut self, at_ms: u64, denied: bool) {
        if self.slots.is_empty() {
            self.start_ms = at_ms - at_ms % self.slot_ms;
        }
        let index = loop {
            let index = at_ms.saturating_sub(self.start_ms) / self.slot_ms;
            match usize::try_from(index)
                .ok()
                .filter(|index| *index < SLOTS_MAX)
            {
                Some(index) => break index,
                None => self.lengthen(),
            }
        };
        if self.slots.len() <= index {
            self.slots.resize(index + 1, Slot::default());
        }
        if let Some(slot) = self.slots.get_mut(index) {
            slot.requests += 1;
            slot.denied += u64::from(denied);
        }
    }

    fn lengthen(&mut self) {
        let longer = LENGTHS_MS.into_iter().find(|length| *length > self.slot_ms);
        let length = longer.unwrap_or(self.slot_ms.saturating_mul(4));
        let start_ms = self.start_ms - self.start_ms % length;
        let mut slots = Vec::new();
        for (n, slot) in (0_u64..).zip(&self.slots) {
            let at_ms = self.start_ms.saturating_add(n.saturating_mul(self.slot_ms));
            let index = usize::try_from((at_ms - start_ms) / length).unwrap_or(usize::MAX);
            if slots.len() <= index {
                slots.resize(index.saturating_add(1), Slot::default());
            }
            if let Some(sum) = slots.get_mut(index) {
                sum.requests += slot.requests;
                sum.denied += slot.denied;
            }
        }
        (self.start_ms, self.slot_ms, self.slots) = (start_ms, length, slots);
    }
}

/// A share of a whole, in millionths, rounded up: a share above 0 is never 0.
pub fn millionths(part: u64, whole: u64) -> u64 {
    if whole == 0 {
        return 0;
    }
    let share = (u128::from(part) * 1_000_000).div_ceil(u128::from(whole));
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// A share as people read it.
pub fn percent(millionths: u64) -> String {
    match millionths {
        0 => "0%".to_owned(),
        1..100 => format!("0.{millionths:04}%"),
        100..10_000 => format!("0.{:02}%", millionths / 100),
        _ => format!("{}.{}%", millionths / 10_000, millionths / 1000 % 10),
    }
}

/// A share as people write it: `0.1%`, in millionths.
pub fn parse_percent(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no share; it is like 0.1%, with at most four places");
    let number = text.strip_suffix('%').unwrap_or(text);
    let (whole, places) = number.split_once('.').unwrap_or((number, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let valid = !whole.is_empty() && whole.len() <= 3 && places.len() <= 4;
    if !(valid && is_number(whole) && is_number(places)) {
        return Err(wrong());
    }
    let digits = format!("{whole}{places:0<4}");
    let share = digits.parse().map_err(|_| wrong())?;
    if share > 1_000_000 {
        return Err(format!("`{text}` is more than 100%"));
    }
    Ok(share)
}

#[cfg(test)]
mod tests;
