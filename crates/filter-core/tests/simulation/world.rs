//! Envoys with their workers, a limiter, and a network in between, driven by a seed.

use std::{
    borrow::Cow,
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

use filter_core::{
    Call, CallAnswer, CallId, Config, LocalReply, Metrics, Now, Request, Step, StreamId, Worker,
    simulated::SharedData,
};
use protocol::{
    ApiError, Check, ErrorCode,
    compact::{Batch, BatchAnswer, Report},
};

use crate::limiter::Limiter;

/// Numbers that follow from a seed.
pub struct Chance(pub u64);

impl Chance {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound.max(1)
    }

    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(u64::try_from(len).unwrap())).unwrap()
    }

    pub fn percent(&mut self, share: u64) -> bool {
        self.below(100) < share
    }
}

/// What becomes of calls, each share in percent; the rest is answered.
#[derive(Clone, Copy, Default)]
pub struct Weather {
    /// Never reaches the limiter, and times out.
    pub lost: u64,
    /// Reaches it, but the answer comes too late.
    pub late: u64,
    /// Reaches it, but what comes back is none of its answers.
    pub garbled: u64,
    /// Cut short on the way back.
    pub truncated: u64,
    /// Refused at once.
    pub refused: u64,
    /// Refused before it has left: a cluster that is not there.
    pub undeliverable: u64,
    /// Reaches a limiter whose store refuses.
    pub untouched: u64,
}

impl Weather {
    pub const FAIR: Self = Self {
        lost: 0,
        late: 0,
        garbled: 0,
        truncated: 0,
        refused: 0,
        undeliverable: 0,
        untouched: 0,
    };
    pub const DOWN: Self = Self {
        refused: 100,
        ..Self::FAIR
    };
    pub const BLACK_HOLE: Self = Self {
        lost: 100,
        ..Self::FAIR
    };
    pub const NO_STORE: Self = Self {
        untouched: 100,
        ..Self::FAIR
    };
    pub const NO_CLUSTER: Self = Self {
        undeliverable: 100,
        ..Self::FAIR
    };
}

/// One Envoy process: what its workers share, and its workers. The first one stands for the main
/// thread, which ticks but has no requests.
pub struct Envoy {
    pub shared: SharedData,
    pub workers: Vec<Worker>,
    ticks: Vec<Ticks>,
}

/// What one worker last asked for.
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
    pub at_us: u64,
    pub envoy: usize,
    pub worker: usize,
    pub outcome: Option<Outcome>,
    pub gone: bool,
}

/// What became of it.
#[derive(Clone, Debug)]
pub enum Outcome {
    Passed {
        at_us: u64,
        degraded: Option<String>,
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
        /// The period that it belongs to: another one starts anew.
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
}

/// A poll that the limiter holds.
struct Held {
    envoy: usize,
    worker: usize,
    call: Call,
    sent_us: u64,
    /// When it is answered, whatever the answer is.
    until_us: u64,
}

/// How long after an edit a limiter may hear of it, in microseconds.
const HEARS_US: u64 = 5_000;

#[derive(Clone)]
pub struct Answer {
    headers: Vec<(&'static str, String)>,
    body: Option<Vec<u8>>,
}

impl CallAnswer for Answer {
    fn header(&self, name: &str) -> Option<Vec<u8>> {
        let found = self.headers.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.clone().into_bytes())
    }

