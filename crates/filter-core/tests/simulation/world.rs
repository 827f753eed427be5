//! Envoys with their workers, a limiter, and a network in between, driven by a seed.

mod arrivals;
mod chance;
mod network;
mod reply;
mod service;
mod streams;
mod upload;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

use filter_core::{
    CallAnswer, CallId, Callback, Config, LocalReply, Metrics, NoProperty, Now, Request,
    ResponseNeeds, Step, StreamId, Worker, simulated::SharedData,
};
use protocol::{Check, compact::Report};

use crate::limiter::Limiter;

use arrivals::Arrival;
pub use chance::Chance;
use network::{Answer, Held};
pub use network::{Faults, OneOfTwo};
pub use reply::Reply;
pub use streams::Opening;
use streams::{Delivery, Stream};
pub use upload::Upload;

/// One Envoy process: its shared data and its workers. The first worker stands for the main thread,
/// which ticks but has no requests.
pub struct Envoy {
    pub shared: SharedData,
    pub workers: Vec<Worker>,
    ticks: Vec<Ticks>,
    streams: Vec<Option<Stream>>,
}

/// The ticks that one worker last requested.
#[derive(Clone, Default)]
struct Ticks {
    period: u64,
    every_ms: u32,
}

/// A request in the simulation.
#[derive(Debug)]
pub struct Sent {
    pub user: String,
    pub path: &'static str,
    pub method: &'static str,
    pub at_us: u64,
    pub envoy: usize,
    pub worker: usize,
    pub outcome: Option<Outcome>,
    /// Whether an answer of the limiter decided it.
    pub answered: bool,
    pub gone: bool,
}

impl Sent {
    /// How long it waited for its decision, in microseconds; `None`: it still waits.
    pub fn took_us(&self) -> Option<u64> {
        self.outcome.as_ref().map(|outcome| match outcome {
            Outcome::Passed { at_us, .. } | Outcome::Refused { at_us, .. } => at_us - self.at_us,
        })
    }
}

/// The outcome of a request.
#[derive(Clone, Debug)]
pub enum Outcome {
    Passed {
        at_us: u64,
        degraded: Option<String>,
        needs: ResponseNeeds,
    },
    Refused {
        at_us: u64,
        reply: LocalReply,
    },
}

enum Event {
    Tick {
        envoy: usize,
        worker: usize,
        /// The period of the tick. A new period restarts the ticks.
        period: u64,
    },
    Answer {
        envoy: usize,
        worker: usize,
        id: CallId,
        answer: Option<Answer>,
    },
    TurnEnd {
        envoy: usize,
        worker: usize,
    },
    Held(Held),
    /// An event on a check stream.
    Stream(Delivery),
    /// A call that the network delivers after others.
    Arrival(Arrival),
}

pub struct World {
    seed: u64,
    pub envoys: Vec<Envoy>,
    pub limiter: Limiter,
    pub faults: Faults,
    /// Whether there are two limiters, of which one has faults of its own.
    pub one_of_two: Option<OneOfTwo>,
    /// An Envoy to which, and from which, the network delivers nothing.
    pub cut_off: Option<usize>,
    pub chance: Chance,
    pub now_us: u64,
    /// The offset of the Envoys' wall clocks, in milliseconds.
    pub wall_skew_ms: i64,
    pub requests: Vec<Sent>,
    /// The method of further requests.
    pub method: &'static str,
    /// Requests with bodies, by their numbers.
    uploads: HashMap<usize, Upload>,
    pub logs: Vec<String>,
    pub counted: HashMap<String, u64>,
    pub checks_executed: u64,
    /// Ticks of all workers.
    pub ticks: u64,
    /// The reports of workers.
    pub reports: Vec<Report>,
    /// Whether the limiter has no such domain.
    pub gone: Option<Gone>,
    /// How long an answer may take, in microseconds.
    pub slowest_us: u64,
    /// Whether the limiter holds polls. It does not if it has too many connections.
    pub holds: bool,
    /// Polls that were sent.
    pub polls: u64,
    /// Calls that were sent before this time, in microseconds, are never answered.
    pub silent_us: u64,
    /// How many of the next polls are lost.
    pub lost_polls: u64,
    pub opening: Opening,
    /// Whether the hosts report the ends of turns.
    pub reports_turn_ends: bool,
    /// Whether the current event is an answer of the limiter.
    answering: bool,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    pending: HashMap<u64, Event>,
    next: u64,
}

/// Why a limiter has no such domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// An operator deleted it.
    Deleted,
    /// The store was emptied.
    Lost,
}

