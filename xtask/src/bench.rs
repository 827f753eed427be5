//! `cargo xtask bench`: what the filter costs, as ratios within one run.
//!
//! Absolute figures depend on the machine and its load. So every round loads each row of [`setups`] for a
//! few seconds, directly before or after its reference, and only such pairs are compared.

mod adaptive;
mod direct;
mod scale;
pub mod setups;

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use harness::Programs;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use crate::command::{self, Workspace};
use crate::module;
use crate::tools::{Tool, Tools};
use crate::ui::Ui;
use crate::wasm::{self, kilobytes};

use direct::{ScriptCall, batch, batched, measure, ping_us};
use setups::{Answers, Block, Noops, Row, Run, Stage, Wrk, since};

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
    /// Measure domains with as many limits and overrides as they may have instead: edits, checks, proxies, keys
    #[arg(long, group = "instead", conflicts_with = "connections")]
    scale: bool,
    /// With --scale: keys that end together
    #[arg(long, requires = "scale", default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1000..=10_000_000))]
    keys: u64,
    /// With --scale: only the parts that have this word in their names
    #[arg(long, value_name = "WORD", requires = "scale")]
    only: Option<String>,
    /// Compare limits that follow a service with Envoy's own filter and static limits instead; a quarter of an hour a
    /// round
    #[arg(long, group = "instead", conflicts_with_all = ["connections", "seconds"])]
    adaptive: bool,
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
    let programs = programs(workspace, ui, false)?;
    let tools = Tools::new(workspace, ui);
    if args.module {
        let node = tools.get(Tool::Node)?;
        return interruptible(direct::module(&programs, &node, &args.others));
    }
    let report = if args.in_flight {
        interruptible(direct::in_flight(&programs, args.rounds))?
    } else if args.adaptive {
        interruptible(adaptive::adaptive(&programs, args.rounds))?
    } else if args.scale {
        let wrk = Wrk::new(tools.get(Tool::Wrk)?, args.seconds)?;
        let only = args.only.as_deref().unwrap_or_default();
        let (rounds, keys) = (args.rounds, args.keys);
        interruptible(scale::scale(&programs, ui, (rounds, keys, only), &wrk))?
    } else if args.instructions {
        interruptible(direct::instructions(&programs))?
    } else {
        let noops = Noops {
            lean: wasm::module(workspace, ui, "lean-filter")?,
            sdk: wasm::module(workspace, ui, "noop-filter")?,
            module: module::build(workspace, ui)?,
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

/// Runs to completion, or fails on Ctrl-C or SIGTERM.
pub fn interruptible<T>(measured: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            // The task is polled first: one that waits for Ctrl-C itself ends well.
            biased;
            measured = measured => return measured,
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
        Err(std::io::Error::from(ErrorKind::Interrupted).into())
    })
}

/// The programs of a run; `debug`: as the tests have them.
pub fn programs(workspace: &Workspace, ui: &Ui, debug: bool) -> Result<Programs> {
    let tools = Tools::new(workspace, ui);
    ui.heading("Tools");
    let (envoy, redis) = (tools.get(Tool::Envoy)?, tools.get(Tool::Redis)?);
    let filter = wasm::build(workspace, ui)?;
    ui.heading("Limiter and rlctl");
    let built = if debug {
        command::run(&mut workspace.native(&["build", "--bins"]))?;
        workspace.target.join("debug")
    } else {
        release(workspace, &["limiter", "ctl"])?
    };
    Ok(Programs {
        root: workspace.root.clone(),
        envoy,
        valkey: redis.clone(),
        redis,
        limiter: built.join("limiter"),
        rlctl: built.join("rlctl"),
        filter,
    })
}

