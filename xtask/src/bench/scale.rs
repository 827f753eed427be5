//! Domains with as many limits and overrides as they may have: what an edit costs `rlctl`, limiters and proxies, how
//! long it takes until it is in force, what limits that do not apply cost a check, and keys that end together.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use harness::{Client, Envoy, Programs, Reply, until};
use protocol::{CHANGES_PARAMETER, LIMITS_CBOR};
use serde_json::Value;
use tokio::time::sleep;

use super::direct::{self, batch, checking, measure};
use super::setups::{Wrk, answered_by_envoy};
use super::{Goal, Report, Unit};
use crate::fleet::{Fleet, decisions, limits_are_known, millis, quantile, shows};
use crate::ui::Ui;

/// Limits of a large domain.
const LIMITS: u32 = 5000;
/// As many as the longest edits were measured with.
const MORE_LIMITS: u32 = 8700;
/// Limits of a small one, which the large one is compared with.
const FEW_LIMITS: u32 = 100;
/// Overrides of one limit.
const OVERRIDES: u32 = 100_000;
/// As many limits as a domain may have, nearly as large as proxies read.
const MOST: u32 = 10_000;
/// What `rlctl set-limit` may take, in milliseconds.
const EDIT_GOAL: Goal = Goal::AtMost(60);
/// What it may take until an edit is in force, the command included, in milliseconds.
const IN_FORCE_GOAL: Goal = Goal::AtMost(300);
/// What an edit may send each proxy, in bytes.
const SENT_GOAL: Goal = Goal::AtMost(2 << 10);
/// What it may cost each worker of Envoy, in microseconds.
const WORKER_GOAL: Goal = Goal::AtMost(1000);
/// The most that a check may cost the limiter where thousands of limits do not apply to it, of what it costs with
/// one limit, in thousandths.
const MATCHING_GOAL: Goal = Goal::AtMost(2000);
/// The same of a request in Envoy, compared with [`FEW_LIMITS`].
const ENVOY_GOAL: Goal = Goal::AtMost(1200);
/// What edits may make of the p99 of requests, in thousandths.
const P99_GOAL: Goal = Goal::AtMost(1500);
/// Bytes of a limiter's page of metrics where few limits decide.
const PAGE_GOAL: Goal = Goal::AtMost(1 << 20);
const PATIENCE: Duration = Duration::from_mins(1);

/// What an edit is called, its command, in which `N` stands for a number, and how long that may take.
type Edit = (&'static str, &'static str, Goal);

const SET: Edit = ("set-limit", "set-limit l7 --rate N/s", EDIT_GOAL);
const SET_FOR: &str = "set-limit l9 --for user=u1 --rate N/s";
/// Of a domain with many limits.
const EDITS: [Edit; 5] = [
    SET,
    ("set-limit --for", SET_FOR, EDIT_GOAL),
    ("reset of a bucket", "reset l9 user=u1", Goal::None),
    (
        "set-limit of a new one",
        "set-limit new-N --rate N/s --match path=/new-N/**",
        Goal::None,
    ),
    ("delete-limit", "delete-limit new-N", Goal::None),
];
/// Of a limit with many overrides.
const EDITS_OF_ONE: [Edit; 2] = [
    SET,
    (
        "set-limit --for",
        "set-limit l7 --for user=u1 --rate N/s",
        Goal::None,
    ),
];

/// The limits that do not apply to a check, by the kind of their patterns: the path of the N-th.
const KINDS: [(&str, &str); 8] = [
    ("exact paths", "/tN"),
    ("/t/**", "/tN/**"),
    ("/**/t", "\"/**/tN\""),
    ("/**/t/**", "\"/**/tN/**\""),
    ("/a-t*", "\"/a-tN*\""),
    ("re:", "\"re:/.*-tNx[0-9]+\""),
    ("re:.*t", "\"re:.*(x|yz)-tN\""),
    ("negations", "[/tN/**, \"!/tN/a/**\"]"),
];

/// A limit that applies to the checks of [`direct::batched`].
const APPLIES: &str = "  - {name: applies, match: {path: /strict}, per: [user], rate: 1000000/s}\n";

