//! `cargo xtask soak --proxy module`: an Envoy whose listeners change twenty times a second, under requests of every
//! kind, with clients that leave or reset their streams, and limiters that are killed or hang until the last minute.
//!
//! A request has no answer if its connection closes without one, or after [`PATIENCE`]. Envoy closes connections
//! [`DRAIN_S`] after their listener was replaced, and clients keep theirs no longer than [`KEPT`]: none is closed under a
//! request that still waits. A second listener, without the filter, changes as often and has as many clients of each
//! kind: if a request there has no answer, or takes half of [`PATIENCE`], the machine is too busy for this. A busy machine
//! delays the requests of both, so the slowest with the filter is compared with the slowest without.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{
    Envoy, EnvoyConfig, Programs, Random, RawClient, Upstream, free_port, put_listeners,
    rapid_resets, until,
};
use serde_json::{Value, json};
use tokio::signal::ctrl_c;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};

use super::attacks::head;
use crate::bench::Unit;
use crate::fleet::{Fleet, lock, micros, quantile};
use crate::ui::Ui;

const WORKERS: u32 = 4;
/// The pause between two configurations.
const PERIOD: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(5);
const KEPT: Duration = Duration::from_secs(2);
const DRAIN_S: &str = "7";
/// What the slowest request with the filter may take beyond twice the slowest one without: more than what the limits and
/// the timeout of a call let it wait.
const WAIT_MAX_US: u64 = 500_000;
/// Minutes until Envoy has what it needs, and how much more it may take after them.
const WARM: usize = 3;
const GROWTH_MAX_MIB: u64 = 24;
/// The module may lose a thread where Envoy ends a configuration in it (`module/src/time.rs`): so seldom.
const CHANGES_PER_THREAD: u64 = 5000;
/// In what time nothing is left: less than the `slot_ttl`, after which slots end that nobody gave back.
const LEFT: Duration = Duration::from_secs(15);

const LIMITS: &str = "
domain: shop
limits:
  - {name: checked, match: {path: /checked}, per: [user], rate: 5/s}
  - {name: leased, match: {path: /leased}, rate: 2000/s, lease: {ttl: 250ms}}
  - {name: slots, match: {path: /slots}, algorithm: concurrency, limit: 6, slot_ttl: 60s}
  - {name: queued, match: {path: /queued}, algorithm: leaky_bucket, rate: 100/s, burst: 20, over_limit: queue, max_delay: 100ms}
  - {name: tokens, match: {path: /tokens}, rate: 1000/s, cost: {from: {response_json: /n}, reserve: {from: {request_json: /m}, default: 5}, max: 100}}
  - {name: near, match: {path: /near}, per: [user], rate: 20/s, scope: proxy}
  - {name: strict, match: {path: /strict}, rate: 100/s, on_failure: deny}
";
/// The paths of the limits, and one without.
#[rustfmt::skip]
const PATHS: [&str; 8] = ["/checked", "/leased", "/slots", "/queued", "/tokens", "/near", "/strict", "/unlimited"];
/// The name of the other listener's requests.
const BARE: &str = "without the filter";
/// Clients that stay, of each path, and as many that leave.
const CLIENTS: u64 = 3;

