//! One worker's copy of the filter: hands each event to the feature that handles it.
//!
//! Each feature keeps its own state in a struct and its own steps of a request in an
//! `impl Worker` beside it: `request`, `lease`, `active_policy`, `call`, `outage`, `cache`, `report`.

mod process;
mod step;
mod tick_schedule;

use std::{cell::RefCell, collections::VecDeque, rc::Rc};

use filter_config::Config;

pub(crate) use process::Process;
use step::Resumptions;
pub use step::{
    Call, CallAnswer, Callback, Edits, Level, Refusal, ResponseNeeds, Step, StreamId, StreamStep,
};
pub(crate) use tick_schedule::HOLDING_MS;
use tick_schedule::TickSchedule;

use crate::{
    active_policy::{Policy, PolicyState},
    cache::WorkerCache,
    call::{CallId, Calls, InFlight},
    cost::Metering,
    host::Host,
    lease::{LeaseDescriptor, WorkerLeases},
    metrics::{Counts, Metrics},
    outage::{ChargeStatus, Outage},
    random::Random,
    report::Reporter,
    request::{Denials, PendingCheck, Request, Requests, Stream},
    response::{QuotaHeaders, ReplyCache, ResponseHeaders, write_headers},
    time::Now,
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
            self.ticks.hurry();
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
            self.ticks.hurry();
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
        self.send_orphans(host, now);
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
            Some(InFlight::Orphans) => self.on_orphans_answered(host, now, id, answer),
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
            Some(InFlight::Orphans) => self.on_orphans_failed(host, now, id),
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
