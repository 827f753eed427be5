//! `cargo xtask test`: all checks, cheapest first, with real Redis, Valkey and Envoy. Stops at the
//! first step that fails; says at the end how long the steps and the slowest tests took.

use std::cell::RefCell;
use std::fmt;
use std::num::NonZero;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, available_parallelism};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use clap::ValueEnum;
use harness::Host;

use crate::command::{self, Workspace};
use crate::dist;
use crate::fuzz;
use crate::module;
use crate::prove;
use crate::tools::{Tool, Tools, WASM_TARGET, on_path};
use crate::ui::{Ui, help, mark, seconds};
use crate::wasm;

/// The crates that run inside Envoy, whose tests must also hold on wasm32.
const RUN_IN_ENVOY: [&str; 9] = [
    "address",
    "algorithms",
    "documents",
    "normalize",
    "patterns",
    "policy",
    "protocol",
    "filter-config",
    "filter-core",
];

/// Includes the suites that need servers, which a plain `cargo test` leaves out.
const SUITES: &str = "--features=tests/servers";

/// Envoy, which loads the built filter.
const ENVOY: (&str, Tool) = ("RL_TEST_ENVOY", Tool::Envoy);

/// The stores that tests start.
const SERVERS: [(&str, Tool); 2] = [
    ("RL_TEST_REDIS", Tool::Redis),
    ("RL_TEST_VALKEY", Tool::Valkey),
];

/// Skips the suite of the controller.
const NO_KUBERNETES: &str = "RL_NO_KUBERNETES";

/// The path of a server that does not exist.
const NO_SERVER: &str = "/nonexistent/server";

/// Seeds of each property of the simulated filter.
const SEEDS: &str = "120";

/// Tests that are listed as the slowest.
const SLOWEST: usize = 15;

/// Arguments of `cargo xtask test`.
#[derive(Default, clap::Args)]
pub struct Args {
    /// Only these steps, in their usual order
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Step>,
    /// Arguments for the test runner, such as a part of a test's name
    #[arg(last = true)]
    runner: Vec<String>,
}

/// One thing that must hold, in the order of running: what fails fastest first,
/// the tests last, so that their summary is what the eye falls on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Step {
    /// Formatting
    Fmt,
    /// Clippy: natively, and the filter on wasm32; warnings denied
    Clippy,
    /// Documentation, warnings denied
    Docs,
    /// Licences, sources and banned crates; advisories where their database can be had
    Deny,
    /// Unit and property tests, with real Redis and Valkey where they matter
    Unit,
    /// The filter in a simulated world, hundreds of seeds of it
    Simulate,
    /// Proxies, limiters and Redis in simulated worlds, with faults, for hours
    World,
    /// Readers of strangers' bytes under a fuzzer, seconds each
    Fuzz,
    /// Tests compiled to wasm32, under Node
    Wasm,
    /// The files of deploy/, by the programs they are for
    Deploy,
    /// What a release consists of, as its users use it
    Dist,
    /// The description of the HTTP API against a real limiter
    Api,
    /// The limiter's page in headless Chromium
    Page,
    /// The controller against a real Kubernetes API server, with real Envoys; skipped where that cannot be built
    Kubernetes,
    /// End to end through real Envoy
    E2e,
    /// The same with the dynamic module in place of the wasm filter, and what both hosts share
    Module,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

impl Step {
    fn title(self) -> String {
        let value = self.to_possible_value();
        let help = value.as_ref().and_then(|value| value.get_help());
        help.map(ToString::to_string).unwrap_or_default()
    }

    fn run(self, context: &Context<'_>) -> Result<()> {
        match self {
            Self::Fmt => fmt(context),
            Self::Clippy => clippy(context),
            Self::Docs => docs(context),
            Self::Deny => deny(context),
            Self::Unit => unit(context),
            Self::Simulate => simulate(context),
            Self::World => prove::for_tests(context.workspace),
            Self::Fuzz => fuzz::for_tests(context.workspace, context.ui),
            Self::Wasm => on_wasm(context),
            Self::Kubernetes => kubernetes(context),
            Self::Deploy | Self::Dist | Self::Api | Self::Page | Self::E2e | Self::Module => {
                context.run_tests(&mut context.suites(self)?)
            }
        }
    }

