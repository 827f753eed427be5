//! `rlctl simulate`.

mod server;
pub mod timeline;
mod view;

use std::ops::Range;

use clap::{Args, ValueEnum};
use policy::{DESCRIPTOR, Node, Policy, Problems, parse_duration};

use crate::{
    args::{Global, examples},
    bucket::{Pair, descriptor, parse_whole_number},
    error::Error,
    exit::Exit,
    input::{FilesArg, Source},
    printer::Printer,
    render::{counted, diagnostics},
    session::Session,
    simulate::{self, Local, Phase, Scenario},
};

use server::Server;
use view::View;

/// The start of generated traffic: the midnight before 2023-11-14, so that windows start there too.
const START_MS: u64 = 1_699_920_000_000;

/// Simulate requests to limits, on a simulated clock.
///
/// A scenario is {"id", "limits": [...], "steps": [...]}, in JSON or YAML; a file holds one, a list
/// of them, or {"scenarios": [...]}. A step is {"t_ms", "cost", "descriptor", "peek", "expect"} or
/// {"set": {"name", changed fields}} or {"t_ms", "leave": N}: the client of the request at step N,
/// counted from 0, gives up, so that a queue frees its slot; or {"t_ms", "settle": N, "cost"}: that
/// request has ended, and its true cost replaces what it reserved. Where a step has `expect`, another
/// answer is a difference, and the exit code is 1.
///
/// With --traffic the steps are generated, and a chart shows what was admitted and denied over time.
/// The file may then be a limits file. Several scenarios get the same traffic, each with buckets of
/// its own, and have one chart each.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl simulate -f scenarios.json"
    "rlctl simulate -f scenarios.json --engine redis"
    "rlctl simulate -f limits.yaml --traffic burst:200@10s --for 1m -d user=alice -d path=/api/x"
    "rlctl simulate -f limits.yaml --traffic poisson:5/s --traffic burst:50@1h,10s.. --for 20s"
    "rlctl export | rlctl simulate -f - --traffic poisson:50/s --for 60s"
))]
pub struct Simulate {
    #[command(flatten)]
    file: FilesArg,

    /// The engine that decides: local, the algorithms in this program; or redis, the scripts that
    /// limiters use, on a real server, with keys of their own that are removed in the end.
    #[arg(
        long,
        value_name = "ENGINE",
        default_value = "local",
        hide_possible_values = true
    )]
    engine: EngineKind,

    /// Run only this scenario of the file.
    #[arg(long, value_name = "ID")]
    scenario: Option<String>,

    /// Generated requests: burst:200@10s, constant:50/s or poisson:50/s, all the time or only from one
    /// time to another: constant:50/s,3s..5s. May be given several times.
    #[arg(long, value_name = "TRAFFIC", requires = "duration")]
    traffic: Vec<Phase>,

    /// How long the traffic lasts, as in 60s.
    #[arg(
        long = "for",
        id = "duration",
        value_name = "TIME",
        requires = "traffic"
    )]
    duration: Option<String>,

    /// An entry of every request of the traffic.
    #[arg(
        short,
        long = "descriptor",
        value_name = "KEY=VALUE",
        requires = "traffic"
    )]
    descriptor: Vec<Pair>,

    /// The seed of the times of `poisson`.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_whole_number,
        allow_negative_numbers = true)]
    seed: u64,
}

/// What decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EngineKind {
    Local,
    Redis,
}

impl Simulate {
    /// The one file.
    async fn source(&self) -> Result<Source, Error> {
        let mut sources = self.file.read().await?;
        match (sources.pop(), sources.pop()) {
            (Some(source), None) => Ok(source),
            _ => Err(Error::usage("simulate takes one file at a time")),
        }
    }