    fn body(&self, max_len: usize) -> Option<Vec<u8>> {
        self.body.clone().filter(|body| body.len() <= max_len)
    }
}

pub struct World {
    seed: u64,
    pub envoys: Vec<Envoy>,
    pub limiter: Limiter,
    pub weather: Weather,
    pub chance: Chance,
    pub now_us: u64,
    /// What the wall clocks of the Envoys are off by, in milliseconds.
    pub wall_skew_ms: i64,
    pub requests: Vec<Sent>,
    pub logs: Vec<String>,
    pub counted: HashMap<String, u64>,
    pub checks_executed: u64,
    /// Ticks of all workers.
    pub ticks: u64,
    /// What workers reported; `None` is what an earlier limiter does with it.
    pub reports: Option<Vec<Report>>,
    /// Whether the limiter has no such domain.
    pub gone: Option<Gone>,
    /// How long an answer may take, in microseconds.
    pub slowest_us: u64,
    /// Whether the limiter holds polls; an earlier one does not.
    pub holds: bool,
    /// Polls that left.
    pub polls: u64,
    /// Calls of before then, in microseconds, are not answered any more.
    pub silent_us: u64,
    /// So many of the polls to come are lost.
    pub lost_polls: u64,
    /// Whether the hosts say when their turns end.
    pub tells_turns: bool,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    pending: HashMap<u64, Event>,
    next: u64,
}

/// Why a limiter has no such domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// Somebody deleted it.
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
    fn header(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let value = match name {
            ":method" => "GET",
            ":path" => self.0.path,
            "x-user" => &self.0.user,
            _ => return None,
        };
        Some(Cow::Borrowed(value.as_bytes()))
    }
    fn property(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

pub const CONFIG: &str = r#"{
    "domain": "shop", "limiter": {"cluster": "limiter", "timeout": "20ms"},
    "descriptors": [{"key": "user", "header": "x-user"}]
}"#;

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
        let config = Config::from_json(config.as_bytes()).unwrap();
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
                })
                .collect(),
            limiter: Limiter::new(limits),
            weather: Weather::FAIR,
            chance,
            now_us: 1_000_000,
            wall_skew_ms: 0,
            requests: Vec::new(),
            logs: Vec::new(),
            counted: HashMap::new(),
            checks_executed: 0,
            ticks: 0,
            reports: Some(Vec::new()),
            gone: None,
            slowest_us: 3_000,
            holds: true,
            polls: 0,
            silent_us: 0,
            lost_polls: 0,
            tells_turns: true,
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

    /// A request comes to a worker.
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
            at_us: self.now_us,
            envoy,
            worker,
            outcome: None,
            gone: false,
        });
        let stream = StreamId(u32::try_from(number).unwrap());
        let now = self.now();
        let request = Headers(&self.requests[number]);
        let Envoy {
            shared, workers, ..
        } = &mut self.envoys[envoy];
        workers[worker].on_request(shared, now, stream, &request);
        self.carry_out(envoy, worker);
        number
    }

    /// A client leaves.
    pub fn leave(&mut self, number: usize) {
        let Sent { envoy, worker, .. } = self.requests[number];
        self.requests[number].gone = true;
        let stream = StreamId(u32::try_from(number).unwrap());
        self.envoys[envoy].workers[worker].on_gone(stream);
        self.carry_out(envoy, worker);
    }

    /// Lets time pass.
    pub fn run_until(&mut self, end_us: u64) {
        while let Some(Reverse((at_us, number))) = self.events.peek().copied() {
            if at_us > end_us {
                break;
            }
            self.events.pop();
            self.now_us = at_us;
            let event = self.pending.remove(&number).unwrap();
            self.happen(event);
        }
        self.now_us = end_us;
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
                self.carry_out(envoy, worker);
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
                workers[worker].on_call_answer(shared, now, id, answer.as_ref());
                self.carry_out(envoy, worker);
            }
            Event::TurnEnd { envoy, worker } => {
                let at = &mut self.envoys[envoy];
                at.workers[worker].on_turn_end(&at.shared, now);
                self.carry_out(envoy, worker);
            }
            Event::Held(held) => self.release(held),
        }
    }

    fn carry_out(&mut self, envoy: usize, worker: usize) {
        while let Some(step) = self.envoys[envoy].workers[worker].poll_step() {
            match step {
                Step::Continue { stream, edits } => {
                    let degraded = edits.degraded;
                    self.settle(
                        stream,
                        Outcome::Passed {
                            at_us: self.now_us,
                            degraded,
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
                Step::Call(call) => self.call(envoy, worker, &call),
                // Behind all that happens at the same moment.
                Step::AtTurnEnd if self.tells_turns => {
                    self.schedule(0, Event::TurnEnd { envoy, worker });
                }
                Step::AtTurnEnd => {}
                Step::Log(_, text) => self.logs.push(text),
            }
        }
        self.adjust_ticks(envoy, worker);
    }

    /// Another period than the one before starts at once, as in Envoy.
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
    }

    fn call(&mut self, envoy: usize, worker: usize, call: &Call) {
        assert!(
            call.headers
                .contains(&("authorization", "Bearer secret".to_owned()))
        );
        let id = call.id;
        self.polls += u64::from(wait_ms(call).is_some());
        if self.chance.percent(self.weather.undeliverable) {
            let now = self.now();
            let Envoy {
                shared, workers, ..
            } = &mut self.envoys[envoy];
            workers[worker].on_call_refused(shared, now, id);
            return;
        }
        let timeout_us = call.timeout_ms * 1000;
        let weather = self.weather;
        let lost = wait_ms(call).is_some() && self.lost_polls > 0;
        self.lost_polls -= u64::from(lost);
        let (after_us, answer) = if self.chance.percent(weather.refused) {
            (100, Some(synthesised("503", "remote connection failure")))
        } else if lost || self.chance.percent(weather.lost) {
            (timeout_us, Some(synthesised("504", "response timeout")))
        } else if let Some(wait_ms) = wait_ms(call).filter(|wait_ms| *wait_ms > 0 && self.holds) {
            return self.release(Held {
                envoy,
                worker,
                call: call.clone(),
                sent_us: self.now_us,
                until_us: self.now_us + wait_ms * 1000,
            });
        } else if weather.untouched > 0
            && call.path == "/v1/check"
            && self.chance.percent(weather.untouched)
        {
            (200, Some(self.untouched(call)))
        } else {
            self.answered(envoy, call, timeout_us)
        };
        self.schedule(
            after_us,
            Event::Answer {
                envoy,
                worker,
                id,
                answer,
            },
        );
    }

    /// The limiter's answer, after how long, and what the weather makes of it.
    fn answered(&mut self, envoy: usize, call: &Call, timeout_us: u64) -> (u64, Option<Answer>) {
        let weather = self.weather;
        let answer = self.execute(envoy, call);
        let after_us = 200 + self.chance.below(self.slowest_us);
        if self.chance.percent(weather.late) || after_us > timeout_us {
            (timeout_us, Some(synthesised("504", "response timeout")))
        } else if self.chance.percent(weather.garbled) {
            (after_us, Some(self.garbled(answer)))
        } else if self.chance.percent(weather.truncated) {
            (after_us, None)
        } else {
            (after_us, Some(answer))
        }
    }

    /// Holds a poll on, or answers it. A limiter that dies takes the connection with it; one that
    /// hangs leaves it to the timeout.
    fn release(&mut self, held: Held) {
        let timeout_us = held.sent_us + held.call.timeout_ms * 1000 - self.now_us;
        let silent = held.sent_us < self.silent_us || self.weather.lost == 100;
        let (after_us, answer) = if silent {
            (timeout_us, Some(synthesised("504", "response timeout")))
        } else if self.weather.refused == 100 {
            (100, Some(synthesised("503", "connection termination")))
        } else if self.now_us < held.until_us && self.has_newest(&held.call) {
            let look_us = self.chance.below(HEARS_US).min(held.until_us - self.now_us);
            return self.schedule(look_us.max(1), Event::Held(held));
        } else {
            self.answered(held.envoy, &held.call, timeout_us)
        };
        let answer = Event::Answer {
            envoy: held.envoy,
            worker: held.worker,
            id: held.call.id,
            answer,
        };
        self.schedule(after_us, answer);
    }

    /// Whether there is nothing new for whoever polls.
    fn has_newest(&self, call: &Call) -> bool {
        let tag = |(name, tag): &(&str, String)| (*name == "if-none-match").then(|| tag.clone());
        match call.headers.iter().find_map(tag) {
            Some(tag) => self.gone.is_none() && tag == self.limiter.etag(),
            None => self.gone.is_some(),
        }
    }

    fn execute(&mut self, envoy: usize, call: &Call) -> Answer {
        let api = ("x-rl-api", "1".to_owned());
        if let Some(gone) = self.gone
            && call.path != "/v1/report"
        {
            let mut headers = vec![(":status", "404".to_owned()), api];
            if gone == Gone::Deleted && call.path != "/v1/check" {
                headers.push(("x-rl-revision", "7".to_owned()));
            }
            let error = ApiError::new(ErrorCode::UnknownDomain, "no limits");
            let body = Some(error.to_json().into_bytes());
            return Answer { headers, body };
        }
        let ok = (":status", "200".to_owned());
        if call.path == "/v1/check" {
            self.checks_executed += 1;
            let now_ms = self.limiter_ms();
            self.limiter.now_us = self.now_us;
            self.limiter.envoy = envoy;
            let body = self.limiter.check(call.body.as_deref().unwrap(), now_ms);
            return Answer {
                headers: vec![ok, api],
                body: Some(body),
            };
        }
        if call.path == "/v1/report" {
            let Some(reports) = &mut self.reports else {
                let unknown = r#"{"error":{"code":"not_found","message":"no such path"}}"#;
                return Answer {
                    headers: vec![(":status", "404".to_owned()), api],
                    body: Some(unknown.into()),
                };
            };
            reports.push(Report::decode(call.body.as_deref().unwrap()).unwrap());
            return Answer {
                headers: vec![(":status", "204".to_owned()), api],
                body: None,
            };
        }
        assert!(
            call.path.starts_with("/v1/policy?domain=shop&proxy="),
            "{}",
            call.path
        );
        let etag = self.limiter.etag();
        if call.headers.contains(&("if-none-match", etag.clone())) {
            let headers = vec![(":status", "304".to_owned()), api, ("etag", etag)];
            return Answer {
                headers,
                body: Some(Vec::new()),
            };
        }
        let body = self.limiter.snapshot();
        Answer {
            headers: vec![ok, api, ("etag", etag)],
            body: Some(body),
        }
    }

    /// What a limiter answers whose store refuses: for the whole batch, or (one shard of several)
    /// for each check.
    fn untouched(&mut self, call: &Call) -> Answer {
        let api = ("x-rl-api", "1".to_owned());
        let untouched = ErrorCode::StoreUntouched;
        if self.chance.percent(50) {
            let error = ApiError::new(untouched, "the store refused");
            return Answer {
                headers: vec![(":status", "503".to_owned()), api],
                body: Some(error.to_json().into_bytes()),
            };
        }
        let batch = Batch::decode(call.body.as_deref().unwrap()).unwrap();
        let body = self.limiter.refuse(batch.checks.len(), untouched);
        Answer {
            headers: vec![(":status", "200".to_owned()), api],
            body: Some(body),
        }
    }

    /// An answer that some box in between has touched, or that none of ours gave.
    fn garbled(&mut self, mut answer: Answer) -> Answer {
        match self.chance.below(6) {
            0 => {
                answer.headers.retain(|(name, _)| *name != "x-rl-api");
                answer.body = answer.body.map(|body| lie(&body, |_| {}));
            }
            1 => answer.body = Some(b"<html>".to_vec()),
            2 => answer.headers[0] = (":status", "500".to_owned()),
            3 => {
                let fewer = |results: &mut Results| drop(results.pop());
                answer.body = answer.body.map(|body| lie(&body, fewer));
            }
            4 => {
                let twice = |results: &mut Results| results.extend(results.clone());
                answer.body = answer.body.map(|body| lie(&body, twice));
            }
            _ => {
                let body = answer.body.get_or_insert_default();
                body.truncate(body.len() / 2);
            }
        }
        answer
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

    /// Requests of a user that went on.
    pub fn admitted(&self, user: &str) -> u64 {
        let passed = |sent: &&Sent| {
            sent.user == user && matches!(sent.outcome, Some(Outcome::Passed { .. }))
        };
        u64::try_from(self.requests.iter().filter(passed).count()).unwrap()
    }

    /// Every request is decided, none later than it may be.
    pub fn assert_all_decided(&self, within_us: u64) {
        for (number, sent) in self
            .requests
            .iter()
            .enumerate()
            .filter(|(_, sent)| !sent.gone)
        {
            let at_us = match &sent.outcome {
                Some(Outcome::Passed { at_us, .. } | Outcome::Refused { at_us, .. }) => *at_us,
                None => panic!("request {number} hangs: {sent:?}"),
            };
            let took_us = at_us - sent.at_us;
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

/// How long a poll would be held; `None`: it is none.
fn wait_ms(call: &Call) -> Option<u64> {
    let (_, rest) = call.path.split_once("&wait_ms=")?;
    rest.split('&').next()?.parse().ok()
}

type Results = Vec<Result<protocol::Answer, ErrorCode>>;

/// An answer that allows everything, for another number of checks perhaps. What is no answer to
/// checks stays as it is.
fn lie(body: &[u8], edit: impl FnOnce(&mut Results)) -> Vec<u8> {
    let Ok(mut answer) = BatchAnswer::decode(body) else {
        return body.to_vec();
    };
    for result in answer.results.iter_mut().flatten() {
        result.allowed = true;
        result.limits.clear();
    }
    edit(&mut answer.results);
    answer.encode()
}

/// What Envoy answers in the place of a limiter that does not.
fn synthesised(status: &str, reason: &str) -> Answer {
    let said = "upstream connect error or disconnect/reset before headers. reset reason: ";
    Answer {
        headers: vec![(":status", status.to_owned())],
        body: Some([said, reason].concat().into_bytes()),
    }
}