    /// The tools of a step, but the one whose compilation takes minutes.
    fn tools(self) -> impl Iterator<Item = Tool> {
        let more: &[Tool] = match self {
            Self::Deny => &[Tool::CargoDeny],
            Self::Unit => &[Tool::Redis, Tool::Valkey, Tool::Tzdata],
            Self::Wasm => &[Tool::Node],
            Self::Dist => &[Tool::WasmOpt, Tool::Zig, Tool::Certificates],
            Self::Deploy | Self::Kubernetes | Self::E2e | Self::Module => &[Tool::WasmOpt],
            _ => &[],
        };
        let named = self.suites().1.iter().map(|(_, tool)| *tool);
        { more.iter().copied() }
            .chain(named)
            .filter(|tool| *tool != Tool::ApiServer)
    }

    /// The suites of a step, and the tools that they need, by the variables that name them.
    fn suites(self) -> (&'static [&'static str], &'static [(&'static str, Tool)]) {
        match self {
            Self::Deploy => (
                &["deploy"],
                &[
                    ENVOY,
                    ("RL_TEST_CHECKERS", Tool::Checkers),
                    ("RL_TEST_DEFINITIONS", Tool::Definitions),
                    ("RL_TEST_KUBECTL", Tool::Kubectl),
                    ("RL_TEST_NODE", Tool::Node),
                    ("RL_TEST_PROMTOOL", Tool::Promtool),
                    ("RL_TEST_PROMETHEUS", Tool::Prometheus),
                    #[cfg(target_arch = "x86_64")]
                    ("RL_TEST_HELM", Tool::Helm),
                ],
            ),
            Self::Dist => (
                &["dist"],
                &[
                    ENVOY,
                    ("RL_TEST_SKOPEO", Tool::Skopeo),
                    ("RL_TEST_UMOCI", Tool::Umoci),
                    ("RL_TEST_RUNC", Tool::Runc),
                    ("RL_TEST_REGISTRY", Tool::Registry),
                    ("RL_TEST_DIST_CHECKERS", Tool::DistCheckers),
                ],
            ),
            Self::Api => (
                &["api"],
                &[
                    ("RL_TEST_SCHEMATHESIS", Tool::Schemathesis),
                    ("RL_TEST_GO", Tool::Go),
                    ("RL_TEST_NODE", Tool::Node),
                ],
            ),
            Self::Page => (&["page"], &[("RL_TEST_CHROMIUM", Tool::Chromium)]),
            Self::Kubernetes => (
                &["kubernetes"],
                &[
                    ENVOY,
                    ("RL_TEST_API_SERVER", Tool::ApiServer),
                    ("RL_TEST_ETCD", Tool::Etcd),
                    ("RL_TEST_KUBECTL", Tool::Kubectl),
                ],
            ),
            Self::E2e => {
                let tools = &[
                    ENVOY,
                    ("RL_TEST_GRPC", Tool::Grpc),
                    ("RL_TEST_NGINX", Tool::Nginx),
                ];
                (&["envoy", "rate_limit_service"], tools)
            }
            Self::Module => (&["envoy"], Self::E2e.suites().1),
            _ => (&[], &[]),
        }
    }
}

/// Runs the steps.
pub fn run(args: &Args, workspace: &Workspace, ui: &Ui) -> Result<()> {
    let wanted = |step: &&Step| args.only.is_empty() || args.only.contains(step);
    let steps: Vec<Step> = { Step::value_variants().iter() }
        .filter(wanted)
        .copied()
        .collect();
    let context = Context::new(workspace, ui, args.runner.clone());
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        // They come over the network while the first steps compile. The step that needs one that cannot be had says so.
        scope.spawn(|| {
            let tools = Tools::new(workspace, ui);
            let each = steps.iter().flat_map(|step| step.tools());
            for tool in each.take_while(|_| !ended.load(Ordering::Relaxed)) {
                let _ = tools.get(tool);
            }
        });
        let result = play(&context, &steps);
        ended.store(true, Ordering::Relaxed);
        result
    })
}

