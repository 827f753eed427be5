//! Domains with as many limits and overrides as they may have: what an edit costs `rlctl`, limiters and proxies, how
//! long it takes until it is in force, what limits that do not apply cost a check, and keys that end together.

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use harness::{Client, Envoy, EnvoyConfig, Limiter, Ports, Programs, Reply, Request, until};
use protocol::{CHANGES_PARAMETER, LIMITS_CBOR};
use tokio::time::sleep;

use super::{
    Goal, Report, Unit,
    direct::{self, measure},
    setups::{Servers, Wrk, answered_by_envoy, limits_are_known},
};
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

/// The `match` of a limit of this number.
type Pattern = fn(u32) -> String;

/// The limits that do not apply to a check, by the kind of their patterns: the `match` of the n-th.
const KINDS: [(&str, Pattern); 8] = [
    ("exact paths", |n| format!("{{path: /t{n}}}")),
    ("/t/**", |n| format!("{{path: /t{n}/**}}")),
    ("/**/t", |n| format!("{{path: \"/**/t{n}\"}}")),
    ("/**/t/**", |n| format!("{{path: \"/**/t{n}/**\"}}")),
    ("/a-t*", |n| format!("{{path: \"/a-t{n}*\"}}")),
    ("re:", |n| format!("{{path: \"re:/.*-t{n}x[0-9]+\"}}")),
    ("re:.*t", |n| format!("{{path: \"re:.*(x|yz)-t{n}\"}}")),
    ("negations", |n| {
        format!("{{path: [/t{n}/**, \"!/t{n}/a/**\"]}}")
    }),
];

/// A limit that applies to the checks of [`direct::batched`].
const APPLIES: &str = "  - {name: applies, match: {path: /strict}, per: [user], rate: 1000000/s}\n";