/// Measures each row so many times. `keys`: how many end together; `only`: a word of the parts that are measured.
pub async fn scale(
    programs: &Programs,
    ui: &Ui,
    (rounds, keys, only): (u64, u64, &str),
    wrk: &Wrk,
) -> Result<Report> {
    let mut report = Report::default();
    let begins = |part: &str| {
        let begins = part.contains(only);
        if begins {
            ui.heading(&format!("{part}; {rounds} rounds"));
        }
        begins
    };
    let few: &[Edit] = &[SET];
    for (name, limits, edits) in [
        (format!("{LIMITS} limits"), plain(LIMITS), &EDITS[..]),
        (format!("{MORE_LIMITS} limits"), plain(MORE_LIMITS), &EDITS),
        (
            format!("a limit with {OVERRIDES} overrides"),
            overridden(),
            &EDITS_OF_ONE,
        ),
        (format!("{MOST} limits of 8 MiB at proxies"), large(), few),
    ] {
        if begins(&format!("Edits of {name}")) {
            edited(programs, (&name, &limits, edits), rounds, &mut report).await?;
        }
    }
    if begins("Limits that do not apply") {
        matching(programs, rounds, wrk, &mut report).await?;
    }
    if begins("Envoy, with edits and without") {
        proxies(programs, rounds, wrk, &mut report).await?;
    }
    if begins(&format!("{keys} keys that end together")) {
        ends(programs, keys, &mut report).await?;
    }
    Ok(report)
}

/// So many of these, in each of which `N` stands for its number.
fn numbered(count: u32, template: &str) -> String {
    (0..count)
        .map(|n| template.replace('N', &n.to_string()))
        .collect()
}

/// So many limits of these paths.
fn limits_of(count: u32, path: &str) -> String {
    let limit = format!("  - {{name: lN, match: {{path: {path}}}, per: [user], rate: 10/s}}\n");
    numbered(count, &limit)
}

fn plain(count: u32) -> String {
    limits_of(count, "/tN/**")
}

fn overridden() -> String {
    let overrides = numbered(OVERRIDES, "      - {values: {user: uN}, rate: 3/s}\n");
    format!("  - name: l7\n    per: [user]\n    rate: 10/s\n    overrides:\n{overrides}")
}

/// Proxies do not get descriptions, and at most 8 MiB of the rest: some 800 bytes of each limit.
fn large() -> String {
    let paths = numbered(10, ", /a-path-of-some-forty-characters/00000N/**");
    let description = "what this limit is for. ".repeat(40);
    let own = format!("description: \"{description}\", match: {{path: [/tN/**{paths}]}}");
    numbered(
        MOST,
        &format!("  - {{name: lN, {own}, per: [user], rate: 10/s}}\n"),
    )
}

/// How long each edit takes until it is in force, and what a proxy is sent of it.
async fn edited(
    programs: &Programs,
    (name, limits, edits): (&str, &str, &[Edit]),
    rounds: u64,
    report: &mut Report,
) -> Result<()> {
    let of = |what: &str| format!("{name}: {what}");
    let started = Instant::now();
    let domain = Domain::start(programs, limits).await?;
    let took = millis(started.elapsed());
    report.figure(&of("apply, and a limiter's start"), Unit::Millis, took);
    for round in 0..rounds {
        for (what, command, goal) in edits {
            let name = |part: &str| of(&format!("{what}{part}"));
            let etag = domain.poll("").await?.header("etag").map(str::to_owned);
            let started = Instant::now();
            let revision = domain.edit(command, 20 + round).await?;
            report.judged(&name(""), Unit::Millis, *goal, millis(started.elapsed()));
            domain.in_force(revision).await?;
            let took = millis(started.elapsed());
            report.judged(&name(", in force"), Unit::Millis, IN_FORCE_GOAL, took);
            let sent = domain.poll(&etag.context("no tag")?).await?.body.len();
            let name = name(", sent to a proxy");
            report.judged(&name, Unit::Bytes, SENT_GOAL, u64::try_from(sent)?);
        }
        let url = format!("{}/metrics", domain.0.limiter()?.admin_url());
        let page = Client::new().get(&url).send().await?.body.len();
        let page = u64::try_from(page)?;
        report.judged(&of("/metrics"), Unit::Bytes, PAGE_GOAL, page);
    }
    Ok(())
}

