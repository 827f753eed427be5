//! The metrics, under the names that dashboards rely on.
//!
//! Each is registered where it is declared, in [`Metrics::new`] or, by limit, in [`BY_LIMIT`]: search for
//! its name without `rl_` (and without `_total`). Labels contain names of domains and limits, never values
//! of descriptors, and are removed with the limit, so their number is bounded by the number of limits.

use std::{
    array,
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use policy::{Compiled, Limit, Name, OnFailure};
use prometheus_client::{
    collector::Collector,
    encoding::{
        DescriptorEncoder, EncodeLabel, EncodeLabelSet, EncodeMetric, LabelSetEncoder, NoLabelSet,
        text,
    },
    metrics::{
        MetricType, TypedMetric, counter::Counter, family::Family, gauge::Gauge,
        histogram::Histogram,
    },
    registry::{Metric, Registry},
};
use protocol::{Answer, DecidedBy, ErrorCode, LimitAnswer, Outcome, Settlement, compact::Tally};
use store::{CheckError, LimitActivity, StoreError};
use tokio::time::Instant;

/// Seconds. A check takes a fraction of a millisecond; the store's timeout is 10 ms.
const DURATIONS: [f64; 14] = [
    0.000_1, 0.000_2, 0.000_3, 0.000_5, 0.000_75, 0.001, 0.001_5, 0.002, 0.003, 0.005, 0.007_5,
    0.01, 0.02, 0.1,
];

/// Checks in one call of the store.
const BATCH_SIZES: [f64; 10] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

/// Why connections are ended because of their clients.
const CUTS: [&str; 4] = ["crowded", "silent", "streams", "unread"];

/// What came of comparing a call: the same, over a limit only in one of the two, no answer from the
/// other, or not sent.
const COMPARED: [&str; 5] = ["same", "only_here", "only_there", "failed", "dropped"];

/// The most that one line of a report counts: no proxy decides more between two reports, and a
/// counter must not overflow.
const REPORTED_MAX: u64 = 1 << 32;

/// All metrics of the service.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Mutex<Registry>,
    domains: Arc<Domains>,
    policy_revision: Labelled<1, Gauge>,
    policy_fault: Labelled<1, Gauge>,
    policy_lost_edits: Labelled<1, Counter>,
    /// By the domain, or an empty text where this limiter does not have it.
    pub(crate) compared: Labelled<2, Counter>,
    /// `domain`: there is no such domain; `limit`: it has no such limit.
    pub(crate) unmatched_descriptors: Labelled<1, Counter>,
    /// By one of the error codes.
    pub(crate) refused: Labelled<1, Counter>,
    /// By one of [`CUTS`].
    pub(crate) connections_cut: Labelled<1, Counter>,
    /// From parsed checks to their decisions, without waiting for permits (`wait_ms`).
    pub(crate) check_duration_seconds: Histogram,
    pub(crate) store_duration_seconds: Histogram,
    pub(crate) store_batch_size: Histogram,
    store_up: Gauge,
    pub(crate) calls: StoreCalls,
    pub(crate) stale: Counter,
    pub(crate) inflight_requests: Gauge,
    pub(crate) body_bytes: Gauge,
    pub(crate) waiting_checks: Gauge,
    pub(crate) held_polls: Gauge,
    pub(crate) health_watches: Gauge,
    pub(crate) check_streams: Gauge,
}