fn play(context: &Context<'_>, steps: &[Step]) -> Result<()> {
    let ui = context.ui;
    let mut took = Vec::new();
    let mut result = Ok(());
    for (index, step) in steps.iter().enumerate() {
        ui.heading(&format!("[{}/{}] {}", index + 1, steps.len(), step.title()));
        let started = Instant::now();
        result = step.run(context).with_context(|| {
            let again =
                format!("fix it, then run just this step again: cargo xtask test --only {step}");
            help(format!("step `{step}` failed"), &[&again])
        });
        took.push((*step, started.elapsed()));
        if result.is_err() {
            break;
        }
    }
    // After a failure too: then the last step is the one that failed.
    report(context, &took, result.is_ok());
    result
}

fn report(context: &Context<'_>, took: &[(Step, Duration)], passed: bool) {
    let ui = context.ui;
    let mut tests = context.durations.borrow_mut();
    tests.sort_by_key(|(took, _)| std::cmp::Reverse(*took));
    if !tests.is_empty() {
        ui.heading("The slowest tests");
    }
    for (took, name) in tests.iter().take(SLOWEST) {
        ui.line(&format!("{:>12}  {name}", seconds(*took)));
    }
    ui.heading("Steps");
    for (nth, (step, time)) in took.iter().enumerate() {
        let result = mark(passed || nth + 1 < took.len(), "passed");
        ui.line(&format!("{:>12}  {step} {result}", seconds(*time)));
    }
    let total = seconds(took.iter().map(|(_, time)| *time).sum());
    ui.line(&format!("{total:>12}  in all"));
}

/// `cargo xtask pictures`: draws the pictures in `docs/pictures`.
pub fn pictures(workspace: &Workspace, ui: &Ui) -> Result<()> {
    let context = Context::new(workspace, ui, Vec::new());
    let mut tests = context.suites(Step::Page)?;
    tests
        .arg("pictures_are_made")
        .env("RL_PICTURES", workspace.root.join("docs/pictures"));
    command::run(&mut tests)
}

/// The context of the steps: cargo with the right packages, and servers.
struct Context<'a> {
    workspace: &'a Workspace,
    ui: &'a Ui,
    tools: Tools<'a>,
    /// Arguments for the test runner.
    runner: Vec<String>,
    /// The duration of each test that nextest ran.
    durations: RefCell<Vec<(Duration, String)>>,
}

impl<'a> Context<'a> {
    fn new(workspace: &'a Workspace, ui: &'a Ui, runner: Vec<String>) -> Self {
        Self {
            workspace,
            ui,
            tools: Tools::new(workspace, ui),
            runner,
            durations: RefCell::default(),
        }
    }

    /// cargo for the packages that Envoy loads, for their target.
    fn in_envoy(&self, subcommand: &str) -> Command {
        let packages = ["-pfilter", "-pnoop-filter", "-plean-filter"];
        let mut cargo = self.workspace.cargo(&[subcommand, "--target", WASM_TARGET]);
        cargo.args(packages);
        cargo
    }

    /// cargo for the limiter with traces, a feature that no other step builds, and their test.
    fn traces(&self, subcommand: &str) -> Command {
        { self.workspace }.native(&[subcommand, "--features=limiter/otel", "--test=tracing"])
    }

    /// Sets the variables by which tests find tools, and the programs that are built.
    fn with(&self, command: &mut Command, tools: &[(&str, Tool)]) -> Result<()> {
        for (variable, tool) in tools.iter().chain(&SERVERS) {
            command.env(variable, self.tools.get(*tool)?);
        }
        command.env("RL_TEST_BIN", self.workspace.target.join("debug"));
        Ok(())
    }

