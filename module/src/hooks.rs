//! What Envoy calls: a configuration of the filter, and its requests.
//!
//! Each hook takes the lock of a worker for one call of its state machine ([`Filter::run`]), and carries
//! out what that returned without any lock, because Envoy may then call further hooks: a request that
//! continues may be answered, and may end, before Envoy returns.
//!
//! [`Filter::run`] also ends panics: that worker gets a new state machine, and requests that waited for the
//! old one are decided by `failure_mode`.

use std::{
    any::Any,
    cell::Cell,
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use filter_core::{
    BodyNeed, Call, CallAnswer, Callback, Config, DEGRADED, Level, Metering, Now, OnFailure,
    Refusal, Step, StreamId, StreamStep, Worker, is_sidecar, printable, usable_token,
};

use crate::{
    abi::{self, AnswerHeaders, Chunks, ConfigScheduler, Headers, Key, Part, Request, Severity},
    fault,
    http::{self, Answer, Chunk, Edited, HostRequest, HostResponse, ResponsePart},
    limiter::{self, Limiter, Of},
    metrics::{Defined, Recorded},
    shared::SharedMap,
    time::{self, Clocks, Ticker},
    worker::{Slot, State, Steps},
};

/// Writes to Envoy's log. Escapes what a terminal would interpret.
fn log(severity: Severity, text: &str) {
    abi::log(severity, &printable(text));
}

// --- A configuration.

/// One configuration of the filter. It lives until Envoy has no request with it.
pub struct Filter {
    config: Config,
    token: Option<String>,
    node: String,
    sidecar: bool,
    /// The number of its events: an event of another configuration is ignored.
    event: u64,
    slots: Vec<Slot>,
    scheduler: ConfigScheduler,
    /// Whether an event of the main thread is on its way.
    scheduled: AtomicBool,
    /// Steps for the main thread.
    inbox: Mutex<VecDeque<(Of, Step)>>,
    limiter: Limiter,
    /// Until when refused polls are made again: see [`Filter::is_early`]. 0: no more.
    starts_until_us: AtomicU64,
    early_polls: Mutex<VecDeque<(Of, Step)>>,
    metrics: Defined,
    clocks: Clocks,
    /// Nobody looks after it where Envoy only validates its configuration.
    pub ticker: Ticker,
}

/// How long Envoy may take to know its clusters' hosts.
const STARTING_US: u64 = 10_000_000;

/// When what panicked on the main thread is tried again.
const AFTER_PANIC_US: u64 = 1_000_000;

/// The number of the next configuration's events.
static NEXT_EVENT: AtomicU64 = AtomicU64::new(1);

/// Reads a configuration. If it is invalid, the module logs why: Envoy itself reports only that the
/// module refused it.
pub fn configured(config: &mut abi::Config<'_>, json: &[u8]) -> Option<Arc<Filter>> {
    let filter = catch_unwind(AssertUnwindSafe(|| {
        fault::point("configured");
        let filter = Arc::new(Filter::new(config, json)?);
        if !abi::validates() && !Ticker::start(&filter) {
            return Err("no thread for ticks".to_owned());
        }
        Ok(filter)
    }));
    let filter = filter.unwrap_or_else(|payload| Err(format!("panic: {}", text_of(&*payload))));
    match filter {
        Ok(filter) => Some(filter),
        Err(problems) => {
            log(
                Severity::Error,
                &format!("rate limiter: configuration:\n{problems}"),
            );
            None
        }
    }
}

impl Filter {
    fn new(envoy: &mut abi::Config<'_>, json: &[u8]) -> Result<Self, String> {
        let config = Config::from_json(json).map_err(|problems| problems.to_string())?;
        if let Some(problem) = http::unreadable(&config) {
            return Err(problem);
        }
        let token = config.limiter.token_env.as_deref().and_then(token);
        let node = node();
        let event = NEXT_EVENT.fetch_add(1, Ordering::Relaxed);
        let mut filter = Self {
            token,
            sidecar: is_sidecar(node.as_bytes()),
            node,
            event,
            slots: Vec::new(),
            scheduler: envoy.scheduler(),
            scheduled: AtomicBool::new(false),
            inbox: Mutex::default(),
            limiter: Limiter::default(),
            starts_until_us: AtomicU64::new(time::mono_us() + STARTING_US),
            early_polls: Mutex::default(),
            metrics: Defined::new(envoy),
            clocks: Clocks::new(),
            ticker: Ticker::new(),
            config,
        };
        for _ in 0..abi::concurrency().max(1) {
            let worker = filter.new_worker()?;
            filter.slots.push(Slot::new(worker, event));
        }
        Ok(filter)
    }

    fn new_worker(&self) -> Result<Worker, String> {
        let mut seed = [0; 48];
        getrandom::fill(&mut seed).map_err(|error| format!("no random numbers: {error}"))?;
        let worker = Worker::new(self.config.clone(), self.token.as_deref(), seed);
        Ok(worker.named(&self.node).in_module())
    }

    /// The configuration ends: Envoy has no request with it, and cancels its calls next. May run on any
    /// thread.
    pub fn on_end(&self) {
        for index in 0..self.slots.len() {
            self.run("end", index, |state, now| {
                state.worker.leave(&SharedMap, now);
                state.left = true;
            });
        }
        Ticker::end(self);
    }
}

/// The limiter's token, from the environment.
fn token(name: &str) -> Option<String> {
    let value = std::env::var_os(name);
    let token = usable_token(value.map(std::ffi::OsString::into_encoded_bytes));
    if token.is_none() {
        let text = format!("rate limiter: no usable token in environment variable {name} of Envoy");
        log(Severity::Warn, &text);
    }
    token
}

/// The operator's name for this proxy. Envoy does not give modules its node id, so it is that of the
/// command line, or the host's name.
fn node() -> String {
    let line = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let mut arguments = line.split(|byte| *byte == 0);
    let named = arguments.find_map(|argument| {
        let rest = argument.strip_prefix(b"--service-node")?;
        Some(rest.strip_prefix(b"=").map(<[u8]>::to_vec))
    });
    let node = match named {
        Some(Some(joined)) => Some(joined),
        Some(None) => arguments.next().map(<[u8]>::to_vec),
        None => None,
    };
    let node = node.filter(|node| !node.is_empty());
    let host = || gethostname::gethostname().into_encoded_bytes();
    String::from_utf8_lossy(&node.unwrap_or_else(host)).into_owned()
}

// --- The state of a worker, and what ends it.

/// Panics that were not reported yet.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Ends a panic outside of a worker's state machine. Each hook is called by this, for beyond it a panic would
/// end Envoy.
pub fn caught<R>(hook: &str, act: impl FnOnce() -> R) -> Option<R> {
    let done = catch_unwind(AssertUnwindSafe(act));
    done.map_err(|payload| count_panic(hook, "", payload)).ok()
}

fn count_panic(hook: &str, so: &str, payload: Box<dyn Any + Send>) {
    PANICS.fetch_add(1, Ordering::Relaxed);
    // Nor may what reports it panic.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let what = text_of(&*payload);
        log(
            Severity::Error,
            &format!("rate limiter: bug: panic in {hook}: {what}{so}"),
        );
    }));
    let _ = catch_unwind(AssertUnwindSafe(|| drop(payload)));
}