impl Metrics {
    #[expect(clippy::too_many_lines, reason = "a list of all metrics")]
    pub(crate) fn new() -> Self {
        let mut all = Declared(Registry::with_prefix("rl"));
        let domains = Arc::<Domains>::default();
        all.0.register_collector(Box::new(Arc::clone(&domains)));
        let metrics = Self {
            domains,
            unmatched_descriptors: all.labelled("unmatched_descriptors", &["reason"], "Descriptors of Envoy's rate limit service that no limit applies to: no such domain, or no such limit",
            ),
            compared: all.labelled("compared", &["domain", "outcome"], "Calls of Envoy's rate limit service that --compare-with decided, too, by outcome",
            ),
            policy_revision: all.by_domain("policy_revision", "Revision of the limits in force",
            ),
            policy_fault: all.by_domain("policy_fault", "1 while the limits in the store cannot be used and the last good ones are in force; /readyz says why",
            ),
            policy_lost_edits: all.by_domain("policy_lost_edits", "Times that the revision in the store decreased: a failover or a restored backup lost edits",
            ),
            refused: all.labelled("refused", &["code"], "Requests answered with an error, by error code",
            ),
            connections_cut: all.labelled("connections_cut", &["reason"], "Connections closed by the limiter: idle, replaced by newer ones, or with unread responses",
            ),
            check_duration_seconds: all.metric("check_duration_seconds", "Time to decide the checks of a request, without reading it",
                Histogram::new(DURATIONS),
            ),
            store_duration_seconds: all.metric("store_duration_seconds", "Duration of a store call",
                Histogram::new(DURATIONS),
            ),
            store_batch_size: all.metric("store_batch_size", "Checks per store call",
                Histogram::new(BATCH_SIZES),
            ),
            store_up: all.metric("store_up", "1 if the last store calls succeeded; at 0, /readyz says why they failed",
                Gauge::default(),
            ),
            calls: StoreCalls::default(),
            stale: all.metric("stale", "Checks repeated because a bucket had a newer revision of its limit than this limiter",
                Counter::default(),
            ),
            inflight_requests: all.metric("inflight_requests", "Requests in flight; --max-inflight bounds them",
                Gauge::default(),
            ),
            body_bytes: all.metric("body_bytes", "Bytes held by request bodies until they are answered",
                Gauge::default(),
            ),
            waiting_checks: all.metric("waiting_checks", "Checks that wait for permits; --max-waiters bounds them",
                Gauge::default(),
            ),
            held_polls: all.metric("held_polls", "Long polls held; each proxy has one",
                Gauge::default(),
            ),
            health_watches: all.metric("health_watches", "Calls that watch the health over gRPC",
                Gauge::default(),
            ),
            check_streams: all.metric("check_streams", "Check streams that are open; each worker of a proxy may have one",
                Gauge::default(),
            ),
            registry: Mutex::default(),
        };
        // Of a counter that appears with its first events, Prometheus sees no increase, so those whose
        // labels are known begin at 0.
        for code in ErrorCode::words() {
            metrics.refused.get([code.into()]);
        }
        for reason in CUTS {
            metrics.connections_cut.get([reason.into()]);
        }
        for reason in ["domain", "limit"] {
            metrics.unmatched_descriptors.get([reason.into()]);
        }
        Self {
            registry: Mutex::new(all.0),
            ..metrics
        }
    }

    /// The text that Prometheus scrapes (`OpenMetrics`). It had so many bytes the last time: growing to
    /// some megabytes takes three times as many.
    pub(crate) fn page(&self, store_up: bool, bytes: usize) -> String {
        self.store_up.set(i64::from(store_up));
        let mut page = String::with_capacity(bytes + bytes / 16);
        if let Ok(registry) = self.registry.lock() {
            // Writing to a String cannot fail.
            let _ = text::encode(&mut page, &registry);
        }
        page
    }

    /// The counters of a domain that comes into force; also sets its gauges. Limits and exemptions that it
    /// had before count on.
    pub(crate) fn domain(&self, policy: &Compiled) -> Arc<DomainCounters> {
        let domain = policy.domain();
        let number = i64::try_from(policy.revision().number).unwrap_or(i64::MAX);
        self.policy_revision.get([domain.into()]).set(number);
        self.policy_lost_edits.get([domain.into()]);
        let mut all = self.domains.lock();
        let counters = Arc::new(DomainCounters::new(
            policy,
            all.get(domain).map(Arc::as_ref),
        ));
        all.insert(domain.clone(), Arc::clone(&counters));
        counters
    }

    /// Sets whether a domain's stored limits are unusable.
    pub(crate) fn fault(&self, domain: &Name, faulty: bool) {
        let fault = self.policy_fault.get([domain.into()]);
        fault.set(i64::from(faulty));
    }

    /// Counts that a domain's stored revision went back.
    pub(crate) fn lost_edits(&self, domain: &Name) {
        self.policy_lost_edits.get([domain.into()]).inc();
    }

