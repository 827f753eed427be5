//! One worker's copy of the filter: hands each event to the feature that handles it.
//!
//! Each feature keeps its own state in a struct and its own steps of a request in an
//! `impl Worker` beside it: `request`, `lease`, `active_policy`, `call`, `outage`, `cache`, `report`.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use filter_config::Config;

use crate::{
    active_policy::{Policy, PolicyState},
    cache::WorkerCache,
    call::{CallId, Calls, InFlight, TIMEOUT_LATE_MS},
    cost::{BodyNeed, Metering},
    host::{Host, Now, Process, Random},
    lease::{LeaseDescriptor, WorkerLeases},
    metrics::{Counts, Metrics},
    outage::{ChargeStatus, Outage},
    report::Reporter,
    request::{Denials, PendingCheck, Request, Requests, Stream},
    response::{Denial, LocalReply, ReplyCache, ResponseHeaders, write_headers},
};

/// The state of one worker for one configuration.
#[derive(Debug)]
pub struct Worker {
    pub(crate) config: Arc<Config>,
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
    pub(crate) reply_cache: Arc<Mutex<ReplyCache>>,
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
            process: Process::new(identity.try_into().unwrap_or_default(), &config),
            policy: Policy::new(&mut config, &mut random),
            requests: Requests::new(config.hold_max, secret_of(&seed)),
            calls: Calls::new(token, &config.limiter),
            outage: Outage::new(&config, Random::new(random.next_u64())),
            cache: WorkerCache::default(),
            leases: WorkerLeases::default(),
            denials: Denials::default(),
            counts: Counts::default(),
            reporter: Reporter::new(Random::new(random.next_u64())),
            reply_cache: Arc::default(),
            steps: VecDeque::new(),
            resumptions: Resumptions::default(),
            ticks: TickSchedule::default(),
            random,
            config: Arc::new(config),
        }
    }

    /// Sets the name that the operator gave this proxy (Envoy's node id), which polls report.
    #[must_use]
    pub fn named(mut self, node: &str) -> Self {
        self.policy.set_node(node);
        self
    }

    /// The worker is that of a dynamic module, which polls report.
    #[must_use]
    pub const fn in_module(mut self) -> Self {
        self.policy.is_module = true;
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
    /// the step follows after the body. The time is read only if it matters.
    pub fn on_request(
        &mut self,
        host: &impl Host,
        now: &dyn Fn() -> Now,
        stream: StreamId,
        request: &impl Request,
    ) {
        if !self.is_sampled() || self.is_limiter_traffic(request) {
            return self.pass(stream, Edits::default(), Vec::new());
        }
        let unknown = matches!(self.policy.state, PolicyState::Unknown);
        if !self.ticks.busy || unknown || !self.requests.is_idle() {
            self.catch_up(host, now());
        }
        self.decide(host, now, stream, request, None);
        if !self.calls.batcher.is_empty() {
            self.send_soon(host, now());
        }
    }

    /// The last of a request has arrived: its body or its trailers.
    pub fn on_request_end(&mut self, now: impl FnOnce() -> Now, stream: StreamId) {
        self.requests.in_flight.arrived(stream, now);
    }

    /// The response to a request is about to leave for the client.
    /// `ended`: it has no body. The time is read only if it is measured.
    ///
    /// If the request still waits here, Envoy or a filter in front answers in place of its service (a timeout, a
    /// malformed body), so nobody waits for a decision any more.
    pub fn on_response(
        &mut self,
        now: impl FnOnce() -> Now,
        stream: StreamId,
        headers: &mut impl ResponseHeaders,
        ended: bool,
    ) -> Metering {
        if self.body_need(stream) != BodyNeed::None {
            return if self.on_gone(now, stream) {
                Metering::Settled
            } else {
                Metering::None
            };
        }
        self.requests.in_flight.answered(stream, headers, now);
        let metering = self.requests.metered.begin(stream, headers, ended);
        if metering == Metering::Settled {
            self.ticks.tick_sooner();
        }
        if let Some(Stream::Passed(quotas)) = self.requests.streams.remove(stream) {
            write_headers(&quotas, false, self.config.styles, headers);
        }
        metering
    }

    /// Whether the response to a decided request, or its end, may concern this worker.
    pub fn follows(&self, stream: StreamId) -> bool {
        !self.requests.is_idle() || self.requests.streams.get(stream).is_some()
    }

    /// A request ended: answered, reset by its client, or failed. Returns whether it held slots or
    /// had reserved units, so that the host should call [`Worker::on_turn_end`] when this turn ends.
    pub fn on_gone(&mut self, now: impl FnOnce() -> Now, stream: StreamId) -> bool {
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
        let ended = self.requests.in_flight.end(stream, now, forwarded)
            | self.requests.metered.end(stream, forwarded);
        if ended {
            self.ticks.tick_sooner();
        }
        ended
    }

    /// The tick that [`Worker::tick_ms`] asked for.
    pub fn on_tick(&mut self, host: &impl Host, now: Now, metrics: &mut impl Metrics) {
        self.join(host, now);
        self.poll_policy(host, now);
        self.end_waits(now);
        self.free_slots(host, now);
        self.expire_streamed(host, now);
        while let Some(lost) = self.calls.take_lost(now) {
            self.fail_check_call(host, now, lost, ChargeStatus::Unknown, false);
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

    /// Ends the delays that are over, and the waits for bodies that did not come.
    pub(crate) fn end_waits(&mut self, now: Now) {
        while let Some(held) = self.requests.holds.next_due(now) {
            // Its slots in queues are used, and its permit is free.
            self.requests.in_flight.resumed(held.stream, now);
            self.pass(held.stream, held.edits, held.quotas);
        }
        let late = self.requests.bodies.late(now);
        self.steps
            .extend(late.into_iter().map(Step::DecideWithoutBody));
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
                self.fail_check_call(host, now, call, ChargeStatus::NotCharged, false);
            }
            Some(InFlight::LeftoverFrees) => self.on_leftover_frees_failed(host, now, id),
            Some(InFlight::Report) | None => {}
        }
        self.send_soon(host, now);
    }

    /// Writes what changed in the worker cache to the shared table.
    pub(crate) fn flush_cache(&mut self, host: &impl Host, now: Now) {
        self.cache.write(host, now, &self.process.table);
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

    /// A request arrived: the first since a tick, or there is no policy, or something to free.
    fn catch_up(&mut self, host: &impl Host, now: Now) {
        self.join(host, now);
        let was_busy = std::mem::replace(&mut self.ticks.busy, true);
        if !was_busy && self.ticks.quiet_since_us.is_none() {
            // It was idle.
            self.load_snapshot(host, now);
            self.outage.breaker.is_open(host, now);
            self.tick_soon(now);
        }
        self.free_slots(host, now);
        if matches!(self.policy.state, PolicyState::Unknown) {
            self.poll_policy(host, now);
        }
    }

    /// Ticks soon, to retry something.
    pub(crate) fn tick_soon(&mut self, now: Now) {
        self.ticks.by(now, 0, BUSY_MS);
    }

    /// A poll was answered. An idle worker has nothing to do before its next poll, so it needs no
    /// ticks as long as limiters answer.
    pub(crate) fn await_poll(&mut self, now: Now) {
        let rests =
            self.ticks.quiet_since_us.is_none() && !self.ticks.busy && self.requests.is_idle();
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
            && self.requests.is_idle()
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

// --- The steps that the state machine returns to its host.

/// A request, by the host's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

/// A step for the host. Steps of requests that ended may be dropped.
#[derive(Debug)]
pub enum Step {
    /// The request continues.
    Continue {
        /// The request.
        stream: StreamId,
        /// Changes of its headers.
        edits: Edits,
    },
    /// The filter answers the request.
    Refuse {
        /// The request.
        stream: StreamId,
        /// How.
        refusal: Box<Refusal>,
    },
    /// The body that a request waits for did not arrive in time: the host calls
    /// [`Worker::on_request_read`](Worker::on_request_read).
    DecideWithoutBody(StreamId),
    /// A call to the limiter. The host must report the outcome of each call.
    Call(Box<Call>),
    /// An operation on the check stream.
    Stream(StreamStep),
    /// The host calls [`Worker::on_turn_end`](Worker::on_turn_end) when the current turn of
    /// its event loop ends; at once, if it cannot find out when.
    AtTurnEnd,
    /// A message for the log.
    Log(Level, String),
}

impl Step {
    /// The request that continues or is answered by this step.
    fn ends_pause(&self) -> Option<StreamId> {
        match self {
            Self::Continue { stream, .. } | Self::Refuse { stream, .. } => Some(*stream),
            _ => None,
        }
    }
}

/// Bound: requests that one callback resumes or answers. Beyond it, the others continue at the end
/// of the turn or at a tick.
///
/// Envoy continues a request at the end of the callback that resumed it. If its route answers at
/// once, Envoy calls the filter for the response, and continues the next request at the end of that
/// call: the stack grows with each of them, by four kilobytes or so, until V8 ends the VM at one
/// megabyte. Other filters and access loggers make it grow faster, so this is a sixth of what fits.
const MAX_RESUMED: usize = 32;

/// A callback of the host, while it carries out steps.
#[derive(Debug)]
pub struct Callback {
    /// The request that it is about.
    pub(crate) request: Option<StreamId>,
    /// How many other requests it may still resume.
    left: usize,
    /// Whether it leaves some to the next callback, and has requested that.
    leaves: bool,
}

impl Callback {
    /// A callback about no request.
    pub fn of_root() -> Self {
        Self {
            request: None,
            left: MAX_RESUMED,
            leaves: false,
        }
    }

    /// A callback about a request. Other requests continue in a callback of the root.
    pub fn of_request(stream: StreamId) -> Self {
        Self {
            request: Some(stream),
            left: 0,
            leaves: false,
        }
    }
}

/// Requests that are decided and continue in a later callback, the oldest first: at most as many as
/// waited for a decision.
#[derive(Debug, Default)]
pub(crate) struct Resumptions(VecDeque<Step>);

impl Resumptions {
    fn add(&mut self, step: Step) {
        self.0.push_back(step);
    }

    /// The next one that a callback may carry out, or a request for the next callback.
    fn poll(&mut self, callback: &mut Callback) -> Option<Step> {
        if callback.left > 0 {
            let step = self.0.pop_front()?;
            callback.left -= 1;
            return Some(step);
        }
        let leaves = !self.is_empty() && !std::mem::replace(&mut callback.leaves, true);
        leaves.then_some(Step::AtTurnEnd)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a request is decided and still paused.
    pub(crate) fn contains(&self, stream: StreamId) -> bool {
        self.position(stream).is_some()
    }

    /// Removes a request that is gone; returns whether it was still paused.
    fn remove(&mut self, stream: StreamId) -> bool {
        let at = self.position(stream);
        at.is_some_and(|at| self.0.remove(at).is_some())
    }

    fn position(&self, stream: StreamId) -> Option<usize> {
        let mut waiting = self.0.iter();
        waiting.position(|step| step.ends_pause() == Some(stream))
    }
}

/// The severity of a log message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// For information.
    Info,
    /// Something works less well than it should.
    Warn,
}

/// Changes to a request on its way to the upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    /// The value of `x-ratelimit-degraded`: the limits that mark the request.
    pub degraded: Option<String>,
    /// What the response must have, whatever the client asked for, so that its cost can be read.
    pub needs: ResponseNeeds,
}

/// What a response must have so that its cost can be read. The client pays, so it must not decide that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseNeeds {
    /// The body, whole and not compressed: the host replaces or removes the headers of the request that
    /// ask for something else.
    pub body: bool,
    /// The trailers: the request must accept them.
    pub trailers: bool,
}

/// The headers of a request at the host.
pub trait RequestHeaders {
    /// The first value of a header.
    fn get(&self, name: &str) -> Option<Vec<u8>>;
    /// Sets a header, dropping its other values.
    fn set(&mut self, name: &str, value: &[u8]);
    /// Removes a header.
    fn remove(&mut self, name: &str);
}

/// The header that marks a request for its upstream. Only the filter may set it.
pub const DEGRADED: &str = "x-ratelimit-degraded";

/// Request headers by which a client may get a part of a body, or the body in a form that the filter does
/// not read. A service may ignore each of them, so no client depends on it.
const CHOOSES_BODY: [&str; 8] = [
    "range",
    "if-range",
    "a-im",
    "prefer",
    "accept-charset",
    "grpc-accept-encoding",
    "connect-accept-encoding",
    "sec-websocket-extensions",
];

impl Edits {
    /// Edits a request.
    pub fn apply(&self, headers: &mut impl RequestHeaders) {
        if let Some(limits) = &self.degraded {
            headers.set(DEGRADED, limits.as_bytes());
        }
        if self.needs.body {
            headers.set("accept-encoding", b"identity");
            for name in CHOOSES_BODY {
                headers.remove(name);
            }
            // With other methods, these guard against lost updates.
            if matches!(headers.get(":method").as_deref(), Some(b"GET" | b"HEAD")) {
                for name in ["if-none-match", "if-modified-since"] {
                    headers.remove(name);
                }
            }
        }
        if self.needs.trailers {
            headers.set("te", b"trailers");
        }
    }
}

/// Whether a request is a gRPC call, by its `content-type`, as Envoy sees it: gRPC-Web is none.
pub fn is_grpc(content_type: Option<&[u8]>) -> bool {
    let rest = content_type.and_then(|value| value.strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| matches!(rest, [] | [b'+', ..]))
}

/// A call to the limiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The id to report the outcome by.
    pub id: CallId,
    /// The HTTP method.
    pub method: &'static str,
    /// The path, with its query.
    pub path: String,
    /// Further headers. None contains client bytes.
    pub headers: Vec<(&'static str, String)>,
    /// The body, if any.
    pub body: Option<Vec<u8>>,
    /// The timeout, in milliseconds.
    pub timeout_ms: u64,
}

/// An operation on the check stream, of which there is one at a time. The host passes its messages to
/// [`Worker::on_stream_message`](Worker::on_stream_message) and reports its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamStep {
    /// Opens a stream to `protocol::CHECK_STREAM`, with this value of `authorization`.
    Open(Option<String>),
    /// Sends a call. The host reports it as refused if there is no stream.
    Send(CallId, Vec<u8>),
    /// Closes this side: it sends nothing more.
    Close,
    /// Gives the stream up.
    Cancel,
}

