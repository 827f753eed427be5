//! Limits that follow their service, in front of one that loses two thirds of its capacity, returns, stalls and
//! restarts cold, while the limiters and Redis fail; beside Envoy's own `adaptive_concurrency` filter and static
//! limits, in the same run.
//!
//! Three Envoys get unequal parts of more requests than the service can answer. A request is good if its client has
//! the answer within [`TARGET_MS`]. Contenders play the script one after the other.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::Result;
use harness::{Bytes, Envoy, Programs, Random, serve};
use http_body_util::Full;
use hyper::{Response, StatusCode};
use tokio::{net::TcpListener, time::sleep};

use super::setups::in_place_of_ours;
use super::{Goal, Report, Unit};
use crate::fleet::{Fleet, Loads, limits_are_known, lock, millis, quantile};

/// What clients want, and the `latency` of the limit.
const TARGET_MS: u64 = 300;
/// What a worker of the service needs for a request in the mean; times are distributed exponentially.
const WORK: Duration = Duration::from_millis(50);
const WORKERS: usize = 20;
const WORKERS_LEFT: usize = 7;
/// Requests of a second that each Envoy gets: in all half more than the service can answer.
const OFFERED: [u32; 3] = [360, 180, 60];
/// So many times the work that a request of a service takes that has just started, at first.
const COLD: u32 = 4;
/// Caches fill within this time.
const WARM: Duration = Duration::from_secs(10);

/// What happens to the service, limiters and Redis.
enum Event {
    Nothing,
    Workers(usize),
    Stall(Duration),
    Restart,
    LimitersAway,
    RedisAway,
}

/// The script: a name, what happens at its begin, and when it ends, in seconds.
const PHASES: [(&str, Event, u64); 7] = [
    ("whole", Event::Nothing, 20),
    ("a third", Event::Workers(WORKERS_LEFT), 80),
    ("returned", Event::Workers(WORKERS), 110),
    ("stalled 2 s", Event::Stall(Duration::from_secs(2)), 120),
    ("restarted cold", Event::Restart, 135),
    ("no limiter", Event::LimitersAway, 150),
    ("Redis stalled", Event::RedisAway, 165),
];
/// Seconds of the first phase that are not judged: limits start anywhere.
const START_S: u64 = 8;
/// For so long limiters and Redis are away, from the start of their phase.
const AWAY_S: u64 = 8;

const LIMITS: &str = "\
domain: shop
limits:
  - {name: adaptive, match: {path: /adaptive}, algorithm: concurrency, limit: 20, deny_status: 503,
     adaptive: {min: 5, max: 200, latency: 300ms}}
  - {name: probe, match: {path: /probe}, rate: 1000000/s}
  - {name: few, match: {path: /12}, algorithm: concurrency, limit: 12, deny_status: 503}
  - {name: some, match: {path: /24}, algorithm: concurrency, limit: 24, deny_status: 503}
  - {name: many, match: {path: /48}, algorithm: concurrency, limit: 48, deny_status: 503}
";
const OURS: &str = "/adaptive";
const STATIC: [&str; 3] = ["/12", "/24", "/48"];
/// The path of Envoy's own filter.
const ENVOYS: &str = "/envoy";

/// Plays the script for each contender, so many times.
pub async fn adaptive(programs: &Programs, rounds: u64) -> Result<Report> {
    let service = Arc::new(Mutex::new(Work::default()));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let upstream = listener.local_addr()?.port();
    let works = Arc::clone(&service);
    let _serving = tokio::spawn(serve(listener, move |_| answer(Arc::clone(&works))));
    let mut fleet = Fleet::start(programs, LIMITS, 2).await?;
    let (mut ours, mut envoys) = (Vec::new(), Vec::new());
    for _ in OFFERED {
        let envoy = fleet.envoy(fleet.config()?, upstream, 1).await?;
        limits_are_known(&envoy, "/probe").await?;
        ours.push(envoy);
        let config = in_place_of_ours(fleet.config()?, "adaptive_concurrency")?;
        envoys.push(fleet.envoy(config, upstream, 1).await?);
    }
    let mut report = Report::default();
    for _ in 0..rounds {
        let mut runs = Vec::new();
        for path in [OURS, ENVOYS].into_iter().chain(STATIC) {
            let proxies = if path == ENVOYS { &envoys } else { &ours };
            *lock(&service) = Work::default();
            let played = play(&service, &mut fleet, proxies, path).await?;
            runs.push((path, played));
        }
        judge(&mut report, &runs);
    }
    Ok(report)
}

