//! `cargo xtask bench`: what the filter costs, as ratios within one run.
//!
//! Absolute figures depend on the machine and its load. So every round loads each row of [`setups`] for a
//! few seconds, directly before or after its reference, and only such pairs are compared.

mod counts;
mod direct;
mod report;
mod setups;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use harness::Programs;

use crate::command::{self, Workspace};
use crate::tools::{Tool, Tools};
use crate::ui::Ui;
use crate::wasm;

use direct::{ScriptCall, batch, batched, measure, ping_us};
use report::{Goal, Report, Unit};
use setups::{Answers, Block, Noops, Row, Run, Stage, Wrk};

/// Calls of one check each that a limiter has at once.
const CALLS_AT_ONCE: [u64; 2] = [1, 32];
/// Checks of a script call whose time Redis is asked for, and the most that one may take in nanoseconds.
const SCRIPT_CHECKS: [(u64, u64); 2] = [(1, 6000), (8, 3000)];
/// Checks in a batch to a limiter: as many as gather while a few callouts are in flight.
const BATCH: u64 = 32;
/// The least that the limiter must reach of Redis's throughput alone, in thousandths.
const LIMITER_GOAL: Goal = Goal::AtLeast(800);
/// Of checks by `POST /v1/check`, how many calls of the rate limit service there are to be.
const SERVICE_GOAL: Goal = Goal::AtLeast(800);
/// The median duration that a checked request may have alone, where Envoy answers itself, in microseconds. It
/// is three nested round trips, so see what a PING takes: where both processes have to be woken, a round trip
/// that does nothing may take 80 us.
const LONE_GOAL: Goal = Goal::AtMost(200);
/// The most that the filter may add to Envoy's start, in milliseconds.
const START_GOAL: Goal = Goal::AtMost(300);

/// Arguments of `cargo xtask bench`.
#[derive(clap::Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag, and clap says that they exclude one another"
)]
pub struct Args {
    /// Rounds; every round loads each row once, with its reference beside it
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// Seconds of each load
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Connections that requests arrive on
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=1000))]
    connections: u64,
    /// Compare leased limits with checked ones instead, for one worker and for two
    #[arg(long, group = "instead", conflicts_with = "connections")]
    leases: bool,
    /// Compare Envoy's own rate limit filter with none instead, and its calls with `POST /v1/check`
    #[arg(long, group = "instead")]
    rls: bool,
    /// Compare slots of requests in flight with plain checks instead, by the time they take Redis
    #[arg(long, group = "instead", conflicts_with_all = ["connections", "seconds"])]
    in_flight: bool,
    /// Compare requests whose responses say what they cost with others instead
    #[arg(long, group = "instead", conflicts_with = "connections")]
    costs: bool,
    /// Run the filter's module alone instead, in Node, without Envoy
    #[arg(long, group = "instead", conflicts_with_all = ["json", "connections", "rounds", "seconds"])]
    module: bool,
    /// Count the instructions of a check in the limiter and in Redis instead, with valgrind
    #[arg(long, group = "instead", conflicts_with_all = ["connections", "rounds", "seconds"])]
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
        let node = tools.get(Tool::Node)?;
        return interruptible(counts::module(&programs, &node, &args.others));
    }
    let report = if args.in_flight {
        interruptible(counts::in_flight(&programs, args.rounds))?
    } else if args.instructions {
        interruptible(counts::instructions(&programs))?
    } else {
        let noops = Noops {
            lean: wasm::module(workspace, ui, "lean-filter")?,
            sdk: wasm::module(workspace, ui, "noop-filter")?,
        };
        let wrk = Wrk::new(tools.get(Tool::Wrk)?, args.seconds)?;
        interruptible(loads(args, ui, &programs, &noops, &wrk))?
    };
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

