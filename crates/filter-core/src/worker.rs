//! One worker's copy of the filter: hands each event to the feature that handles it.
//!
//! Each feature keeps its own state in a struct and its own steps of a request in an
//! `impl Worker` beside it: `request`, `lease`, `active_policy`, `call`, `outage`, `cache`, `report`.

mod step;

use std::{cell::RefCell, collections::VecDeque, rc::Rc};

use filter_config::Config;

use crate::{
    active_policy::{Policy, PolicyState},
    cache::{Table, WorkerCache},
    call::{CallId, Calls, InFlight, TIMEOUT_LATE_MS},
    codec::Reader,
    cost::Metering,
    host::{Contended, Host, MAX_TRIES, Version},
    lease::{LeaseDescriptor, WorkerLeases},
    metrics::{Counts, Metrics},
    outage::{ChargeStatus, Outage},
    random::Random,
    report::Reporter,
    request::{Denials, PendingCheck, Request, Requests, Stream},
    response::{QuotaHeaders, ReplyCache, ResponseHeaders, write_headers},
    time::Now,
};
use step::Resumptions;
pub use step::{
    Call, CallAnswer, Callback, Edits, Level, Refusal, ResponseNeeds, Step, StreamId, StreamStep,
};

/// The state of one worker for one configuration.
#[derive(Debug)]
pub struct Worker {
    pub(crate) config: Rc<Config>,
    pub(crate) random: Random,
    pub(crate) process: Process,
    pub(crate) policy: Policy,
    pub(crate) requests: Requests,
    pub(crate) calls: Calls<PendingCheck>,
    pub(crate) outage: Outage,
    pub(crate) cache: WorkerCache,
    pub(crate) leases: WorkerLeases<LeaseDescriptor>,
    pub(crate) denials: Denials,
    pub(crate) counts: Counts,
    pub(crate) reporter: Reporter,
    pub(crate) reply_cache: Rc<RefCell<ReplyCache>>,
    pub(crate) steps: VecDeque<Step>,
    pub(crate) resumptions: Resumptions,
    pub(crate) ticks: TickSchedule,
}

impl Worker {
    /// A worker that shares nothing yet. `token` is the limiter's bearer token, `seed` random.
    pub fn new(mut config: Config, token: Option<&str>, seed: [u8; 48]) -> Self {
        let (identity, own) = seed.split_at(32);
        let (low, _) = own.split_at(8);
        let mut random = Random::new(u64::from_le_bytes(low.try_into().unwrap_or_default()));
        Self {
            process: Process::new(identity.try_into().unwrap_or_default()),
            policy: Policy::new(&mut config, &mut random),
            requests: Requests::new(config.hold_max, secret_of(&seed)),
            calls: Calls::new(token, &config.limiter),
            outage: Outage::new(&config, Random::new(random.next_u64())),
            cache: WorkerCache::default(),
            leases: WorkerLeases::default(),
            denials: Denials::default(),
            counts: Counts::default(),
            reporter: Reporter::new(Random::new(random.next_u64())),
            reply_cache: Rc::default(),
            steps: VecDeque::new(),
            resumptions: Resumptions::default(),
            ticks: TickSchedule::default(),
            random,
            config: Rc::new(config),
        }
    }

    /// Sets the name that the operator gave this proxy (Envoy's node id), which polls report.
    #[must_use]
    pub fn named(mut self, node: &str) -> Self {
        self.policy.set_node(node);
        self
    }