/// The limiter's CPU time of a check, and Envoy's of a request, with limits that do not apply to it.
async fn matching(programs: &Programs, rounds: u64, wrk: &Wrk, report: &mut Report) -> Result<()> {
    let one = Domain::start(programs, APPLIES).await?;
    for (kind, path) in KINDS {
        let limits = |count| limits_of(count, path) + APPLIES;
        let few = Domain::start(programs, &limits(FEW_LIMITS)).await?;
        let many = Domain::start(programs, &limits(LIMITS)).await?;
        let [small, large] = [few.envoy(1).await?, many.envoy(1).await?];
        for _ in 0..rounds {
            let [of_one, of_many] = [one.check_ns(wrk).await?, many.check_ns(wrk).await?];
            let name = format!("check, {LIMITS} limits with {kind}, of one limit");
            report.ratio(&name, MATCHING_GOAL, of_many, of_one);
            let of_few = request_ns(&small, wrk).await?;
            let of_many = request_ns(&large, wrk).await?;
            let name = format!("request, {LIMITS} limits with {kind}, of {FEW_LIMITS}");
            report.ratio(&name, ENVOY_GOAL, of_many, of_few);
        }
    }
    Ok(())
}

/// Envoy's CPU time of a request that no limit applies to, in nanoseconds.
async fn request_ns(envoy: &Envoy, wrk: &Wrk) -> Result<u64> {
    let before = envoy.process().cpu_us()?;
    let sample = wrk.sample(&envoy.url("/none"), 8, wrk.lasts).await?;
    let us = envoy.process().cpu_us()? - before;
    Ok(us * 1000 / sample.requests.max(1))
}

/// Connections of the load that is compared, which leave some of two cores for everything else.
const LOADING: u64 = 4;
/// Edits of a round, and seconds of its load.
const EDITED: u64 = 10;
const WORKERS: u32 = 2;
/// Connections that ask all workers.
const CONNECTIONS: usize = 16;
/// How long an Envoy's CPU time without load is measured.
const IDLE: Duration = Duration::from_secs(4);
/// Checks of a batch.
const BATCH: u64 = 32;
/// What a check may take while keys end, in microseconds: a filter waits for no longer.
const ENDS_GOAL: Goal = Goal::AtMost(20_000);

/// An Envoy whose requests are checked, while one limit of thousands is edited each second; and without load.
async fn proxies(programs: &Programs, rounds: u64, wrk: &Wrk, report: &mut Report) -> Result<()> {
    let probe = "  - {name: probe, match: {path: /probe}, scope: proxy, rate: 1000000/s}\n";
    let domain = Domain::start(programs, &(plain(LIMITS) + APPLIES + probe)).await?;
    let envoy = domain.envoy(WORKERS).await?;
    let lasts = Duration::from_secs(EDITED);
    let url = envoy.url("/strict");
    wrk.sample(&url, LOADING, Duration::from_secs(2)).await?;
    for round in 0..rounds {
        let start = decisions(&envoy, "local").await?;
        let quiet = wrk.sample(&url, LOADING, lasts).await?;
        let middle = decisions(&envoy, "local").await?;
        let edits = async {
            let mut second = tokio::time::interval(Duration::from_secs(1));
            for nth in 0..EDITED {
                second.tick().await;
                let command = if nth % 2 == 0 { SET.1 } else { SET_FOR };
                domain.edit(command, 20 + round * EDITED + nth).await?;
            }
            anyhow::Ok(())
        };
        let edited = wrk.sample(&url, LOADING, lasts);
        let (edited, ()) = tokio::try_join!(edited, edits)?;
        let end = decisions(&envoy, "local").await?;
        let of = |what: &str| format!("Envoy, {LIMITS} limits, an edit a second: {what}");
        report.figure(&of("p99 without edits"), Unit::Micros, quiet.p99_us);
        report.figure(&of("p99"), Unit::Micros, edited.p99_us);
        report.ratio(&of("p99, of none"), P99_GOAL, edited.p99_us, quiet.p99_us);
        let name = of("decided by local, without edits");
        report.figure(&name, Unit::Count, middle - start);
        let name = of("decided by local");
        report.judged(&name, Unit::Count, Goal::AtMost(0), end - middle);
    }
    for round in 0..rounds {
        without_load(&domain, &envoy, round, report).await?;
    }
    Ok(())
}