    /// Builds what the suites of a step run, and returns the command that runs them.
    fn suites(&self, step: Step) -> Result<Command> {
        let (suites, tools) = step.suites();
        let suites = suites.iter().map(|suite| format!("--test={suite}"));
        // What the two hosts share is played with the module, which Envoy need not compile.
        let skipped: &[&str] = match step {
            Step::E2e if self.runner.is_empty() => &["--skip", "once::"],
            _ => &[],
        };
        let mut tests = self.tests(std::iter::once(SUITES.to_owned()).chain(suites), skipped);
        self.with(&mut tests, tools)?;
        if step == Step::Dist {
            // For this machine's processor only.
            let artifacts = dist::for_tests(self.workspace, self.ui)?;
            tests.env("RL_TEST_ARTIFACTS", artifacts);
        } else {
            let programs = ["build", "--bin=limiter", "--bin=rlctl"];
            command::run(&mut self.workspace.native(&programs))?;
            if tools.contains(&ENVOY) {
                wasm::build(self.workspace, self.ui)?;
                if step == Step::Module {
                    tests.env(Host::MODULE, module::build(self.workspace, self.ui)?);
                }
            }
        }
        // They compute a third of the time, those of other steps half of it.
        let halves = if step == Step::Kubernetes { 5 } else { 4 };
        at_once(&mut tests, halves);
        tests.env("RL_TEST_FILTER", self.workspace.target.join("filter.wasm"));
        Ok(tests)
    }

    /// The test runner: nextest, if it is installed.
    fn tests(&self, selection: impl Iterator<Item = String>, runner: &[&str]) -> Command {
        let nextest = on_path("cargo-nextest").is_some();
        let subcommand: &[&str] = if nextest {
            &["nextest", "run"]
        } else {
            &["test"]
        };
        let mut cargo = self.workspace.native(subcommand);
        if nextest && !self.runner.is_empty() {
            // A test that the user names may be in only one of two runs.
            cargo.arg("--no-tests=pass");
        }
        cargo.arg("--no-fail-fast").args(selection).arg("--");
        cargo.args(runner).args(&self.runner);
        cargo
    }

    /// Runs tests, and keeps how long each took.
    fn run_tests(&self, tests: &mut Command) -> Result<()> {
        let profile = std::env::var("NEXTEST_PROFILE");
        let profile = profile.unwrap_or_else(|_| "default".to_owned());
        let report = { self.workspace.root.join("target/nextest") }
            .join(profile)
            .join("junit.xml");
        // It must not be the report of an earlier run.
        let _ = std::fs::remove_file(&report);
        let result = command::run(tests);
        let report = std::fs::read_to_string(report).unwrap_or_default();
        let cases = report.split("<testcase ").skip(1).filter_map(|case| {
            let field = |name: &str| case.split_once(name)?.1.split('"').next();
            let time = Duration::try_from_secs_f64(field(" time=\"")?.parse().ok()?).ok()?;
            let [of, name] = [field("classname=\"")?, field("name=\"")?];
            Some((time, format!("{of} {name}")))
        });
        self.durations.borrow_mut().extend(cases);
        result
    }
}

/// Runs more tests at once than there are processors, by halves of their number: what waits for servers computes little.
fn at_once(tests: &mut Command, halves: usize) {
    let processors = available_parallelism().map_or(1, NonZero::get);
    tests.env(
        "NEXTEST_TEST_THREADS",
        (processors * halves / 2).to_string(),
    );
}

fn fmt(context: &Context<'_>) -> Result<()> {
    context.tools.component("rustfmt", "fmt")?;
    command::run(&mut context.workspace.cargo(&["fmt", "--all", "--check"]))
}

fn clippy(context: &Context<'_>) -> Result<()> {
    context.tools.component("clippy", "clippy")?;
    context.tools.target(WASM_TARGET)?;
    for mut clippy in [
        context
            .workspace
            .native(&["clippy", "--all-targets", SUITES]),
        context.traces("clippy"),
        context.in_envoy("clippy"),
    ] {
        command::run(clippy.args(["--", "--deny", "warnings"]))?;
    }
    Ok(())
}

fn docs(context: &Context<'_>) -> Result<()> {
    context.tools.target(WASM_TARGET)?;
    for mut doc in [context.workspace.native(&["doc"]), context.in_envoy("doc")] {
        doc.arg("--no-deps").env("RUSTDOCFLAGS", "--deny warnings");
        command::run(&mut doc)?;
    }
    Ok(())
}