    /// The worker was configured: its metrics begin.
    pub fn define_metrics(metrics: &mut impl Metrics) {
        Counts::define(metrics);
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The next step for a callback of the host; `None` when there is none.
    pub fn poll_step(&mut self, callback: &mut Callback) -> Option<Step> {
        while let Some(step) = self.steps.pop_front() {
            match step.ends_pause() {
                Some(stream) if callback.request != Some(stream) => self.resumptions.add(step),
                _ => return Some(step),
            }
        }
        self.resumptions.poll(callback)
    }

    /// Puts back steps that could not be carried out yet, before all others.
    pub fn put_back(&mut self, steps: Vec<Step>) {
        for step in steps.into_iter().rev() {
            self.steps.push_front(step);
        }
    }

    /// A request arrived. Exactly one [`Step::Continue`] or [`Step::Refuse`] follows, now or later,
    /// unless [`Worker::on_gone`] comes first. If [`Worker::body_need`] says that the body is needed,
    /// the step follows after the body.
    pub fn on_request(
        &mut self,
        host: &impl Host,
        now: Now,
        stream: StreamId,
        request: &impl Request,
    ) {
        if !self.is_sampled() || self.is_limiter_traffic(request) {
            return self.pass(stream, Edits::default(), QuotaHeaders::default());
        }
        self.join(host, now);
        self.resume(host, now);
        self.free_slots(host, now);
        if matches!(self.policy.state, PolicyState::Unknown) {
            self.poll_policy(host, now);
        }
        self.decide(host, now, stream, request, None);
        self.send_soon(host, now);
    }

    /// The response to a request is about to leave for the client.
    /// `ended`: it has no body.
    pub fn on_response(
        &mut self,
        stream: StreamId,
        headers: &mut impl ResponseHeaders,
        ended: bool,
    ) -> Metering {
        let metering = self.requests.metered.begin(stream, headers, ended);
        if metering == Metering::Settled {
            self.ticks.tick_sooner();
        }
        if let Some(Stream::Passed(quotas)) = self.requests.streams.remove(stream) {
            write_headers(&quotas, false, self.config.styles, headers);
        }
        metering
    }

    /// A request ended: answered, reset by its client, or failed. Returns whether it held slots or
    /// had reserved units, so that the host should call [`Worker::on_turn_end`] when this turn ends.
    pub fn on_gone(&mut self, stream: StreamId) -> bool {
        let mut forwarded = !self.resumptions.remove(stream);
        match self.requests.streams.remove(stream) {
            Some(Stream::Waiting) => {
                let of_stream = |check: &PendingCheck| check.stream == Some(stream);
                if let Some(check) = self.calls.batcher.cancel(of_stream) {
                    self.undo_unsent(check);
                }
            }
            Some(Stream::Held) => {
                if let Some(held) = self.requests.holds.take(stream) {
                    self.undo_left(held.claims);
                }
                forwarded = false;
            }
            Some(Stream::Body) => drop(self.requests.bodies.take(stream)),
            Some(Stream::Passed(_)) | None => {}
        }
        let ended =
            self.requests.in_flight.end(stream) | self.requests.metered.end(stream, forwarded);
        if ended {
            self.ticks.tick_sooner();
        }
        ended
    }

    /// The tick that [`Worker::tick_ms`] asked for.
    pub fn on_tick(&mut self, host: &impl Host, now: Now, metrics: &mut impl Metrics) {
        self.join(host, now);
        self.poll_policy(host, now);
        while let Some(held) = self.requests.holds.next_due(now) {
            // Its slots in queues are used, and its permit is free.
            self.pass(held.stream, held.edits, held.quotas);
        }
        let late = self.requests.bodies.late(now);
        self.steps.extend(late.map(Step::DecideWithoutBody));
        self.free_slots(host, now);
        self.expire_streamed(host, now);
        while let Some(lost) = self.calls.take_lost(now) {
            self.on_check_call_failed(host, now, lost, ChargeStatus::Unknown);
        }
        self.maintain_leases(host, now);
        self.send_leftover_frees(host, now);
        let open = self.outage.breaker.is_open(host, now);
        self.requests.in_flight.look_at_breaker(now, open);
        self.renew_slots(host, now);
        if !open {
            self.retry_unsent(now);
        }
        let later = std::mem::take(&mut self.calls.later);
        self.requeue(host, now, later);
        self.report_denials(now, open);
        self.send_overdue(host, now);
        if self.outage.breaker.last_failure_us() == now.mono_us {
            // Fallback decisions of the other workers start from these statuses.
            self.cache.queue_all_writes();
        }
        self.flush_cache(host, now);
        self.counts.flush(metrics);
        self.calls.flush_durations(metrics);
        metrics.gauge("rl_breaker_open", u64::from(open));
        self.send_report(host, now);
        self.schedule(host, now);
    }

    /// A call was answered; `None`: it timed out, was reset, or was cut short.
    pub fn on_call_answer(
        &mut self,
        host: &impl Host,
        now: Now,
        id: CallId,
        answer: Option<&dyn CallAnswer>,
    ) {
        match self.calls.registry.finish(id) {
            Some(InFlight::Poll) => self.on_poll_answer(host, now, answer),
            Some(InFlight::Checks(call)) => {
                self.calls.add_duration(now, &call);
                self.on_checks_answered(host, now, call, answer);
            }
            Some(InFlight::LeftoverFrees) => self.on_leftover_frees_answered(host, now, id, answer),
            // Reports are neither confirmed nor retried.
            Some(InFlight::Report) | None => {}
        }
        if self.cache.is_full() {
            self.flush_cache(host, now);
        }
        self.free_slots(host, now);
        self.send_soon(host, now);
    }

    /// The host refused to make a call, so nothing was sent.
    pub fn on_call_refused(&mut self, host: &impl Host, now: Now, id: CallId) {
        // The first call is a poll, so that a misspelt cluster is known before the first request.
        self.warn_failed(now, "no such cluster, or none of its hosts is there");
        match self.calls.registry.finish(id) {
            Some(InFlight::Poll) => self.on_poll_failed(now),
            Some(InFlight::Checks(call)) => {
                self.on_check_call_failed(host, now, call, ChargeStatus::NotCharged);
            }
            Some(InFlight::LeftoverFrees) => self.on_leftover_frees_failed(host, now, id),
            Some(InFlight::Report) | None => {}
        }
        self.send_soon(host, now);
    }

    /// Writes what changed in the worker cache to the shared table.
    pub(crate) fn flush_cache(&mut self, host: &impl Host, now: Now) {
        if let Some(shared) = self.process.shared() {
            self.cache.write(host, now, &shared.table);
        }
    }

    /// Joins the other workers of the process, on the first event.
    fn join(&mut self, host: &impl Host, now: Now) {
        if self.process.join(host, &self.config) {
            self.share_entries(host);
            self.load_snapshot(host, now);
        }
    }

    fn is_sampled(&mut self) -> bool {
        let share = u64::from(self.config.enabled_percent);
        share >= 100 || self.random.below(100) < share
    }
}

/// The key of this worker's ids, from bytes of the seed that no output reveals.
fn secret_of(seed: &[u8; 48]) -> [u8; 16] {
    let mut key = [0; 16];
    let parts = seed.iter().skip(40).chain(seed.iter().skip(24));
    for (byte, part) in key.iter_mut().zip(parts) {
        *byte = *part;
    }
    key
}

// --- The data that a worker shares with the others of its Envoy process.

/// The process of a worker, once it has joined it.
#[derive(Debug)]
pub(crate) struct Process {
    /// Becomes the identity of the process if no worker has stored one.
    seed: [u8; 32],
    shared: Option<Shared>,
}

/// The data that all workers of the process share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The name of the process in calls to limiters.
    pub(crate) proxy: String,
    pub(crate) table: Table,
}

