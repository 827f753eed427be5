//! `cargo xtask bench`: what the filter costs, as ratios within one run.
//!
//! Absolute figures depend on the machine and its load. So every round loads each row of [`setups`] for a
//! few seconds, directly before or after its reference, and only such pairs are compared.

mod adaptive;
mod direct;
mod scale;
mod setups;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use harness::{Envoy, EnvoyConfig, Ports, Programs};

use crate::command::Workspace;
use crate::fleet::{Fleet, interruptible, millis, programs, quantile};
use crate::module;
use crate::tools::{Tool, Tools};
use crate::ui::Ui;
use crate::wasm::{self, kilobytes};

use direct::{ScriptCall, batched, measure, ping_us};
use setups::{Answers, Block, Noops, Plan, Row, Run, Stage, Wrk, since};

/// Calls of one check each that a limiter has at once.
const CALLS_AT_ONCE: [u64; 2] = [1, 32];
/// Checks of a script call whose time Redis is asked for, and the most that one may take in nanoseconds.
const SCRIPT_CHECKS: [(u64, Goal); 2] = [(1, Goal::AtMost(6000)), (8, Goal::AtMost(3000))];
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
    /// Compare leased limits with checked ones instead, for one worker and for two
    #[arg(long, group = "instead")]
    leases: bool,
    /// Compare Envoy's own rate limit filter with none instead, and its calls with `POST /v1/check`
    #[arg(long, group = "instead")]
    rls: bool,
    /// Compare slots of requests in flight with plain checks instead, by the time they take Redis
    #[arg(long, group = "instead", conflicts_with = "seconds")]
    in_flight: bool,
    /// Measure domains with as many limits and overrides as they may have instead: edits, checks, proxies, keys
    #[arg(long, group = "instead")]
    scale: bool,
    /// With --scale: keys that end together
    #[arg(long, requires = "scale", default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1000..=10_000_000))]
    keys: u64,
    /// With --scale: only the parts that have this word in their names
    #[arg(long, value_name = "WORD", requires = "scale")]
    only: Option<String>,
    /// Compare limits that follow a service with Envoy's own filter and static limits instead; a quarter of an hour a
    /// round
    #[arg(long, group = "instead", conflicts_with = "seconds")]
    adaptive: bool,
    /// Run the filter's module alone instead, in Node, without Envoy
    #[arg(long, group = "instead", conflicts_with_all = ["rounds", "seconds"])]
    module: bool,
    /// Count the instructions of a check in the limiter and in Redis instead, with valgrind
    #[arg(long, group = "instead", conflicts_with_all = ["rounds", "seconds"])]
    instructions: bool,
    /// With --module: modules to compare it with, as of an earlier commit
    #[arg(value_name = "WASM", requires = "module")]
    others: Vec<PathBuf>,
}