/// The answer to a call.
pub trait CallAnswer {
    /// The first value of a header.
    fn header(&self, name: &str) -> Option<&[u8]>;
    /// The body, or `None` if it is longer than `max_len` bytes.
    fn body(&self, max_len: usize) -> Option<Vec<u8>>;
}

/// The answer to a denied request. Whether the request is a gRPC call is looked up only when it is
/// written.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub(crate) denial: Denial,
    pub(crate) config: Arc<Config>,
    pub(crate) random: Random,
    pub(crate) reply_cache: Arc<Mutex<ReplyCache>>,
}

impl Refusal {
    /// The response, for a gRPC call or any other request.
    pub fn reply(self, grpc: bool) -> LocalReply {
        let mut random = self.random;
        let (deny, styles) = (&self.config.deny, self.config.styles);
        let reply_cache = self.reply_cache.lock();
        let reply_cache = &mut *reply_cache.unwrap_or_else(PoisonError::into_inner);
        self.denial
            .reply(deny, styles, grpc, &mut random, reply_cache)
    }
}

// --- Formats text from other components as one log line.

/// Characters that are kept.
const MAX_CHARS: usize = 400;

/// The text on one line. Control characters, and those that change the direction of text or have no
/// width, are written as escapes.
pub(crate) fn log_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(MAX_CHARS));
    for c in text.chars().take(MAX_CHARS) {
        if is_plain(c) {
            out.push(c);
        } else {
            out.extend(c.escape_unicode());
        }
    }
    out
}

fn is_plain(c: char) -> bool {
    let invisible = matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    !c.is_control() && !invisible
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_bidi_characters_are_escaped_and_the_length_bounded() {
        let text = "store: \u{1b}[31mé\r\n\0\u{85}\u{202e}gnorts\u{2066}\u{2028}\u{200b}!";
        assert_eq!(
            log_line(text),
            "store: \\u{1b}[31mé\\u{d}\\u{a}\\u{0}\\u{85}\\u{202e}gnorts\\u{2066}\\u{2028}\\u{200b}!"
        );
        assert!(log_line(&"\n".repeat(1 << 20)).len() <= 10 * MAX_CHARS);
    }
}