/// The text of a panic.
fn text_of(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message")
}

impl Filter {
    /// Of a worker; an index that Envoy should not have stands for the last one.
    fn slot(&self, index: usize) -> Option<&Slot> {
        self.slots.get(index).or_else(|| self.slots.last())
    }

    /// Calls the state machine of a worker. `None`: it panicked, and was replaced, or the configuration has
    /// ended.
    fn run<R>(
        &self,
        hook: &'static str,
        index: usize,
        act: impl FnOnce(&mut State, Now) -> R,
    ) -> Option<R> {
        // Not before the lock: what another thread started meanwhile would be later.
        self.run_untimed(hook, index, |state| act(state, self.clocks.now()))
    }

    /// As [`Filter::run`], for what rarely needs the time.
    fn run_untimed<R>(
        &self,
        hook: &'static str,
        index: usize,
        act: impl FnOnce(&mut State) -> R,
    ) -> Option<R> {
        let slot = self.slot(index)?;
        let mut state = slot.lock();
        let acted = catch_unwind(AssertUnwindSafe(|| {
            fault::point(hook);
            if state.left {
                return None;
            }
            let result = act(&mut state);
            self.adjust_ticks(slot, &mut state);
            Some(result)
        }));
        let wakes = std::mem::take(&mut state.wakes);
        match acted {
            Ok(result) => {
                drop(state);
                if wakes {
                    self.wake();
                }
                result
            }
            Err(payload) => {
                // Under the same lock, so that nobody uses the broken state. Whatever panics here is not counted;
                // then requests wait for the idle timeout of their streams.
                let old = catch_unwind(AssertUnwindSafe(|| {
                    let old = state.replace(self.new_worker().ok()?);
                    self.adjust_ticks(slot, &mut state);
                    self.limiter.give_up(index);
                    Some(old)
                }));
                drop(state);
                let _ = catch_unwind(AssertUnwindSafe(|| drop(old)));
                let so = "; the worker starts anew, and requests that waited are decided by failure_mode";
                count_panic(hook, so, payload);
                self.wake();
                None
            }
        }
    }

