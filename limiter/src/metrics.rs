//! The metrics, under the names that dashboards rely on.
//!
//! Each is registered where it is declared, in [`Metrics::new`]: search for its name without `rl_` (and
//! without `_total`), which is also its field. Labels contain names of domains and limits, never values of
//! descriptors, and are removed with the limit, so their number is bounded by the number of limits.

use std::{
    collections::HashMap,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use policy::{Compiled, Limit, Name, OnFailure};
use prometheus_client::{
    encoding::{EncodeLabel, EncodeLabelSet, EncodeMetric, LabelSetEncoder, text},
    metrics::{TypedMetric, counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
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
    checks: Labelled<3, Counter>,
    decisions: Labelled<4, Counter>,
    delayed: Labelled<2, Counter>,
    lease_granted_units: Labelled<2, Counter>,
    lease_spent_units: Labelled<2, Counter>,
    lease_returned_units: Labelled<2, Counter>,
    slots_taken: Labelled<2, Counter>,
    slots_freed: Labelled<2, Counter>,
    slots_lapsed: Labelled<2, Counter>,
    cost_reserved_units: Labelled<2, Counter>,
    cost_settlements: Labelled<2, Counter>,
    cost_settled_units: Labelled<2, Counter>,
    cost_given_back_units: Labelled<2, Counter>,
    cost_excess_units: Labelled<2, Counter>,
    cost_cut: Labelled<2, Counter>,
    penalties: Labelled<2, Counter>,
    exempt: Labelled<2, Counter>,
    unmatched: Labelled<1, Counter>,
    undecided: Labelled<1, Counter>,
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
        let metrics = Self {
            checks: all.labelled("checks", &["domain", "limit", "decision"], "Decisions made by this limiter, by limit",
            ),
            decisions: all.labelled("decisions", &["domain", "limit", "decision", "source"], "Decisions of this limiter and those that proxies reported to it, by limit and source",
            ),
            lease_granted_units: all.by_limit("lease_granted_units", "Leased units granted to proxies",
            ),
            // Units neither reported as spent nor returned were lost with a proxy or a call.
            lease_spent_units: all.by_limit("lease_spent_units", "Leased units that proxies reported as spent",
            ),
            lease_returned_units: all.by_limit("lease_returned_units", "Leased units that proxies returned unused",
            ),
            // A slot that was taken and neither freed nor lapsed is in use, or its holder died.
            slots_taken: all.by_limit("slots_taken", "Slots that requests in flight got",
            ),
            slots_freed: all.by_limit("slots_freed", "Slots of requests in flight that their holders gave back",
            ),
            slots_lapsed: all.by_limit("slots_lapsed", "Slots of requests in flight that were gone when their holders renewed them",
            ),
            cost_reserved_units: all.by_limit("cost_reserved_units", "Units that checks reserved until the response says the cost",
            ),
            cost_settlements: all.by_limit("cost_settlements", "True costs of responses that arrived, repeats included; where they fall behind the checks that \
                 reserved, proxies lose them and what they reserved stays charged",
            ),
            cost_settled_units: all.by_limit("cost_settled_units", "Units of these true costs; far below the units reserved, the reserve is too high",
            ),
            cost_given_back_units: all.by_limit("cost_given_back_units", "Reserved units that settlements gave back; what is not given back had drained, was settled too late, \
                 or was reserved before a reset",
            ),
            cost_excess_units: all.by_limit("cost_excess_units", "Units that settlements charged beyond what was reserved: buckets owe them, and deny until they drained",
            ),
            cost_cut: all.by_limit("cost_cut", "True costs above the limit's max, which cut them; proxies cut theirs before they settle"),
            penalties: all.by_limit("penalties", "Penalties that began, of buckets that were denied too often",
            ),
            exempt: all.labelled("exempt", &["domain", "exemption"], "Checks and descriptors that no limit applies to, by exemption; those that proxies let pass are in Envoy's metrics",
            ),
            unmatched: all.by_domain("unmatched", "Checks that no limit applies to, without an exemption",
            ),
            unmatched_descriptors: all.labelled("unmatched_descriptors", &["reason"], "Descriptors of Envoy's rate limit service that no limit applies to: no such domain, or no such limit",
            ),
            undecided: all.by_domain("undecided", "Checks without a decision: the store failed or took too long",
            ),
            compared: all.labelled("compared", &["domain", "outcome"], "Calls of Envoy's rate limit service that --compare-with decided, too, by outcome",
            ),
            delayed: all.by_limit("delayed", "Allowed checks that a queue delayed"),
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

    /// The text that Prometheus scrapes (`OpenMetrics`).
    pub(crate) fn page(&self, store_up: bool) -> String {
        self.store_up.set(i64::from(store_up));
        let mut page = String::new();
        if let Ok(registry) = self.registry.lock() {
            // Writing to a String cannot fail.
            let _ = text::encode(&mut page, &registry);
        }
        page
    }

    /// The counters of a domain that came into force; also sets its gauges.
    pub(crate) fn domain(&self, policy: &Compiled) -> DomainCounters {
        let domain = policy.domain();
        let number = i64::try_from(policy.revision().number).unwrap_or(i64::MAX);
        self.policy_revision.get([domain.into()]).set(number);
        self.policy_lost_edits.get([domain.into()]);
        let exempt = policy.exemptions().iter().map(|exemption| {
            let name = &exemption.name;
            (name.clone(), self.exempt.get([domain.into(), name.into()]))
        });
        let limits = policy.limits().iter();
        DomainCounters {
            unmatched: self.unmatched.get([domain.into()]),
            undecided: self.undecided.get([domain.into()]),
            exempt: exempt.collect(),
            limits: limits
                .map(|limit| (limit.name.clone(), self.limit(domain, limit)))
                .collect(),
        }
    }

    fn limit(&self, domain: &Name, limit: &Limit) -> LimitCounters {
        let labels = || [domain.into(), (&limit.name).into()];
        let decisions = LimitDecisions {
            all: self.decisions.clone(),
            domain: domain.clone(),
            limit: limit.name.clone(),
        };
        // Those of decisions without a limiter begin at 0, too: proxies report them when the outage is over,
        // all at once.
        let without_limiter: &[_] = match limit.on_failure {
            OnFailure::Allow => &[(Outcome::Allowed, DecidedBy::Failure)],
            OnFailure::Deny => &[(Outcome::Denied, DecidedBy::Failure)],
            OnFailure::Local => &[
                (Outcome::Allowed, DecidedBy::Local),
                (Outcome::Denied, DecidedBy::Local),
            ],
        };
        for (outcome, by) in without_limiter {
            decisions.counter(*outcome, *by);
        }
        LimitCounters {
            checks: Outcome::ALL.map(|outcome| {
                let [domain, limit] = labels();
                self.checks.get([domain, limit, outcome.word().into()])
            }),
            own: Outcome::ALL.map(|outcome| decisions.counter(outcome, DecidedBy::Limiter)),
            decisions,
            delayed: self.delayed.get(labels()),
            lease_granted: self.lease_granted_units.get(labels()),
            lease_spent: self.lease_spent_units.get(labels()),
            lease_returned: self.lease_returned_units.get(labels()),
            slots: limit.gives_slots().then(|| SlotCounters {
                taken: self.slots_taken.get(labels()),
                freed: self.slots_freed.get(labels()),
                lapsed: self.slots_lapsed.get(labels()),
            }),
            costs: limit.settles().then(|| CostCounters {
                reserved: self.cost_reserved_units.get(labels()),
                settlements: self.cost_settlements.get(labels()),
                settled: self.cost_settled_units.get(labels()),
                given_back: self.cost_given_back_units.get(labels()),
                excess: self.cost_excess_units.get(labels()),
                cut: self.cost_cut.get(labels()),
            }),
            penalties: (limit.penalty.is_some()).then(|| self.penalties.get(labels())),
        }
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

    /// Removes the labels of deleted limits.
    pub(crate) fn forget_limits<'n>(
        &self,
        domain: &Name,
        limits: impl IntoIterator<Item = &'n Name>,
    ) {
        for limit in limits {
            for metric in [
                &self.delayed,
                &self.lease_granted_units,
                &self.lease_spent_units,
                &self.lease_returned_units,
                &self.slots_taken,
                &self.slots_freed,
                &self.slots_lapsed,
                &self.cost_reserved_units,
                &self.cost_settlements,
                &self.cost_settled_units,
                &self.cost_given_back_units,
                &self.cost_excess_units,
                &self.cost_cut,
                &self.penalties,
            ] {
                metric.forget([domain.into(), limit.into()]);
            }
            for outcome in Outcome::ALL.map(Outcome::word) {
                let checks = [domain.into(), limit.into(), outcome.into()];
                self.checks.forget(checks);
                for by in DecidedBy::ALL.map(DecidedBy::word) {
                    let decisions = [domain.into(), limit.into(), outcome.into(), by.into()];
                    self.decisions.forget(decisions);
                }
            }
        }
    }

    /// Removes the labels of deleted exemptions.
    pub(crate) fn forget_exemptions<'n>(
        &self,
        domain: &Name,
        exemptions: impl IntoIterator<Item = &'n Name>,
    ) {
        for exemption in exemptions {
            self.exempt.forget([domain.into(), exemption.into()]);
        }
    }

    /// Removes the labels of a deleted domain, except those of its limits and exemptions.
    pub(crate) fn forget_domain(&self, domain: &Name) {
        for metric in [&self.unmatched, &self.undecided, &self.policy_lost_edits] {
            metric.forget([domain.into()]);
        }
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

    fn by_limit(&mut self, name: &'static str, help: &'static str) -> Labelled<2, Counter> {
        self.labelled(name, &["domain", "limit"], help)
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

/// The value of a label. Ten thousand limits have fifteen counters each: all share the names.
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

// --- The counters of a domain's limits, as checks find them

/// The counters of one domain at one revision, looked up once rather than for every check.
#[derive(Debug)]
pub(crate) struct DomainCounters {
    unmatched: Counter,
    undecided: Counter,
    exempt: HashMap<Name, Counter>,
    limits: HashMap<Name, LimitCounters>,
}

#[derive(Debug)]
struct LimitCounters {
    /// In the order of `Outcome::ALL`, as those that follow.
    checks: [Counter; Outcome::ALL.len()],
    own: [Counter; Outcome::ALL.len()],
    decisions: LimitDecisions,
    delayed: Counter,
    lease_granted: Counter,
    lease_spent: Counter,
    lease_returned: Counter,
    /// Of a limit on requests in flight.
    slots: Option<SlotCounters>,
    /// Of a limit whose responses say their cost.
    costs: Option<CostCounters>,
    /// Of a limit with `penalty`: those that began.
    penalties: Option<Counter>,
}

/// The decisions of one limit by their source.
#[derive(Debug)]
struct LimitDecisions {
    all: Labelled<4, Counter>,
    domain: Name,
    limit: Name,
}

#[derive(Debug)]
struct SlotCounters {
    taken: Counter,
    freed: Counter,
    lapsed: Counter,
}

#[derive(Debug)]
struct CostCounters {
    reserved: Counter,
    settlements: Counter,
    settled: Counter,
    given_back: Counter,
    excess: Counter,
    cut: Counter,
}

impl LimitDecisions {
    fn counter(&self, outcome: Outcome, by: DecidedBy) -> Counter {
        let (outcome, by) = (outcome.word().into(), by.word().into());
        let (domain, limit) = ((&self.domain).into(), (&self.limit).into());
        self.all.get([domain, limit, outcome, by])
    }
}

impl DomainCounters {
    /// What the counters of each limit say.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (&Name, LimitCounts)> {
        self.limits.iter().map(|(name, counters)| {
            let (slots, costs) = (counters.slots.as_ref(), counters.costs.as_ref());
            let counts = LimitCounts {
                outcomes: counters.checks.each_ref().map(Counter::get),
                delayed: counters.delayed.get(),
                settled_units: costs.map_or(0, |costs| costs.settled.get()),
                penalties: counters.penalties.as_ref().map_or(0, Counter::get),
                slots_taken: slots.map_or(0, |slots| slots.taken.get()),
            };
            (name, counts)
        })
    }

    pub(crate) fn unmatched_count(&self) -> u64 {
        self.unmatched.get()
    }

    pub(crate) fn undecided_count(&self) -> u64 {
        self.undecided.get()
    }

    /// Counts what one limit answered to a check; `decided`: its outcome is the request's answer.
    pub(crate) fn answered(&self, answer: &LimitAnswer, decided: bool) {
        let Some(counters) = self.limits.get(&answer.name) else {
            return;
        };
        if let Some(lease) = answer.lease {
            counters.lease_granted.inc_by(lease.units);
        }
        if let (Some(slot), Some(slots)) = (answer.slot, &counters.slots) {
            if answer.charged > 0 {
                slots.taken.inc();
            } else {
                let gone = slot.start_ms.count_ones() + slot.parts.count_ones();
                slots.lapsed.inc_by(gone.into());
            }
        }
        if let Some(costs) = &counters.costs {
            let reserved = answer.reservation.map_or(0, |reserved| reserved.units);
            costs.reserved.inc_by(reserved);
            costs.given_back.inc_by(answer.reserved.given_back);
            costs.excess.inc_by(answer.reserved.excess);
        }
        if let Some(begun) = counters.penalties.as_ref().filter(|_| answer.penalty.begun) {
            begun.inc();
        }
        if decided {
            let outcome = answer.outcome();
            let at = Outcome::ALL.iter().position(|one| *one == outcome);
            for counters in [&counters.checks, &counters.own] {
                at.and_then(|at| counters.get(at)).map(Counter::inc);
            }
            if answer.allowed && answer.delay_ms > 0 {
                counters.delayed.inc();
            }
        }
    }

    /// Counts decisions that a proxy reports, under existing limits only, so that it cannot create more
    /// labels than this limiter's own decisions.
    pub(crate) fn reported(&self, tally: &Tally) {
        // A limiter that decided has counted it.
        if tally.by != DecidedBy::Limiter
            && tally.count > 0
            && let Some(counters) = self.limits.get(&tally.limit)
        {
            let counter = counters.decisions.counter(tally.outcome, tally.by);
            counter.inc_by(tally.count.min(REPORTED_MAX));
        }
    }

    /// Counts a true cost of so many units; `cut`: by the limit's `max`.
    pub(crate) fn cost_settled(&self, limit: &Name, units: u64, cut: bool) {
        let counters = self.limits.get(limit);
        if let Some(costs) = counters.and_then(|counters| counters.costs.as_ref()) {
            costs.settlements.inc();
            costs.settled.inc_by(units);
            costs.cut.inc_by(cut.into());
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
            counters.lease_spent.inc_by(settlement.spent);
            counters.lease_returned.inc_by(settlement.returned);
        }
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

/// The results of the last calls.
#[derive(Debug, Default)]
pub(crate) struct StoreCalls {
    last: Mutex<Option<Last>>,
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
    /// Records the result of a call; no answers mean that it was abandoned.
    pub(crate) fn called(&self, answers: &[Result<Answer, CheckError>], now: Instant) {
        let errors = answers.iter().map(|answer| store_error(answer.as_ref()));
        let errors: Option<Vec<&StoreError>> = errors.collect();
        let mut last = self.lock();
        let Some(errors) = errors else {
            *last = Some(Last::Decided);
            return;
        };
        let since = match &*last {
            Some(Last::Failed { since, .. }) => *since,
            Some(Last::Decided) | None => now,
        };
        let why = errors.first().map(ToString::to_string);
        *last = Some(Last::Failed {
            since,
            last: now,
            why: why.unwrap_or_else(|| "it keeps no timeout".to_owned()),
        });
    }

    /// Whether any call was made yet.
    pub(crate) fn any(&self) -> bool {
        self.lock().is_some()
    }

    /// Why checks get no decision, if all recent ones got none.
    pub(crate) fn trouble(&self, now: Instant) -> Option<String> {
        match &*self.lock() {
            Some(Last::Failed { since, last, why })
                if last.duration_since(*since) >= LASTING && now.duration_since(*last) < RECENT =>
            {
                Some(why.clone())
            }
            _ => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Last>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
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