/// Servers with one large domain, and what edits it.
struct Domain<'p> {
    programs: &'p Programs,
    servers: Servers,
    ports: Ports,
}

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
    for limits in [LIMITS, MORE_LIMITS] {
        if begins(&format!("Edits of {limits} limits")) {
            many_limits(programs, limits, rounds, &mut report).await?;
        }
    }
    if begins(&format!("Edits of {LIMITS} limits with an override each")) {
        overridden_limits(programs, rounds, &mut report).await?;
    }
    if begins(&format!("Edits of a limit with {OVERRIDES} overrides")) {
        many_overrides(programs, rounds, &mut report).await?;
    }
    if begins(&format!("Edits of {MOST} limits of 8 MiB at proxies")) {
        large_limits(programs, rounds, &mut report).await?;
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

fn plain(n: u32) -> String {
    format!("  - {{name: l{n}, match: {{path: /t{n}/**}}, per: [user], rate: 10/s}}\n")
}

async fn many_limits(
    programs: &Programs,
    limits: u32,
    rounds: u64,
    report: &mut Report,
) -> Result<()> {
    let domain = Domain::start(programs, (0..limits).map(plain)).await?;
    let of = |what: &str| format!("{limits} limits: {what}");
    for round in 0..rounds {
        let rate = rate(round);
        let set = ["set-limit", "l7", "--rate", &rate];
        domain
            .edit(report, &of("set-limit"), &set, EDIT_GOAL)
            .await?;
        let one = ["set-limit", "l9", "--for", "user=u1", "--rate", &rate];
        domain
            .edit(report, &of("set-limit --for"), &one, EDIT_GOAL)
            .await?;
        let reset = ["reset", "l9", "user=u1"];
        domain
            .edit(report, &of("reset of a bucket"), &reset, Goal::None)
            .await?;
        let (name, path) = (format!("new-{round}"), format!("path=/new-{round}/**"));
        let new = ["set-limit", &name, "--rate", &rate, "--match", &path];
        domain
            .edit(report, &of("set-limit of a new one"), &new, Goal::None)
            .await?;
        let delete = ["delete-limit", &name];
        domain
            .edit(report, &of("delete-limit"), &delete, Goal::None)
            .await?;
        let page = Client::new();
        let page = page.get(&format!(
            "{}/metrics",
            domain.servers.limiter()?.admin_url()
        ));
        let bytes = u64::try_from(page.send().await?.body.len())?;
        report.judged(&of("/metrics"), Unit::Bytes, PAGE_GOAL, bytes);
    }
    Ok(())
}

async fn overridden_limits(programs: &Programs, rounds: u64, report: &mut Report) -> Result<()> {
    let overridden = |n| {
        let one = format!("overrides: [{{values: {{user: u{n}}}, rate: 3/s}}]");
        format!("  - {{name: l{n}, match: {{path: /t{n}/**}}, per: [user], rate: 10/s, {one}}}\n")
    };
    let domain = Domain::start(programs, (0..LIMITS).map(overridden)).await?;
    let of = format!("{LIMITS} limits with an override each: set-limit");
    for round in 0..rounds {
        let before = domain.scans().await?;
        domain
            .rlctl(&["set-limit", "l7", "--rate", "1/s", "--dry-run"])
            .await?;
        let by_rlctl = domain.scans().await? - before;
        let before = domain.scans().await?;
        let set = ["set-limit", "l7", "--rate", &rate(round)];
        domain.edit(report, &of, &set, Goal::None).await?;
        let by_limiter = (domain.scans().await? - before).saturating_sub(by_rlctl);
        let of = format!("{of}, HSCANs of a limiter");
        report.judged(&of, Unit::Count, Goal::AtMost(1), by_limiter);
    }
    Ok(())
}

async fn many_overrides(programs: &Programs, rounds: u64, report: &mut Report) -> Result<()> {
    let mut limit = "  - name: l7\n    per: [user]\n    rate: 10/s\n    overrides:\n".to_owned();
    for n in 0..OVERRIDES {
        writeln!(limit, "      - {{values: {{user: u{n}}}, rate: 3/s}}")?;
    }
    let domain = Domain::start(programs, [limit]).await?;
    for round in 0..rounds {
        let rate = rate(round);
        let of = format!("a limit with {OVERRIDES} overrides: set-limit");
        let set = ["set-limit", "l7", "--rate", &rate];
        domain.edit(report, &of, &set, EDIT_GOAL).await?;
        let one = ["set-limit", "l7", "--for", "user=u1", "--rate", &rate];
        domain
            .edit(report, &format!("{of} --for"), &one, Goal::None)
            .await?;
    }
    Ok(())
}

async fn large_limits(programs: &Programs, rounds: u64, report: &mut Report) -> Result<()> {
    // Proxies do not get descriptions, and at most 8 MiB of the rest: some 800 bytes of each.
    let paths = (0..10).fold(String::new(), |mut paths, n| {
        let _ = write!(paths, ", /a-path-of-some-forty-characters/{n:06}/**");
        paths
    });
    let description = "what this limit is for. ".repeat(40);
    let large = |n| {
        let own = format!("description: \"{description}\", match: {{path: [/t{n}/**{paths}]}}");
        format!("  - {{name: l{n}, {own}, per: [user], rate: 10/s}}\n")
    };
    let started = Instant::now();
    let domain = Domain::start(programs, (0..MOST).map(large)).await?;
    let whole = u64::try_from(started.elapsed().as_millis())?;
    let of = |what: &str| format!("{MOST} limits of 8 MiB at proxies: {what}");
    report.figure(&of("apply, and a limiter's start"), Unit::Millis, whole);
    for round in 0..rounds {
        let set = ["set-limit", "l7", "--rate", &rate(round)];
        domain
            .edit(report, &of("set-limit"), &set, EDIT_GOAL)
            .await?;
    }
    Ok(())
}

fn rate(round: u64) -> String {
    format!("{}/s", 20 + round)
}

/// The limiter's CPU time of a check, and Envoy's of a request, with limits that do not apply to it.
async fn matching(programs: &Programs, rounds: u64, wrk: &Wrk, report: &mut Report) -> Result<()> {
    let one = Domain::start(programs, [APPLIES.to_owned()]).await?;
    for (kind, pattern) in KINDS {
        let limit = |n| {
            let pattern = pattern(n);
            format!("  - {{name: l{n}, match: {pattern}, per: [user], rate: 10/s}}\n")
        };
        let of = |count| (0..count).map(limit).chain([APPLIES.to_owned()]);
        let (few, many) = (
            Domain::start(programs, of(FEW_LIMITS)).await?,
            Domain::start(programs, of(LIMITS)).await?,
        );
        let [small, large] = [few.envoy(1).await?, many.envoy(1).await?];
        for _ in 0..rounds {
            let [one, many] = [one.check_ns(wrk).await?, many.check_ns(wrk).await?];
            let name = format!("check, {LIMITS} limits with {kind}, of one limit");
            let ratio = many * 1000 / one.max(1);
            report.judged(&name, Unit::Thousandths, MATCHING_GOAL, ratio);
            let [few, many] = [
                request_ns(&small, wrk).await?,
                request_ns(&large, wrk).await?,
            ];
            let name = format!("request, {LIMITS} limits with {kind}, of {FEW_LIMITS}");
            let ratio = many * 1000 / few.max(1);
            report.judged(&name, Unit::Thousandths, ENVOY_GOAL, ratio);
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
/// Seconds of each load: so many edits.
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

/// An Envoy whose requests are checked, while one limit of thousands is edited each second.
async fn proxies(programs: &Programs, rounds: u64, wrk: &Wrk, report: &mut Report) -> Result<()> {
    let probe = "  - {name: probe, match: {path: /probe}, scope: proxy, rate: 1000000/s}\n";
    let limits = (0..LIMITS)
        .map(plain)
        .chain([APPLIES.to_owned(), probe.to_owned()]);
    let domain = Domain::start(programs, limits).await?;
    let envoy = domain.envoy(WORKERS).await?;
    let lasts = Duration::from_secs(EDITED);
    let url = envoy.url("/strict");
    wrk.sample(&url, LOADING, Duration::from_secs(2)).await?;
    for round in 0..rounds {
        let start = decided_locally(&envoy).await?;
        let quiet = wrk.sample(&url, LOADING, lasts).await?;
        let middle = decided_locally(&envoy).await?;
        let edits = async {
            for nth in 0..EDITED {
                let next = tokio::time::Instant::now() + Duration::from_secs(1);
                let rate = rate(round * EDITED + nth);
                let one = ["set-limit", "l7", "--rate", &rate];
                let another = ["set-limit", "l9", "--for", "user=u1", "--rate", &rate];
                domain
                    .rlctl(if nth % 2 == 0 { &one } else { &another })
                    .await?;
                tokio::time::sleep_until(next).await;
            }
            anyhow::Ok(())
        };
        let (edited, made) = tokio::join!(wrk.sample(&url, LOADING, lasts), edits);
        made?;
        let edited = edited?;
        let end = decided_locally(&envoy).await?;
        let of = |what: &str| format!("Envoy, {LIMITS} limits, an edit a second: {what}");
        report.figure(&of("p99 without edits"), Unit::Micros, quiet.p99_us);
        report.figure(&of("p99"), Unit::Micros, edited.p99_us);
        let ratio = edited.p99_us * 1000 / quiet.p99_us.max(1);
        report.judged(&of("p99, of none"), Unit::Thousandths, P99_GOAL, ratio);
        let local = "decided by local";
        report.figure(
            &of(&format!("{local}, without edits")),
            Unit::Count,
            middle - start,
        );
        report.judged(&of(local), Unit::Count, Goal::AtMost(0), end - middle);
    }
    without_load(&domain, &envoy, rounds, report).await
}

/// How long an edit takes until all workers have it, and their CPU time for it.
async fn without_load(
    domain: &Domain<'_>,
    envoy: &Envoy,
    rounds: u64,
    report: &mut Report,
) -> Result<()> {
    let connections = (0..CONNECTIONS).map(|_| Client::new().get(&envoy.url("/probe")));
    let connections: Vec<Request> = connections.collect();
    let of = |what: &str| format!("Envoy, {LIMITS} limits: {what}");
    for round in 0..rounds {
        for nth in 0..EDITED {
            let units = 2_000_000 + round * EDITED + nth;
            let (started, rate) = (Instant::now(), format!("{units}/s"));
            let set = ["set-limit", "probe", "--rate", &rate];
            domain.rlctl(&set).await?;
            in_force_everywhere(&connections, units).await?;
            let millis = u64::try_from(started.elapsed().as_millis())?;
            let name = of("set-limit, in force at all workers");
            report.judged(&name, Unit::Millis, IN_FORCE_GOAL, millis);
        }
        let idle = cpu_of(envoy, async { Ok(()) }).await?;
        let edits = async {
            for nth in 0..EDITED {
                let rate = rate(nth + 1000 * (round + 1));
                domain.rlctl(&["set-limit", "l7", "--rate", &rate]).await?;
                sleep(Duration::from_millis(150)).await;
            }
            Ok(())
        };
        let edited = cpu_of(envoy, edits).await?;
        let us = edited.saturating_sub(idle) / EDITED / u64::from(WORKERS);
        report.judged(
            &of("CPU of a worker an edit"),
            Unit::Micros,
            WORKER_GOAL,
            us,
        );
    }
    Ok(())
}

/// Envoy's CPU time while something is done, in microseconds.
async fn cpu_of(envoy: &Envoy, during: impl Future<Output = Result<()>>) -> Result<u64> {
    let (before, until) = (envoy.process().cpu_us()?, Instant::now() + IDLE);
    during.await?;
    sleep(until.saturating_duration_since(Instant::now())).await;
    Ok(envoy.process().cpu_us()? - before)
}

/// Decisions of an Envoy without its limiters.
async fn decided_locally(envoy: &Envoy) -> Result<u64> {
    let page = envoy.admin("/stats?filter=rl_decisions").await?;
    let counts = page.lines().filter(|line| line.contains(".local."));
    let counts = counts.filter_map(|line| line.rsplit_once(": ")?.1.parse::<u64>().ok());
    Ok(counts.sum())
}

/// Waits until no connection finds a worker that does not have the limit `probe` with so many units.
async fn in_force_everywhere(connections: &[Request], units: u64) -> Result<()> {
    let quota = format!("q={units}");
    for connection in connections {
        until("a worker has the edit", PATIENCE, async || {
            let reply = connection.send().await.ok()?;
            let policy = reply.header("ratelimit-policy")?;
            policy.contains(&quota).then_some(())
        })
        .await?;
    }
    Ok(())
}

/// Fills buckets that are unused again at the same time, if nothing spreads that, and checks another bucket all the
/// while until they are gone.
async fn ends(programs: &Programs, keys: u64, report: &mut Report) -> Result<()> {
    // Long enough that none is gone before the last is there.
    let lasts = Duration::from_secs(30 + keys / 10_000);
    let limits = format!(
        "  - {{name: applies, match: {{path: /strict}}, per: [user], algorithm: fixed_window, rate: 1000/{}s}}\n  \
         - {{name: neighbour, match: {{path: /other}}, per: [user], rate: 1000000/s}}\n",
        lasts.as_secs()
    );
    let domain = Domain::start(programs, [limits]).await?;
    let limiter = domain.servers.limiter()?;
    let call = move |nth: u64| {
        (nth * BATCH < keys)
            .then(|| direct::of_many(nth, BATCH))
            .transpose()
    };
    let started = Instant::now();
    direct::each(limiter, 1, 2, call).await?;
    let filled = u64::try_from(started.elapsed().as_millis())?;
    let redis = &domain.servers.redis;
    let size = async || -> Result<u64> {
        let size = redis.command(&["DBSIZE"]).await?;
        size.trim()
            .trim_start_matches(':')
            .parse()
            .context("DBSIZE")
    };
    let of = |what: &str| format!("{keys} keys that end together: {what}");
    let before = size().await?;
    report.figure(&of("there are"), Unit::Count, before);
    report.figure(&of("to fill them"), Unit::Millis, filled);
    // They are kept a little longer than they count.
    let patience = 3 * lasts + PATIENCE;
    let latencies = neighbour(limiter, patience, before, size).await?;
    let whole = u64::try_from(latencies.over.as_millis())?;
    report.figure(&of("they end within"), Unit::Millis, whole);
    let name = of("a neighbour's checks refused");
    report.judged(&name, Unit::Count, Goal::AtMost(0), latencies.refused);
    let sides = [
        ("before", latencies.quiet, Goal::None),
        ("as they end", latencies.ending, ENDS_GOAL),
    ];
    for (when, mut took, goal) in sides {
        took.sort_unstable();
        let p99 = took.get(took.len() * 99 / 100).copied().unwrap_or(0);
        let name = of(&format!("a neighbour's p99, {when}"));
        report.figure(&name, Unit::Micros, p99);
        let most = took.last().copied().unwrap_or(0);
        let name = of(&format!("a neighbour's worst, {when}"));
        report.judged(&name, Unit::Micros, goal, most);
    }
    Ok(())
}

/// What checks of another bucket took, in microseconds.
#[derive(Default)]
struct Latencies {
    /// Before the first key was gone.
    quiet: Vec<u64>,
    /// Until the last was.
    ending: Vec<u64>,
    over: Duration,
    /// Checks that were answered with an error.
    refused: u64,
}

/// Checks another bucket all the while until nearly all keys are gone.
async fn neighbour(
    limiter: &Limiter,
    patience: Duration,
    before: u64,
    size: impl AsyncFn() -> Result<u64>,
) -> Result<Latencies> {
    let until = Instant::now() + patience;
    let mut latencies = Latencies::default();
    let (mut first, mut left) = (None, before);
    while left > before / 100 && Instant::now() < until {
        let checked = Instant::now() + Duration::from_millis(500);
        let mut took = Vec::new();
        while Instant::now() < checked {
            let call = move |nth: u64| (nth == 0).then(|| direct::of_path("/other")).transpose();
            match direct::each(limiter, 1, 1, call).await {
                Ok(one) => took.extend(one),
                Err(_) => latencies.refused += 1,
            }
            sleep(Duration::from_millis(1)).await;
        }
        let now = size().await?;
        if now < left {
            latencies.over = first.get_or_insert_with(Instant::now).elapsed();
            latencies.ending.append(&mut took);
        } else if first.is_none() {
            latencies.quiet.append(&mut took);
        }
        left = now;
    }
    Ok(latencies)
}
impl<'p> Domain<'p> {
    async fn start(
        programs: &'p Programs,
        limits: impl IntoIterator<Item = String>,
    ) -> Result<Self> {
        let limits = format!("domain: shop\nlimits:\n{}", String::from_iter(limits));
        let ports = Ports::free()?;
        let [port, ..] = ports.limiters;
        let servers = Servers::start(programs, &limits, &[port]).await?;
        let domain = Self {
            programs,
            servers,
            ports,
        };
        domain.in_force(1).await?;
        Ok(domain)
    }

    /// An Envoy with these limits, which answers requests itself.
    async fn envoy(&self, workers: u32) -> Result<Envoy> {
        let config = EnvoyConfig::shipped(&self.programs.root)?;
        let config = config.filter_code(&self.programs.filter)?;
        let [port, ..] = self.ports.limiters;
        let config = answered_by_envoy(config.limiter_at(port)?.keep_port(port))?;
        let dir = self.servers.dir.path();
        let envoy = Envoy::start(self.programs, config, self.ports, workers, dir).await?;
        limits_are_known(&envoy, "/strict").await?;
        Ok(envoy)
    }

    async fn rlctl(&self, arguments: &[&str]) -> Result<String> {
        let mut rlctl = tokio::process::Command::new(&self.programs.rlctl);
        let rlctl = rlctl.args(arguments).args(["-o", "json", "--yes"]);
        let output = rlctl
            .env("RL_STORE", self.servers.redis.url())
            .output()
            .await?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "rlctl {arguments:?}: {errors}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Makes an edit, and waits until the limiter has it; and what a proxy is sent of it.
    async fn edit(&self, report: &mut Report, name: &str, edit: &[&str], goal: Goal) -> Result<()> {
        let etag = self.poll("").await?.header("etag").map(str::to_owned);
        let started = Instant::now();
        let written: serde_json::Value = serde_json::from_str(&self.rlctl(edit).await?)?;
        let millis = || u64::try_from(started.elapsed().as_millis());
        report.judged(name, Unit::Millis, goal, millis()?);
        let revision = written.get("revision").and_then(serde_json::Value::as_u64);
        self.in_force(revision.context("no revision")?).await?;
        let name = |what: &str| format!("{name}, {what}");
        report.judged(&name("in force"), Unit::Millis, IN_FORCE_GOAL, millis()?);
        let sent = self.poll(&etag.context("no tag")?).await?.body.len();
        report.judged(
            &name("sent to a proxy"),
            Unit::Bytes,
            SENT_GOAL,
            u64::try_from(sent)?,
        );
        Ok(())
    }

    /// A poll of a proxy that has the limits of this tag.
    async fn poll(&self, etag: &str) -> Result<Reply> {
        let url = self.servers.limiter()?.url();
        let url = format!("{url}/v1/policy?domain=shop&{CHANGES_PARAMETER}=1");
        let poll = Client::new().get(&url).header("accept", LIMITS_CBOR);
        poll.header("if-none-match", etag).send().await
    }

    async fn in_force(&self, revision: u64) -> Result<()> {
        let url = format!("{}/v1/check", self.servers.limiter()?.url());
        let body = r#"{"domain":"shop","checks":[{"descriptor":{"path":"/none"}}]}"#;
        let check = Client::new()
            .post(&url, body)
            .header("content-type", "application/json");
        until("the limiter has the edit", PATIENCE, async || {
            let reply = check.send().await.ok()?;
            let has: u64 = reply.header("x-rl-revision")?.parse().ok()?;
            (has >= revision).then_some(())
        })
        .await
    }

    /// The limiter's CPU time of a check of a batch, in nanoseconds.
    async fn check_ns(&self, wrk: &Wrk) -> Result<u64> {
        let calls = measure(self.servers.limiter()?, 1, 4, wrk.lasts, |nth| {
            direct::batched(nth, BATCH)
        });
        Ok(calls.await?.cpu_ns / BATCH)
    }

    /// HSCANs that Redis has answered.
    async fn scans(&self) -> Result<u64> {
        let stats = self
            .servers
            .redis
            .command(&["INFO", "commandstats"])
            .await?;
        let line = { stats.lines() }.find_map(|line| line.strip_prefix("cmdstat_hscan:calls="));
        let calls = line.and_then(|line| line.split(',').next());
        calls.map_or(Ok(0), |calls| calls.parse().context("commandstats"))
    }
}