    fn adjust_ticks(&self, slot: &Slot, state: &mut State) {
        let tick_ms = state.worker.tick_ms();
        if state.tick_ms != tick_ms {
            state.tick_ms = tick_ms;
            self.tick_by(slot, after(self.clocks.now(), tick_ms));
        }
        let overdue_us = state.worker.overdue_us();
        if slot.overdue_us.load(Ordering::Relaxed) != overdue_us {
            slot.overdue_us.store(overdue_us, Ordering::Relaxed);
            self.ticker.overdue_by(overdue_us);
        }
    }

    fn tick_by(&self, slot: &Slot, due_us: u64) {
        slot.due.set(due_us);
        self.ticker.by(due_us);
    }

    /// Has the main thread call [`Filter::on_event`]. Without a lock: where nothing else holds the configuration any
    /// more, Envoy ends it within this.
    fn wake(&self) {
        if !self.scheduled.swap(true, Ordering::AcqRel) {
            self.scheduler.commit(self.event);
        }
    }

    /// Has the main thread call [`Filter::on_event`], for a tick.
    pub fn tick_on_main(&self) {
        self.scheduler.commit(self.event);
    }

    /// Leaves the steps of a worker to the main thread, in their order: the caller has its lock.
    fn post(&self, index: usize, state: &mut State, calls: Vec<Step>) {
        if calls.is_empty() {
            return;
        }
        if calls.iter().any(is_cancel) {
            // What has arrived on the stream, and its end, concern nobody from now on.
            self.limiter.give_up(index);
        }
        let of = Of {
            worker: index,
            epoch: state.epoch,
        };
        locked(&self.inbox).extend(calls.into_iter().map(|step| (of, step)));
        state.wakes = true;
    }

    /// Has the main thread end the turn of a worker that has no paused request.
    fn end_turn_on_main(&self, index: usize) {
        if let Some(slot) = self.slot(index) {
            slot.main_ends_turn.store(true, Ordering::Release);
            self.wake();
        }
    }
}

/// What a lock guards, also after a panic under it: for what each single call leaves whole.
pub fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_cancel(step: &Step) -> bool {
    matches!(step, Step::Stream(StreamStep::Cancel))
}

fn after(now: Now, ms: u32) -> u64 {
    now.mono_us.saturating_add(u64::from(ms) * 1000)
}

fn write_log(steps: Vec<Step>) {
    for step in steps {
        if let Step::Log(level, text) = step {
            let severity = match level {
                Level::Info => Severity::Info,
                Level::Warn => Severity::Warn,
            };
            log(severity, &text);
        }
    }
}

// --- On the main thread.

impl Filter {
    /// An event: steps and ticks are due. Only here calls are made: while Envoy shuts down, it has no more
    /// events, but ends calls and streams, and a new call then would be its end.
    pub fn on_event(&self, envoy: &mut abi::Config<'_>, event: u64) {
        if event != self.event {
            return;
        }
        let done = caught("event", || {
            fault::point("event");
            self.work_on_main(envoy);
        });
        if done.is_none() {
            // What was not done is due again, but a panic that recurs must not keep the main thread busy.
            self.scheduled.store(false, Ordering::Release);
            self.ticker
                .by(time::mono_us().saturating_add(AFTER_PANIC_US));
        }
    }