    /// Runs every scenario; the answer is no if one is not as expected.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let source = self.source().await?;
        let mut scenarios = scenarios(&source, !self.traffic.is_empty())?;
        if let Some(id) = &self.scenario {
            only(&mut scenarios, id)?;
        }
        let traffic_ms = if self.traffic.is_empty() {
            None
        } else {
            Some(self.replace_steps(&mut scenarios)?)
        };
        let report = match self.engine {
            EngineKind::Local => simulate::run(&scenarios, &mut Local::default()).await?,
            EngineKind::Redis => {
                let session = Session::open(global, printer)?;
                let mut server = Server::new(&session);
                let report = simulate::run(&scenarios, &mut server).await;
                server.forget().await?;
                report?
            }
        };
        let limits = || scenarios.iter().flat_map(|found| &found.policy.limits);
        if let Some(leased) = limits().find(|limit| limit.lease_ttl_ms.is_some()) {
            printer.note(format_args!(
                "`{}` is leased: here every request is checked, as if it were not",
                leased.name
            ));
        }
        if let Some(limit) = limits().find(|limit| limit.descriptor.is_some())
            && !self.traffic.is_empty()
            && { self.descriptor.iter() }.all(|pair| pair.key != DESCRIPTOR)
        {
            printer.note(format_args!(
                "`{}` applies to requests with `-d {DESCRIPTOR}=key=value,...`, the descriptor as Envoy sends it",
                limit.name
            ));
        }
        let as_expected = report.as_expected();
        printer.data(&View { report, traffic_ms })?;
        Ok(if as_expected { Exit::Done } else { Exit::No })
    }

    /// Generates the steps; returns the time range that they cover, in milliseconds.
    fn replace_steps(&self, scenarios: &mut [Scenario]) -> Result<Range<u64>, Error> {
        let descriptor = descriptor(&self.descriptor)?;
        let for_ms = parse_duration(self.duration.as_deref().unwrap_or_default())
            .map_err(|error| Error::usage(format!("--for: {error}")))?;
        let steps = simulate::steps(&self.traffic, START_MS, for_ms, self.seed, &descriptor)
            .map_err(|error| Error::usage(format!("--traffic: {error}")))?;
        for scenario in scenarios {
            scenario.steps.clone_from(&steps);
        }
        Ok(START_MS..START_MS.saturating_add(for_ms))
    }
}

/// Keeps only the scenario of that name.
fn only(scenarios: &mut Vec<Scenario>, id: &str) -> Result<(), Error> {
    let known: Vec<String> = scenarios.iter().map(|found| found.id.clone()).collect();
    scenarios.retain(|found| found.id == id);
    if scenarios.is_empty() {
        let error = Error::new(Exit::NotFound, format!("no scenario `{id}` in the file"));
        return Err(error.maybe_hint(Some(format!("it has {}", known.join(", ")))));
    }
    Ok(())
}

/// The scenarios of a file; if the steps are generated, its limits are enough.
fn scenarios(source: &Source, limits_are_enough: bool) -> Result<Vec<Scenario>, Error> {
    let read = |node: &Node| read(node, limits_are_enough);
    // Most scenario files are JSON, and a JSON parser is ten times as fast. Only messages about
    // problems need positions in the file.
    let json = serde_json::from_slice(source.bytes()).ok();
    if let Some(Ok(found)) = json.as_ref().map(read) {
        return Ok(found);
    }
    let text = || String::from_utf8_lossy(source.bytes()).into_owned();
    let located = Node::from_yaml(&source.name, source.bytes())
        .and_then(|node| read(&node).map_err(|found| found.in_file(source.name.clone(), text())));
    located.map_err(|problems| {
        let count = counted(problems.count(), "problem");
        let text = diagnostics(&problems);
        let error = Error::new(
            Exit::No,
            format!(
                "{} has {count}
{text}",
                source.name
            ),
        );
        let is_limits_file = source.policy(|_| None).is_ok();
        error.maybe_hint(is_limits_file.then_some("a limits file needs --traffic: it has no steps"))
    })
}

fn read(node: &Node, limits_are_enough: bool) -> Result<Vec<Scenario>, Problems> {
    if !(limits_are_enough && node.get("domain").is_some()) {
        return simulate::read(node);
    }
    let mut policy = Policy::from_node(node)?;
    for limit in &mut policy.limits {
        limit.generation = 1;
    }
    Ok(vec![Scenario {
        id: policy.domain.to_string(),
        policy,
        steps: Vec::new(),
    }])
}