    /// Removes the labels of a deleted domain.
    pub(crate) fn forget_domain(&self, domain: &Name) {
        self.domains.lock().remove(domain);
        self.policy_lost_edits.forget([domain.into()]);
        for metric in [&self.policy_revision, &self.policy_fault] {
            metric.forget([domain.into()]);
        }
        for outcome in COMPARED {
            self.compared.forget([domain.into(), outcome.into()]);
        }
    }
}

/// The metrics declared so far.
struct Declared(Registry);

impl Declared {
    fn metric<M: Metric + Clone>(
        &mut self,
        name: &'static str,
        help: &'static str,
        metric: M,
    ) -> M {
        self.0.register(name, help, metric.clone());
        metric
    }

    fn labelled<const N: usize, M>(
        &mut self,
        name: &'static str,
        labels: &'static [&'static str; N],
        help: &'static str,
    ) -> Labelled<N, M>
    where
        M: EncodeMetric + TypedMetric + Default + fmt::Debug + Clone + Send + Sync + 'static,
    {
        let family = self.metric(name, help, Family::default());
        Labelled { labels, family }
    }

    fn by_domain<M>(&mut self, name: &'static str, help: &'static str) -> Labelled<1, M>
    where
        M: EncodeMetric + TypedMetric + Default + fmt::Debug + Clone + Send + Sync + 'static,
    {
        self.labelled(name, &["domain"], help)
    }
}

/// A metric for each combination of values of its labels.
#[derive(Clone, Debug)]
pub(crate) struct Labelled<const N: usize, M> {
    labels: &'static [&'static str; N],
    family: Family<LabelSet<N>, M>,
}

impl<const N: usize, M: Default + Clone> Labelled<N, M> {
    /// The metric with these values, in the order of the labels.
    pub(crate) fn get(&self, values: [LabelValue; N]) -> M {
        self.family.get_or_create_owned(&self.set(values))
    }

    fn forget(&self, values: [LabelValue; N]) {
        self.family.remove(&self.set(values));
    }

    fn set(&self, values: [LabelValue; N]) -> LabelSet<N> {
        let labels = self.labels;
        LabelSet { labels, values }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LabelSet<const N: usize> {
    labels: &'static [&'static str; N],
    values: [LabelValue; N],
}

/// The value of a label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LabelValue {
    Word(&'static str),
    Name(Name),
}

impl From<&'static str> for LabelValue {
    fn from(word: &'static str) -> Self {
        Self::Word(word)
    }
}

impl From<&Name> for LabelValue {
    fn from(name: &Name) -> Self {
        Self::Name(name.clone())
    }
}

impl<const N: usize> EncodeLabelSet for LabelSet<N> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        for (label, value) in self.labels.iter().zip(&self.values) {
            let value = match value {
                LabelValue::Word(word) => word,
                LabelValue::Name(name) => name.as_str(),
            };
            (*label, value).encode(encoder.encode_label())?;
        }
        Ok(())
    }
}

// --- The counters of domains and their limits, as checks find them

/// Bound: limits of a domain whose counters all begin at 0. Beyond it, those of a limit appear once it
/// decided something.
const FROM_ZERO_MAX: usize = 1000;

/// What is counted of a limit besides its decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LimitCount {
    Delayed,
    LeaseGranted,
    LeaseSpent,
    LeaseReturned,
    SlotsTaken,
    SlotsFreed,
    SlotsLapsed,
    AdaptiveSlow,
    CostReserved,
    CostSettlements,
    CostSettled,
    CostGivenBack,
    CostExcess,
    CostCut,
    Penalties,
}

use LimitCount::{
    AdaptiveSlow, CostCut, CostExcess, CostGivenBack, CostReserved, CostSettled, CostSettlements,
    Delayed, LeaseGranted, LeaseReturned, LeaseSpent, Penalties, SlotsFreed, SlotsLapsed,
    SlotsTaken,
};

