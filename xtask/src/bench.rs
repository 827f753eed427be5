//! `cargo xtask bench`: what the filter costs, as ratios within one run.
//!
//! Absolute figures depend on the machine and its load. So every round loads each setup for a few
//! seconds, directly before or after its reference, and only such pairs are compared. Envoy has one
//! worker. In one part Envoy answers by its fault filter, so that no upstream hides the filter's cost;
//! in the other a service behind Envoy answers, as in production.

mod costs;
mod h2c;
mod in_flight;
mod instructions;
mod leases;
mod limiter;
mod load;
mod module;
mod pairs;
mod ready;
mod report;
mod rls;
mod script;
mod setups;
mod start;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::command;
use crate::tools::Tools;
use crate::ui::Ui;
use crate::wasm;
use crate::workspace::Workspace;

use h2c::H2c;
use limiter::{LimiterBench, batch};
use report::{Report, Run, Series};
use script::{ScriptCall, ping_us};
use setups::{Bench, NOOP, NOOP_BEFORE, Noops, STREAMED, STREAMED_BEFORE, Setup};

/// Rounds of `--module`, of some milliseconds each.
const MODULE_ROUNDS: u64 = 200;

/// Calls of one check each that a limiter has at once.
const CALLS_AT_ONCE: [u64; 2] = [1, 32];

/// Checks of a script call whose time Redis is asked for.
const SCRIPT_CHECKS: [u64; 2] = [1, 8];

/// Setups that are also measured with one request at a time.
const LONE: [&str; 6] = [
    NOOP,
    "every request checked",
    STREAMED,
    NOOP_BEFORE,
    "checked, upstream",
    STREAMED_BEFORE,
];

/// Arguments of `cargo xtask bench`.
#[derive(clap::Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag, and clap says which go together"
)]
pub struct Args {
    /// Rounds; every round loads each setup once, with its reference beside it
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// Seconds of each load
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Connections that requests arrive on
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=1000))]
    connections: u64,
    /// Compare leased limits with checked ones instead, for one worker and for two
    #[arg(long, conflicts_with_all = ["json", "connections"])]
    leases: bool,
    /// Compare Envoy's own rate limit filter with none instead, and its calls with `POST /v1/check`
    #[arg(long, conflicts_with_all = ["json", "leases", "module", "in_flight"])]
    rls: bool,
    /// Compare slots of requests in flight with plain checks instead, by the time they take Redis
    #[arg(long, conflicts_with_all = ["json", "connections", "leases", "module", "seconds"])]
    in_flight: bool,
    /// Compare requests whose responses say what they cost with others instead
    #[arg(long, conflicts_with_all = ["json", "connections", "leases"])]
    costs: bool,
    /// Run the filter's module alone instead, in Node, without Envoy
    #[arg(long, conflicts_with_all = ["json", "connections", "leases", "costs", "rounds", "seconds"])]
    module: bool,
    /// Count the instructions of a check in the limiter and in Redis instead, with valgrind
    #[arg(long, conflicts_with_all = ["json", "connections", "leases", "module", "rls", "in_flight", "costs", "rounds", "seconds"])]
    instructions: bool,
    /// With --module: modules to compare it with, as of an earlier commit
    #[arg(value_name = "WASM", requires = "module")]
    others: Vec<PathBuf>,
    /// Write the figures as JSON too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the rounds and prints the comparison.
pub fn run(args: &Args, workspace: &Workspace, ui: &Ui) -> Result<()> {
    let programs = programs(workspace, ui)?;
    let tools = Tools::new(workspace, ui);
    if args.module {
        let node = tools.node()?;
        return interruptible(module::run(&programs, &node, &args.others, MODULE_ROUNDS));
    }
    if args.in_flight {
        print!("{}", interruptible(in_flight::run(programs, args.rounds))?);
        return Ok(());
    }
    if args.instructions {
        print!("{}", interruptible(instructions::run(&programs))?);
        return Ok(());
    }
    let needs = Needs {
        noops: Noops {
            lean: wasm::module(workspace, ui, "lean-filter")?,
            sdk: wasm::module(workspace, ui, "noop-filter")?,
        },
        wrk: tools.wrk()?,
    };
    if args.rls {
        let load = load::Load::new(
            needs.wrk,
            Duration::from_secs(args.seconds),
            args.connections,
        )?;
        print!("{}", interruptible(rls::run(programs, &load, args.rounds))?);
        return Ok(());
    }
    let (rounds, seconds) = (args.rounds, args.seconds);
    if args.costs {
        let table = costs::run(&programs, &needs.noops, &needs.wrk, rounds, seconds);
        print!("{}", interruptible(table)?);
        return Ok(());
    }
    if args.leases {
        let table = leases::run(programs, &needs.noops, &needs.wrk, rounds, seconds);
        print!("{}", interruptible(table)?);
        return Ok(());
    }
    let report = interruptible(measure(args, ui, programs, needs))?;
    print!("{}", report.table());
    if let Some(path) = &args.json {
        std::fs::write(path, report.json())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Runs to completion, or fails on Ctrl-C.
pub fn interruptible<T>(measured: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        tokio::select! {
            measured = measured => measured,
            _ = tokio::signal::ctrl_c() => Err(crate::Interrupted.into()),
        }
    })
}

fn programs(workspace: &Workspace, ui: &Ui) -> Result<harness::Programs> {
    let tools = Tools::new(workspace, ui);
    ui.heading("Tools");
    let (envoy, redis) = (tools.envoy()?, tools.redis()?);
    let filter = wasm::build(workspace, ui)?;
    ui.heading("Limiter and rlctl, optimised");
    let release = release(workspace, &["limiter", "ctl"])?;
    Ok(harness::Programs {
        root: workspace.root.clone(),
        envoy,
        valkey: redis.clone(),
        redis,
        limiter: release.join("limiter"),
        rlctl: release.join("rlctl"),
        filter,
    })
}