/// The limiter's clock when the simulation starts.
pub const EPOCH_MS: u64 = 1_763_000_000_000;

struct Sink<'a>(&'a mut HashMap<String, u64>);

impl Metrics for Sink<'_> {
    fn count(&mut self, name: &str, by: u64) {
        *self.0.entry(name.to_owned()).or_default() += by;
    }
    fn gauge(&mut self, name: &str, value: u64) {
        self.0.insert(name.to_owned(), value);
    }
    fn sample(&mut self, _: &str, _: u64) {}
}

struct Headers<'a>(&'a Sent);

impl Request for Headers<'_> {
    fn headers<'r>(&'r self, name: &str) -> impl Iterator<Item = &'r [u8]> {
        let value = match name {
            ":method" => Some(self.0.method),
            ":path" => Some(self.0.path),
            "x-user" => Some(self.0.user.as_str()),
            _ => None,
        };
        value.map(str::as_bytes).into_iter()
    }
    /// The address of a client is that of its user, if it has one.
    fn property(&self, path: &[u8]) -> Result<Vec<u8>, NoProperty> {
        match path {
            b"source\0address" => Ok(self.0.user.clone().into_bytes()),
            _ => Err(NoProperty::Absent),
        }
    }
}

pub const CONFIG: &str = r#"{
    "domain": "shop", "limiter": {"cluster": "limiter", "timeout": "20ms"},
    "descriptors": [{"key": "user", "header": "x-user"}]
}"#;

/// Whether checks go by streams in the world of a seed: in every other one.
pub fn has_streams(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

/// In every other seed, checks use streams.
fn configured(seed: u64, config: &str) -> Config {
    let mut config = Config::from_json(config.as_bytes()).unwrap();
    config.limiter.stream |= has_streams(seed);
    config
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("again by SIMULATION_SEED={}", self.seed);
        }
    }
}

impl World {
    pub fn new(seed: u64, envoys: usize, workers: usize, config: &str, limits: &str) -> Self {
        let mut chance = Chance(seed);
        let config = configured(seed, config);
        let worker = |chance: &mut Chance| {
            let seed = std::array::from_fn(|_| u8::try_from(chance.below(256)).unwrap());
            Worker::new(config.clone(), Some("secret"), seed)
        };
        let mut world = Self {
            seed,
            envoys: (0..envoys)
                .map(|_| Envoy {
                    shared: SharedData::default(),
                    workers: (0..=workers).map(|_| worker(&mut chance)).collect(),
                    ticks: vec![Ticks::default(); workers + 1],
                    streams: vec![None; workers + 1],
                })
                .collect(),
            limiter: Limiter::new(limits),
            faults: Faults::NONE,
            method: "GET",
            one_of_two: None,
            cut_off: None,
            chance,
            now_us: 1_000_000,
            wall_skew_ms: 0,
            requests: Vec::new(),
            uploads: HashMap::new(),
            logs: Vec::new(),
            counted: HashMap::new(),
            checks_executed: 0,
            ticks: 0,
            reports: Vec::new(),
            gone: None,
            slowest_us: 3_000,
            holds: true,
            polls: 0,
            silent_us: 0,
            lost_polls: 0,
            opening: Opening::Opens,
            reports_turn_ends: true,
            answering: false,
            events: BinaryHeap::new(),
            pending: HashMap::new(),
            next: 0,
        };
        for envoy in 0..envoys {
            for worker in 0..=workers {
                let first_us = world.chance.below(50_000);
                let tick = Event::Tick {
                    envoy,
                    worker,
                    period: 0,
                };
                world.schedule(first_us, tick);
            }
        }
        world
    }

    /// The limiter's clock, which does not jump.
    pub fn limiter_ms(&self) -> u64 {
        EPOCH_MS + self.now_us / 1000
    }

    fn now(&self) -> Now {
        Now {
            mono_us: self.now_us,
            wall_ms: self.limiter_ms().saturating_add_signed(self.wall_skew_ms),
        }
    }

    fn schedule(&mut self, after_us: u64, event: Event) {
        self.next += 1;
        self.events
            .push(Reverse((self.now_us + after_us, self.next)));
        self.pending.insert(self.next, event);
    }