// --- The service.

/// A service whose workers take requests in the order of their arrival. It ends what its client no longer waits for,
/// as most do.
struct Work {
    workers: usize,
    /// When each has nothing to do.
    free_at: BinaryHeap<Reverse<Instant>>,
    started: Option<Instant>,
    random: Random,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            workers: WORKERS,
            free_at: BinaryHeap::new(),
            started: None,
            random: Random(1),
        }
    }
}

impl Work {
    /// When a request that arrives now has its answer.
    fn ends_at(&mut self) -> Instant {
        let now = Instant::now();
        while self.free_at.len() > self.workers {
            self.free_at.pop();
        }
        while self.free_at.len() < self.workers {
            self.free_at.push(Reverse(now));
        }
        let mut work = exponential(&mut self.random, WORK);
        if let Some(started) = self.started {
            let cold = WARM.saturating_sub(started.elapsed());
            work += work * (COLD - 1) * u32::try_from(cold.as_millis()).unwrap_or(0) / 10_000;
        }
        let free = self.free_at.pop().map_or(now, |Reverse(free)| free);
        let ends = free.max(now) + work;
        self.free_at.push(Reverse(ends));
        ends
    }

    fn suffer(&mut self, event: &Event) {
        match event {
            Event::Workers(workers) => self.workers = *workers,
            // Nobody does anything for a while.
            Event::Stall(lasts) => {
                let busy = self.free_at.drain().map(|Reverse(at)| Reverse(at + *lasts));
                self.free_at = busy.collect();
            }
            // What waits is forgotten, and the service is slow at first.
            Event::Restart => {
                self.free_at.clear();
                self.started = Some(Instant::now());
            }
            Event::Nothing | Event::LimitersAway | Event::RedisAway => {}
        }
    }
}

async fn answer(work: Arc<Mutex<Work>>) -> Response<Full<Bytes>> {
    let ends = lock(&work).ends_at();
    tokio::time::sleep_until(ends.into()).await;
    Response::new(Full::from("hello\n"))
}

/// A time from the exponential distribution of a mean.
#[expect(
    clippy::float_arithmetic,
    reason = "a load at random, which nothing exact depends on"
)]
fn exponential(random: &mut Random, mean: Duration) -> Duration {
    const PARTS: u32 = 1 << 31;
    let part = u32::try_from(random.below(PARTS.into())).unwrap_or(0) + 1;
    mean.mul_f64(-(f64::from(part) / f64::from(PARTS)).ln())
}

// --- The script.

/// What a contender did: its answers that were OK, by when they were sent and how long they took, in milliseconds, and
/// the limit in each second, if it is ours.
#[derive(Default)]
struct Played {
    answers: Vec<[u64; 2]>,
    limits: Vec<[u64; 2]>,
}

async fn play(
    service: &Mutex<Work>,
    fleet: &mut Fleet,
    proxies: &[Envoy],
    path: &'static str,
) -> Result<Played> {
    let start = Instant::now();
    let mut loads = Loads::default();
    for (envoy, (seed, per_second)) in proxies.iter().enumerate().zip((1..).zip(OFFERED)) {
        let (mut random, mean) = (Random(seed), Duration::from_secs(1) / per_second);
        loads.add(envoy, path, move || exponential(&mut random, mean));
    }
    let mut limits = Vec::new();
    let mut until = async |seconds: u64, fleet: &Fleet| {
        let end = start + Duration::from_secs(seconds);
        while let left @ 1.. = millis(end.saturating_duration_since(Instant::now())) {
            if path == OURS
                && let Ok(values) = fleet.metric("rl_adaptive_limit{").await
                && !values.is_empty()
            {
                limits.push([start.elapsed().as_secs(), quantile(values, 500)]);
            }
            sleep(Duration::from_millis(left.min(1000))).await;
        }
    };
    let mut begin = 0;
    for (_, event, end) in &PHASES {
        lock(service).suffer(event);
        match event {
            Event::LimitersAway => {
                fleet.kill_limiters(0).await?;
                until(begin + AWAY_S, fleet).await;
                fleet.restart().await?;
            }
            Event::RedisAway => {
                fleet.redis()?.process().pause()?;
                until(begin + AWAY_S, fleet).await;
                fleet.redis()?.process().resume()?;
            }
            _ => {}
        }
        until(*end, fleet).await;
        begin = *end;
    }
    let sent = loads.end().await.into_iter();
    let answers = sent.filter(|sent| sent.status == Some(StatusCode::OK));
    let answers = answers.map(|sent| [millis(sent.at - start), millis(sent.took)]);
    Ok(Played {
        answers: answers.collect(),
        limits,
    })
}