impl Process {
    pub(crate) fn new(seed: [u8; 32]) -> Self {
        Self { seed, shared: None }
    }

    /// `None` until the worker's first event.
    pub(crate) fn shared(&self) -> Option<&Shared> {
        self.shared.as_ref()
    }

    /// The name of the process in calls to limiters; empty until the worker has joined.
    pub(crate) fn proxy(&self) -> &str {
        self.shared().map_or("", |shared| &shared.proxy)
    }

    /// Reads or stores the identity of the process. Returns whether this is the first time.
    pub(super) fn join(&mut self, host: &impl Host, config: &Config) -> bool {
        if self.shared.is_some() {
            return false;
        }
        // Contended: the worker uses an identity of its own, and limiters count one proxy more.
        let identity = Identity::join(host, self.seed);
        let identity = identity.unwrap_or_else(|_| Identity::from_random(self.seed));
        self.shared = Some(Shared {
            proxy: identity.proxy_name(),
            table: Table::new(config.domain.as_str(), config.buckets, identity.hash_key),
        });
        true
    }
}

// --- The identity of this Envoy process, shared by its workers.

/// The key in shared data.
const KEY: &[u8] = b"rl1:identity";

/// Random numbers of one Envoy process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    /// The id of the process in calls to limiters.
    pub(crate) proxy: u128,
    /// The key of the hash that places buckets in the table.
    pub(crate) hash_key: [u8; 16],
}

