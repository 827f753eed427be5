//! Limits that follow their service, in front of one that loses two thirds of its capacity, returns, stalls and
//! restarts cold, while the limiters and Redis fail; beside Envoy's own `adaptive_concurrency` filter and static
//! limits, in the same run.
//!
//! Three Envoys get unequal parts of more requests than the service can answer. A request is good if its client has
//! the answer within [`TARGET_MS`]. Contenders play the script one after the other.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Result;
use harness::{Bytes, Client, Envoy, EnvoyConfig, LimiterPlan, Ports, Programs, Random, serve};
use http_body_util::Full;
use hyper::{Response, StatusCode};
use serde_json::json;
use tokio::{net::TcpListener, task::JoinSet, time::sleep};

use super::{
    Goal, Report, Unit, median,
    setups::{Servers, limits_are_known, own_ports},
};

/// What clients want, and the `latency` of the limit.
const TARGET_MS: u64 = 300;
/// A client that has no answer by then leaves.
const PATIENCE: Duration = Duration::from_secs(2);
/// Microseconds that a worker of the service needs for a request in the mean; times are distributed exponentially.
const WORK_US: u64 = 50_000;
const WORKERS: usize = 20;
const WORKERS_LEFT: usize = 7;
/// Requests of a second: half more than the service can answer.
const OFFERED: u64 = 600;
/// Parts of them that the Envoys get.
const PARTS: [u64; 3] = [6, 3, 1];
/// So many times the work that a request of a service takes that has just started, at first.
const COLD: u64 = 4;

/// The script: a name, and when it ends, in seconds.
const PHASES: [(&str, u64); 7] = [
    ("whole", 20),
    ("a third", 80),
    ("returned", 110),
    ("stalled 2 s", 120),
    ("restarted cold", 135),
    ("no limiter", 150),
    ("Redis stalled", 165),
];
/// Seconds of the first phase that are not judged: limits start anywhere.
const START_S: u64 = 8;
/// For so long limiters and Redis are away, from the start of their phase.
const AWAY: Duration = Duration::from_secs(8);

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
    let ports = Ports {
        upstream,
        ..Ports::free()?
    };
    let servers = Servers::start(programs, LIMITS, &ports.limiters).await?;
    let mut limiters = Limiters::Running(servers.limiters);
    let (mut ours, mut envoys) = (Vec::new(), Vec::new());
    for _ in PARTS {
        let config = EnvoyConfig::shipped(&programs.root)?;
        let config = config.filter_code(&programs.filter)?;
        let envoy =
            Envoy::start(programs, config, own_ports(ports)?, 1, servers.dir.path()).await?;
        limits_are_known(&envoy, "/probe").await?;
        ours.push(envoy);
        let config = adaptive_concurrency(EnvoyConfig::shipped(&programs.root)?)?;
        envoys
            .push(Envoy::start(programs, config, own_ports(ports)?, 1, servers.dir.path()).await?);
    }
    let mut report = Report::default();
    for _ in 0..rounds {
        let mut runs = Vec::new();
        for path in [OURS, ENVOYS].into_iter().chain(STATIC) {
            let proxies = if path == ENVOYS { &envoys } else { &ours };
            *lock(&service) = Work::default();
            let script = Script {
                service: &service,
                redis: &servers.redis,
                limiters: &mut limiters,
            };
            runs.push((path, script.play(proxies, path).await?));
        }
        judge(&mut report, &runs);
    }
    Ok(report)
}

/// Puts Envoy's own filter in place of ours, as its documentation has it.
fn adaptive_concurrency(config: EnvoyConfig) -> Result<EnvoyConfig> {
    config.http_filters(|filters| {
        if let Some(filter) = filters.first_mut() {
            *filter = json!({
                "name": "envoy.filters.http.adaptive_concurrency",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.adaptive_concurrency.v3.AdaptiveConcurrency",
                    "gradient_controller_config": {
                        "sample_aggregate_percentile": {"value": 90},
                        "concurrency_limit_params": {"concurrency_update_interval": "0.1s"},
                        "min_rtt_calc_params": {"jitter": {"value": 10}, "interval": "60s", "request_count": 50}
                    },
                    "enabled": {"default_value": true, "runtime_key": "bench.adaptive"}
                }
            });
        }
    })
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
        let mut work_us = exponential(&mut self.random, WORK_US);
        // Caches fill within ten seconds.
        if let Some(started) = self.started {
            let left_ms = 10_000_u128.saturating_sub(started.elapsed().as_millis());
            let left_ms = u64::try_from(left_ms).unwrap_or(0);
            work_us += work_us * (COLD - 1) * left_ms / 10_000;
        }
        let free = self
            .free_at
            .pop()
            .map_or(now, |Reverse(free)| free.max(now));
        let ends = free + Duration::from_micros(work_us);
        self.free_at.push(Reverse(ends));
        ends
    }

    /// Does nothing for a while.
    fn stall(&mut self, lasts: Duration) {
        let stalled = self.free_at.drain().map(|Reverse(at)| Reverse(at + lasts));
        self.free_at = stalled.collect();
    }

    /// Forgets what waits, and is slow at first.
    fn restart(&mut self) {
        self.free_at.clear();
        self.started = Some(Instant::now());
    }
}