// --- What is judged.

impl Played {
    /// Good answers of a second, of requests sent in these seconds.
    fn goodput(&self, from_s: u64, to_s: u64) -> u64 {
        let mut took = self.took_ms(from_s, to_s);
        took.retain(|ms| *ms <= TARGET_MS);
        let good = u64::try_from(took.len()).unwrap_or(u64::MAX);
        good / to_s.saturating_sub(from_s).max(1)
    }

    fn took_ms(&self, from_s: u64, to_s: u64) -> Vec<u64> {
        let sent = from_s * 1000..to_s * 1000;
        let answers = self.answers.iter();
        let answers = answers.filter(|[at_ms, _]| sent.contains(at_ms));
        answers.map(|[_, took_ms]| *took_ms).collect()
    }

    /// The seconds from a time until goodput over two seconds reaches this.
    fn seconds_until(&self, goodput: u64, from_s: u64, to_s: u64) -> u64 {
        let mut starts = from_s..to_s;
        let found = starts.find(|at| self.goodput(*at, at + 2) >= goodput);
        found.unwrap_or(to_s) - from_s
    }

    /// Half of the distance between the tenth and the ninetieth part of the limit's values, of their mean, in
    /// thousandths.
    fn amplitude(&self, from_s: u64, to_s: u64) -> u64 {
        let values = self.limits.iter();
        let values = values.filter(|[at, _]| (from_s..to_s).contains(at));
        let values: Vec<u64> = values.map(|[_, limit]| *limit).collect();
        let sum: u64 = values.iter().sum();
        let mean = sum / u64::try_from(values.len()).unwrap_or(u64::MAX).max(1);
        let [low, high] = [100, 900].map(|part| quantile(values.clone(), part));
        (high - low) * 500 / mean.max(1)
    }
}

fn judge(report: &mut Report, runs: &[(&str, Played)]) {
    let best = |from: u64, to: u64| {
        let fixed = runs.iter().filter(|(path, _)| STATIC.contains(path));
        let goodputs = fixed.map(|(_, played)| played.goodput(from, to));
        goodputs.max().unwrap_or(0)
    };
    let mut from = START_S;
    for (phase, _, to) in PHASES {
        let best = best(from, to);
        report.figure(&format!("{phase}: best static"), Unit::PerSecond, best);
        for (path, played) in runs {
            let of = format!("{phase}: {path}");
            let goodput = played.goodput(from, to);
            report.figure(&of, Unit::PerSecond, goodput);
            let judged = matches!(phase, "whole" | "a third" | "returned");
            let [good, quick] = match *path {
                OURS if judged => [Goal::AtLeast(900), Goal::AtMost(TARGET_MS * 11 / 10)],
                _ => [Goal::None; 2],
            };
            if [OURS, ENVOYS].contains(path) {
                report.ratio(&format!("{of} of best"), good, goodput, best);
            }
            let p95 = quantile(played.took_ms(from, to), 950);
            report.judged(&format!("{of}, p95"), Unit::Millis, quick, p95);
        }
        from = to;
    }
    // The last part of a phase is what there is to be had.
    for (what, from, to, within) in [("drop", 20, 80, 10), ("return", 80, 110, 15)] {
        let wanted = best(from + 10, to) * 9 / 10;
        for (path, played) in runs {
            let goal = match *path {
                OURS => Goal::AtMost(within),
                _ => Goal::None,
            };
            let name = format!("seconds to 0.9 after the {what}: {path}");
            let seconds = played.seconds_until(wanted, from, to);
            report.judged(&name, Unit::Count, goal, seconds);
        }
    }
    for (_, played) in runs.iter().filter(|(_, played)| !played.limits.is_empty()) {
        for (phase, from, to) in [("whole", START_S, 20), ("a third", 40, 80)] {
            let name = format!("{phase}: amplitude of the limit");
            let amplitude = played.amplitude(from, to);
            report.judged(&name, Unit::Thousandths, Goal::AtMost(100), amplitude);
        }
    }
}
