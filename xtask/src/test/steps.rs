//! The steps of `cargo xtask test`.

use std::fmt;
use std::process::Command;

use anyhow::Result;
use clap::ValueEnum;

use super::context::{Context, Which};
use crate::command;
use crate::dist;
use crate::tools::WASM_TARGET;
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

/// The path of a server that does not exist.
const NO_SERVER: &str = "/nonexistent/server";

/// One thing that must hold, in the order of running: what fails fastest first,
/// the tests last, so that their summary is what the eye falls on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Step {
    /// Formatting
    Fmt,
    /// Clippy, warnings denied
    Clippy,
    /// Documentation, warnings denied
    Docs,
    /// Licences, sources and banned crates; advisories where their database can be had
    Deny,
    /// Unit and property tests, with real Redis and Valkey where they matter
    Unit,
    /// The filter in a simulated world, a thousand seeds of it
    Simulate,
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
    /// End to end through real Envoy
    E2e,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            self.to_possible_value()
                .as_ref()
                .map_or("", |value| value.get_name()),
        )
    }
}

impl Step {
    /// Its heading.
    pub fn title(self) -> &'static str {
        match self {
            Self::Fmt => "Formatting",
            Self::Clippy => "Clippy: natively, and the filter on wasm32",
            Self::Docs => "Documentation",
            Self::Deny => "Licences, sources, banned crates and known vulnerabilities",
            Self::Unit => "Unit and property tests, with Redis and Valkey",
            Self::Simulate => "The filter in a simulated world, 1000 seeds",
            Self::Wasm => "Tests on wasm32, under Node",
            Self::Deploy => "Deployment files, by the programs they are for",
            Self::Dist => "A release's programs, images and files, as their users use them",
            Self::Api => "The HTTP API's description, against a real limiter",
            Self::Page => "The limiter's page, in headless Chromium",
            Self::E2e => "End to end, through Envoy",
        }
    }

    /// Runs the step.
    pub fn run(self, context: &Context<'_>) -> Result<()> {
        match self {
            Self::Fmt => fmt(context),
            Self::Clippy => clippy(context),
            Self::Docs => docs(context),
            Self::Deny => deny(context),
            Self::Unit => unit(context),
            Self::Simulate => simulate(context),
            Self::Wasm => on_wasm(context),
            Self::Deploy => deploy(context),
            Self::Dist => artifacts(context),
            Self::Api => api(context),
            Self::Page => page(context),
            Self::E2e => e2e(context),
        }
    }
}

fn fmt(context: &Context<'_>) -> Result<()> {
    context.tools.component("rustfmt", "fmt")?;
    command::run(&mut context.cargo(&["fmt", "--all", "--check"]))
}

fn clippy(context: &Context<'_>) -> Result<()> {
    context.tools.component("clippy", "clippy")?;
    context.tools.target(WASM_TARGET)?;
    let deny = ["--", "--deny", "warnings"];
    command::run(
        context
            .native(&["clippy", "--all-targets", SUITES])
            .args(deny),
    )?;
    command::run(traces(context, &["clippy", "--all-targets"]).args(deny))?;
    command::run(context.in_envoy("clippy").args(deny))
}

fn docs(context: &Context<'_>) -> Result<()> {
    context.tools.target(WASM_TARGET)?;
    let deny = ("RUSTDOCFLAGS", "--deny warnings");
    command::run(context.native(&["doc", "--no-deps"]).env(deny.0, deny.1))?;
    command::run(context.in_envoy("doc").arg("--no-deps").env(deny.0, deny.1))
}

fn deny(context: &Context<'_>) -> Result<()> {
    let program = context.tools.cargo_deny()?;
    let deny = |arguments: &[&str]| {
        let mut deny = Command::new(&program);
        deny.current_dir(&context.workspace.root).args(arguments);
        // If a network drops packets, git gives up soon.
        deny.env("GIT_HTTP_LOW_SPEED_LIMIT", "1000")
            .env("GIT_HTTP_LOW_SPEED_TIME", "20")
            .env("GIT_TERMINAL_PROMPT", "0");
        deny
    };
    command::run(&mut deny(&["check", "bans", "licenses", "sources"]))?;
    if let Err(error) = command::output(&mut deny(&["fetch", "db"])) {
        let why = error.to_string();
        let why = why.lines().rfind(|line| !line.trim().is_empty());
        context.ui.line(&format!(
            "advisories: skipped: no advisory database ({})",
            why.unwrap_or_default().trim()
        ));
        return Ok(());
    }
    command::run(&mut deny(&["check", "advisories"]))
}

/// Runs each test once, in two parts: first a plain `cargo test` without any server, which finds
/// tests that need one and are not marked; then the marked tests, with servers.
fn unit(context: &Context<'_>) -> Result<()> {
    if context.tools.has_nextest() {
        // nextest does not run the examples in the documentation.
        command::run(&mut context.native(&["test", "--quiet", "--doc"]))?;
    }
    let mut tests = context.tests(&[], Which::Usual);
    for variable in ["RL_TEST_REDIS", "RL_TEST_VALKEY"] {
        tests.env(variable, NO_SERVER);
    }
    command::run(&mut tests)?;
    let mut tests = context.tests(&[], Which::Ignored);
    context.with_servers(&mut tests)?;
    tests.env("RL_TEST_TZDATA", context.tools.tzdata()?);
    command::run(&mut tests)?;
    if context.runner.is_empty() {
        command::run(traces(context, &["test"]).args(["--test", "tracing"]))?;
    }
    Ok(())
}