    /// A request arrives at a worker.
    pub fn request(
        &mut self,
        envoy: usize,
        worker: usize,
        user: &str,
        path: &'static str,
    ) -> usize {
        let number = self.requests.len();
        self.requests.push(Sent {
            user: user.to_owned(),
            path,
            method: self.method,
            at_us: self.now_us,
            envoy,
            worker,
            outcome: None,
            answered: false,
            gone: false,
        });
        let stream = StreamId(u32::try_from(number).unwrap());
        let now = self.now();
        let request = Headers(&self.requests[number]);
        let Envoy {
            shared, workers, ..
        } = &mut self.envoys[envoy];
        workers[worker].on_request(shared, &|| now, stream, &request);
        self.carry_out(envoy, worker, Callback::of_request(stream));
        number
    }

    /// A client leaves.
    pub fn leave(&mut self, number: usize) {
        let Sent { envoy, worker, .. } = self.requests[number];
        self.requests[number].gone = true;
        let (now, stream) = (self.now(), StreamId(u32::try_from(number).unwrap()));
        let freed = self.envoys[envoy].workers[worker].on_gone(|| now, stream);
        if freed && self.reports_turn_ends {
            self.schedule(0, Event::TurnEnd { envoy, worker });
        }
        self.carry_out(envoy, worker, Callback::of_request(stream));
    }

    /// A worker is deleted with its plugin, after its requests have ended, and another one replaces it.
    pub fn replace_worker(&mut self, envoy: usize, worker: usize, config: &str) {
        let config = configured(self.seed, config);
        let now = self.now();
        let chance = &mut self.chance;
        let seed = std::array::from_fn(|_| u8::try_from(chance.below(256)).unwrap());
        let at = &mut self.envoys[envoy];
        at.workers[worker].leave(&at.shared, now);
        at.workers[worker] = Worker::new(config, Some("secret"), seed);
        at.streams[worker] = None;
        self.pending.retain(|_, event| {
            !matches!(event, Event::Answer { envoy: of, worker: its, .. } if (*of, *its) == (envoy, worker))
        });
    }

    /// An Envoy crashes and restarts: all its requests are lost.
    pub fn crash(&mut self, envoy: usize, config: &str) {
        let config = configured(self.seed, config);
        for sent in self.requests.iter_mut().filter(|sent| sent.envoy == envoy) {
            sent.gone = true;
        }
        let chance = &mut self.chance;
        let at = &mut self.envoys[envoy];
        at.shared = SharedData::default();
        at.streams.fill(None);
        for worker in &mut at.workers {
            let seed = std::array::from_fn(|_| u8::try_from(chance.below(256)).unwrap());
            *worker = Worker::new(config.clone(), Some("secret"), seed);
        }
        // Answers to the old process do not belong to calls of the new one.
        self.pending.retain(|_, event| match event {
            Event::Answer { envoy: of, .. } | Event::TurnEnd { envoy: of, .. } => *of != envoy,
            Event::Arrival(arrival) => {
                arrival.caller_died(envoy);
                true
            }
            _ => true,
        });
    }

    /// Lets time pass.
    pub fn run_until(&mut self, end_us: u64) {
        while self.step(end_us) {}
    }

    /// Lets time pass until the next event before `end_us`; returns whether there is one.
    pub fn step(&mut self, end_us: u64) -> bool {
        let next = self.events.peek().map(|Reverse(next)| *next);
        let Some((at_us, number)) = next.filter(|(at_us, _)| *at_us <= end_us) else {
            self.now_us = end_us;
            return false;
        };
        self.events.pop();
        self.now_us = at_us;
        if let Some(event) = self.pending.remove(&number) {
            self.happen(event);
        }
        true
    }

    pub fn run_for_ms(&mut self, ms: u64) {
        self.run_until(self.now_us + ms * 1000);
    }