fn programs(workspace: &Workspace, ui: &Ui) -> Result<Programs> {
    let tools = Tools::new(workspace, ui);
    ui.heading("Tools");
    let (envoy, redis) = (tools.get(Tool::Envoy)?, tools.get(Tool::Redis)?);
    let filter = wasm::build(workspace, ui)?;
    ui.heading("Limiter and rlctl, optimised");
    let release = release(workspace, &["limiter", "ctl"])?;
    Ok(Programs {
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

/// The limits and the blocks of a run.
fn plan(args: &Args) -> (&'static str, Vec<Block>) {
    let block = |answers, workers, connections, rows| Block {
        answers,
        workers,
        connections,
        rows,
    };
    let both = [Answers::Envoy, Answers::Service];
    let each = |connections, rows| both.map(|answers| block(answers, 1, connections, rows));
    if args.leases {
        let mut blocks = Vec::new();
        for answers in both {
            for workers in [1, 2] {
                // From little demand to saturation.
                for connections in [1, 4, 32] {
                    blocks.push(block(answers, workers, connections, &setups::LEASES[..]));
                }
            }
        }
        return (setups::LEASE_LIMITS, blocks);
    }
    if args.costs {
        let block = block(Answers::Model, 1, 8, &setups::COSTS);
        return (setups::COST_LIMITS, vec![block]);
    }
    if args.rls {
        let blocks = each(args.connections, &setups::RATE_LIMIT_SERVICE);
        return (setups::SERVICE_LIMITS, blocks.into());
    }
    let loads = each(args.connections, &setups::FILTERS);
    (setups::LIMITS, [loads, each(1, &setups::LONE)].concat())
}

async fn loads(
    args: &Args,
    ui: &Ui,
    programs: &Programs,
    noops: &Noops,
    wrk: &Wrk,
) -> Result<Report> {
    let (rounds, seconds) = (args.rounds, args.seconds);
    ui.heading(&format!("{rounds} rounds of {seconds} s each"));
    let (limits, blocks) = plan(args);
    let mut report = Report::from_blocks(&blocks);
    let filters = !(args.leases || args.costs || args.rls);
    if filters {
        let size = std::fs::metadata(&programs.filter)?.len();
        let goal = Goal::AtMost(wasm::SIZE_BUDGET_BYTES - 1);
        report.figure("filter.wasm", Unit::Bytes, goal, size);
        for _ in 0..rounds {
            starts(&mut report, programs, noops).await?;
        }
    }
    let stage = Stage::start(programs, noops, limits, &blocks).await?;
    // The first requests of a row do not count.
    for block in &blocks {
        for row in block.rows {
            stage.warm_up(wrk, block, row).await?;
        }
    }
    let alone = if filters {
        Some(Alone::prepare(&stage).await?)
    } else {
        None
    };
    for round in 1..=rounds {
        for (at, block) in blocks.iter().enumerate() {
            for row in block.rows.iter().filter(|row| row.name != row.reference) {
                let first = round.is_multiple_of(2);
                let [own, reference] = beside(&stage, wrk, block, row, first).await?;
                let [rate, other] = [own, reference].map(|run| run.sample.per_second);
                ui.line(&format!(
                    "round {round}, {}: {rate} requests/s, {}: {other}",
                    row.name, row.reference
                ));
                report.push(at, row, own, reference);
                if block.answers == Answers::Envoy
                    && block.connections == 1
                    && row.checked.is_some()
                {
                    let name = format!("p50 alone, {}", row.name);
                    report.figure(&name, Unit::Micros, LONE_GOAL, own.sample.p50_us);
                }
            }
        }
        if let Some(alone) = &alone {
            alone.round(&mut report, &stage, wrk).await?;
        }
        if args.rls {
            service(&mut report, &stage, wrk.lasts).await?;
        }
    }
    Ok(report)
}

/// Loads a row and, directly before or after it, its reference: the load of the machine changes
/// within seconds.
async fn beside(
    stage: &Stage,
    wrk: &Wrk,
    block: &Block,
    row: &Row,
    first: bool,
) -> Result<[Run; 2]> {
    let reference = block.rows.iter().find(|other| other.name == row.reference);
    let reference = reference.context("no such row to measure against")?;
    if first {
        let own = stage.run(wrk, block, row).await?;
        return Ok([own, stage.run(wrk, block, reference).await?]);
    }
    let reference = stage.run(wrk, block, reference).await?;
    Ok([stage.run(wrk, block, row).await?, reference])
}

async fn starts(report: &mut Report, programs: &Programs, noops: &Noops) -> Result<()> {
    let starts = setups::starts(programs, &noops.lean).await?;
    for (name, [took, cpu]) in ["no filter", "no-op filter", "ours"].iter().zip(starts) {
        report.figure(
            &format!("Envoy's start, {name}"),
            Unit::Millis,
            Goal::None,
            took,
        );
        report.figure(&format!("its CPU, {name}"), Unit::Millis, Goal::None, cpu);
    }
    let [[without, _], _, [ours, _]] = starts;
    let added = ours.saturating_sub(without);
    report.figure("ours adds to a start", Unit::Millis, START_GOAL, added);
    Ok(())
}

/// Calls of a limiter and of Redis, without Envoy.
struct Alone {
    batch: ScriptCall,
    scripts: Vec<(u64, Goal, ScriptCall)>,
}

impl Alone {
    async fn prepare(stage: &Stage) -> Result<Self> {
        let (limiter, port) = (stage.servers.limiter()?, stage.servers.redis.port());
        let mut scripts = Vec::new();
        for (checks, goal) in SCRIPT_CHECKS {
            let call = ScriptCall::of_batch(port, limiter, &batch(0, checks)?).await?;
            scripts.push((checks, Goal::AtMost(goal), call));
        }
        let batch = ScriptCall::of_batch(port, limiter, &batch(0, BATCH)?).await?;
        Ok(Self { batch, scripts })
    }

    async fn round(&self, report: &mut Report, stage: &Stage, wrk: &Wrk) -> Result<()> {
        let limiter = stage.servers.limiter()?;
        // The same script call, pipelined to Redis over a few connections, and by the limiter for checks that
        // arrive in batches as the filter sends them.
        let redis = self.batch.per_second(1250).await?;
        let url = format!("{}/v1/check", limiter.url());
        let body = batch(0, BATCH)?.encode();
        let through = wrk
            .post(&url, protocol::CHECK_CBOR, &body)
            .await?
            .per_second;
        let mut add = |name: &str, unit, goal, value| report.figure(name, unit, goal, value);
        add(
            "checks by Redis alone",
            Unit::PerSecond,
            Goal::None,
            redis * BATCH,
        );
        add(
            "checks by the limiter",
            Unit::PerSecond,
            Goal::None,
            through * BATCH,
        );
        let share = through * 1000 / redis.max(1);
        add("limiter of Redis", Unit::Thousandths, LIMITER_GOAL, share);
        for (checks, goal, call) in &self.scripts {
            let servers = &stage.servers;
            let before = (
                servers.of_scripts("usec").await?,
                servers.of_scripts("calls").await?,
            );
            call.repeat(2500).await?;
            let us = servers.of_scripts("usec").await? - before.0;
            let calls = servers.of_scripts("calls").await? - before.1;
            let ns = us.saturating_mul(1000) / calls.saturating_mul(*checks).max(1);
            let name = format!("script per check, {checks} of a call");
            add(&name, Unit::Nanos, *goal, ns);
        }
        for at_once in CALLS_AT_ONCE {
            let calls = measure(limiter, 1, at_once, wrk.lasts, |nth| batched(nth, 1)).await?;
            let of = |what: &str| format!("calls, {at_once} at once, {what}");
            add(&of("rate"), Unit::PerSecond, Goal::None, calls.per_second);
            add(&of("p50"), Unit::Micros, Goal::None, calls.p50_us);
            add(&of("CPU"), Unit::Nanos, Goal::None, calls.cpu_ns);
        }
        let ping = ping_us(stage.servers.redis.port())?;
        add("PING of Redis", Unit::Micros, Goal::None, ping);
        Ok(())
    }
}

/// Calls of the rate limit service, beside `POST /v1/check` of one check each, over HTTP/2 both.
async fn service(report: &mut Report, stage: &Stage, lasts: Duration) -> Result<()> {
    let limiter = stage.servers.limiter()?;
    let service = measure(limiter, 4, 8, lasts, direct::of_the_service).await?;
    let posted = measure(limiter, 4, 8, lasts, direct::posted).await?;
    for (name, calls) in [("ShouldRateLimit", service), ("POST /v1/check", posted)] {
        report.figure(name, Unit::PerSecond, Goal::None, calls.per_second);
        report.figure(
            &format!("{name}, p50"),
            Unit::Micros,
            Goal::None,
            calls.p50_us,
        );
    }
    let share = service.per_second * 1000 / posted.per_second.max(1);
    report.figure(
        "calls of the service, of checks",
        Unit::Thousandths,
        SERVICE_GOAL,
        share,
    );
    Ok(())
}
