//! Envoy processes with filter-core's workers, and what they call.

use std::{collections::BTreeMap, future::pending, rc::Rc};

use bytes::Bytes;
use filter_core::{
    Call, CallAnswer, CallId, Callback, Config, Metering, Metrics, NoProperty, Now, Request,
    Response, ResponseHeaders, Step, StreamId, Worker, simulated::SharedData,
};
use http_body_util::{BodyExt, Full};
use protocol::compact::BatchAnswer;
use tokio::{
    task::spawn_local,
    time::{Duration, sleep, timeout},
};

use crate::{
    book::By,
    calls::CheckStream,
    mutations::Rule,
    sim::Part,
    world::{Decision, World},
};

const CONFIG: &str = r#"{
    "domain": "shop", "limiter": {"cluster": "limiter", "timeout": "20ms", "stream": STREAM},
    "descriptors": [{"key": "user", "header": "x-user"}]
}"#;

/// One process: its shared data and its workers. The first worker stands for the main thread, which ticks but has
/// no requests.
pub struct Envoy {
    shared: SharedData,
    pub workers: Vec<Worker>,
    /// The period of each worker's ticks, and its number.
    ticks: Vec<(u32, u64)>,
    /// How often it was restarted.
    pub process: u64,
    /// How far its wall clock is ahead, in milliseconds.
    pub ahead_ms: i64,
    /// It does nothing before this time, in milliseconds.
    pub paused_until_ms: u64,
    /// The check stream of each worker.
    pub streams: Vec<Option<CheckStream>>,
}

impl Envoy {
    pub fn new(world: &World, workers: usize, process: u64) -> Self {
        let chance = &world.sim.chance;
        let config = CONFIG.replace("STREAM", &world.plan.streams.to_string());
        let worker = |_| {
            let seed = std::array::from_fn(|_| u8::try_from(chance.below(256)).unwrap());
            Worker::new(Config::from_json(config.as_bytes()).unwrap(), None, seed)
        };
        Self {
            shared: SharedData::default(),
            workers: (0..=workers).map(worker).collect(),
            ticks: vec![(0, 0); workers + 1],
            process,
            ahead_ms: 0,
            paused_until_ms: 0,
            streams: (0..=workers).map(|_| None).collect(),
        }
    }
}

/// A worker of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct At {
    pub envoy: usize,
    pub worker: usize,
    process: u64,
}

struct Counts<'a>(&'a mut BTreeMap<String, u64>);

impl Metrics for Counts<'_> {
    fn count(&mut self, name: &str, by: u64) {
        *self.0.entry(name.to_owned()).or_default() += by;
    }
    fn gauge(&mut self, _: &str, _: u64) {}
    fn sample(&mut self, _: &str, _: u64) {}
}

struct Headers<'a> {
    path: &'a str,
    user: &'a str,
}

impl Request for Headers<'_> {
    fn headers<'r>(&'r self, name: &str) -> impl Iterator<Item = &'r [u8]> {
        let value = match name {
            ":method" => Some("GET"),
            ":path" => Some(self.path),
            "x-user" => Some(self.user),
            _ => None,
        };
        value.map(str::as_bytes).into_iter()
    }
    fn property(&self, _: &[u8]) -> Result<Vec<u8>, NoProperty> {
        Err(NoProperty::Absent)
    }
}

/// The response of a service, which says what the request cost.
pub struct Reply {
    status: u16,
    body: String,
}