impl Identity {
    /// Reads the identity that another worker stored, or stores one made of `random`.
    pub(crate) fn join(host: &impl Host, random: [u8; 32]) -> Result<Self, Contended> {
        for _ in 0..MAX_TRIES {
            let read = host.load(KEY);
            if let Some(identity) = read.as_ref().and_then(|read| Self::parse(&read.bytes)) {
                return Ok(identity);
            }
            // Absent, or overwritten by another plugin.
            let expected = read.map_or(Version::ABSENT, |read| read.version);
            // Whichever worker wins, the next read returns its value.
            let _ = host.swap(KEY, &random, expected);
        }
        Err(Contended)
    }

    /// An identity that is not shared.
    fn from_random(random: [u8; 32]) -> Self {
        let (proxy, hash_key) = random.split_at(16);
        Self {
            proxy: u128::from_le_bytes(proxy.try_into().unwrap_or_default()),
            hash_key: hash_key.try_into().unwrap_or_default(),
        }
    }

    /// The name of the process in calls to limiters.
    fn proxy_name(&self) -> String {
        format!("{:032x}", self.proxy)
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let identity = Self {
            proxy: u128::from_le_bytes(reader.array()?),
            hash_key: reader.array()?,
        };
        reader.is_empty().then_some(identity)
    }
}

// --- Schedules the ticks.
//
// Waking a thread costs Envoy several times as much as the tick itself, so ticks are as few as
// possible. Held requests and leases schedule the ticks that they need.
//
// An Envoy has a worker for each core and one more on its main thread, which never receives a request;
// most workers of most Envoys are idle. An idle worker ticks only to poll, or to check that another
// worker does. It catches up when its next request arrives, before it decides that request.

/// The longest time between ticks while requests arrive, in milliseconds.
const BUSY_MS: u64 = 50;
/// The time between ticks until a policy is loaded.
const STARTING_MS: u64 = 10;
/// The least time between ticks while requests are held: a held request continues at most this late.
pub(crate) const HOLDING_MS: u64 = 5;
/// The least time between ticks while there are leases.
const LEASING_MS: u64 = 10;
/// The most that lease maintenance may be late: a query for more units may come first and carry the
/// settlements.
const LOOK_LATE_US: u64 = 5_000;
/// The longest time between ticks of an idle worker.
const RESTING_MS: u64 = 1_000;
/// After this time without requests a worker is idle. Its caches are stale by then.
const QUIET_US: u64 = 1_000_000;

/// The next tick that a worker requested.
#[derive(Debug)]
pub(crate) struct TickSchedule {
    every_ms: u64,
    /// When the next one is due.
    due_us: u64,
    /// Whether a request arrived since the last tick.
    busy: bool,
    /// When requests stopped; `None`: the worker is idle.
    quiet_since_us: Option<u64>,
}

impl Default for TickSchedule {
    fn default() -> Self {
        Self {
            every_ms: STARTING_MS,
            due_us: 0,
            busy: false,
            quiet_since_us: Some(0),
        }
    }
}

impl TickSchedule {
    /// Sets the next tick, so many milliseconds from now.
    fn start(&mut self, now: Now, ms: u64) {
        self.every_ms = ms;
        self.due_us = now.after_ms(ms);
    }

    /// Slots or units were released outside of a callback of the root: the next tick comes soon.
    pub(crate) fn tick_sooner(&mut self) {
        self.every_ms = self.every_ms.min(BUSY_MS);
    }

    /// Moves the next tick forward to a moment, at least `least_ms` from now. Never moves it back.
    #[inline(never)]
    pub(crate) fn by(&mut self, now: Now, at_us: u64, least_ms: u64) {
        let ms = now.millis_until(at_us).max(least_ms);
        if now.after_ms(ms) < self.due_us {
            self.start(now, ms);
        }
    }

    /// Moves the next tick forward to the maintenance of a lease.
    pub(crate) fn by_maintenance(&mut self, now: Now, at_us: u64) {
        self.by(now, at_us.saturating_add(LOOK_LATE_US), LEASING_MS);
    }
}

impl Worker {
    /// The period of [`Worker::on_tick`], in milliseconds. When it changes, it starts anew.
    pub fn tick_ms(&self) -> u32 {
        u32::try_from(self.ticks.every_ms).unwrap_or(u32::MAX)
    }