/// How long an edit takes until all workers have it, and their CPU time for it.
async fn without_load(
    domain: &Domain,
    envoy: &Envoy,
    round: u64,
    report: &mut Report,
) -> Result<()> {
    let of = |what: &str| format!("Envoy, {LIMITS} limits: {what}");
    let url = envoy.url("/probe");
    let connections: Vec<_> = (0..CONNECTIONS).map(|_| Client::new().get(&url)).collect();
    for nth in 0..EDITED {
        let units = 2_000_000 + round * EDITED + nth;
        let (started, quota) = (Instant::now(), format!("q={units}"));
        domain.edit("set-limit probe --rate N/s", units).await?;
        // No connection finds a worker that does not have it.
        for connection in &connections {
            shows(connection, "ratelimit-policy", &quota, PATIENCE).await?;
        }
        let name = of("set-limit, in force at all workers");
        let took = millis(started.elapsed());
        report.judged(&name, Unit::Millis, IN_FORCE_GOAL, took);
    }
    let mut cpu_us = [0; 2];
    for (edits, cpu_us) in [0, EDITED].into_iter().zip(&mut cpu_us) {
        let (before, until) = (envoy.process().cpu_us()?, Instant::now() + IDLE);
        for nth in 0..edits {
            domain.edit(SET.1, 1000 * (round + 1) + nth).await?;
            sleep(Duration::from_millis(150)).await;
        }
        tokio::time::sleep_until(until.into()).await;
        *cpu_us = envoy.process().cpu_us()? - before;
    }
    let [idle, edited] = cpu_us;
    let us = edited.saturating_sub(idle) / EDITED / u64::from(WORKERS);
    let name = of("CPU of a worker an edit");
    report.judged(&name, Unit::Micros, WORKER_GOAL, us);
    Ok(())
}

/// Fills buckets that are unused again at the same time, if nothing spreads that, and checks another bucket all the
/// while until nearly all are gone.
async fn ends(programs: &Programs, keys: u64, report: &mut Report) -> Result<()> {
    // Long enough that none is gone before the last is there.
    let lasts = Duration::from_secs(30 + keys / 10_000);
    let limits = format!(
        "  - {{name: applies, match: {{path: /strict}}, per: [user], algorithm: fixed_window, rate: 1000/{}s}}\n  \
         - {{name: neighbour, match: {{path: /other}}, per: [user], rate: 1000000/s}}\n",
        lasts.as_secs()
    );
    let domain = Domain::start(programs, &limits).await?;
    let limiter = domain.0.limiter()?;
    let started = Instant::now();
    let fill = move |nth: u64| {
        let more = nth * BATCH < keys;
        more.then(|| Ok(checking(&batch(nth * BATCH, BATCH)?)))
            .transpose()
    };
    direct::each(limiter, 1, 2, fill).await?;
    let of = |what: &str| format!("{keys} keys that end together: {what}");
    let before = domain.size().await?;
    report.figure(&of("there are"), Unit::Count, before);
    report.figure(&of("to fill them"), Unit::Millis, millis(started.elapsed()));
    // They are kept a little longer than they count.
    let until = Instant::now() + 3 * lasts + PATIENCE;
    let (mut quiet, mut ending, mut refused) = (Vec::new(), Vec::new(), 0);
    let (mut first, mut last, mut left) = (None, Instant::now(), before);
    while left > before / 100 && Instant::now() < until {
        let (checked, mut took) = (Instant::now() + Duration::from_millis(500), Vec::new());
        while Instant::now() < checked {
            let call = |nth: u64| (nth == 0).then(|| direct::of_path("/other")).transpose();
            match direct::each(limiter, 1, 1, call).await {
                Ok(one) => took.extend(one),
                Err(_) => refused += 1,
            }
            sleep(Duration::from_millis(1)).await;
        }
        let now = domain.size().await?;
        if now < left {
            last = Instant::now();
            first.get_or_insert(last);
            ending.append(&mut took);
        } else if first.is_none() {
            quiet.append(&mut took);
        }
        left = now;
    }
    let whole = first.map_or(0, |first| millis(last - first));
    report.figure(&of("they end within"), Unit::Millis, whole);
    let name = of("a neighbour's checks refused");
    report.judged(&name, Unit::Count, Goal::AtMost(0), refused);
    for (when, took, goal) in [
        ("before", quiet, Goal::None),
        ("as they end", ending, ENDS_GOAL),
    ] {
        let [p99, most] = [990, 1000].map(|part| quantile(took.clone(), part));
        let name = of(&format!("a neighbour's p99, {when}"));
        report.figure(&name, Unit::Micros, p99);
        let name = of(&format!("a neighbour's worst, {when}"));
        report.judged(&name, Unit::Micros, goal, most);
    }
    Ok(())
}