/// cargo for the limiter with traces, a feature that no other step builds.
fn traces(context: &Context<'_>, subcommand: &[&str]) -> Command {
    let mut cargo = context.cargo(subcommand);
    cargo.args(["--package=limiter", "--features=otel"]);
    cargo
}

/// Optimized, so that this many seeds are affordable. `SIMULATION_SEEDS` and `SIMULATION_SEED` are
/// passed on.
fn simulate(context: &Context<'_>) -> Result<()> {
    let mut tests = context.cargo(&["test", "--release", "--package", "filter-core"]);
    tests.args(["--test", "simulation"]);
    if std::env::var_os("SIMULATION_SEEDS").is_none() {
        tests.env("SIMULATION_SEEDS", "1000");
    }
    command::run(tests.arg("--").args(&context.runner))
}

fn on_wasm(context: &Context<'_>) -> Result<()> {
    context.tools.target(WASM_TARGET)?;
    command::run(&mut context.cargo(&["build", "--package", "wasm-test"]))?;
    let mut tests = context.cargo(&["test", "--target", WASM_TARGET, "--tests"]);
    for package in RUN_IN_ENVOY {
        tests.args(["--package", package]);
    }
    tests
        .env(
            "CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER",
            context.workspace.target.join("debug/wasm-test"),
        )
        .env("RL_TEST_NODE", context.tools.node()?)
        // Slightly optimised, they compile and run in two thirds of the time.
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
        .arg("--")
        .args(&context.runner);
    command::run(&mut tests)
}

fn deploy(context: &Context<'_>) -> Result<()> {
    let mut tests = through_envoy(context, &["--test=deploy"])?;
    tests
        .env("RL_TEST_CHECKERS", context.tools.checkers()?)
        .env("RL_TEST_DEFINITIONS", context.tools.definitions()?)
        .env("RL_TEST_KUBECTL", context.tools.kubectl()?)
        .env("RL_TEST_NODE", context.tools.node()?)
        .env("RL_TEST_PROMTOOL", context.tools.promtool()?)
        .env("RL_TEST_PROMETHEUS", context.tools.prometheus()?);
    if cfg!(target_arch = "x86_64") {
        tests.env("RL_TEST_HELM", context.tools.helm()?);
    }
    command::run(&mut tests)
}

/// For this machine's processor only: each takes minutes to compile.
fn artifacts(context: &Context<'_>) -> Result<()> {
    let artifacts = dist::for_tests(context.workspace, context.ui)?;
    let mut tests = context.tests(&[SUITES, "--test", "dist"], Which::Usual);
    context.with_servers(&mut tests)?;
    tests
        .env("RL_TEST_ARTIFACTS", artifacts)
        .env(
            "RL_TEST_FILTER",
            context.workspace.target.join("filter.wasm"),
        )
        .env("RL_TEST_ENVOY", context.tools.envoy()?)
        .env("RL_TEST_SKOPEO", context.tools.debian("skopeo", "5 MB")?)
        .env("RL_TEST_UMOCI", context.tools.debian("umoci", "2 MB")?)
        .env("RL_TEST_RUNC", context.tools.debian("runc", "3 MB")?)
        .env(
            "RL_TEST_REGISTRY",
            context.tools.debian("docker-registry", "5 MB")?,
        )
        .env("RL_TEST_DIST_CHECKERS", context.tools.dist_checkers()?);
    command::run(&mut tests)
}

fn api(context: &Context<'_>) -> Result<()> {
    let mut tests = with_programs(context, "api")?;
    tests
        .env("RL_TEST_SCHEMATHESIS", context.tools.schemathesis()?)
        .env("RL_TEST_GO", context.tools.go()?)
        .env("RL_TEST_NODE", context.tools.node()?);
    command::run(&mut tests)
}

fn page(context: &Context<'_>) -> Result<()> {
    let mut tests = with_programs(context, "page")?;
    tests.env("RL_TEST_CHROMIUM", context.tools.chromium()?);
    command::run(&mut tests)
}

/// Draws the pictures in `docs/pictures`.
pub fn pictures(context: &Context<'_>) -> Result<()> {
    let mut tests = with_programs(context, "page")?;
    tests
        .arg("pictures_are_made")
        .env("RL_TEST_CHROMIUM", context.tools.chromium()?)
        .env("RL_PICTURES", context.workspace.root.join("docs/pictures"));
    command::run(&mut tests)
}

/// A suite that runs the built programs, without Envoy.
fn with_programs(context: &Context<'_>, suite: &str) -> Result<Command> {
    command::run(&mut context.native(&["build", "--bins"]))?;
    let mut tests = context.tests(&[SUITES, "--test", suite], Which::Usual);
    context.with_servers(&mut tests)?;
    Ok(tests)
}

fn e2e(context: &Context<'_>) -> Result<()> {
    let suites = ["--test=envoy", "--test=rate_limit_service"];
    let mut tests = through_envoy(context, &suites)?;
    command::run(tests.env("RL_TEST_GRPC", context.tools.grpc()?))
}

/// Suites that run the built filter in Envoy.
fn through_envoy(context: &Context<'_>, suites: &[&str]) -> Result<Command> {
    let filter = wasm::build(context.workspace, context.ui)?;
    command::run(&mut context.native(&["build", "--bins"]))?;
    let mut tests = context.tests(&[&[SUITES], suites].concat(), Which::Usual);
    context.with_servers(&mut tests)?;
    tests
        .env("RL_TEST_FILTER", filter)
        .env("RL_TEST_ENVOY", context.tools.envoy()?);
    Ok(tests)
}