/// The name and the help text of each.
const BY_LIMIT: [(LimitCount, &str, &str); 15] = [
    (Delayed, "delayed", "Allowed checks that a queue delayed"),
    (
        LeaseGranted,
        "lease_granted_units",
        "Leased units granted to proxies",
    ),
    // Units neither reported as spent nor returned were lost with a proxy or a call.
    (
        LeaseSpent,
        "lease_spent_units",
        "Leased units that proxies reported as spent",
    ),
    (
        LeaseReturned,
        "lease_returned_units",
        "Leased units that proxies returned unused",
    ),
    // A slot that was taken and neither freed nor lapsed is in use, or its holder died.
    (
        SlotsTaken,
        "slots_taken",
        "Slots that requests in flight got",
    ),
    (
        SlotsFreed,
        "slots_freed",
        "Slots of requests in flight that their holders gave back",
    ),
    (
        SlotsLapsed,
        "slots_lapsed",
        "Slots of requests in flight that were gone when their holders renewed them",
    ),
    (
        AdaptiveSlow,
        "adaptive_slow",
        "Requests whose service was too slow for their adaptive limit, repeats included",
    ),
    (
        CostReserved,
        "cost_reserved_units",
        "Units that checks reserved until the response says the cost",
    ),
    (
        CostSettlements,
        "cost_settlements",
        "True costs of responses that arrived, repeats included; where they fall behind the checks that \
         reserved, proxies lose them and what they reserved stays charged",
    ),
    (
        CostSettled,
        "cost_settled_units",
        "Units of these true costs; far below the units reserved, the reserve is too high",
    ),
    (
        CostGivenBack,
        "cost_given_back_units",
        "Reserved units that settlements gave back; what is not given back had drained, was settled too late, \
         or was reserved before a reset",
    ),
    (
        CostExcess,
        "cost_excess_units",
        "Units that settlements charged beyond what was reserved: buckets owe them, and deny until they drained",
    ),
    (
        CostCut,
        "cost_cut",
        "True costs above the limit's max, which cut them; proxies cut theirs before they settle",
    ),
    (
        Penalties,
        "penalties",
        "Penalties that began, of buckets that were denied too often",
    ),
];

/// The domains in force.
#[derive(Debug, Default)]
struct Domains(Mutex<BTreeMap<Name, Arc<DomainCounters>>>);

impl Domains {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Name, Arc<DomainCounters>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The counters of one domain at one revision, looked up once rather than for every check.
#[derive(Debug)]
pub(crate) struct DomainCounters {
    unmatched: Counter,
    undecided: Counter,
    /// Decisions without a limiter. Proxies report them when an outage is over, all at once, also of limits
    /// that decided nothing before, and alerts must see that increase.
    fallback: Counter,
    exempt: HashMap<Name, Counter>,
    limits: HashMap<Name, LimitSeries>,
}

/// The counters of a limit, and which of them it has.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a feature of its own"
)]
struct LimitSeries {
    /// Made when something is counted: most of ten thousand limits never decide.
    counters: Arc<OnceLock<Box<LimitCounters>>>,
    on_failure: OnFailure,
    has_slots: bool,
    is_adaptive: bool,
    has_costs: bool,
    has_penalty: bool,
}

/// Plain numbers: ten thousand limits have 48 each.
#[derive(Debug)]
struct LimitCounters {
    /// In the order of `Outcome::ALL`, and of `DecidedBy::ALL`.
    decisions: [[AtomicU64; DecidedBy::ALL.len()]; Outcome::ALL.len()],
    /// In the order of [`BY_LIMIT`].
    other: [AtomicU64; BY_LIMIT.len()],
    /// An adaptive limit as the latest answer had it; 0: there was none.
    adaptive: AtomicU64,
}

/// Of limits that counted nothing.
static NOTHING: LimitCounters = LimitCounters::new();

impl LimitCounters {
    const fn new() -> Self {
        Self {
            decisions: [const { [const { AtomicU64::new(0) }; DecidedBy::ALL.len()] };
                Outcome::ALL.len()],
            other: [const { AtomicU64::new(0) }; BY_LIMIT.len()],
            adaptive: AtomicU64::new(0),
        }
    }

    fn add(&self, count: LimitCount, units: u64) {
        if let Some(counter) = self.other.get(count as usize) {
            counter.fetch_add(units, Ordering::Relaxed);
        }
    }

    fn get(&self, count: LimitCount) -> u64 {
        let counter = self.other.get(count as usize);
        counter.map_or(0, |counter| counter.load(Ordering::Relaxed))
    }