/// The microseconds that requests took, by what they asked for and what came of it.
type Seen = Arc<Mutex<BTreeMap<(&'static str, String), Vec<u64>>>>;

/// Runs it and prints what it saw; an error if a bound was exceeded.
pub async fn soak(minutes: u64, programs: &Programs, ui: &Ui) -> Result<()> {
    let mut fleet = Fleet::with(programs, false, LIMITS, 2, &[]).await?;
    let service = Upstream::start(0).await?;
    service.answer_after(Duration::from_millis(5), 200)?;
    service.answer_body(r#"{"n": 3}"#);
    let listeners = Listeners {
        config: fleet.config()?.check_streams()?,
        filter: programs.filter.clone(),
        ports: [free_port()?, free_port()?],
        file: fleet.dir.path().join("listeners.json"),
    };
    listeners.put(0)?;
    let config = listeners.config.clone().listeners_in(&listeners.file);
    let config = config.arguments(&["--drain-time-s", DRAIN_S]);
    let envoy = fleet.envoy(config, service.port(), WORKERS).await?;
    sleep(PATIENCE).await;
    let threads = envoy.process().threads()?;
    let seen = Seen::default();
    let mut clients = clients(listeners.ports, &seen);
    ui.heading("An Envoy whose listeners change");
    let peaks = tokio::select! {
        peaks = disturb(minutes, &mut fleet, &envoy, ui) => peaks,
        failed = listeners.keep_changing(&envoy) => failed.map(|never| match never {}),
    };
    clients.shutdown().await;
    let left = nothing_is_left(&fleet, &envoy, threads).await;
    ui.heading("In all");
    let [with, bare] = report(&seen, ui);
    let log = envoy.process().log();
    std::fs::write(programs.root.join("target/soak.log"), &log)?;
    ui.line("Envoy's log is target/soak.log");
    let peaks = peaks?;
    let [changes, refused] = changes(&envoy).await?;
    let bugs = log.lines().filter(|line| line.contains("bug: ")).count();
    let warm = peaks.get(WARM - 1).or(peaks.last());
    let [warm, end] = [warm, peaks.last()].map(|bytes| bytes.map_or(0, |bytes| bytes >> 20));
    ui.line(&format!(
        "{changes} configurations, {refused} refused; {bugs} bugs; {warm} MiB after {WARM} minutes, {end} in the last one"
    ));
    // All that there are: a busy machine must not hide another problem.
    let mut problems = Vec::new();
    let mut fails_if = |is_so: bool, what: &str| problems.extend(is_so.then(|| what.to_owned()));
    fails_if(with.lost > 0, "requests got no answer");
    let slow = with.most_us > 2 * bare.most_us + WAIT_MAX_US;
    fails_if(
        slow,
        "requests with the filter took much longer than without",
    );
    let minutes = u64::try_from(peaks.len())?;
    fails_if(changes < 60 * minutes, "too few configurations");
    fails_if(refused > 0 || bugs > 0, "configurations refused, or bugs");
    fails_if(end >= warm + GROWTH_MAX_MIB, "Envoy grew");
    let busy = bare.lost > 0 || bare.most_us >= micros(PATIENCE) / 2;
    fails_if(
        busy,
        "too busy a machine: requests without the filter waited, too",
    );
    problems.extend(left.err().map(|error| format!("{error:#}")));
    ensure!(problems.is_empty(), "{}", problems.join("; "));
    Ok(())
}

/// Kills and stops limiters, until the last minute or Ctrl-C. Returns the most memory that Envoy took in each minute.
async fn disturb(minutes: u64, fleet: &mut Fleet, envoy: &Envoy, ui: &Ui) -> Result<Vec<u64>> {
    let (started, mut random, mut peaks) = (Instant::now(), Random(1), Vec::new());
    let interrupted = tokio::spawn(ctrl_c());
    for minute in 1..=minutes {
        let (mut memory, mut threads) = (0, 0);
        while started.elapsed() < Duration::from_secs(60 * minute) {
            if minute < minutes {
                fleet.limiters.reverse();
                let from = usize::from(random.below(4) > 0);
                if random.below(2) == 0 {
                    let hang = fleet.limiters.iter().skip(from);
                    hang.clone().try_for_each(|of| of.process().pause())?;
                    sleep(Duration::from_millis(700)).await;
                    hang.clone().try_for_each(|of| of.process().resume())?;
                } else {
                    fleet.kill_limiters(from).await?;
                    sleep(Duration::from_millis(300)).await;
                    fleet.restart().await?;
                }
            }
            sleep(Duration::from_millis(1500)).await;
            if interrupted.is_finished() {
                return Ok(peaks);
            }
            memory = memory.max(envoy.process().memory_bytes()?);
            threads = threads.max(envoy.process().threads()?);
        }
        peaks.push(memory);
        let [changes, _] = changes(envoy).await?;
        ui.line(&format!(
            "minute {minute}: {} MiB, {threads} threads, {changes} configurations",
            memory >> 20
        ));
    }
    Ok(peaks)
}

/// Requests of one listener.
#[derive(Default)]
struct Side {
    /// How many had no answer.
    lost: usize,
    /// What the slowest took.
    most_us: u64,
}

/// Prints what came of requests; returns those with the filter and those without.
fn report(seen: &Seen, ui: &Ui) -> [Side; 2] {
    let mut sides = <[Side; 2]>::default();
    for ((what, outcome), took) in std::mem::take(&mut *lock(seen)) {
        let times = took.len();
        let [p99_us, most_us] = [990, 1000].map(|part| quantile(took.clone(), part));
        let [with, bare] = &mut sides;
        let side = if what == BARE { bare } else { with };
        if outcome.parse::<u16>().is_err() {
            side.lost += times;
        }
        side.most_us = side.most_us.max(most_us);
        let [p99, most] = [p99_us, most_us].map(|us| Unit::Micros.text(us));
        ui.line(&format!(
            "{what}: {outcome}: {times}, p99 {p99}, at most {most}"
        ));
    }
    sides
}

/// Configurations that Envoy accepted and refused.
async fn changes(envoy: &Envoy) -> Result<[u64; 2]> {
    let [accepted, refused] =
        ["success", "rejected"].map(|of| format!("listener_manager.lds.update_{of}"));
    Ok([envoy.stat(&accepted).await?, envoy.stat(&refused).await?])
}

/// An error unless Envoy ends the threads, slots and leased units of the configurations that were replaced.
async fn nothing_is_left(fleet: &Fleet, envoy: &Envoy, threads: u64) -> Result<()> {
    let of = async |limit, field: &str| {
        let shown = fleet.rlctl(&["inspect", limit, "-o", "json"]).await?;
        let bucket: Value = serde_json::from_str(&shown)?;
        let units = bucket.get(field).and_then(Value::as_u64);
        units.with_context(|| format!("no {field} in {shown}"))
    };
    let [changes, _] = changes(envoy).await?;
    let threads = threads + 1 + changes / CHANGES_PER_THREAD;
    let mut left = Vec::new();
    let none = until("nothing is left", LEFT, async || {
        let more = envoy.process().threads().ok()?.saturating_sub(threads);
        left = vec![
            more,
            of("slots", "used").await.ok()?,
            of("leased", "leased").await.ok()?,
        ];
        (left == [0, 0, 0]).then_some(())
    });
    let none = none.await;
    none.with_context(|| format!("threads, slots and leased units that are left: {left:?}"))
}

struct Listeners {
    config: EnvoyConfig,
    filter: PathBuf,
    /// With the filter and without.
    ports: [u16; 2],
    file: PathBuf,
}

impl Listeners {
    /// Not before Envoy has read those before, or its main thread would do nothing else where the machine is busy.
    async fn keep_changing(&self, envoy: &Envoy) -> Result<Infallible> {
        let (mut turns, mut nth) = (interval(PERIOD), 1);
        loop {
            let before = changes(envoy).await?;
            self.put(nth)?;
            nth += 1;
            turns.tick().await;
            while changes(envoy).await? == before {
                sleep(PERIOD / 10).await;
            }
        }
    }

    /// Each differs from the one before, also in how the filter asks limiters.
    fn put(&self, nth: usize) -> Result<()> {
        let name = json!(nth.to_string());
        let config = { self.config.clone() }
            .manager_edit(|manager| manager["server_name"] = name.clone())?
            .filter_config(|filter| {
                filter["deny"] = json!({"message": name});
                let stream = nth.is_multiple_of(2);
                filter["limiter"] =
                    json!({"cluster": "limiter", "timeout": "50ms", "stream": stream});
                filter["failure_mode"] = json!(["local", "allow", "deny"].get(nth % 3));
                filter["request_body"] = json!({"max": 1000});
            })?;
        let bare = { config.clone() }.http_filters(|filters| drop(filters.remove(0)))?;
        let config = match self.filter.extension() {
            Some(kind) if kind == "so" => config.module(&self.filter)?,
            _ => config,
        };
        let both = [config.listener()?, bare.listener()?].into_iter();
        put_listeners(&self.file, both.zip(self.ports).collect())
    }
}

// --- Clients.

fn clients(ports: [u16; 2], seen: &Seen) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    let with = PATHS.map(|path| (ports[0], path, path));
    let bare = PATHS.map(|path| (ports[1], BARE, path));
    for (port, name, path) in with.into_iter().chain(bare) {
        for nth in 0..CLIENTS {
            clients.spawn(stay(port, name, path, nth, Arc::clone(seen)));
            clients.spawn(leave(port, path, nth));
        }
        clients.spawn(reset(port, path));
    }
    clients
}

/// A request; some carry what they cost.
fn request(path: &str, user: u64) -> Vec<u8> {
    let head = format!("{path} HTTP/1.1\r\nhost: any\r\nx-user-id: {user}\r\n");
    if path == "/tokens" {
        return format!("POST {head}content-length: 8\r\n\r\n{{\"m\": 7}}").into_bytes();
    }
    format!("GET {head}\r\n").into_bytes()
}

/// A client that waits for each answer.
async fn stay(port: u16, name: &'static str, path: &str, nth: u64, seen: Seen) {
    let mut random = Random(nth);
    loop {
        let (mut client, opened) = (RawClient::new(port), Instant::now());
        while opened.elapsed() < KEPT {
            let at = Instant::now();
            let request = request(path, random.below(20));
            let outcome = match timeout(PATIENCE, client.send_once(&request)).await {
                Ok(Ok(Some(reply))) => reply.status.to_string(),
                Ok(Ok(None)) => "no answer: closed".to_owned(),
                Ok(Err(error)) => format!("no answer: {error:#}"),
                Err(_) => "no answer: too late".to_owned(),
            };
            let (took, lost) = (micros(at.elapsed()), outcome.starts_with("no"));
            lock(&seen).entry((name, outcome)).or_default().push(took);
            sleep(Duration::from_millis(random.below(40))).await;
            if lost {
                break;
            }
        }
    }
}

/// One that leaves while its request is sent, waits, or is answered.
async fn leave(port: u16, path: &str, nth: u64) {
    let mut random = Random(nth);
    loop {
        let mut request = request(path, random.below(20));
        request.truncate(request.len() - usize::from(random.below(2) == 0));
        let patience = Duration::from_micros(random.below(12_000));
        let _ = timeout(patience, RawClient::new(port).send_once(&request)).await;
        sleep(Duration::from_millis(random.below(80))).await;
    }
}

/// One that resets its streams.
async fn reset(port: u16, path: &str) {
    let head = head("GET", path);
    loop {
        let _ = rapid_resets(port, &head, 20).await;
        sleep(Duration::from_millis(800)).await;
    }
}