    fn happen(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Tick {
                envoy,
                worker,
                period,
            } => {
                let at = &mut self.envoys[envoy];
                if at.ticks[worker].period != period {
                    return;
                }
                self.ticks += 1;
                at.workers[worker].on_tick(&at.shared, now, &mut Sink(&mut self.counted));
                at.ticks[worker].every_ms = 0;
                self.carry_out(envoy, worker, Callback::of_root());
            }
            Event::Answer {
                envoy,
                worker,
                id,
                answer,
            } => {
                let Envoy {
                    shared, workers, ..
                } = &mut self.envoys[envoy];
                self.answering = answer.as_ref().is_some_and(|answer| answer.genuine);
                let answer = answer.as_ref().map(|answer| answer as &dyn CallAnswer);
                workers[worker].on_call_answer(shared, now, id, answer);
                self.carry_out(envoy, worker, Callback::of_root());
                self.answering = false;
            }
            Event::TurnEnd { envoy, worker } => {
                let at = &mut self.envoys[envoy];
                at.workers[worker].on_turn_end(&at.shared, now);
                self.carry_out(envoy, worker, Callback::of_root());
            }
            Event::Held(held) => self.release(held),
            Event::Arrival(arrival) => self.arrive(&arrival),
            Event::Stream(delivery) => self.arrive_on_stream(delivery),
        }
    }

    fn carry_out(&mut self, envoy: usize, worker: usize, mut callback: Callback) {
        let mut resumed = 0;
        while let Some(step) = self.envoys[envoy].workers[worker].poll_step(&mut callback) {
            resumed += usize::from(matches!(step, Step::Continue { .. } | Step::Refuse { .. }));
            match step {
                Step::Continue { stream, edits } => {
                    self.settle(
                        stream,
                        Outcome::Passed {
                            at_us: self.now_us,
                            degraded: edits.degraded,
                            needs: edits.needs,
                        },
                    );
                }
                Step::Refuse { stream, refusal } => {
                    let reply = refusal.reply(false);
                    self.settle(
                        stream,
                        Outcome::Refused {
                            at_us: self.now_us,
                            reply,
                        },
                    );
                }
                Step::DecideWithoutBody(stream) => {
                    // No host can read a request that is gone.
                    if !self.requests[usize::try_from(stream.0).unwrap()].gone {
                        self.read(envoy, worker, stream);
                    }
                }
                Step::Call(call) => self.call(envoy, worker, &call),
                Step::Stream(step) => self.stream_step(envoy, worker, step),
                // After all other events of the same moment.
                Step::AtTurnEnd if self.reports_turn_ends => {
                    self.schedule(0, Event::TurnEnd { envoy, worker });
                }
                Step::AtTurnEnd => {}
                Step::Log(_, text) => self.logs.push(text),
            }
        }
        // Envoy's stack grows with each, until it ends the VM.
        assert!(resumed <= 40, "a callback resumed {resumed} requests");
        self.adjust_ticks(envoy, worker);
    }

    /// A new period starts at once, as in Envoy.
    fn adjust_ticks(&mut self, envoy: usize, worker: usize) {
        let at = &mut self.envoys[envoy];
        let every_ms = at.workers[worker].tick_ms();
        let ticks = &mut at.ticks[worker];
        if ticks.every_ms == every_ms {
            return;
        }
        ticks.every_ms = every_ms;
        ticks.period += 1;
        let tick = Event::Tick {
            envoy,
            worker,
            period: ticks.period,
        };
        self.schedule(u64::from(every_ms) * 1000, tick);
    }

    fn settle(&mut self, stream: StreamId, outcome: Outcome) {
        let sent = &mut self.requests[usize::try_from(stream.0).unwrap()];
        assert!(sent.outcome.is_none(), "{stream:?} decided twice");
        sent.outcome = Some(outcome);
        sent.answered = self.answering;
    }

    /// Whether the limiter would deny a user's request at a path now.
    pub fn would_deny(&mut self, user: &str, path: &str) -> bool {
        let now_ms = self.limiter_ms();
        let mut check = Check {
            cost: 1,
            ..Check::default()
        };
        for (key, value) in [("user", user), ("path", path), ("method", "GET")] {
            check
                .descriptor
                .insert(key.parse().unwrap(), value.as_bytes());
        }
        !self.limiter.decide(&check, now_ms, true).allowed
    }

    pub fn passed(&self, number: usize) -> bool {
        matches!(self.requests[number].outcome, Some(Outcome::Passed { .. }))
    }

    pub fn details(&self, number: usize) -> &str {
        match &self.requests[number].outcome {
            Some(Outcome::Refused { reply, .. }) => &reply.details,
            _ => "",
        }
    }

    /// Requests of a user that were admitted.
    pub fn admitted(&self, user: &str) -> u64 {
        let passed = |sent: &&Sent| {
            sent.user == user && matches!(sent.outcome, Some(Outcome::Passed { .. }))
        };
        u64::try_from(self.requests.iter().filter(passed).count()).unwrap()
    }

    /// Asserts that each request was decided in time.
    pub fn assert_all_decided(&self, within_us: u64) {
        for (number, sent) in self
            .requests
            .iter()
            .enumerate()
            .filter(|(_, sent)| !sent.gone)
        {
            let took_us = sent.took_us();
            let took_us = took_us.unwrap_or_else(|| panic!("request {number} hangs: {sent:?}"));
            assert!(
                took_us <= within_us,
                "request {number} took {took_us} us: {sent:?}"
            );
        }
    }

    pub fn counted(&self, name: &str) -> u64 {
        self.counted.get(name).copied().unwrap_or(0)
    }
}