async fn answer(work: Arc<Mutex<Work>>) -> Response<Full<Bytes>> {
    let ends = lock(&work).ends_at();
    tokio::time::sleep_until(ends.into()).await;
    Response::new(Full::from("hello\n"))
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number from the exponential distribution of a mean, by comparisons alone (von Neumann 1951).
fn exponential(random: &mut Random, mean: u64) -> u64 {
    const PARTS: u64 = 1 << 31;
    let mut whole = 0;
    loop {
        let first = random.below(PARTS);
        let (mut last, mut odd) = (first, true);
        loop {
            let next = random.below(PARTS);
            if next > last {
                break;
            }
            (last, odd) = (next, !odd);
        }
        if odd {
            return mean * whole + mean * first / PARTS;
        }
        whole += 1;
    }
}

// --- The script and the load.

/// Limiters, or how to start them again.
enum Limiters {
    Running(Vec<harness::Limiter>),
    Killed(Vec<LimiterPlan>),
}

impl Limiters {
    async fn kill(&mut self) -> Result<()> {
        if let Self::Running(limiters) = self {
            let mut plans = Vec::new();
            for limiter in limiters.drain(..) {
                plans.push(limiter.kill().await?);
            }
            *self = Self::Killed(plans);
        }
        Ok(())
    }

    async fn start(&mut self) -> Result<()> {
        if let Self::Killed(plans) = self {
            let mut limiters = Vec::new();
            for plan in plans.drain(..) {
                limiters.push(plan.start().await?);
            }
            *self = Self::Running(limiters);
        }
        Ok(())
    }

    /// The limit, as the limiters' latest answers had it.
    async fn limit(&self) -> Option<u64> {
        let Self::Running(limiters) = self else {
            return None;
        };
        let mut found = Vec::new();
        for limiter in limiters {
            let url = format!("{}/metrics", limiter.admin_url());
            let page = Client::new().get(&url).send().await.ok()?.text();
            let line = page
                .lines()
                .find(|line| line.starts_with("rl_adaptive_limit{"));
            found.extend(line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()));
        }
        (!found.is_empty()).then(|| median(found))
    }
}

/// A request: when it was sent, in milliseconds of the script, and after how many it had its answer, if it did.
type Sent = (u64, Option<u64>);

/// What a contender did.
#[derive(Default)]
struct Played {
    sent: Vec<Sent>,
    /// The limit in each second, if it is ours.
    limits: Vec<(u64, u64)>,
}

struct Script<'s> {
    service: &'s Mutex<Work>,
    redis: &'s harness::Redis,
    limiters: &'s mut Limiters,
}

impl Script<'_> {
    async fn play(self, proxies: &[Envoy], path: &str) -> Result<Played> {
        let start = Instant::now();
        let sent = Arc::new(Mutex::new(Vec::new()));
        let mut loads = JoinSet::new();
        for (nth, (envoy, part)) in (1..).zip(proxies.iter().zip(PARTS)) {
            loads.spawn(load(
                envoy.url(path),
                OFFERED * part / 10,
                nth,
                start,
                Arc::clone(&sent),
            ));
        }
        let mut limits = Vec::new();
        let mut ends = PHASES.iter().map(|(_, ends)| Duration::from_secs(*ends));
        let mut at = async |time: Duration, limiters: &Limiters| {
            while start.elapsed() < time {
                if path == OURS
                    && let Some(limit) = limiters.limit().await
                {
                    limits.push((start.elapsed().as_secs(), limit));
                }
                sleep(Duration::from_secs(1).min(time.saturating_sub(start.elapsed()))).await;
            }
        };
        let mut next = || ends.next().unwrap_or_default();
        at(next(), self.limiters).await;
        lock(self.service).workers = WORKERS_LEFT;
        at(next(), self.limiters).await;
        lock(self.service).workers = WORKERS;
        at(next(), self.limiters).await;
        lock(self.service).stall(Duration::from_secs(2));
        at(next(), self.limiters).await;
        lock(self.service).restart();
        let (cold, no_limiter) = (next(), next());
        at(cold, self.limiters).await;
        self.limiters.kill().await?;
        at(cold + AWAY, self.limiters).await;
        self.limiters.start().await?;
        at(no_limiter, self.limiters).await;
        self.redis.process().pause()?;
        at(no_limiter + AWAY, self.limiters).await;
        self.redis.process().resume()?;
        at(next(), self.limiters).await;
        drop(loads);
        let sent = std::mem::take(&mut *lock(&sent));
        Ok(Played { sent, limits })
    }
}

