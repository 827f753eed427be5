//! One worker's copy of the filter: requests, answers and ticks in, steps out.

mod active_policy;
mod admit;
mod answer;
mod call;
mod clamp;
mod debts;
mod decide;
mod decode;
mod fallback;
mod hold;
mod lease;
mod pending_check;
mod policy_poll;
mod report;
mod retry;
mod step;
mod streams;
mod tick_schedule;
mod turn_batching;
mod worker_cache;

use std::{cell::RefCell, collections::VecDeque, rc::Rc};

use filter_config::Config;

use step::Never;
pub use step::{Call, CallAnswer, Edits, Level, Refusal, Step, StreamId};

use active_policy::{ActivePolicy, PolicyState};
use hold::Holds;
use pending_check::PendingCheck;
use report::Reporter;
use retry::RetryBudget;
use streams::{Stream, Streams};
use tick_schedule::TickSchedule;
use turn_batching::TurnBatching;
use worker_cache::WorkerCache;

use crate::{
    batcher::{Batcher, CallId},
    breaker::{Breaker, CallResult, Gate},
    descriptor::Request,
    host::Host,
    identity::Identity,
    lease::WorkerLeases,
    metrics::{Counts, Event, Metrics},
    policy_poll::PolicyPoller,
    random::Random,
    response::{Denial, QuotaHeaders, ReplyCache, ResponseHeaders, write_headers},
    shared_table::Table,
    time::Now,
};

/// The limiter's checks.
const CHECK_PATH: &str = "/v1/check";
/// What is told to the limiter.
const REPORT_PATH: &str = "/v1/report";
/// The limiter's snapshots.
const POLICY_PATH: &str = "/v1/policy";
/// Characters of what an operator calls a proxy.
const MAX_NODE: usize = 128;
/// Durations of callouts kept between two ticks.
const MAX_SAMPLES: usize = 256;

/// The state of one worker for one configuration.
#[derive(Debug)]
pub struct Worker {
    config: Rc<Config>,
    bearer: Option<String>,
    node: String,
    seed: [u8; 32],
    random: Random,
    shared: Option<Shared>,
    policy: PolicyState,
    poller: PolicyPoller,
    polling: Option<CallId>,
    batcher: Batcher<PendingCheck>,
    turn_batching: TurnBatching,
    breaker: Breaker,
    retry_budget: RetryBudget,
    cache: WorkerCache,
    holds: Holds,
    leases: WorkerLeases<lease::LeaseDescriptor>,
    streams: Streams,
    steps: VecDeque<Step>,
    counts: Counts,
    reporter: Reporter,
    ticks: TickSchedule,
    reply_cache: Rc<RefCell<ReplyCache>>,
    callout_us: Vec<u64>,
    warned_unguarded: bool,
    warned_lost: bool,
    warned_failed_us: Option<u64>,
}

/// What the worker shares with the others of its process.
#[derive(Debug)]
struct Shared {
    proxy: String,
    table: Table,
}

impl Worker {
    /// A worker that has not met the others yet. `token` is what the limiter asks for, `seed`
    /// random.
    pub fn new(mut config: Config, reservation: Option<&str>, seed: [u8; 48]) -> Self {
        let (identity, own) = seed.split_at(32);
        let seed = <[u8; 32]>::try_from(identity).unwrap_or_default();
        let own = <[u8; 16]>::try_from(own).unwrap_or_default();
        let me = u128::from_le_bytes(own);
        let low = u64::try_from(me & u128::from(u64::MAX)).unwrap_or(0);
        let mut random = Random::new(low);
        let domain = config.domain.as_str();
        let timeout_ms = config.limiter.timeout_ms;
        Self {
            node: String::new(),
            bearer: reservation.map(|reservation| format!("Bearer {reservation}")),
            seed,
            shared: None,
            policy: match config.limits.take() {
                Some(policy) => {
                    let compiled = policy::Compiled::new(policy);
                    PolicyState::Limits(ActivePolicy::new(compiled, &config.sources).into())
                }
                None => PolicyState::Unknown,
            },
            poller: PolicyPoller::new(domain, random.next_u64(), Random::new(random.next_u64())),
            polling: None,
            batcher: Batcher::new(timeout_ms),
            turn_batching: TurnBatching::default(),
            breaker: Breaker::new(domain, timeout_ms, Random::new(random.next_u64())),
            retry_budget: RetryBudget::default(),
            cache: WorkerCache::default(),
            holds: Holds::new(config.hold_max),
            leases: WorkerLeases::default(),
            streams: Streams::default(),
            steps: VecDeque::new(),
            counts: Counts::default(),
            reporter: Reporter::new(Random::new(random.next_u64())),
            ticks: TickSchedule::default(),
            reply_cache: Rc::default(),
            callout_us: Vec::new(),
            warned_unguarded: false,
            warned_lost: false,
            warned_failed_us: None,
            random,
            config: Rc::new(config),
        }
    }