/// Runs the rounds and prints the comparison.
pub fn run(args: &Args, workspace: &Workspace, ui: &Ui) -> Result<()> {
    let tools = Tools::new(workspace, ui);
    let programs = programs(workspace, ui, tools.get(Tool::Redis)?, false)?;
    if args.module {
        let node = tools.get(Tool::Node)?;
        return interruptible(direct::module(&programs, &node, &args.others));
    }
    let wrk = || Wrk::new(tools.get(Tool::Wrk)?, &workspace.root, args.seconds);
    let report = if args.in_flight {
        interruptible(direct::in_flight(&programs, args.rounds))?
    } else if args.adaptive {
        interruptible(adaptive::adaptive(&programs, args.rounds))?
    } else if args.scale {
        let only = args.only.as_deref().unwrap_or_default();
        let (rounds, keys) = (args.rounds, args.keys);
        interruptible(scale::scale(&programs, ui, (rounds, keys, only), &wrk()?))?
    } else if args.instructions {
        interruptible(direct::instructions(&programs))?
    } else {
        let noops = Noops {
            lean: wasm::module(workspace, ui, "lean-filter")?,
            sdk: wasm::module(workspace, ui, "noop-filter")?,
            module: module::build(workspace, ui)?,
        };
        interruptible(loads(args, ui, &programs, &noops, &wrk()?))?
    };
    print!("{}", report.table());
    Ok(())
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
    let filters = !(args.leases || args.rls);
    let plan = match args {
        Args { leases: true, .. } => "leases",
        Args { rls: true, .. } => "rls",
        _ => "filters",
    };
    let plan = Plan::named(plan)?;
    let blocks = plan.blocks();
    let mut report = Report {
        blocks: blocks.clone(),
        ..Report::default()
    };
    if filters {
        let size = std::fs::metadata(&programs.filter)?.len();
        let goal = Goal::AtMost(wasm::SIZE_BUDGET_BYTES - 1);
        report.judged("filter.wasm", Unit::Bytes, goal, size);
        for _ in 0..rounds {
            starts(&mut report, programs, noops).await?;
        }
    }
    let stage = Stage::start(programs, noops, &plan.limits, &blocks).await?;
    stage.warm_up(wrk, &blocks).await?;
    for round in 1..=rounds {
        for (at, block) in blocks.iter().enumerate() {
            let (of, others) = block.rows.split_first().context("no row")?;
            for (nth, row) in (1..).zip(others) {
                // Directly one after the other: the load of the machine changes within seconds.
                let (own, reference) = if round.is_multiple_of(2) {
                    let own = stage.run(wrk, block, row).await?;
                    (own, stage.run(wrk, block, of).await?)
                } else {
                    let reference = stage.run(wrk, block, of).await?;
                    (stage.run(wrk, block, row).await?, reference)
                };
                let [rate, other] = [own, reference].map(|run| run.sample.per_second);
                ui.line(&format!(
                    "round {round}, {}: {rate} requests/s, {}: {other}",
                    row.name, of.name
                ));
                report.push(at, nth, own, reference);
                let alone = block.answers == Answers::Envoy && block.connections == 1;
                if alone && row.checked.is_some() {
                    let name = format!("p50 alone, {}", row.name);
                    report.judged(&name, Unit::Micros, LONE_GOAL, own.sample.p50_us);
                }
            }
        }
        if filters {
            alone(&mut report, &stage.fleet, wrk).await?;
        }
        if args.rls {
            service(&mut report, &stage.fleet, wrk.lasts).await?;
        }
    }
    Ok(report)
}

/// Starts Envoy without any wasm, with the no-op filter and with ours, one after the other.
async fn starts(report: &mut Report, programs: &Programs, noops: &Noops) -> Result<()> {
    let shipped = || EnvoyConfig::shipped(&programs.root);
    let mut all = Vec::new();
    for (name, config) in [
        ("no filter", setups::without_filter(shipped()?)?),
        ("no-op filter", shipped()?.filter_code(&noops.lean)?),
        ("ours", shipped()?.filter_code(&programs.filter)?),
    ] {
        let (dir, started) = (tempfile::tempdir()?, Instant::now());
        let envoy = Envoy::start(programs, config, Ports::free()?, 1, dir.path()).await?;
        let took = millis(started.elapsed());
        let cpu = envoy.process().cpu_us()? / 1000;
        report.figure(&format!("Envoy's start, {name}"), Unit::Millis, took);
        report.figure(&format!("its CPU, {name}"), Unit::Millis, cpu);
        all.push(took);
    }
    let [without, .., ours] = *all else {
        return Ok(());
    };
    let added = ours.saturating_sub(without);
    report.judged("ours adds to a start", Unit::Millis, START_GOAL, added);
    Ok(())
}

/// Calls of a limiter and of Redis, without Envoy.
async fn alone(report: &mut Report, fleet: &Fleet, wrk: &Wrk) -> Result<()> {
    let limiter = fleet.limiter()?;
    for (checks, goal) in SCRIPT_CHECKS {
        let call = ScriptCall::of_checks(fleet, checks).await?;
        let before = fleet.calls_of("evalsha").await?;
        call.repeat(2500).await?;
        let [calls, us] = since(fleet.calls_of("evalsha").await?, before);
        let ns = us.saturating_mul(1000) / calls.saturating_mul(checks).max(1);
        let name = format!("script per check, {checks} of a call");
        report.judged(&name, Unit::Nanos, goal, ns);
    }
    // The same script call, pipelined to Redis over a few connections, and by the limiter for checks that
    // arrive in batches as the filter sends them.
    let call = ScriptCall::of_checks(fleet, BATCH).await?;
    let redis = call.per_second(1250).await?;
    let url = format!("{}/v1/check", limiter.url());
    let body = direct::batch(0, BATCH)?.encode();
    let through = wrk.post(&url, protocol::CHECK_CBOR, &body).await?;
    let through = through.per_second;
    report.figure("checks by Redis alone", Unit::PerSecond, redis * BATCH);
    report.figure("checks by the limiter", Unit::PerSecond, through * BATCH);
    report.ratio("limiter of Redis", LIMITER_GOAL, through, redis);
    for at_once in CALLS_AT_ONCE {
        let calls = measure(limiter, 1, at_once, wrk.lasts, |nth| batched(nth, 1)).await?;
        let of = |what: &str| format!("calls, {at_once} at once, {what}");
        report.figure(&of("rate"), Unit::PerSecond, calls.per_second);
        report.figure(&of("p50"), Unit::Micros, calls.p50_us);
        report.figure(&of("CPU"), Unit::Nanos, calls.cpu_ns);
    }
    let ping = ping_us(fleet.redis()?.port())?;
    report.figure("PING of Redis", Unit::Micros, ping);
    Ok(())
}