    /// A request arrived: an idle worker catches up.
    fn resume(&mut self, host: &impl Host, now: Now) {
        if self.ticks.busy {
            return;
        }
        self.ticks.busy = true;
        if self.ticks.quiet_since_us.is_none() {
            self.load_snapshot(host, now);
            self.outage.breaker.is_open(host, now);
            self.tick_soon(now);
        }
    }

    /// Ticks soon, to retry something.
    pub(crate) fn tick_soon(&mut self, now: Now) {
        self.ticks.by(now, 0, BUSY_MS);
    }

    /// A poll was answered. An idle worker has nothing to do before its next poll, so it needs no
    /// ticks as long as limiters answer.
    pub(crate) fn await_poll(&mut self, now: Now) {
        let rests = self.ticks.quiet_since_us.is_none()
            && !self.ticks.busy
            && self.requests.in_flight.is_idle()
            && self.requests.metered.is_idle();
        if rests && self.counts.is_flushed() {
            self.ticks.due_us = u64::MAX;
        }
        self.ticks.by(now, self.policy.poller.next_us(), BUSY_MS);
    }

    /// Sets the next tick, at the end of one.
    pub(crate) fn schedule(&mut self, host: &impl Host, now: Now) {
        let look_us = self.leases.next_maintenance_us();
        let most_ms = if matches!(self.policy.state, PolicyState::Unknown) {
            STARTING_MS
        } else if self.may_rest(now) && look_us == u64::MAX {
            self.rest(host, now)
        } else {
            BUSY_MS
        };
        self.ticks.start(now, most_ms);
        if !self.resumptions.is_empty() {
            // The host does not report the ends of turns, or there is a large crowd.
            self.ticks.by(now, 0, HOLDING_MS);
        }
        (self.ticks).by(now, self.requests.holds.next_us(), HOLDING_MS);
        (self.ticks).by(now, self.requests.in_flight.next_us(), HOLDING_MS);
        (self.ticks).by(now, self.requests.bodies.next_us(), HOLDING_MS);
        (self.ticks).by(now, self.calls.registry.next_deadline_us(), TIMEOUT_LATE_MS);
        self.ticks.by_maintenance(now, look_us);
    }

    /// Whether nothing but leases keeps the worker from becoming idle.
    fn may_rest(&mut self, now: Now) -> bool {
        if std::mem::take(&mut self.ticks.busy) {
            self.ticks.quiet_since_us = Some(now.mono_us);
        }
        // An idle worker stays idle as long as there is nothing to do.
        let quiet_since_us = *self.ticks.quiet_since_us.get_or_insert(0);
        now.mono_us.saturating_sub(quiet_since_us) >= QUIET_US
            && self.calls.is_idle()
            && self.reporter.is_idle()
            && self.denials.is_empty()
            && self.calls.registry.report_sent().is_none()
            && self.counts.is_flushed()
            && self.requests.holds.next_us() == u64::MAX
            && self.requests.holds.is_settled()
            && self.requests.in_flight.is_idle()
            && self.requests.metered.is_idle()
    }

    /// Becomes idle. Returns the time until the next tick, in milliseconds.
    fn rest(&mut self, host: &impl Host, now: Now) -> u64 {
        self.ticks.quiet_since_us = None;
        // An idle worker would miss the failure after which it writes these.
        self.cache.queue_all_writes();
        self.flush_cache(host, now);
        let until_us = self.policy.poller.next_us();
        now.millis_until(until_us).clamp(BUSY_MS, RESTING_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::SharedData;

    #[test]
    fn all_workers_of_a_process_are_one_proxy() {
        let host = SharedData::default();
        let first = Identity::join(&host, [1; 32]).unwrap();
        let second = Identity::join(&host, [2; 32]).unwrap();
        assert_eq!(first, second);
        assert_eq!(first.proxy_name(), "01".repeat(16));
    }

    #[test]
    fn an_invalid_stored_identity_is_replaced() {
        let host = SharedData::default();
        host.overwrite(KEY, b"something else");
        assert_eq!(Identity::join(&host, [3; 32]).unwrap().hash_key, [3; 16]);
    }
}