    /// The worker of a proxy that its operator calls `node`; what a query cannot hold as it is,
    /// becomes `_`.
    #[must_use]
    pub fn named(mut self, node: &str) -> Self {
        self.node.clear();
        for c in node.chars().take(MAX_NODE) {
            let plain = matches!(c, 'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '.' | '_' | '~' | ':' | '/' | '@');
            self.node.push(if plain { c } else { '_' });
        }
        self
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The next thing to do; `None` when all is done.
    pub fn poll_step(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// A request came. Sooner or later there is a step for it, unless it goes before.
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
        self.join(host);
        self.resume(host, now);
        self.free_slots(host, now);
        if matches!(self.policy, PolicyState::Unknown) {
            self.poll_policy(host, now);
        }
        self.decide(host, now, stream, request);
        self.send_soon(host, now);
    }

    /// A response is on its way to the client.
    pub fn on_response(&mut self, stream: StreamId, headers: &mut impl ResponseHeaders) {
        if let Some(Stream::Passed(quotas)) = self.streams.remove(stream) {
            write_headers(&quotas, self.config.styles, headers);
        }
    }

    /// A request has gone, finished or not.
    pub fn on_gone(&mut self, stream: StreamId) {
        match self.streams.remove(stream) {
            Some(Stream::Waiting) => {
                if let Some(check) = self.batcher.cancel(|check| check.stream == Some(stream)) {
                    self.undo_unsent(&check);
                }
            }
            Some(Stream::Held) => self.holds.forget(stream),
            Some(Stream::Passed(_)) | None => {}
        }
    }

    /// Time has passed.
    pub fn on_tick(&mut self, host: &impl Host, now: Now, metrics: &mut impl Metrics) {
        self.join(host);
        self.poll_policy(host, now);
        while let Some(held) = self.holds.next_due(now) {
            self.pass(held.stream, held.edits, held.quotas);
        }
        self.free_slots(host, now);
        while let Some(lost) = self.batcher.take_lost(now) {
            self.on_call_failed_checks(host, now, lost, fallback::ChargeStatus::Unknown);
        }
        self.maintain_leases(host, now);
        let open = self.breaker.is_open(host, now);
        if !open {
            self.retry_unsent(now);
        }
        self.send_overdue(host, now);
        if self.breaker.last_failure_us() == now.mono_us {
            // Other workers may need to know what only this one was told.
            self.cache.queue_all_writes();
        }
        self.flush_cache(host, now);
        self.flush(open, metrics);
        self.send_report(host, now);
        self.schedule(host, now);
    }

    /// A call was answered, or (`None`) came to nothing: refused, timed out, cut short.
    pub fn on_call_answer(
        &mut self,
        host: &impl Host,
        now: Now,
        id: CallId,
        answer: Option<&impl CallAnswer>,
    ) {
        if self.polling == Some(id) {
            self.polling = None;
            self.polled(host, now, answer);
        } else if self.on_report_answer(now, id, answer) {
            // It was for people, and decides nothing.
        } else if let Some(call) = self.batcher.finish(id) {
            let took_us = now.mono_us.saturating_sub(call.sent.mono_us);
            if self.callout_us.len() < MAX_SAMPLES {
                self.callout_us.push(took_us);
            }
            self.on_checks_answered(host, now, call, answer);
        }
        if self.cache.is_full() {
            self.flush_cache(host, now);
        }
        self.free_slots(host, now);
        self.send_soon(host, now);
    }

    /// The host would not make a call at all.
    pub fn on_call_refused(&mut self, host: &impl Host, now: Now, id: CallId) {
        if self.polling == Some(id) {
            self.polling = None;
            self.poll_failed(now);
        } else if self.on_report_answer(now, id, None::<&Never>) {
            // It was for people, and decides nothing.
        } else if let Some(call) = self.batcher.finish(id) {
            self.warn_failed(now, "no such cluster, or none of its hosts is there");
            self.on_call_failed_checks(host, now, call, fallback::ChargeStatus::NotCharged);
        }
        self.send_soon(host, now);
    }

    /// Lets the other workers know what the limiter said.
    fn flush_cache(&mut self, host: &impl Host, now: Now) {
        if let Some(shared) = &self.shared {
            self.cache.write(host, now, &shared.table);
        }
    }

    /// Meets the other workers of the process, the first time it is asked for anything.
    fn join(&mut self, host: &impl Host) {
        if self.shared.is_some() {
            return;
        }
        // Contended: this worker stays a proxy of its own, which costs it nothing but a share.
        let identity = Identity::join(host, self.seed);
        let identity = identity.unwrap_or_else(|_| Identity::of(self.seed));
        let domain = self.config.domain.as_str();
        self.shared = Some(Shared {
            proxy: identity.proxy_name(),
            table: Table::new(domain, self.config.buckets, identity.hash_key),
        });
        self.load_snapshot(host);
    }

    fn is_sampled(&mut self) -> bool {
        let share = u64::from(self.config.enabled_percent);
        share >= 100 || self.random.below(100) < share
    }

    /// Whether this is a filter's call of the limiter, on its way through another Envoy (the
    /// sidecar of a limiter): checking it would take another call, and so on. The limiter's token
    /// shows it; the host alone does not, unless the configuration says that no client can name it.
    fn is_limiter_traffic(&self, request: &impl Request) -> bool {
        if self.bearer.is_none() && !self.config.limiter.trust_host {
            return false;
        }
        let Some(path) = request.header(":path") else {
            return false;
        };
        // Nothing but these: whatever else a client puts behind them would go on unlimited.
        let polls = path.strip_prefix(POLICY_PATH.as_bytes());
        let polls = polls.is_some_and(|rest| matches!(rest, [] | [b'?', ..]));
        let posts = [CHECK_PATH, REPORT_PATH];
        if !posts.iter().any(|known| *path == *known.as_bytes()) && !polls {
            return false;
        }
        let authority = self.config.limiter.authority.as_bytes();
        let ours = request
            .header(":authority")
            .is_some_and(|host| *host == *authority);
        let given = || request.header("authorization");
        ours && self
            .bearer
            .as_ref()
            .is_none_or(|own| given().is_some_and(|b| *b == *own.as_bytes()))
    }

    /// Lets a request go on; its response will tell `shown`.
    fn pass(&mut self, stream: StreamId, edits: Edits, quotas: QuotaHeaders) {
        if quotas.quota_statuses.is_empty() {
            self.streams.remove(stream);
        } else {
            self.streams.insert(stream, Stream::Passed(quotas));
        }
        self.steps.push_back(Step::Continue { stream, edits });
    }

    fn refuse(&mut self, stream: StreamId, denial: Denial) {
        self.streams.remove(stream);
        let refusal = Refusal {
            denial,
            config: Rc::clone(&self.config),
            random: Random::new(self.random.next_u64()),
            reply_cache: Rc::clone(&self.reply_cache),
        };
        self.steps.push_back(Step::Refuse { stream, refusal });
    }

    fn report(&mut self, host: &impl Host, now: Now, probe: bool, result: CallResult) {
        let gate = if probe { Gate::Probe } else { Gate::Closed };
        self.breaker.report(host, now, gate, result);
        self.counts.happened(match result {
            CallResult::Answered => Event::CalloutAnswered,
            CallResult::Failed => Event::CalloutFailed,
        });
    }

    fn flush(&mut self, open: bool, metrics: &mut impl Metrics) {
        self.counts.flush(metrics);
        for took_us in self.callout_us.drain(..) {
            metrics.sample("rl_callout_duration_us", took_us);
        }
        metrics.gauge("rl_breaker_open", u64::from(open));
    }
}