/// Calls of the rate limit service, beside `POST /v1/check` of one check each, over HTTP/2 both.
async fn service(report: &mut Report, fleet: &Fleet, lasts: Duration) -> Result<()> {
    let limiter = fleet.limiter()?;
    let service = measure(limiter, 4, 8, lasts, direct::of_the_service).await?;
    let posted = measure(limiter, 4, 8, lasts, direct::posted).await?;
    for (name, calls) in [("ShouldRateLimit", service), ("POST /v1/check", posted)] {
        report.figure(name, Unit::PerSecond, calls.per_second);
        report.figure(&format!("{name}, p50"), Unit::Micros, calls.p50_us);
    }
    let (goal, name) = (SERVICE_GOAL, "calls of the service, of checks");
    report.ratio(name, goal, service.per_second, posted.per_second);
    Ok(())
}

// ---- Figures of all rounds, compared, and whether they are within the budgets

/// What the rounds of one run of the benchmark measured.
#[derive(Default)]
struct Report {
    blocks: Vec<Block>,
    /// By the numbers of the block and of the row in it.
    series: BTreeMap<[usize; 2], Series>,
    figures: Vec<Figure>,
}

/// What the rounds of one row measured.
#[derive(Default)]
struct Series {
    /// One per round; of a reference, one beside each other row.
    runs: Vec<Run>,
    /// The requests of each run as thousandths of its reference's, directly before or after it.
    ratios: Vec<u64>,
}

/// One number, as every round measured it.
struct Figure {
    name: String,
    unit: Unit,
    rounds: Vec<u64>,
    goal: Goal,
}

#[derive(Debug, Clone, Copy)]
pub enum Unit {
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
pub enum Goal {
    None,
    AtLeast(u64),
    AtMost(u64),
}

impl Unit {
    pub fn text(self, value: u64) -> String {
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
    pub fn text(self, unit: Unit) -> String {
        match self {
            Self::None => String::new(),
            Self::AtLeast(value) => format!("≥ {}", unit.text(value)),
            Self::AtMost(value) => format!("≤ {}", unit.text(value)),
        }
    }

    pub fn verdict(self, value: u64) -> &'static str {
        match self {
            Self::None => "",
            Self::AtLeast(least) if value < least => "missed",
            Self::AtMost(most) if value > most => "missed",
            _ => "met",
        }
    }
}

impl Report {
    /// Adds a round of a row, and of the reference beside it.
    fn push(&mut self, block: usize, row: usize, own: Run, reference: Run) {
        let [rate, other] = [own, reference].map(|run| run.sample.per_second);
        let series = self.series.entry([block, row]).or_default();
        series.runs.push(own);
        series.ratios.extend((rate * 1000).checked_div(other));
        let series = self.series.entry([block, 0]).or_default();
        series.runs.push(reference);
    }

    /// Adds a round of a figure.
    fn figure(&mut self, name: &str, unit: Unit, value: u64) {
        self.judged(name, unit, Goal::None, value);
    }

    /// Adds a round of a figure whose median is to be within a budget.
    fn judged(&mut self, name: &str, unit: Unit, goal: Goal, value: u64) {
        let mut figures = self.figures.iter_mut();
        if let Some(figure) = figures.find(|figure| figure.name == name) {
            return figure.rounds.push(value);
        }
        let (name, rounds) = (name.to_owned(), vec![value]);
        self.figures.push(Figure {
            name,
            unit,
            rounds,
            goal,
        });
    }

