//! Domains with as many limits and overrides as they may have: what an edit costs `rlctl`, and how long it
//! takes until a limiter has it in force.

use std::{
    fmt::Write as _,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use harness::{Client, Programs, free_port, until};

use super::{Goal, Report, Unit, setups::Servers};
use crate::command;

/// Limits of a large domain.
const LIMITS: u32 = 8700;
/// Limits that have an override each.
const OVERRIDDEN: u32 = 5000;
/// Overrides of one limit.
const OVERRIDES: u32 = 100_000;
/// As many limits as a domain may have, each with patterns of about 4 KiB.
const MOST: u32 = 10_000;
/// What `rlctl set-limit` may take, in milliseconds.
const EDIT_GOAL: Goal = Goal::AtMost(60);
/// What it may take until an edit is in force, the command included, in milliseconds.
const IN_FORCE_GOAL: Goal = Goal::AtMost(300);
const PATIENCE: Duration = Duration::from_secs(30);

/// Servers with one large domain, and what edits it.
struct Domain<'p> {
    programs: &'p Programs,
    servers: Servers,
}

/// Measures an edit in each domain, so many times.
pub async fn scale(programs: &Programs, rounds: u64) -> Result<Report> {
    let mut report = Report::default();
    many_limits(programs, rounds, &mut report).await?;
    overridden_limits(programs, rounds, &mut report).await?;
    many_overrides(programs, rounds, &mut report).await?;
    large_limits(programs, rounds, &mut report).await?;
    Ok(report)
}

async fn many_limits(programs: &Programs, rounds: u64, report: &mut Report) -> Result<()> {
    let plain =
        |n| format!("  - {{name: l{n}, match: {{path: /t{n}/**}}, per: [user], rate: 10/s}}\n");
    let domain = Domain::start(programs, (0..LIMITS).map(plain)).await?;
    for round in 0..rounds {
        let rate = rate(round);
        let of = |what: &str| format!("{LIMITS} limits: {what}");
        let set = ["set-limit", "l7", "--rate", &rate];
        domain
            .edit(report, &of("set-limit"), &set, EDIT_GOAL)
            .await?;
        let (name, path) = (format!("new-{round}"), format!("path=/new-{round}/**"));
        let new = ["set-limit", &name, "--rate", &rate, "--match", &path];
        domain
            .edit(report, &of("set-limit of a new one"), &new, Goal::None)
            .await?;
        let one = ["set-limit", "l9", "--for", "user=u1", "--rate", &rate];
        domain
            .edit(report, &of("set-limit --for"), &one, Goal::None)
            .await?;
    }
    Ok(())
}

async fn overridden_limits(programs: &Programs, rounds: u64, report: &mut Report) -> Result<()> {
    let overridden = |n| {
        let one = format!("overrides: [{{values: {{user: u{n}}}, rate: 3/s}}]");
        format!("  - {{name: l{n}, match: {{path: /t{n}/**}}, per: [user], rate: 10/s, {one}}}\n")
    };
    let domain = Domain::start(programs, (0..OVERRIDDEN).map(overridden)).await?;
    let of = format!("{OVERRIDDEN} limits with an override each: set-limit");
    for round in 0..rounds {
        let before = domain.scans().await?;
        domain.rlctl(&["set-limit", "l7", "--rate", "1/s", "--dry-run"])?;
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
        domain.edit(report, &of, &set, Goal::None).await?;
        let one = ["set-limit", "l7", "--for", "user=u1", "--rate", &rate];
        domain
            .edit(report, &format!("{of} --for"), &one, Goal::None)
            .await?;
    }
    Ok(())
}

async fn large_limits(programs: &Programs, rounds: u64, report: &mut Report) -> Result<()> {
    let paths = (0..80).fold(String::new(), |mut paths, n| {
        let _ = write!(paths, ", /a-path-of-some-forty-characters/{n:06}/**");
        paths
    });
    let large = |n| {
        let own = format!("match: {{path: [/t{n}/**{paths}]}}");
        format!("  - {{name: l{n}, {own}, per: [user], rate: 10/s}}\n")
    };
    let started = Instant::now();
    let domain = Domain::start(programs, (0..MOST).map(large)).await?;
    let whole = u64::try_from(started.elapsed().as_millis())?;
    let of = |what: &str| format!("{MOST} limits of 4 KiB: {what}");
    report.figure(&of("apply, and a limiter's start"), Unit::Millis, whole);
    for round in 0..rounds {
        let set = ["set-limit", "l7", "--rate", &rate(round)];
        domain
            .edit(report, &of("set-limit"), &set, Goal::None)
            .await?;
    }
    Ok(())
}

fn rate(round: u64) -> String {
    format!("{}/s", 20 + round)
}

impl<'p> Domain<'p> {
    async fn start(
        programs: &'p Programs,
        limits: impl IntoIterator<Item = String>,
    ) -> Result<Self> {
        let limits = format!("domain: large\nlimits:\n{}", String::from_iter(limits));
        let servers = Servers::start(programs, &limits, &[free_port()?]).await?;
        let domain = Self { programs, servers };
        domain.in_force(1).await?;
        Ok(domain)
    }

    fn rlctl(&self, arguments: &[&str]) -> Result<String> {
        let mut rlctl = Command::new(&self.programs.rlctl);
        let rlctl = rlctl.args(arguments).args(["-o", "json", "--yes"]);
        command::output(rlctl.env("RL_STORE", self.servers.redis.url()))
    }

    /// Makes an edit, and waits until the limiter has it.
    async fn edit(&self, report: &mut Report, name: &str, edit: &[&str], goal: Goal) -> Result<()> {
        let started = Instant::now();
        let written: serde_json::Value = serde_json::from_str(&self.rlctl(edit)?)?;
        let millis = || u64::try_from(started.elapsed().as_millis());
        report.judged(name, Unit::Millis, goal, millis()?);
        let revision = written.get("revision").and_then(serde_json::Value::as_u64);
        self.in_force(revision.context("no revision")?).await?;
        report.judged(
            &format!("{name}, in force"),
            Unit::Millis,
            IN_FORCE_GOAL,
            millis()?,
        );
        Ok(())
    }

    async fn in_force(&self, revision: u64) -> Result<()> {
        let url = format!("{}/v1/check", self.servers.limiter()?.url());
        let body = r#"{"domain":"large","checks":[{"descriptor":{"path":"/none"}}]}"#;
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