    fn decided(&self, outcome: Outcome, by: DecidedBy, times: u64) {
        let outcome = Outcome::ALL.iter().position(|one| *one == outcome);
        let by = DecidedBy::ALL.iter().position(|one| *one == by);
        let counter =
            { outcome.zip(by) }.and_then(|(outcome, by)| self.decisions.get(outcome)?.get(by));
        if let Some(counter) = counter {
            counter.fetch_add(times, Ordering::Relaxed);
        }
    }

    /// Each combination with its number.
    fn decisions(&self) -> impl Iterator<Item = (Outcome, DecidedBy, u64)> {
        let outcomes = Outcome::ALL.into_iter().zip(&self.decisions);
        outcomes.flat_map(|(outcome, by)| {
            let by = DecidedBy::ALL.into_iter().zip(by);
            by.map(move |(by, count)| (outcome, by, count.load(Ordering::Relaxed)))
        })
    }

    fn any(&self) -> bool {
        self.decisions().any(|(_, _, count)| count > 0)
            || self
                .other
                .iter()
                .any(|count| count.load(Ordering::Relaxed) > 0)
    }
}

impl LimitSeries {
    fn counting(&self) -> &LimitCounters {
        self.counters.get_or_init(|| Box::new(LimitCounters::new()))
    }

    fn counted(&self) -> &LimitCounters {
        self.counters.get().map_or(&NOTHING, Box::as_ref)
    }

    /// Counters without their limit's feature are not there at all.
    fn has(&self, count: LimitCount) -> bool {
        match count {
            Delayed | LeaseGranted | LeaseSpent | LeaseReturned => true,
            SlotsTaken | SlotsFreed | SlotsLapsed => self.has_slots,
            AdaptiveSlow => self.is_adaptive,
            CostReserved | CostSettlements | CostSettled | CostGivenBack | CostExcess | CostCut => {
                self.has_costs
            }
            Penalties => self.has_penalty,
        }
    }

    /// Whether decisions without a limiter may be of this kind.
    fn without_limiter(&self, outcome: Outcome, by: DecidedBy) -> bool {
        match self.on_failure {
            OnFailure::Allow => (outcome, by) == (Outcome::Allowed, DecidedBy::Failure),
            OnFailure::Deny => (outcome, by) == (Outcome::Denied, DecidedBy::Failure),
            OnFailure::Local => {
                matches!(outcome, Outcome::Allowed | Outcome::Denied) && by == DecidedBy::Local
            }
        }
    }
}

impl DomainCounters {
    fn new(policy: &Compiled, before: Option<&Self>) -> Self {
        let limit = |limit: &Limit| {
            let known = before.and_then(|before| before.limits.get(&limit.name));
            LimitSeries {
                counters: known.map_or_else(Arc::default, |known| Arc::clone(&known.counters)),
                on_failure: limit.on_failure,
                has_slots: limit.gives_slots(),
                is_adaptive: limit.quota.parameters().adaptive.is_some(),
                has_costs: limit.settles(),
                has_penalty: limit.penalty.is_some(),
            }
        };
        let exempt = policy.exemptions().iter().map(|exemption| {
            let known = before.and_then(|before| before.exempt.get(&exemption.name));
            (exemption.name.clone(), known.cloned().unwrap_or_default())
        });
        Self {
            unmatched: before.map_or_else(Counter::default, |before| before.unmatched.clone()),
            undecided: before.map_or_else(Counter::default, |before| before.undecided.clone()),
            fallback: before.map_or_else(Counter::default, |before| before.fallback.clone()),
            exempt: exempt.collect(),
            limits: { policy.limits().iter() }
                .map(|one| (one.name.clone(), limit(one)))
                .collect(),
        }
    }