impl Reply {
    pub fn new(status: u16, cost: u64) -> Self {
        let body = format!(r#"{{"usage":{{"total_tokens":{cost}}}}}"#);
        Self { status, body }
    }
}

impl ResponseHeaders for Reply {
    fn get(&self, name: &str) -> Option<Vec<u8>> {
        match name {
            ":status" => Some(self.status.to_string().into_bytes()),
            "content-type" => Some(b"application/json".to_vec()),
            _ => None,
        }
    }
    fn set(&mut self, _: &'static str, _: &str) {}
    fn add(&mut self, _: &'static str, _: &str) {}
    fn property(&self, path: &[u8]) -> Option<Vec<u8>> {
        (path == b"response\0code_details").then(|| b"via_upstream".to_vec())
    }
}

impl Response for Reply {
    fn body(&self, from: usize, len: usize) -> Option<Vec<u8>> {
        Some(self.body.as_bytes().get(from..from + len)?.to_vec())
    }
    fn trailer(&self, _: &str) -> Option<Vec<u8>> {
        None
    }
    fn property(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

/// What a call returned.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Whether a limiter decided all checks of the call, and the network changed nothing.
    pub decided: bool,
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Bytes,
}

impl Answer {
    /// Envoy's, in place of a limiter's.
    pub fn of_envoy(status: u16, reason: &str) -> Self {
        let text = "upstream connect error or disconnect/reset before headers. reset reason: ";
        Self {
            decided: false,
            headers: vec![(":status".to_owned(), status.to_string().into_bytes())],
            body: [text, reason].concat().into(),
        }
    }
}

impl CallAnswer for Answer {
    fn header(&self, name: &str) -> Option<&[u8]> {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_slice())
    }
    fn body(&self, max_len: usize) -> Option<Vec<u8>> {
        (self.body.len() <= max_len).then(|| self.body.to_vec())
    }
}

/// Whether a limiter decided all checks of a call.
pub fn decides(body: &[u8]) -> bool {
    BatchAnswer::decode(body).is_ok_and(|of| of.results.iter().all(Result::is_ok))
}

impl World {
    /// Starts a process, or starts it again after a crash, in which all its requests are lost.
    pub fn start_envoy(self: &Rc<Self>, envoy: usize, process: u64) {
        let started = Envoy::new(self, self.plan.workers, process);
        let workers = started.workers.len();
        let mut envoys = self.envoys.borrow_mut();
        match envoys.get_mut(envoy) {
            Some(before) => *before = started,
            None => envoys.push(started),
        }
        drop(envoys);
        for worker in 0..workers {
            let at = At {
                envoy,
                worker,
                process,
            };
            let first = Duration::from_millis(1 + self.sim.chance.below(50));
            self.tick_after(at, first, 0);
        }
    }

    pub fn crash_envoy(self: &Rc<Self>, envoy: usize) {
        let process = self.envoys.borrow()[envoy].process;
        self.book.borrow_mut().lose_requests(envoy);
        self.break_connections(envoy);
        {
            // What it decided is counted, though no client would have received it.
            let now = self.now_at(envoy);
            let at = &mut self.envoys.borrow_mut()[envoy];
            for worker in &mut at.workers {
                let counts = &mut self.counts.borrow_mut();
                worker.on_tick(&at.shared, now, &mut Counts(counts));
            }
        }
        self.start_envoy(envoy, process + 1);
    }

    pub fn at(&self, envoy: usize, worker: usize) -> At {
        let process = self.envoys.borrow()[envoy].process;
        At {
            envoy,
            worker,
            process,
        }
    }

    /// Waits until the process is not paused; `false`: it is gone.
    pub async fn awake(&self, at: At) -> bool {
        loop {
            let (process, until_ms) = {
                let envoy = &self.envoys.borrow()[at.envoy];
                (envoy.process, envoy.paused_until_ms)
            };
            let left_ms = until_ms.saturating_sub(self.sim.now_ms());
            if process != at.process || left_ms == 0 {
                return process == at.process;
            }
            sleep(Duration::from_millis(left_ms)).await;
        }
    }

    fn now_at(&self, envoy: usize) -> Now {
        let ahead_ms = self.envoys.borrow()[envoy].ahead_ms;
        Now {
            mono_us: 1_000_000 + self.sim.now_ms() * 1000,
            wall_ms: self.sim.epoch_ms().saturating_add_signed(ahead_ms),
        }
    }

    /// Lets a worker do something, and carries out the steps that follow.
    pub fn turn(
        self: &Rc<Self>,
        at: At,
        mut callback: Callback,
        act: impl FnOnce(&mut Worker, &SharedData, Now),
    ) {
        let mut steps = Vec::new();
        let tick_ms = {
            let now = self.now_at(at.envoy);
            let envoy = &mut self.envoys.borrow_mut()[at.envoy];
            let worker = &mut envoy.workers[at.worker];
            act(worker, &envoy.shared, now);
            while let Some(step) = worker.poll_step(&mut callback) {
                // What Envoy refuses, it refuses at once.
                steps.push(step);
            }
            worker.tick_ms()
        };
        for step in steps {
            match step {
                Step::Continue { stream, edits } => {
                    self.decided(at, stream, &Decision::Passed(edits.degraded.is_some()));
                }
                Step::Refuse { stream, refusal } => {
                    let details = refusal.reply(false).details;
                    self.decided(at, stream, &Decision::Denied(details.to_string()));
                }
                Step::Call(call) => {
                    let world = Rc::clone(self);
                    spawn_local(async move { world.call(at, *call).await });
                }
                Step::AtTurnEnd => {
                    let world = Rc::clone(self);
                    spawn_local(world.end_turn(at));
                }
                Step::Stream(step) => self.carry_out_on_stream(at, step),
                Step::Log(_, text) => self.log(&text),
                Step::DecideWithoutBody(stream) => panic!("{stream:?}: no bodies here"),
            }
        }
        let (every_ms, period) = self.envoys.borrow()[at.envoy].ticks[at.worker];
        if every_ms != tick_ms {
            self.envoys.borrow_mut()[at.envoy].ticks[at.worker] = (tick_ms, period + 1);
            self.tick_after(at, Duration::from_millis(tick_ms.into()), period + 1);
        }
    }

    async fn end_turn(self: Rc<Self>, at: At) {
        if self.awake(at).await {
            self.turn(at, Callback::of_root(), |worker, shared, now| {
                worker.on_turn_end(shared, now);
            });
        }
    }

    /// A new period restarts the ticks.
    fn tick_after(self: &Rc<Self>, at: At, after: Duration, period: u64) {
        let world = Rc::clone(self);
        spawn_local(async move {
            sleep(after).await;
            if !world.awake(at).await {
                return;
            }
            let (every_ms, current) = world.envoys.borrow()[at.envoy].ticks[at.worker];
            if current != period {
                return;
            }
            let counts = Rc::clone(&world);
            world.turn(at, Callback::of_root(), |worker, shared, now| {
                let mut counts = counts.counts.borrow_mut();
                worker.on_tick(shared, now, &mut Counts(&mut counts));
            });
            let ticks = world.envoys.borrow()[at.envoy].ticks[at.worker];
            if ticks == (every_ms, period) {
                world.tick_after(at, Duration::from_millis(every_ms.into()), period);
            }
        });
    }

    /// A request arrives at a worker.
    pub fn request(self: &Rc<Self>, at: At, number: usize, path: &str, user: &str) {
        let stream = StreamId(u32::try_from(number).unwrap());
        let request = Headers { path, user };
        // Without limits all pass, which nobody charges.
        let limited = self.envoys.borrow()[at.envoy].workers[at.worker]
            .in_force()
            .is_some();
        self.deciding
            .set(if limited { By::Worker } else { By::Fallback });
        self.turn(at, Callback::of_request(stream), |worker, shared, now| {
            worker.on_request(shared, &|| now, stream, &request);
        });
        self.deciding.set(By::Fallback);
    }

    /// The service answers a request, and the request ends; or the client leaves.
    pub async fn end_request(self: &Rc<Self>, at: At, number: usize, reply: Option<Reply>) {
        if !self.awake(at).await || !self.sim.keeps(Rule::Ends) {
            return;
        }
        let stream = StreamId(u32::try_from(number).unwrap());
        let callback = || Callback::of_request(stream);
        if let Some(mut reply) = reply {
            self.turn(at, callback(), |worker, _, now| {
                let metering = worker.on_response(|| now, stream, &mut reply, false);
                if metering == Metering::Reads {
                    worker.on_response_body(stream, reply.body.len(), true, &reply);
                }
            });
        }
        let mut ended = false;
        self.turn(at, callback(), |worker, _, now| {
            ended = worker.on_gone(|| now, stream);
        });
        // The host lets it send what the request leaves behind.
        if ended {
            self.turn(at, Callback::of_root(), |worker, shared, now| {
                worker.on_turn_end(shared, now);
            });
        }
    }

    /// A worker's call, by way of the network.
    async fn call(self: Rc<Self>, at: At, call: Call) {
        let (id, limit) = (call.id, Duration::from_millis(call.timeout_ms));
        let again = (!self.sim.keeps(Rule::NoRepeat)).then(|| call.clone());
        let checks = call.path == "/v1/check";
        let answer = match timeout(limit, Rc::clone(&self).exchange(at, call)).await {
            Ok(answer) => answer,
            Err(_) if !self.sim.keeps(Rule::Timeout) => return,
            Err(_) if again.is_some() => {
                let again = Rc::clone(&self).exchange(at, again.unwrap());
                timeout(limit, again).await.ok().flatten()
            }
            Err(_) => Some(Answer::of_envoy(504, "response timeout")),
        };
        let decided = answer.as_ref().is_some_and(|answer| answer.decided);
        self.book.borrow_mut().lost += u64::from(checks && !decided);
        self.answered(at, id, answer.as_ref()).await;
    }

    async fn answered(self: Rc<Self>, at: At, id: CallId, answer: Option<&Answer>) {
        if self.awake(at).await {
            let decided = answer.is_some_and(|answer| answer.decided);
            self.deciding
                .set(if decided { By::Limiter } else { By::Fallback });
            self.turn(at, Callback::of_root(), |worker, shared, now| {
                let answer = answer.map(|answer| answer as &dyn CallAnswer);
                worker.on_call_answer(shared, now, id, answer);
            });
            self.deciding.set(By::Fallback);
        }
    }

    /// A call and its answer, with what the network does to them; `None`: cut short.
    async fn exchange(self: Rc<Self>, at: At, call: Call) -> Option<Answer> {
        let (chance, weather) = (&self.sim.chance, self.sim.weather.get());
        let Some(limiter) = self.choose_limiter() else {
            return Some(Answer::of_envoy(503, "remote connection failure"));
        };
        let hop = || Duration::from_millis(chance.below(4) / 2);
        let is_cut = || {
            self.sim.is_cut_off(Part::Proxy(at.envoy))
                || self.sim.is_cut_off(Part::Limiter(limiter))
        };
        sleep(hop()).await;
        if is_cut() || chance.percent(weather.lost) {
            pending::<()>().await;
        }
        let is_poll = call.method == "GET";
        if is_poll && !self.sim.keeps(Rule::Polls) && self.sim.now_ms() > 20_000 {
            pending::<()>().await;
        }
        let again = !is_poll && chance.percent(weather.repeated);
        let call = Rc::new(call);
        if again {
            let (world, call) = (Rc::clone(&self), Rc::clone(&call));
            self.book.borrow_mut().repeated += 1;
            spawn_local(async move {
                sleep(Duration::from_millis(world.sim.chance.below(60))).await;
                world.send(at, limiter, &call).await;
            });
        }
        // A limiter notices that its client has left, unless it is cut off.
        let answer = if chance.percent(50) {
            self.send(at, limiter, &call).await
        } else {
            let (world, call) = (Rc::clone(&self), Rc::clone(&call));
            let sent = spawn_local(async move { world.send(at, limiter, &call).await });
            sent.await.unwrap()
        };
        sleep(hop()).await;
        if is_cut() || chance.percent(weather.unanswered) {
            pending::<()>().await;
        }
        if chance.percent(weather.late) {
            sleep(Duration::from_millis(20 + chance.below(100))).await;
        }
        if chance.percent(weather.garbled) {
            return match chance.below(3) {
                0 => None,
                1 => Some(Answer {
                    body: Bytes::from_static(b"<html>"),
                    ..answer
                }),
                _ => Some(Answer::of_envoy(500, "connection termination")),
            };
        }
        let decided = decides(&answer.body);
        Some(Answer { decided, ..answer })
    }

    async fn send(&self, at: At, limiter: usize, call: &Call) -> Answer {
        let uri = format!("http://limiter{}", call.path);
        let mut request = hyper::Request::builder().method(call.method).uri(uri);
        for (name, value) in &call.headers {
            if !name.starts_with(':') {
                request = request.header(*name, value);
            }
        }
        let body = Full::new(Bytes::from(call.body.clone().unwrap_or_default()));
        let request = request.body(body.boxed_unsync()).unwrap();
        self.ask_limiter(at, limiter, request).await
    }
}