/// A limiter with one large domain, and its Redis.
struct Domain(Fleet);

impl Domain {
    async fn start(programs: &Programs, limits: &str) -> Result<Self> {
        let limits = format!("domain: shop\nlimits:\n{limits}");
        let domain = Self(Fleet::start(programs, &limits, 1).await?);
        domain.in_force(1).await?;
        Ok(domain)
    }

    /// An Envoy with these limits, which answers requests itself.
    async fn envoy(&self, workers: u32) -> Result<Envoy> {
        let [port, ..] = self.0.ports.limiters;
        let config = self.0.config()?.limiter_at(port)?.keep_port(port);
        let config = answered_by_envoy(config)?;
        let envoy = self.0.envoy(config, self.0.ports.upstream, workers).await?;
        limits_are_known(&envoy, "/strict").await?;
        Ok(envoy)
    }

    /// Edits the domain by a command, in which `N` stands for this number; returns the revision that it makes.
    async fn edit(&self, command: &str, number: u64) -> Result<u64> {
        let command = command.replace('N', &number.to_string()) + " -o json --yes";
        let words: Vec<&str> = command.split(' ').collect();
        let written: Value = serde_json::from_str(&self.0.rlctl(&words).await?)?;
        let revision = written.get("revision").and_then(Value::as_u64);
        revision.with_context(|| format!("no revision from rlctl {command}"))
    }

    /// A poll of a proxy that has the limits of this tag.
    async fn poll(&self, etag: &str) -> Result<Reply> {
        let url = self.0.limiter()?.url();
        let url = format!("{url}/v1/policy?domain=shop&{CHANGES_PARAMETER}=1");
        let poll = Client::new().get(&url).header("accept", LIMITS_CBOR);
        poll.header("if-none-match", etag).send().await
    }

    async fn in_force(&self, revision: u64) -> Result<()> {
        let url = format!("{}/v1/check", self.0.limiter()?.url());
        let body = r#"{"domain":"shop","checks":[{"descriptor":{"path":"/none"}}]}"#;
        let check = { Client::new().post(&url, body) }.header("content-type", "application/json");
        until("the limiter has the edit", PATIENCE, async || {
            let reply = check.send().await.ok()?;
            let has: u64 = reply.header("x-rl-revision")?.parse().ok()?;
            (has >= revision).then_some(())
        })
        .await
    }

    /// The limiter's CPU time of a check of a batch, in nanoseconds.
    async fn check_ns(&self, wrk: &Wrk) -> Result<u64> {
        let calls = measure(self.0.limiter()?, 1, 4, wrk.lasts, |nth| {
            direct::batched(nth, BATCH)
        });
        Ok(calls.await?.cpu_ns / BATCH)
    }

    /// Keys in Redis.
    async fn size(&self) -> Result<u64> {
        let size = self.0.redis()?.command(&["DBSIZE"]).await?;
        let size = size.trim().trim_start_matches(':');
        size.parse().context("DBSIZE")
    }
}