    /// What the counters of each limit say that counted anything.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (&Name, LimitCounts)> {
        self.limits.iter().filter_map(|(name, limit)| {
            let counters = limit.counters.get()?;
            let own = { counters.decisions() }.filter(|(_, by, _)| *by == DecidedBy::Limiter);
            let mut outcomes = own.map(|(_, _, count)| count);
            let counts = LimitCounts {
                outcomes: array::from_fn(|_| outcomes.next().unwrap_or(0)),
                delayed: counters.get(Delayed),
                settled_units: counters.get(CostSettled),
                penalties: counters.get(Penalties),
                slots_taken: counters.get(SlotsTaken),
            };
            Some((name, counts))
        })
    }

    pub(crate) fn unmatched_count(&self) -> u64 {
        self.unmatched.get()
    }

    pub(crate) fn undecided_count(&self) -> u64 {
        self.undecided.get()
    }

    fn add(&self, limit: &Name, count: LimitCount, units: u64) {
        let limit = self.limits.get(limit).filter(|limit| limit.has(count));
        if let Some(limit) = limit {
            limit.counting().add(count, units);
        }
    }

    /// Counts what one limit answered to a check; `decided`: its outcome is the request's answer.
    pub(crate) fn answered(&self, answer: &LimitAnswer, decided: bool) {
        let Some(limit) = self.limits.get(&answer.name) else {
            return;
        };
        let (counters, verdict) = (limit.counting(), &answer.verdict);
        if let Some(lease) = verdict.lease {
            counters.add(LeaseGranted, lease.units);
        }
        if let Some(now) = verdict.limit_milli.and(answer.limit) {
            counters.adaptive.store(now, Ordering::Relaxed);
        }
        if let Some(slot) = verdict.slot.filter(|_| limit.has_slots) {
            if verdict.charged > 0 {
                counters.add(SlotsTaken, 1);
            } else {
                let gone = slot.start_ms.count_ones() + slot.parts.count_ones();
                counters.add(SlotsLapsed, gone.into());
            }
        }
        if limit.has_costs {
            let reserved = answer.reservation.map_or(0, |reserved| reserved.units);
            counters.add(CostReserved, reserved);
            counters.add(CostGivenBack, verdict.reserved.given_back);
            counters.add(CostExcess, verdict.reserved.excess);
        }
        if limit.has_penalty && verdict.penalty.begun {
            counters.add(Penalties, 1);
        }
        if decided {
            counters.decided(answer.outcome(), DecidedBy::Limiter, 1);
            if verdict.decision.allowed && verdict.decision.delay_ms > 0 {
                counters.add(Delayed, 1);
            }
        }
    }

    /// Counts decisions that a proxy reports, under existing limits only, so that it cannot create more
    /// labels than this limiter's own decisions.
    pub(crate) fn reported(&self, tally: &Tally) {
        // A limiter that decided has counted it.
        if tally.by != DecidedBy::Limiter
            && let Some(limit) = self.limits.get(&tally.limit)
        {
            let times = tally.count.min(REPORTED_MAX);
            if matches!(tally.by, DecidedBy::Local | DecidedBy::Failure) {
                self.fallback.inc_by(times);
            }
            limit.counting().decided(tally.outcome, tally.by, times);
        }
    }

    /// Counts a true cost of so many units; `cut`: by the limit's `max`.
    pub(crate) fn cost_settled(&self, limit: &Name, units: u64, cut: bool) {
        self.add(limit, CostSettlements, 1);
        self.add(limit, CostSettled, units);
        self.add(limit, CostCut, cut.into());
    }

    /// Counts a slot that was freed.
    pub(crate) fn freed(&self, limit: &Name) {
        self.add(limit, SlotsFreed, 1);
    }

    /// Counts a request whose service was too slow for its adaptive limit.
    pub(crate) fn slow(&self, limit: &Name) {
        self.add(limit, AdaptiveSlow, 1);
    }

    /// Counts what a proxy settled of its leases.
    pub(crate) fn settled(&self, limit: &Name, settlement: &Settlement) {
        self.add(limit, LeaseSpent, settlement.spent);
        self.add(limit, LeaseReturned, settlement.returned);
    }

    /// Counts checks that got no decision.
    pub(crate) fn undecided(&self, checks: usize) {
        let checks = u64::try_from(checks).unwrap_or(u64::MAX);
        self.undecided.inc_by(checks);
    }

    /// Counts a check, or a descriptor of one, that is exempt.
    pub(crate) fn exempted(&self, exemption: &Name) {
        self.exempt.get(exemption).map(Counter::inc);
    }

    /// Counts a check that no limit applies to, without an exemption.
    pub(crate) fn unmatched(&self) {
        self.unmatched.inc();
    }
}

/// A counter of a domain: its name, its help text, and where it is.
type ByDomain = (&'static str, &'static str, fn(&DomainCounters) -> &Counter);