    fn work_on_main(&self, envoy: &mut abi::Config<'_>) {
        self.clocks.adjust();
        let panics = PANICS.swap(0, Ordering::Relaxed);
        if panics > 0 {
            self.metrics.write(envoy, Recorded::panics(panics));
        }
        // No event is needed for the steps of these ticks.
        self.scheduled.store(true, Ordering::Release);
        let mut next_us = u64::MAX;
        for (index, slot) in self.slots.iter().enumerate() {
            let ends_turn = slot.main_ends_turn.swap(false, Ordering::AcqRel);
            if ends_turn {
                self.run("turn_end", index, |state, now| {
                    state.ends_turn = false;
                    state.worker.on_turn_end(&SharedMap, now);
                });
            }
            let ticks = slot.due.is_past(time::mono_us());
            if ticks {
                self.tick(envoy, index, slot);
            }
            if ends_turn || ticks {
                self.pump(index);
            }
            next_us = next_us.min(slot.due.at_us());
        }
        self.ticker.by(next_us);
        self.scheduled.store(false, Ordering::Release);
        self.limiter.reset_given_up(envoy);
        // No lock is held while Envoy is called. What a panic leaves in the list is carried out later.
        let due = {
            let mut inbox = locked(&self.inbox);
            inbox.append(&mut locked(&self.early_polls));
            inbox.len()
        };
        for _ in 0..due {
            let next = locked(&self.inbox).pop_front();
            if let Some((of, step)) = next {
                self.carry_out(envoy, of, step);
            }
        }
        // What came meanwhile may have taken the event that was on its way for this one.
        let turns = |slot: &Slot| slot.main_ends_turn.load(Ordering::Acquire);
        let more = !locked(&self.inbox).is_empty() || self.slots.iter().any(turns);
        if more || PANICS.load(Ordering::Relaxed) > 0 {
            self.wake();
        }
    }

    fn tick(&self, envoy: &mut abi::Config<'_>, index: usize, slot: &Slot) {
        let recorded = self.run("tick", index, |state, now| {
            state.look_after_event();
            let mut recorded = Recorded::default();
            state.worker.on_tick(&SharedMap, now, &mut recorded);
            state.tick_ms = state.worker.tick_ms();
            let due_us = after(now, state.tick_ms);
            slot.due.set(due_us);
            recorded
        });
        let Some(recorded) = recorded else {
            // It panicked, and might again.
            let due_us = time::mono_us().saturating_add(AFTER_PANIC_US);
            return slot.due.set(due_us);
        };
        self.metrics.write(envoy, recorded);
    }

    /// Ends the waits that are overdue, because the main thread is busy. Returns when the next one is. On the thread
    /// of the ticks.
    pub fn end_overdue(&self) -> u64 {
        let mut next_us = u64::MAX;
        for (index, slot) in self.slots.iter().enumerate() {
            if slot.overdue_us.load(Ordering::Relaxed) <= time::mono_us() {
                // Where the configuration has ended, nobody waits.
                slot.overdue_us.store(u64::MAX, Ordering::Relaxed);
                self.run("overdue", index, |state, now| {
                    state.worker.end_overdue(&SharedMap, now);
                });
                self.pump(index);
            }
            next_us = next_us.min(slot.overdue_us.load(Ordering::Relaxed));
        }
        next_us
    }

    /// Takes the steps of a worker, not on its own thread. Requests that are decided continue on that.
    fn pump(&self, index: usize) {
        self.run("steps", index, |state, now| {
            let mut steps = state.steps(None);
            if steps.ends_turn && state.end_turn(None) {
                // Nobody waits: the turn ends here.
                state.ends_turn = false;
                state.worker.on_turn_end(&SharedMap, now);
                let more = state.steps(None);
                steps.calls.extend(more.calls);
                steps.log.extend(more.log);
            }
            // On the main thread, which may write to the log.
            steps.calls.extend(steps.log);
            self.post(index, state, steps.calls);
        });
    }

    /// Carries out one step for a worker, and what Envoy's refusal makes of it.
    fn carry_out(&self, envoy: &mut abi::Config<'_>, of: Of, step: Step) {
        let awaited = self.run_of("step", of, |state, _| match &step {
            Step::Call(call) => state.worker.is_in_flight(call.id),
            Step::Stream(StreamStep::Send(id, _)) => state.worker.is_in_flight(*id),
            _ => true,
        });
        if awaited != Some(true) {
            // Of a state machine that a panic ended, or overdue before it was made: nobody waits for it.
            return;
        }
        let limiter = &self.config.limiter;
        let refused = match step {
            Step::Call(call) => match self.limiter.call(envoy, limiter, of, &call) {
                Ok(()) => {
                    self.starts_until_us.store(0, Ordering::Relaxed);
                    None
                }
                Err(_) if self.is_early(&call) => {
                    return locked(&self.early_polls).push_back((of, Step::Call(call)));
                }
                Err(_) => Some(Some(call.id)),
            },
            Step::Stream(StreamStep::Open(bearer)) => {
                let opened = self.limiter.open(envoy, limiter, of, bearer.as_deref());
                opened.err().map(|_| None)
            }
            Step::Stream(StreamStep::Send(id, message)) => {
                let sent = self.limiter.send(envoy, of, &message);
                sent.err().map(|_| Some(id))
            }
            Step::Stream(StreamStep::Close) => {
                self.limiter.close(envoy, of);
                None
            }
            Step::Stream(StreamStep::Cancel) => {
                self.limiter.give_up(of.worker);
                // Outside of the hooks of the stream.
                self.wake();
                None
            }
            Step::Log(..) => {
                write_log(vec![step]);
                None
            }
            _ => None,
        };
        let Some(refused) = refused else {
            return;
        };
        self.run_of("refused", of, |state, now| {
            if let Some(call) = refused {
                state.worker.on_call_refused(&SharedMap, now, call);
            } else {
                let why = "no such cluster, or none of its hosts is there";
                state.worker.stream_failed(&SharedMap, now, why);
            }
        });
        self.pump(of.worker);
    }