/// Builds release programs; returns their folder.
pub fn release(workspace: &Workspace, packages: &[&str]) -> Result<PathBuf> {
    let mut build = workspace.cargo(&["build", "--release", "--bins"]);
    let packages = packages.iter().flat_map(|package| ["--package", package]);
    command::run(build.args(packages))?;
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
        // From little demand to saturation.
        let loads = [(1, 1), (1, 4), (1, 32), (2, 1), (2, 4), (2, 32)];
        let of =
            |answers| loads.map(|(workers, n)| block(answers, workers, n, &setups::LEASES[..]));
        return (setups::LEASE_LIMITS, both.map(of).concat());
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
        report.judged("filter.wasm", Unit::Bytes, goal, size);
        for _ in 0..rounds {
            starts(&mut report, programs, noops).await?;
        }
    }
    let stage = Stage::start(programs, noops, limits, &blocks).await?;
    stage.warm_up(wrk, &blocks).await?;
    let alone = if filters {
        Some(Alone::prepare(&stage).await?)
    } else {
        None
    };
    for round in 1..=rounds {
        for (at, block) in blocks.iter().enumerate() {
            for row in block.rows.iter().filter(|row| row.name != row.reference) {
                let of = block.rows.iter().find(|other| other.name == row.reference);
                let of = of.context("no such row to measure against")?;
                // Directly one after the other: the load of the machine changes within seconds.
                let first = round.is_multiple_of(2);
                let [earlier, later] = if first { [row, of] } else { [of, row] };
                let earlier = stage.run(wrk, block, earlier).await?;
                let later = stage.run(wrk, block, later).await?;
                let [own, reference] = if first {
                    [earlier, later]
                } else {
                    [later, earlier]
                };
                let [rate, other] = [own, reference].map(|run| run.sample.per_second);
                ui.line(&format!(
                    "round {round}, {}: {rate} requests/s, {}: {other}",
                    row.name, row.reference
                ));
                report.push(at, row, own, reference);
                let alone = block.answers == Answers::Envoy && block.connections == 1;
                if alone && row.checked.is_some() {
                    let name = format!("p50 alone, {}", row.name);
                    report.judged(&name, Unit::Micros, LONE_GOAL, own.sample.p50_us);
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

async fn starts(report: &mut Report, programs: &Programs, noops: &Noops) -> Result<()> {
    let starts = setups::starts(programs, &noops.lean).await?;
    for (name, [took, cpu]) in ["no filter", "no-op filter", "ours"].iter().zip(starts) {
        report.figure(&format!("Envoy's start, {name}"), Unit::Millis, took);
        report.figure(&format!("its CPU, {name}"), Unit::Millis, cpu);
    }
    let [[without, _], _, [ours, _]] = starts;
    let added = ours.saturating_sub(without);
    report.judged("ours adds to a start", Unit::Millis, START_GOAL, added);
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
        let (servers, limiter) = (&stage.servers, stage.servers.limiter()?);
        // The same script call, pipelined to Redis over a few connections, and by the limiter for checks that
        // arrive in batches as the filter sends them.
        let redis = self.batch.per_second(1250).await?;
        let url = format!("{}/v1/check", limiter.url());
        let body = batch(0, BATCH)?.encode();
        let through = wrk.post(&url, protocol::CHECK_CBOR, &body).await?;
        let through = through.per_second;
        report.figure("checks by Redis alone", Unit::PerSecond, redis * BATCH);
        report.figure("checks by the limiter", Unit::PerSecond, through * BATCH);
        let share = through * 1000 / redis.max(1);
        report.judged("limiter of Redis", Unit::Thousandths, LIMITER_GOAL, share);
        for (checks, goal, call) in &self.scripts {
            let before = servers.script_calls().await?;
            call.repeat(2500).await?;
            let [calls, us] = since(servers.script_calls().await?, before);
            let ns = us.saturating_mul(1000) / calls.saturating_mul(*checks).max(1);
            let name = format!("script per check, {checks} of a call");
            report.judged(&name, Unit::Nanos, *goal, ns);
        }
        for at_once in CALLS_AT_ONCE {
            let calls = measure(limiter, 1, at_once, wrk.lasts, |nth| batched(nth, 1)).await?;
            let of = |what: &str| format!("calls, {at_once} at once, {what}");
            report.figure(&of("rate"), Unit::PerSecond, calls.per_second);
            report.figure(&of("p50"), Unit::Micros, calls.p50_us);
            report.figure(&of("CPU"), Unit::Nanos, calls.cpu_ns);
        }
        let ping = ping_us(servers.redis.port())?;
        report.figure("PING of Redis", Unit::Micros, ping);
        Ok(())
    }
}

/// Calls of the rate limit service, beside `POST /v1/check` of one check each, over HTTP/2 both.
async fn service(report: &mut Report, stage: &Stage, lasts: Duration) -> Result<()> {
    let limiter = stage.servers.limiter()?;
    let service = measure(limiter, 4, 8, lasts, direct::of_the_service).await?;
    let posted = measure(limiter, 4, 8, lasts, direct::posted).await?;
    for (name, calls) in [("ShouldRateLimit", service), ("POST /v1/check", posted)] {
        report.figure(name, Unit::PerSecond, calls.per_second);
        report.figure(&format!("{name}, p50"), Unit::Micros, calls.p50_us);
    }
    let share = service.per_second * 1000 / posted.per_second.max(1);
    let name = "calls of the service, of checks";
    report.judged(name, Unit::Thousandths, SERVICE_GOAL, share);
    Ok(())
}

// ---- Figures of all rounds, compared, and whether they are within the budgets

/// What the rounds of one run of the benchmark measured.
#[derive(Default)]
struct Report {
    blocks: Vec<(Block, Vec<Series>)>,
    figures: Vec<Figure>,
}

/// The runs of one row, one per round; of a reference, one beside each other row.
#[derive(Default, Clone)]
struct Series {
    runs: Vec<Run>,
    /// Each run with its reference's, directly before or after it.
    pairs: Vec<[Run; 2]>,
}

/// One number, as every round measured it.
struct Figure {
    name: String,
    unit: Unit,
    rounds: Vec<u64>,
    goal: Goal,
}

#[derive(Debug, Clone, Copy)]
enum Unit {
    Count,
    PerSecond,
    Nanos,
    Micros,
    Millis,
    /// A ratio.
    Thousandths,
    Bytes,
}

/// What the median of a figure is to be.
#[derive(Debug, Clone, Copy)]
enum Goal {
    None,
    AtLeast(u64),
    AtMost(u64),
}

impl Unit {
    fn text(self, value: u64) -> String {
        match self {
            Self::Count => value.to_string(),
            Self::PerSecond => format!("{value}/s"),
            Self::Nanos => format!("{}.{} us", value / 1000, value % 1000 / 100),
            Self::Micros => format!("{}.{:02} ms", value / 1000, value % 1000 / 10),
            Self::Millis => format!("{value} ms"),
            Self::Thousandths => format!("{}.{:02}", value / 1000, value % 1000 / 10),
            Self::Bytes => kilobytes(value),
        }
    }
}

impl Goal {
    fn text(self, unit: Unit) -> String {
        match self {
            Self::None => String::new(),
            Self::AtLeast(value) => format!(">= {}", unit.text(value)),
            Self::AtMost(value) => format!("<= {}", unit.text(value)),
        }
    }

    fn verdict(self, value: u64) -> &'static str {
        match self {
            Self::None => "",
            Self::AtLeast(least) if value < least => "missed",
            Self::AtMost(most) if value > most => "missed",
            _ => "met",
        }
    }
}

impl Report {
    /// A report without a round.
    fn from_blocks(blocks: &[Block]) -> Self {
        let empty = |block: &Block| (*block, vec![Series::default(); block.rows.len()]);
        Self {
            blocks: blocks.iter().map(empty).collect(),
            figures: Vec::new(),
        }
    }

    /// Adds a round of a row, and of the reference beside it.
    fn push(&mut self, block: usize, row: &Row, own: Run, reference: Run) {
        let Some((block, all)) = self.blocks.get_mut(block) else {
            return;
        };
        for (other, series) in block.rows.iter().zip(all) {
            if other.name == row.name {
                series.runs.push(own);
                series.pairs.push([own, reference]);
            } else if other.name == row.reference {
                series.runs.push(reference);
            }
        }
    }

    /// Adds a round of a figure.
    fn figure(&mut self, name: &str, unit: Unit, value: u64) {
        self.judged(name, unit, Goal::None, value);
    }

    /// Adds a round of a figure whose median is to be within a budget.
    fn judged(&mut self, name: &str, unit: Unit, goal: Goal, value: u64) {
        match self.figures.iter_mut().find(|figure| figure.name == name) {
            Some(figure) => figure.rounds.push(value),
            None => self.figures.push(Figure {
                name: name.to_owned(),
                unit,
                rounds: vec![value],
                goal,
            }),
        }
    }

    /// As text.
    fn table(&self) -> String {
        let mut table = String::new();
        for (block, series) in &self.blocks {
            rates(&mut table, block, series);
            cpu(&mut table, block, series);
        }
        if !self.figures.is_empty() {
            table += "\n";
            add_row(&mut table, ["", "median", "least", "to be"]);
        }
        for figure in &self.figures {
            let Figure {
                name,
                unit,
                rounds,
                goal,
            } = figure;
            let (median, least) = (median(rounds.clone()), rounds.iter().min());
            let least = unit.text(least.copied().unwrap_or(0));
            let [goal, verdict] = [&*goal.text(*unit), goal.verdict(median)];
            add_row(
                &mut table,
                [name, &*unit.text(median), &least, goal, verdict],
            );
        }
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        table
            + &format!(
                "\nMedians; ratios are of pairs of runs right after one another. Other load on the machine\n\
             only adds to CPU time, so the least of it is the best estimate. {cores} cores for all programs.\n"
            )
    }

    /// As JSON.
    fn json(&self) -> String {
        let row = |block: &Block, (row, series): (&Row, &Series)| {
            json!({
                "name": row.name,
                "reference": row.reference,
                "answers": format!("{:?}", block.answers),
                "workers": block.workers,
                "connections": block.connections,
                "requests_per_second": series.each(|run| run.sample.per_second),
                "p50_us": series.each(|run| run.sample.p50_us),
                "p99_us": series.each(|run| run.sample.p99_us),
                "of_reference_permille": series.ratios(),
                "cpu_ns_per_request": {
                    "envoy": series.each(|run| run.cpu_ns[0]),
                    "limiters": series.each(|run| run.cpu_ns[1]),
                    "redis": series.each(|run| run.cpu_ns[2]),
                },
                "script_calls_per_million": series.each(|run| run.calls),
            })
        };
        let rows = self.blocks.iter().flat_map(|(block, all)| {
            { block.rows.iter().zip(all) }.map(move |series| row(block, series))
        });
        let figures = self.figures.iter().map(|figure| {
            let Figure {
                name, unit, rounds, ..
            } = figure;
            json!({"name": name, "unit": format!("{unit:?}"), "rounds": rounds})
        });
        let (rows, figures): (Vec<Value>, Vec<Value>) = (rows.collect(), figures.collect());
        format!("{:#}\n", json!({"setups": rows, "figures": figures}))
    }
}

impl Series {
    fn each(&self, figure: impl Fn(&Run) -> u64) -> Vec<u64> {
        self.runs.iter().map(figure).collect()
    }

    /// The median of a figure, as text.
    fn text(&self, unit: Unit, figure: impl Fn(&Run) -> u64) -> String {
        unit.text(median(self.each(figure)))
    }

    /// The requests of a time as thousandths of the reference's, pair by pair.
    fn ratios(&self) -> Vec<u64> {
        let pairs = self.pairs.iter().filter_map(|pair| {
            let [own, reference] = pair.map(|run| run.sample.per_second);
            (own * 1000).checked_div(reference)
        });
        pairs.collect()
    }

    /// The least CPU time of Envoy.
    fn least_ns(&self) -> u64 {
        let least = self.runs.iter().map(|run| run.cpu_ns[0]).min();
        least.unwrap_or(0)
    }
}

/// Requests per second and their latencies, and the share of the reference's requests.
fn rates(table: &mut String, block: &Block, all: &[Series]) {
    let answers = match block.answers {
        Answers::Envoy => "Envoy answers itself",
        Answers::Service => "a service behind Envoy",
        Answers::Model => "a model behind Envoy",
    };
    let (workers, connections) = (block.workers, block.connections);
    let load = format!("workers: {workers}, connections: {connections}");
    add_row(table, [""]);
    add_row(table, [&*format!("{answers}; {load}")]);
    let head = ["", "requests", "p50", "p99", "ratio", "spread", "to be"];
    add_row(table, head);
    for (row, series) in block.rows.iter().zip(all) {
        let mut cells = vec![
            row.name.to_owned(),
            series.text(Unit::PerSecond, |run| run.sample.per_second),
            series.text(Unit::Micros, |run| run.sample.p50_us),
            series.text(Unit::Micros, |run| run.sample.p99_us),
        ];
        if row.name != row.reference {
            let ratios = series.ratios();
            let [least, most] = [ratios.iter().min(), ratios.iter().max()]
                .map(|ratio| Unit::Thousandths.text(ratio.copied().unwrap_or(0)));
            let [itself, before] = row.goals;
            let goal = match if block.answers == Answers::Envoy {
                itself
            } else {
                before
            } {
                0 => Goal::None,
                goal => Goal::AtLeast(goal),
            };
            let ratio = median(ratios);
            let verdict = format!("{} {}", goal.text(Unit::Thousandths), goal.verdict(ratio));
            let spread = format!("{least}–{most}");
            cells.extend([Unit::Thousandths.text(ratio), spread, verdict]);
        }
        add_row(table, cells);
    }
}

/// The CPU time of each process per request, and Redis's script calls per thousand requests.
fn cpu(table: &mut String, block: &Block, all: &[Series]) {
    let processes = ["CPU per request", "Envoy", "limiters", "Redis"];
    add_row(
        table,
        processes
            .into_iter()
            .chain(["ratio", "Envoy least", "calls/k"]),
    );
    for (row, series) in block.rows.iter().zip(all) {
        let mut rows = block.rows.iter().zip(all);
        let reference = rows.find(|(other, _)| other.name == row.reference);
        let reference = reference.map_or(0, |(_, series)| series.least_ns());
        let ratio = (series.least_ns() * 1000).checked_div(reference);
        let cells = [
            row.name.to_owned(),
            series.text(Unit::Nanos, |run| run.cpu_ns[0]),
            series.text(Unit::Nanos, |run| run.cpu_ns[1]),
            series.text(Unit::Nanos, |run| run.cpu_ns[2]),
            Unit::Thousandths.text(ratio.unwrap_or(0)),
            Unit::Nanos.text(series.least_ns()),
            series.text(Unit::Thousandths, |run| run.calls),
        ];
        add_row(table, cells);
    }
}

/// Adds a row; its first cell is to the left, the numbers are to the right.
fn add_row(table: &mut String, cells: impl IntoIterator<Item = impl AsRef<str>>) {
    let mut row = String::new();
    for (cell, width) in cells.into_iter().zip([36, 10, 10, 10, 10, 13, 15]) {
        let cell = cell.as_ref();
        // Writing to a String cannot fail.
        let _ = if row.is_empty() {
            write!(row, "{cell:<width$}")
        } else {
            write!(row, "{cell:>width$}")
        };
    }
    *table += row.trim_end();
    *table += "\n";
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}