const BY_DOMAIN: [ByDomain; 3] = [
    (
        "unmatched",
        "Checks that no limit applies to, without an exemption",
        |domain| &domain.unmatched,
    ),
    (
        "fallback_decisions",
        "Decisions that proxies made without a limiter, by on_failure",
        |domain| &domain.fallback,
    ),
    (
        "undecided",
        "Checks without a decision: the store failed or took too long",
        |domain| &domain.undecided,
    ),
];

/// The text labels of a counter.
type Labels<'a, const N: usize> = [(&'static str, &'a str); N];

impl Collector for Domains {
    /// Takes the counters out of their lock first: no check waits for the text.
    #[expect(clippy::too_many_lines, reason = "a list of all metrics by limit")]
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let domains = self.lock().clone();
        let decided = "Decisions made by this limiter, by limit";
        family(&mut encoder, "checks", decided, |line| {
            for_limits(&domains, |domain, name, limit, all| {
                for (outcome, by, count) in limit.counted().decisions() {
                    if by == DecidedBy::Limiter && (all || count > 0) {
                        let decision = ("decision", outcome.word());
                        line(&[("domain", domain), ("limit", name), decision], count)?;
                    }
                }
                Ok(())
            })
        })?;
        let decided =
            "Decisions of this limiter and those that proxies reported to it, by limit and source";
        family(&mut encoder, "decisions", decided, |line| {
            for_limits(&domains, |domain, name, limit, all| {
                for (outcome, by, count) in limit.counted().decisions() {
                    let begins = by == DecidedBy::Limiter || limit.without_limiter(outcome, by);
                    if all && begins || count > 0 {
                        let decision = ("decision", outcome.word());
                        let source = ("source", by.word());
                        line(
                            &[("domain", domain), ("limit", name), decision, source],
                            count,
                        )?;
                    }
                }
                Ok(())
            })
        })?;
        for (count, metric, help) in BY_LIMIT {
            family(&mut encoder, metric, help, |line| {
                for_limits(&domains, |domain, name, limit, all| {
                    if all && limit.has(count) {
                        let count = limit.counted().get(count);
                        line(&[("domain", domain), ("limit", name)], count)?;
                    }
                    Ok(())
                })
            })?;
        }
        let help =
            "Adaptive limits as this limiter's latest answers had them, in requests in flight";
        let mut limits =
            encoder.encode_descriptor("adaptive_limit", help, None, MetricType::Gauge)?;
        for_limits(&domains, |domain, name, limit, _| {
            let now = limit.counted().adaptive.load(Ordering::Relaxed);
            if limit.is_adaptive && now > 0 {
                let now = i64::try_from(now).unwrap_or(i64::MAX);
                let labels = [("domain", domain), ("limit", name)];
                limits.encode_family(&labels)?.encode_gauge(&now)?;
            }
            Ok(())
        })?;
        let help = "Checks and descriptors that no limit applies to, by exemption; those that proxies let pass are in Envoy's metrics";
        family(&mut encoder, "exempt", help, |line| {
            { domains.iter() }.try_for_each(|(domain, counters)| {
                { counters.exempt.iter() }.try_for_each(|(name, count)| {
                    let exemption = ("exemption", name.as_str());
                    line(&[("domain", domain.as_str()), exemption], count.get())
                })
            })
        })?;
        BY_DOMAIN.into_iter().try_for_each(|(name, help, counter)| {
            by_domain(&mut encoder, name, help, &domains, counter)
        })
    }
}

/// Calls `each` with every domain's name, limit's name, limit, and whether all of its counters are shown.
fn for_limits(
    domains: &BTreeMap<Name, Arc<DomainCounters>>,
    mut each: impl FnMut(&str, &str, &LimitSeries, bool) -> fmt::Result,
) -> fmt::Result {
    for (domain, counters) in domains {
        let few = counters.limits.len() <= FROM_ZERO_MAX;
        for (name, limit) in &counters.limits {
            let all = few || limit.counters.get().is_some_and(|of| of.any());
            each(domain.as_str(), name.as_str(), limit, all)?;
        }
    }
    Ok(())
}