    /// Whether a poll that Envoy refused is made again at the next tick. Ticks begin before Envoy has
    /// initialised its clusters, and the state machine would take a refusal for an outage.
    fn is_early(&self, poll: &Call) -> bool {
        poll.body.is_none() && time::mono_us() < self.starts_until_us.load(Ordering::Relaxed)
    }

    /// As [`Filter::run`], unless a panic ended the state meanwhile.
    fn run_of<R>(
        &self,
        hook: &'static str,
        of: Of,
        act: impl FnOnce(&mut State, Now) -> R,
    ) -> Option<R> {
        self.run(hook, of.worker, |state, now| {
            (state.epoch == of.epoch).then(|| act(state, now))
        })?
    }

    /// A call was answered; `None`: it timed out or was reset.
    pub fn on_answer(&self, id: u64, answer: Option<(AnswerHeaders<'_>, Chunks<'_>)>) {
        let Some((of, call)) = self.limiter.answered(id) else {
            return;
        };
        let answer = answer.map(|(headers, body)| Answer { headers, body });
        let answer = answer.as_ref().map(|answer| answer as &dyn CallAnswer);
        self.run_of("answer", of, |state, now| {
            state.worker.on_call_answer(&SharedMap, now, call, answer);
        });
        self.pump(of.worker);
    }

    /// The limiter, or Envoy in its place, accepted or refused a stream.
    pub fn on_stream_headers(&self, id: u64, headers: AnswerHeaders<'_>, end: bool) {
        if let Some(status) = limiter::refused_status(headers) {
            self.stream_ended(id, status, false);
        } else if end {
            self.stream_ended(id, limiter::grpc_status(headers), false);
        }
    }

    /// Data of a stream.
    pub fn on_stream_data(&self, id: u64, data: Chunks<'_>, end: bool) {
        let Some(of) = self.limiter.worker_of(id) else {
            return;
        };
        for message in self.limiter.received(id, data) {
            self.run_of("message", of, |state, now| {
                state.worker.on_stream_message(&SharedMap, now, &message);
            });
            self.pump(of.worker);
            if self.limiter.worker_of(id).is_none() {
                // The message ended the stream.
                return;
            }
        }
        if end {
            // Without trailers, there is no status.
            self.stream_ended(id, limiter::UNAVAILABLE, false);
        }
    }

    /// The trailers of a stream, which end it.
    pub fn on_stream_trailers(&self, id: u64, trailers: AnswerHeaders<'_>) {
        self.stream_ended(id, limiter::grpc_status(trailers), false);
    }

    /// Envoy has deleted a stream.
    pub fn on_stream_gone(&self, id: u64) {
        self.stream_ended(id, limiter::UNAVAILABLE, true);
    }

    fn stream_ended(&self, id: u64, status: u32, gone: bool) {
        let Some(of) = self.limiter.ended(id, gone) else {
            return;
        };
        self.run_of("stream_closed", of, |state, now| {
            state.worker.on_stream_closed(&SharedMap, now, status);
        });
        self.pump(of.worker);
        // To reset it, for Envoy keeps it until both sides have ended.
        self.wake();
    }
}

// --- A request.

/// What becomes of a request's headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadersAction {
    /// They go on.
    Continue = 0,
    /// They wait, and the hook for the body follows.
    StopIteration = 1,
    /// They and the body wait, and the client is slowed down.
    StopAll = 4,
}

/// What becomes of a part of a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyAction {
    /// It goes on.
    Continue = 0,
    /// It waits, and the client is slowed down once Envoy's buffer is full.
    StopAndWatermark = 2,
}

/// What a hook makes of its request.
enum Decision {
    Continue,
    Refuse(Box<Refusal>),
    /// By `failure_mode: deny`, where even the new state machine panicked.
    Deny,
    Wait(BodyNeed),
}