    /// Adds a round of a ratio, whose median is to be within a budget in thousandths.
    fn ratio(&mut self, name: &str, goal: Goal, value: u64, of: u64) {
        let ratio = value.saturating_mul(1000) / of.max(1);
        self.judged(name, Unit::Thousandths, goal, ratio);
    }

    fn table(&self) -> String {
        let mut table = String::new();
        for (at, block) in self.blocks.iter().enumerate() {
            let rows = block.rows.iter().enumerate();
            let rows = rows.filter_map(|(nth, row)| Some((row, self.series.get(&[at, nth])?)));
            add_block(&mut table, block, &rows.collect::<Vec<_>>());
        }
        if !self.figures.is_empty() {
            table += "\n";
            add_row(&mut table, ["", "median", "least", "to be"]);
        }
        for figure in &self.figures {
            let parts = [500, 0].map(|part| quantile(figure.rounds.clone(), part));
            let [median, least] = parts.map(|value| figure.unit.text(value));
            let to_be = figure.goal.text(figure.unit);
            let verdict = figure.goal.verdict(parts[0]);
            add_row(
                &mut table,
                [&*figure.name, &median, &least, &to_be, verdict],
            );
        }
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        table
            + &format!(
                "\nMedians; ratios are of pairs of runs right after one another. Other load on the machine\n\
             only adds to CPU time, so the least of it is the best estimate. {cores} cores for all programs.\n"
            )
    }
}

/// Adds the rows of a block: requests per second, their latencies, and the share of the reference's requests; then the CPU
/// time of each process per request, and Redis's script calls per thousand requests.
fn add_block(table: &mut String, block: &Block, rows: &[(&Row, &Series)]) {
    let (answers, goal_of): (_, fn(&Row) -> u64) = match block.answers {
        Answers::Envoy => ("Envoy answers itself", |row| row.goals[0]),
        Answers::Service => ("a service behind Envoy", |row| row.goals[1]),
    };
    let (workers, connections) = (block.workers, block.connections);
    let title = format!("{answers}; workers: {workers}, connections: {connections}");
    add_row(table, [""]);
    add_row(table, [title]);
    add_row(table, ",requests,p50,p99,ratio,spread,to be".split(','));
    for (row, own) in rows {
        let mut cells = vec![
            row.name.clone(),
            own.median(Unit::PerSecond, |run| run.sample.per_second),
            own.median(Unit::Micros, |run| run.sample.p50_us),
            own.median(Unit::Micros, |run| run.sample.p99_us),
        ];
        if !own.ratios.is_empty() {
            let parts = [0, 500, 1000].map(|part| quantile(own.ratios.clone(), part));
            let [least, ratio, most] = parts.map(|ratio| Unit::Thousandths.text(ratio));
            let goal = match goal_of(row) {
                0 => Goal::None,
                least => Goal::AtLeast(least),
            };
            let (to_be, verdict) = (goal.text(Unit::Thousandths), goal.verdict(parts[1]));
            cells.extend([
                ratio,
                format!("{least}–{most}"),
                format!("{to_be} {verdict}"),
            ]);
        }
        add_row(table, cells);
    }
    let titles = "CPU per request,Envoy,limiters,Redis,ratio,Envoy least,calls/k";
    add_row(table, titles.split(','));
    let reference_ns = rows
        .first()
        .map_or(0, |(_, reference)| reference.least_ns());
    for (row, own) in rows {
        let ratio = (own.least_ns() * 1000).checked_div(reference_ns);
        let cells = [
            row.name.clone(),
            own.median(Unit::Nanos, |run| run.cpu_ns[0]),
            own.median(Unit::Nanos, |run| run.cpu_ns[1]),
            own.median(Unit::Nanos, |run| run.cpu_ns[2]),
            Unit::Thousandths.text(ratio.unwrap_or(0)),
            Unit::Nanos.text(own.least_ns()),
            own.median(Unit::Thousandths, |run| run.calls),
        ];
        add_row(table, cells);
    }
}

impl Series {
    fn median(&self, unit: Unit, figure: fn(&Run) -> u64) -> String {
        unit.text(quantile(self.runs.iter().map(figure).collect(), 500))
    }

    /// The least CPU time of Envoy.
    fn least_ns(&self) -> u64 {
        let least = self.runs.iter().map(|run| run.cpu_ns[0]).min();
        least.unwrap_or(0)
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