fn by_domain(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    domains: &BTreeMap<Name, Arc<DomainCounters>>,
    counter: impl Fn(&DomainCounters) -> &Counter,
) -> fmt::Result {
    family(encoder, name, help, |line| {
        { domains.iter() }.try_for_each(|(domain, counters)| {
            line(&[("domain", domain.as_str())], counter(counters).get())
        })
    })
}

/// Writes a counter with the lines that `lines` gives.
fn family<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    lines: impl FnOnce(&mut dyn FnMut(&Labels<'_, N>, u64) -> fmt::Result) -> fmt::Result,
) -> fmt::Result {
    let mut encoder = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    lines(&mut |labels, count| {
        let mut line = encoder.encode_family(labels)?;
        line.encode_counter::<NoLabelSet, _, u64>(&count, None)
    })
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

// --- The results of the last store calls, from which `rl_store_up` is derived

/// If all calls fail for this long, the store counts as down.
const LASTING: Duration = Duration::from_millis(500);
/// Older results say nothing about the present.
const RECENT: Duration = Duration::from_secs(5);

/// How often the log repeats that checks get no decision.
const LOGGED_AGAIN: Duration = Duration::from_secs(30);

/// The results of the last calls.
#[derive(Debug, Default)]
pub(crate) struct StoreCalls(Mutex<Results>);

#[derive(Debug, Default)]
struct Results {
    last: Option<Last>,
    /// When the log last said that checks get no decision.
    logged: Option<Instant>,
}

#[derive(Debug)]
enum Last {
    Decided,
    /// All calls failed since then.
    Failed {
        since: Instant,
        last: Instant,
        why: String,
    },
}

impl StoreCalls {
    /// Records the result of a call; no answers mean that it was abandoned. Logs what lasts: of a store that is
    /// only too slow nothing else does, because its connections stay.
    pub(crate) fn called(&self, answers: &[Result<Answer, CheckError>], now: Instant) {
        match self.record(answers, now) {
            Some(Err(error)) => tracing::warn!(error, "checks get no decision"),
            Some(Ok(lasted)) => tracing::info!(?lasted, "checks get decisions again"),
            None => {}
        }
    }

    /// Returns what is to be logged: why there is no decision, or for how long there was none.
    fn record(
        &self,
        answers: &[Result<Answer, CheckError>],
        now: Instant,
    ) -> Option<Result<Duration, String>> {
        let errors = answers.iter().map(|answer| store_error(answer.as_ref()));
        let errors: Option<Vec<&StoreError>> = errors.collect();
        let mut results = self.lock();
        let failed = match &results.last {
            Some(Last::Failed { since, .. }) => Some(*since),
            Some(Last::Decided) | None => None,
        };
        let Some(errors) = errors else {
            results.last = Some(Last::Decided);
            let since = failed.filter(|since| results.logged.is_some_and(|at| at >= *since))?;
            return Some(Ok(now.duration_since(since)));
        };
        let since = failed.unwrap_or(now);
        let why = errors.first().map(ToString::to_string);
        let why = why.unwrap_or_else(|| "it keeps no timeout".to_owned());
        let rested = |at| now.duration_since(at) >= LOGGED_AGAIN;
        let due = now.duration_since(since) >= LASTING && results.logged.is_none_or(rested);
        let to_log = due.then(|| Err(why.clone()));
        results.logged = if due { Some(now) } else { results.logged };
        results.last = Some(Last::Failed {
            since,
            last: now,
            why,
        });
        to_log
    }

    /// Whether any call was made yet.
    pub(crate) fn any(&self) -> bool {
        self.lock().last.is_some()
    }

    /// Why checks get no decision, if all recent ones got none.
    pub(crate) fn trouble(&self, now: Instant) -> Option<String> {
        match &self.lock().last {
            Some(Last::Failed { since, last, why })
                if last.duration_since(*since) >= LASTING && now.duration_since(*last) < RECENT =>
            {
                Some(why.clone())
            }
            _ => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Results> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The store's failure to decide a check, unless only that check is affected.
fn store_error<'a>(answer: Result<&'a Answer, &'a CheckError>) -> Option<&'a StoreError> {
    match answer {
        Err(CheckError::Store(StoreError::Corrupt(_))) => None,
        Err(CheckError::Store(error) | CheckError::PartiallyCharged(error)) => Some(error),
        Ok(_) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests;