impl Decision {
    /// What a step makes of a request, whose headers it edits if it continues.
    fn by(step: Step, request: &mut Request<'_>) -> Self {
        match step {
            Step::Refuse { refusal, .. } => Self::Refuse(refusal),
            Step::Continue { edits, .. } => {
                fault::point("edits");
                edits.apply(&mut Edited(request));
                Self::Continue
            }
            _ => Self::Continue,
        }
    }
}

/// One request and its response. Envoy calls all its hooks on one thread.
pub struct Stream {
    filter: Arc<Filter>,
    worker: usize,
    /// Its id, once the state machine knows it.
    id: Cell<Option<StreamId>>,
    /// Bytes of its body that were read, and then of that of its response.
    body_read: Cell<usize>,
    response_read: Cell<usize>,
    /// Whether the rest of the response determines what the request costs.
    metered: Cell<bool>,
    /// By which [`Request::kept`] finds it.
    key: Cell<Option<Key>>,
}

impl Stream {
    /// A request begins.
    pub fn new(filter: Arc<Filter>, request: &Request<'_>) -> Self {
        Self {
            filter,
            worker: request.worker_index(),
            id: Cell::new(None),
            body_read: Cell::new(0),
            metered: Cell::new(false),
            response_read: Cell::new(0),
            key: Cell::new(None),
        }
    }

    /// The request is kept from now on.
    pub fn keep(&self, key: Key) {
        self.key.set(Some(key));
    }

    /// Its key, if it is kept.
    pub fn key(&self) -> Option<Key> {
        self.key.get()
    }

    /// After a panic outside of the state machine, `failure_mode` decides: whether the request passes. If
    /// not, it is answered.
    pub fn passes_after_panic(&self, request: Request<'_>) -> bool {
        let decision = self.filter.by_failure_mode();
        let passes = matches!(decision, Decision::Continue);
        if !passes {
            caught("deny", || self.answer(request, decision));
        }
        passes
    }

    /// The headers of the request. `end`: it has no body.
    pub fn on_request(this: &Rc<Self>, mut request: Request<'_>, end: bool) -> HeadersAction {
        // Only this filter may mark a request.
        if { request.values(Headers::Request, DEGRADED) }
            .next()
            .is_some()
        {
            request.remove_header(Headers::Request, DEGRADED);
        }
        let Filter {
            config, sidecar, ..
        } = &*this.filter;
        if !{ config.direction }.limits(*sidecar, || http::listener_direction(&request)) {
            return HeadersAction::Continue;
        }
        let decision = this.decide("request", &mut request, |state, now, id, request| {
            let host = HostRequest::new(request, !end);
            state.worker.on_request(&SharedMap, now, id, &host);
        });
        match decision {
            Decision::Continue => HeadersAction::Continue,
            Decision::Wait(BodyNeed::Reads) => HeadersAction::StopIteration,
            Decision::Wait(_) => HeadersAction::StopAll,
            decision => {
                this.answer(request, decision);
                HeadersAction::StopIteration
            }
        }
    }

    /// A chunk of the request's body, or its trailers: it passes, or it waits for the decision.
    pub fn on_request_body(this: &Rc<Self>, mut request: Request<'_>, end: bool) -> BodyAction {
        let Some(id) = this.id.get() else {
            return BodyAction::Continue;
        };
        let filter = &this.filter;
        let need = filter.run("request_body", this.worker, |state, now| {
            if end {
                state.worker.on_request_end(|| now, id);
            }
            if state.worker.body_need(id) != BodyNeed::Reads {
                return state.worker.body_need(id);
            }
            let parts = [Part::RequestChunk, Part::RequestBuffer];
            let chunk = Chunk::read(&request, parts, this.body_read.get());
            let size = chunk.len();
            this.body_read
                .set(this.body_read.get().saturating_add(size));
            state.worker.on_request_body(id, size, end, &chunk)
        });
        let decision = match need {
            Some(BodyNeed::None) => return BodyAction::Continue,
            Some(BodyNeed::Reads | BodyNeed::Waits) => return BodyAction::StopAndWatermark,
            Some(BodyNeed::Read) => {
                this.decide("request_read", &mut request, |state, now, id, request| {
                    let host = HostRequest::new(request, false);
                    state.worker.on_request_read(&SharedMap, now(), id, &host);
                })
            }
            // A request that passed before the panic needs no further decision.
            None if { filter.run("request_lost", this.worker, |state, _| state.is_paused(id)) }
                == Some(false) =>
            {
                return BodyAction::Continue;
            }
            None => this.decide("request_lost", &mut request, |_, _, _, _| {}),
        };
        match decision {
            Decision::Continue => BodyAction::Continue,
            Decision::Wait(_) => BodyAction::StopAndWatermark,
            decision => {
                this.answer(request, decision);
                BodyAction::StopAndWatermark
            }
        }
    }