fn deny(context: &Context<'_>) -> Result<()> {
    let program = context.tools.get(Tool::CargoDeny)?;
    let deny = |arguments: &[&str]| {
        let mut deny = context.workspace.program(&program, arguments);
        // If a network drops packets, git gives up soon.
        deny.env("GIT_HTTP_LOW_SPEED_LIMIT", "1000")
            .env("GIT_HTTP_LOW_SPEED_TIME", "20")
            .env("GIT_TERMINAL_PROMPT", "0");
        deny
    };
    command::run(&mut deny(&["check", "bans", "licenses", "sources"]))?;
    if let Err(error) = command::output(&mut deny(&["fetch", "db"])) {
        let why = error.to_string();
        let why = { why.lines() }.rfind(|line| !line.trim().is_empty());
        let why = why.unwrap_or_default().trim();
        let skipped = format!("advisories: skipped: no advisory database ({why})");
        context.ui.line(&skipped);
        return Ok(());
    }
    command::run(&mut deny(&["check", "advisories"]))
}

/// The server is compiled from packages of Debian's rolling suite, which need not fit forever, and not every
/// machine has them.
fn kubernetes(context: &Context<'_>) -> Result<()> {
    let built = if std::env::var_os(NO_KUBERNETES).is_some() {
        Err(anyhow!("{NO_KUBERNETES} is set"))
    } else {
        context.tools.get(Tool::ApiServer)
    };
    let built = built.and_then(|_| context.tools.get(Tool::Etcd));
    if let Err(why) = built {
        let skipped = format!("kubernetes: skipped: {why:#}");
        context.ui.line(&skipped);
        return Ok(());
    }
    context.run_tests(&mut context.suites(Step::Kubernetes)?)
}

/// Runs each test once, in two parts: first a plain `cargo test` without any server, which finds
/// tests that need one and are not marked; then the marked tests, with servers.
fn unit(context: &Context<'_>) -> Result<()> {
    let nextest = on_path("cargo-nextest").is_some();
    if nextest {
        // nextest does not run the examples in the documentation.
        command::run(&mut context.workspace.native(&["test", "--quiet", "--doc"]))?;
    }
    // The step `simulate` plays more seeds of them, in less time.
    let others =
        ["--filterset=not (binary_id(filter-core::simulation) | package(world))".to_owned()];
    let others = { others.into_iter() }.filter(|_| nextest && context.runner.is_empty());
    let mut tests = context.tests(others, &[]);
    tests.envs(SERVERS.map(|(variable, _)| (variable, NO_SERVER)));
    // Many of the limiter's wait: for timeouts, ticks and drains.
    at_once(&mut tests, 3);
    context.run_tests(&mut tests)?;
    let mut tests = context.tests(std::iter::empty(), &["--ignored"]);
    context.with(&mut tests, &[("RL_TEST_TZDATA", Tool::Tzdata)])?;
    at_once(&mut tests, 4);
    context.run_tests(&mut tests)?;
    if context.runner.is_empty() {
        command::run(&mut context.traces("test"))?;
    }
    Ok(())
}

/// Optimized, so that this many seeds are affordable, with what the step `world` runs. `SIMULATION_SEEDS`
/// and `SIMULATION_SEED` are passed on.
fn simulate(context: &Context<'_>) -> Result<()> {
    let mut tests = prove::simulations(context.workspace);
    tests.args(["--test=simulation", "--test=replay", "--"]);
    if std::env::var_os("SIMULATION_SEEDS").is_none() {
        tests.env("SIMULATION_SEEDS", SEEDS);
    }
    command::run(tests.args(&context.runner))
}

fn on_wasm(context: &Context<'_>) -> Result<()> {
    context.tools.target(WASM_TARGET)?;
    command::run(&mut context.workspace.native(&["build", "--bin=wasm-test"]))?;
    let subcommand = ["test", "--target", WASM_TARGET, "--tests"];
    let mut tests = context.workspace.cargo(&subcommand);
    for package in RUN_IN_ENVOY {
        tests.args(["--package", package]);
    }
    let runner = context.workspace.target.join("debug/wasm-test");
    tests
        .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER", runner)
        .env("RL_TEST_NODE", context.tools.get(Tool::Node)?)
        // Slightly optimised, they compile and run in two thirds of the time.
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
        .arg("--")
        .args(&context.runner);
    command::run(&mut tests)
}