/// Builds release programs; returns their folder.
pub fn release(workspace: &Workspace, packages: &[&str]) -> Result<PathBuf> {
    let mut build = command::cargo(workspace);
    build.args(["build", "--release", "--bins"]);
    for package in packages {
        build.args(["--package", package]);
    }
    command::run(&mut build)?;
    Ok(workspace.target.join("release"))
}

/// Programs and modules that only the benchmark needs.
struct Needs {
    noops: Noops,
    wrk: PathBuf,
}

async fn measure(
    args: &Args,
    ui: &Ui,
    programs: harness::Programs,
    needs: Needs,
) -> Result<Report> {
    let Args {
        rounds,
        seconds,
        connections,
        ..
    } = *args;
    ui.heading(&format!(
        "{rounds} rounds of {seconds} s each, {connections} connections"
    ));
    let mut report = Report::new(seconds, connections, &programs.filter)?;
    for _ in 0..rounds {
        report
            .starts
            .push(start::measure(&programs, &needs.noops.lean).await?);
    }
    let bench = Bench::start(programs, &needs.noops).await?;
    let lasts = Duration::from_secs(seconds);
    let load = load::Load::new(needs.wrk.clone(), lasts, connections)?;
    let lone = load::Load::new(needs.wrk, lasts, 1)?;
    // The first requests of a setup do not count: pools fill, code is compiled.
    for setup in bench.setups() {
        load.warm_up(setup).await?;
        report.series.push(Series::new(setup.name, setup.reference));
    }
    let (limiter, redis_port) = bench.limiter()?;
    let alone = LimiterBench::prepare(redis_port, limiter).await?;
    let mut scripts = Vec::new();
    for checks in SCRIPT_CHECKS {
        let call = ScriptCall::of_batch(redis_port, limiter, &batch(0, checks)?).await?;
        scripts.push((checks, call));
    }
    for round in 1..=rounds {
        measure_setups(round, &bench, &load, ui, &mut report).await?;
        let (redis, through) = (alone.redis().await?, alone.limiter(&load).await?);
        ui.line(&format!(
            "round {round}, Redis alone: {redis} checks/s, limiter: {through}"
        ));
        report.limiter.push((redis, through));
        for (checks, call) in &scripts {
            report
                .scripts
                .push((*checks, bench.script_ns(call, *checks).await?));
        }
        for at_once in CALLS_AT_ONCE {
            // A limiter closes connections that have had no request for ten seconds.
            let calls = H2c::connect(limiter).await?;
            let measured = calls.measure(limiter, at_once, lasts).await?;
            report.calls.push((at_once, measured));
        }
        report.pings_us.push(ping_us(redis_port)?);
        for setup in bench.setups().iter().filter(|s| LONE.contains(&s.name)) {
            let run = run_one(&bench, &lone, setup).await?;
            report.lone.push((setup.name, run));
        }
    }
    Ok(report)
}

/// One round of each setup that has a reference.
async fn measure_setups(
    round: u64,
    bench: &Bench,
    load: &load::Load,
    ui: &Ui,
    report: &mut Report,
) -> Result<()> {
    for setup in bench.setups() {
        if setup.name == setup.reference {
            continue;
        }
        let (own, reference) = beside(bench, load, setup, round.is_multiple_of(2)).await?;
        let [rate, beside] = [&own, &reference].map(|run| run.sample.per_second);
        ui.line(&format!(
            "round {round}, {}: {rate} requests/s, {}: {beside}",
            setup.name, setup.reference
        ));
        report.push(setup.name, own, reference);
    }
    Ok(())
}

/// Loads a setup and, directly before or after it, its reference: the load of the machine changes
/// within seconds.
async fn beside(
    bench: &Bench,
    load: &load::Load,
    setup: &Setup,
    first: bool,
) -> Result<(Run, Run)> {
    let reference = bench.setups().iter().find(|s| s.name == setup.reference);
    let reference = reference.context("no such setup to measure against")?;
    if first {
        let own = run_one(bench, load, setup).await?;
        return Ok((own, run_one(bench, load, reference).await?));
    }
    let reference = run_one(bench, load, reference).await?;
    Ok((run_one(bench, load, setup).await?, reference))
}

/// Loads one setup, and checks that requests took the path it is named for.
async fn run_one(bench: &Bench, load: &load::Load, setup: &Setup) -> Result<Run> {
    let (before, checks_before) = (bench.used_us(setup)?, bench.checks().await?);
    let sample = load.run(setup).await;
    let sample = sample.with_context(|| format!("setup `{}`", setup.name))?;
    let (after, checks) = (bench.used_us(setup)?, bench.checks().await? - checks_before);
    let requests = sample.requests.max(1);
    match setup.checked {
        // A few are in flight when the load ends.
        Some(true) => ensure!(
            checks.saturating_mul(100) >= requests.saturating_mul(99),
            "only {checks} of {requests} requests reached a limiter"
        ),
        // The deny cache holds a denial for a second, and every user is denied.
        Some(false) => ensure!(
            checks <= (load.seconds() + 2).saturating_mul(load::USER_COUNT),
            "{checks} of {requests} requests reached a limiter"
        ),
        None => {}
    }
    let mut cpu_ns = [0; 3];
    for (slot, (after, before)) in cpu_ns.iter_mut().zip(after.iter().zip(before)) {
        *slot = (after - before).saturating_mul(1000) / requests;
    }
    Ok(Run { sample, cpu_ns })
}