    /// Has the state machine decide; the request is paused if that takes longer.
    fn decide<'h>(
        self: &Rc<Self>,
        hook: &'static str,
        request: &mut Request<'h>,
        act: impl FnOnce(&mut State, &dyn Fn() -> Now, StreamId, &Request<'h>),
    ) -> Decision {
        let filter = &*self.filter;
        let decided = filter.run_untimed(hook, self.worker, |state| {
            let id = self.id.get().unwrap_or_else(|| state.begin());
            self.id.set(Some(id));
            act(state, &|| filter.clocks.now(), id, request);
            self.settle(state, id, request)
        });
        // A new state machine decides by `failure_mode`.
        let decided = decided.or_else(|| {
            filter.run("failure_mode", self.worker, |state, _| {
                let id = self.id.get().unwrap_or_else(|| state.begin());
                self.id.set(Some(id));
                if !state.is_paused(id) {
                    state.worker.decide_by_failure_mode(id);
                }
                self.settle(state, id, request)
            })
        });
        let Some((steps, need)) = decided else {
            return filter.by_failure_mode();
        };
        write_log(steps.log);
        if steps.ends_turn {
            filter.end_turn_on_main(self.worker);
        }
        match steps.own {
            Some(step) => Decision::by(step, request),
            None => Decision::Wait(need),
        }
    }

    /// Takes the steps, and pauses the request if it has none.
    fn settle(
        self: &Rc<Self>,
        state: &mut State,
        id: StreamId,
        request: &Request<'_>,
    ) -> (Steps, BodyNeed) {
        let mut steps = state.steps(Some(id));
        let calls = std::mem::take(&mut steps.calls);
        self.filter.post(self.worker, state, calls);
        if steps.own.is_some() {
            if state.unpause(id).is_none() {
                self.forget(state, id);
            }
        } else if !state.is_paused(id) {
            let key = request.keep(self);
            state.pause(id, key, request.scheduler());
        }
        let carrier = state.is_paused(id).then_some(id);
        // The main thread, to which that was left, may be busy.
        if steps.ends_turn || carrier.is_some() && state.ends_turn {
            steps.ends_turn = state.end_turn(carrier);
        }
        (steps, state.worker.body_need(id))
    }

    /// Forgets a request of which nothing else is of interest, and which carries no event.
    fn forget(&self, state: &mut State, id: StreamId) {
        if !state.worker.follows(id) && !state.carries_event(id) {
            state.end(id);
            self.id.set(None);
        }
    }

    /// Answers a request. Envoy may end it before this returns.
    fn answer(&self, request: Request<'_>, decision: Decision) {
        if let Decision::Refuse(refusal) = decision {
            return http::refuse(request, *refusal);
        }
        http::refuse_after_panic(request, self.filter.config.deny.status_on_error);
    }