/// Sends requests at times of its own, whether or not earlier ones have their answers.
async fn load(
    url: String,
    per_second: u64,
    seed: u64,
    start: Instant,
    sent: Arc<Mutex<Vec<Sent>>>,
) {
    let (client, mut random, mut due) = (Client::new(), Random(seed), start);
    let mut requests = JoinSet::new();
    loop {
        due += Duration::from_micros(exponential(&mut random, 1_000_000 / per_second));
        tokio::time::sleep_until(due.into()).await;
        let (get, sent) = (client.get(&url), Arc::clone(&sent));
        requests.spawn(async move {
            let at = Instant::now();
            let reply = tokio::time::timeout(PATIENCE, get.send()).await;
            let good = matches!(reply, Ok(Ok(reply)) if reply.status == StatusCode::OK);
            let took = good
                .then(|| at.elapsed().as_millis())
                .and_then(|ms| u64::try_from(ms).ok());
            let at_ms = u64::try_from((at - start).as_millis()).unwrap_or(u64::MAX);
            lock(&sent).push((at_ms, took));
        });
        while requests.try_join_next().is_some() {}
    }
}

// --- What is judged.

impl Played {
    /// Good answers of a second, of requests sent in these seconds.
    fn goodput(&self, from_s: u64, to_s: u64) -> u64 {
        let good = self.answered(from_s, to_s).filter(|ms| *ms <= TARGET_MS);
        let good = u64::try_from(good.count()).unwrap_or(u64::MAX);
        good / to_s.saturating_sub(from_s).max(1)
    }

    fn answered(&self, from_s: u64, to_s: u64) -> impl Iterator<Item = u64> {
        let sent = self.sent.iter();
        sent.filter_map(move |(at_ms, took)| {
            (from_s * 1000..to_s * 1000)
                .contains(at_ms)
                .then_some((*took)?)
        })
    }

    fn p95_ms(&self, from_s: u64, to_s: u64) -> u64 {
        let mut took: Vec<u64> = self.answered(from_s, to_s).collect();
        took.sort_unstable();
        took.get(took.len() * 95 / 100).copied().unwrap_or(0)
    }

    /// The seconds from a time until goodput over two seconds reaches this.
    fn seconds_until(&self, goodput: u64, from_s: u64, to_s: u64) -> u64 {
        let mut starts = from_s..to_s;
        let found = starts.find(|at| self.goodput(*at, at + 2) >= goodput);
        found.unwrap_or(to_s) - from_s
    }

    /// Half of the distance between the tenth and the ninetieth part of the limit's values, of their mean, in
    /// thousandths.
    fn amplitude(&self, from_s: u64, to_s: u64) -> Option<u64> {
        let values = self
            .limits
            .iter()
            .filter(|(at, _)| (from_s..to_s).contains(at));
        let mut values: Vec<u64> = values.map(|(_, limit)| *limit).collect();
        values.sort_unstable();
        let of = |part: usize| values.get(values.len() * part / 10).copied();
        let mean = values.iter().sum::<u64>() / u64::try_from(values.len()).ok()?.max(1);
        Some((of(9)? - of(1)?) * 500 / mean.max(1))
    }
}

fn judge(report: &mut Report, runs: &[(&str, Played)]) {
    let best = |from: u64, to: u64| {
        let fixed = runs.iter().filter(|(path, _)| STATIC.contains(path));
        fixed
            .map(|(_, played)| played.goodput(from, to))
            .max()
            .unwrap_or(0)
    };
    let mut from = START_S;
    for (phase, to) in PHASES {
        let best = best(from, to);
        report.figure(&format!("{phase}: best static"), Unit::PerSecond, best);
        for (path, played) in runs {
            let goodput = played.goodput(from, to);
            report.figure(&format!("{phase}: {path}"), Unit::PerSecond, goodput);
            let (of_best, p95) = (goodput * 1000 / best.max(1), played.p95_ms(from, to));
            let judged = matches!(phase, "whole" | "a third" | "returned");
            let [good, quick] = match *path {
                OURS if judged => [Goal::AtLeast(900), Goal::AtMost(TARGET_MS * 11 / 10)],
                _ => [Goal::None; 2],
            };
            if [OURS, ENVOYS].contains(path) {
                report.judged(
                    &format!("{phase}: {path} of best"),
                    Unit::Thousandths,
                    good,
                    of_best,
                );
            }
            report.judged(&format!("{phase}: {path}, p95"), Unit::Millis, quick, p95);
        }
        from = to;
    }
    // The last part of a phase is what there is to be had.
    for (what, from, to, goal) in [("drop", 20, 80, 10), ("return", 80, 110, 15)] {
        let wanted = best(from + 10, to) * 9 / 10;
        for (path, played) in runs {
            let goal = if *path == OURS {
                Goal::AtMost(goal)
            } else {
                Goal::None
            };
            let seconds = played.seconds_until(wanted, from, to);
            report.judged(
                &format!("seconds to 0.9 after the {what}: {path}"),
                Unit::Count,
                goal,
                seconds,
            );
        }
    }
    for (phase, from, to) in [("whole", START_S, 20), ("a third", 40, 80)] {
        for amplitude in runs
            .iter()
            .filter_map(|(_, played)| played.amplitude(from, to))
        {
            let name = format!("{phase}: amplitude of the limit");
            report.judged(&name, Unit::Thousandths, Goal::AtMost(100), amplitude);
        }
    }
}