    /// The headers of the response. `request`: as it is to be read, if it is.
    pub fn on_response<'h>(&self, request: impl FnOnce() -> Request<'h>, end: bool) {
        let Some(id) = self.id.get() else {
            return;
        };
        let now = || self.filter.clocks.now();
        let metering = self.filter.run_untimed("response", self.worker, |state| {
            let mut request = request();
            let mut headers = HostResponse::new(&mut request);
            let metering = state.worker.on_response(now, id, &mut headers, end);
            if !state.is_paused(id) {
                self.forget(state, id);
            }
            settled(state, metering)
        });
        self.read_on(metering);
    }

    /// A chunk of the response's body.
    pub fn on_response_body(&self, request: &Request<'_>, end: bool) {
        let Some(id) = self.id.get().filter(|_| self.metered.get()) else {
            return;
        };
        let metering = self.filter.run("response_body", self.worker, |state, _| {
            let part = ResponsePart::read(request, self.response_read.get());
            let read = self.response_read.get().saturating_add(part.len());
            self.response_read.set(read);
            let metering = state.worker.on_response_body(id, part.len(), end, &part);
            settled(state, metering)
        });
        self.read_on(metering);
    }

    /// The trailers of the response.
    pub fn on_response_trailers(&self, request: &Request<'_>) {
        let Some(id) = self.id.get().filter(|_| self.metered.get()) else {
            return;
        };
        let metering = self
            .filter
            .run("response_trailers", self.worker, |state, _| {
                let part = ResponsePart::trailers(request);
                let metering = state.worker.on_response_trailers(id, &part);
                settled(state, metering)
            });
        self.read_on(metering);
    }

    fn read_on(&self, metering: Option<(bool, bool)>) {
        let (reads, ends_turn) = metering.unwrap_or_default();
        self.metered.set(reads);
        if ends_turn {
            self.filter.end_turn_on_main(self.worker);
        }
    }

    /// The request has ended: answered, reset by its client, or failed.
    pub fn on_gone(&self) {
        let Some(id) = self.id.get() else {
            return;
        };
        let now = || self.filter.clocks.now();
        let ends_turn = self.filter.run_untimed("gone", self.worker, |state| {
            let lost = state.end(id);
            let freed = state.worker.on_gone(now, id);
            if freed { state.end_turn(None) } else { lost }
        });
        // After a panic it must end all the same.
        let ends_turn = ends_turn.or_else(|| {
            self.filter
                .run("gone_after_panic", self.worker, |state, _| state.end(id))
        });
        if ends_turn == Some(true) {
            self.filter.end_turn_on_main(self.worker);
        }
    }

    /// An event of its worker: the turn ends, or requests are decided.
    pub fn on_event(&self, event: u64) {
        if event == self.filter.event {
            self.filter.work_on_worker(self.worker);
        }
    }
}

/// Whether the response is read on, and whether the main thread ends the turn.
fn settled(state: &mut State, metering: Metering) -> (bool, bool) {
    let ends_turn = metering == Metering::Settled && state.end_turn(None);
    (metering == Metering::Reads, ends_turn)
}

// --- Events of a worker.

impl Filter {
    /// Ends the turn, and carries out what is decided. On the worker's own thread.
    fn work_on_worker(&self, index: usize) {
        let late = self.run("worker_event", index, |state, now| {
            state.event_came();
            if std::mem::take(&mut state.ends_turn) {
                state.worker.on_turn_end(&SharedMap, now);
            }
            std::mem::take(&mut state.late)
        });
        for id in late.unwrap_or_default() {
            self.decide_without_body(index, id);
        }
        let mut callback = Callback::of_root();
        loop {
            let stepped = self.run("worker_steps", index, |state, _| {
                let mut steps = Steps::default();
                let step = state.worker.poll_step(&mut callback)?;
                state.sort(step, &mut steps);
                steps.ends_turn = steps.ends_turn && state.end_turn(None);
                let key = match &steps.own {
                    Some(Step::Continue { stream, .. } | Step::Refuse { stream, .. }) => {
                        state.unpause(*stream)
                    }
                    _ => None,
                };
                let calls = std::mem::take(&mut steps.calls);
                self.post(index, state, calls);
                Some((steps, key))
            });
            let Some(Some((steps, key))) = stepped else {
                return;
            };
            write_log(steps.log);
            if steps.ends_turn {
                self.end_turn_on_main(index);
            }
            if let (Some(step), Some(key)) = (steps.own, key) {
                self.resume(key, step);
            }
        }
    }

    /// Continues or answers a paused request. One that has ended needs neither.
    fn resume(&self, key: Key, step: Step) {
        let resumed = caught("resume", || {
            let mut request = Request::kept(key)?;
            match Decision::by(step, &mut request) {
                Decision::Refuse(refusal) => http::refuse(request, *refusal),
                _ => request.continue_decoding(),
            }
            Some(())
        });
        if resumed.is_none()
            && let Some(request) = Request::kept(key)
        {
            match self.by_failure_mode() {
                Decision::Continue => request.continue_decoding(),
                _ => http::refuse_after_panic(request, self.config.deny.status_on_error),
            }
        }
    }

    /// What becomes of a request that a panic left without a decision.
    fn by_failure_mode(&self) -> Decision {
        match self.config.failure_mode {
            OnFailure::Deny => Decision::Deny,
            OnFailure::Allow | OnFailure::Local => Decision::Continue,
        }
    }

    fn decide_without_body(&self, index: usize, id: StreamId) {
        self.run("body_late", index, |state, now| {
            if let Some(request) = state.key(id).and_then(Request::kept) {
                let host = HostRequest::new(&request, false);
                state.worker.on_request_read(&SharedMap, now, id, &host);
            }
        });
    }
}
