//! `cargo xtask fuzz`: every reader of strangers' bytes (`tests/fuzz`) under libFuzzer, which follows the
//! coverage that rustc builds in. That needs no nightly compiler; a panic, an overflow, a failed
//! assertion, a hang or too much memory ends it, and the input is in the message.

use std::num::NonZero;
use std::path::PathBuf;
use std::process::Command;
use std::thread::{self, available_parallelism};

use anyhow::{Context, Result, bail, ensure};

use crate::command::{self, Workspace};
use crate::tools::on_path;
use crate::ui::{Ui, help};

/// What libFuzzer follows: as cargo-fuzz builds it, without the address sanitizer, which needs a nightly
/// compiler and finds little in code without `unsafe`.
const COVERAGE: [&str; 8] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
    "-Ccodegen-units=1",
    "-Cdebug-assertions",
];
/// What readers spend their time in is optimized. Of the libraries most are only linked, or read a few inputs: they would
/// take the compiler as long as all else, also those that Cargo.toml optimizes for simulations.
const OPTIMIZED: [&str; 10] = [
    "--config=profile.dev.opt-level=1",
    "--config=profile.dev.package.\"*\".opt-level=0",
    "--config=profile.dev.package.granit-parser.opt-level=1",
    "--config=profile.dev.package.serde_json.opt-level=1",
    "--config=profile.dev.package.combine.opt-level=0",
    "--config=profile.dev.package.futures-util.opt-level=0",
    "--config=profile.dev.package.kubernetes.opt-level=0",
    "--config=profile.dev.package.redis.opt-level=0",
    "--config=profile.dev.package.redis-link.opt-level=0",
    "--config=profile.dev.package.tokio.opt-level=0",
];
/// Bound: bytes of an input.
const LENGTH_MAX: &str = "-max_len=16384";
/// The longest time for one input, in seconds, and the most memory, in MiB.
const BOUNDS: [&str; 2] = ["-timeout=10", "-rss_limit_mb=1024"];

/// Arguments of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub struct Args {
    /// How long each reader is tried, in seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Only these readers
    #[arg(long, value_name = "READER", value_delimiter = ',')]
    only: Vec<String>,
    /// Add what reached new code to the corpora in the repository, without what adds nothing
    #[arg(long)]
    keep: bool,
}

/// `cargo xtask fuzz`.
pub fn run(args: &Args, workspace: &Workspace, ui: &Ui) -> Result<()> {
    let known = readers(workspace)?;
    for name in &args.only {
        if !known.contains(name) {
            let hint = format!("the readers are {}", known.join(", "));
            bail!(help(format!("no reader `{name}`"), &[&hint]));
        }
    }
    let chosen = if args.only.is_empty() {
        &known
    } else {
        &args.only
    };
    ui.heading("Readers that take more than twice as long for twice the input");
    command::run(helper(workspace, &["grow"])?.args(chosen))?;
    let fuzzer = Fuzzer::try_each(workspace, ui, chosen, args.seconds)?;
    if args.keep {
        fuzzer.keep(workspace, chosen)?;
    }
    Ok(())
}

/// As long as each `cargo xtask test` tries each reader.
pub fn for_tests(workspace: &Workspace, ui: &Ui) -> Result<()> {
    if on_path("c++").is_none() {
        ui.line("fuzz: skipped: no C++ compiler");
        return Ok(());
    }
    Fuzzer::try_each(workspace, ui, &readers(workspace)?, 3).map(drop)
}

/// The names of the corpora, which are those of the readers.
fn readers(workspace: &Workspace) -> Result<Vec<String>> {
    let folder = workspace.root.join("tests/fuzz/corpus");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).context("tests/fuzz/corpus")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".txt").map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// The program `readers`.
fn helper(workspace: &Workspace, arguments: &[&str]) -> Result<Command> {
    command::run(&mut workspace.native(&["build", "--bin=readers"]))?;
    Ok(workspace.program(workspace.target.join("debug/readers"), arguments))
}

struct Fuzzer {
    program: PathBuf,
    /// The corpora as files, with what is found.
    corpora: PathBuf,
}

impl Fuzzer {
    /// Tries readers, as many at once as there are processors.
    fn try_each(workspace: &Workspace, ui: &Ui, readers: &[String], seconds: u64) -> Result<Self> {
        ui.heading("Fuzzer");
        let fuzzer = Self::build(workspace, readers)?;
        let processors = available_parallelism().map_or(1, NonZero::get);
        for some in readers.chunks(processors) {
            let results: Vec<_> = thread::scope(|scope| {
                let tries =
                    { some.iter() }.map(|name| (name, scope.spawn(|| fuzzer.run(name, seconds))));
                let tries: Vec<_> = tries.collect();
                { tries.into_iter() }
                    .map(|(name, tried)| (name, tried.join()))
                    .collect()
            });
            for (name, result) in results {
                let result = result.unwrap_or_else(|_| bail!("{name}: the thread panicked"));
                let [inputs, new] = result?;
                ui.line(&format!("{name}: {inputs} inputs, {new} of them new"));
            }
        }
        Ok(fuzzer)
    }

    fn build(workspace: &Workspace, readers: &[String]) -> Result<Self> {
        if on_path("c++").is_none() {
            let problem = "no C++ compiler, which libFuzzer needs";
            bail!(help(problem, &["install g++ or clang"]));
        }
        let target = workspace.rustc(&["--print", "host-tuple"])?;
        // With a target named, also for this machine: build scripts and macros are not instrumented, and are
        // those of every other build.
        let mut cargo = workspace.native(&["build", "--bin=fuzz", "--features=fuzz/libfuzzer"]);
        cargo
            .args(OPTIMIZED)
            .args(["--target", &target])
            .env("CARGO_ENCODED_RUSTFLAGS", COVERAGE.join("\u{1f}"))
            .env("CARGO_INCREMENTAL", "0");
        command::run(&mut cargo)?;
        let corpora = workspace.target.join("fuzz/corpus");
        let path = corpora.to_string_lossy();
        command::run(helper(workspace, &["unpack", &path])?.args(readers))?;
        Ok(Self {
            program: workspace.built(&target, "dev").join("fuzz"),
            corpora,
        })
    }

    fn command(&self, reader: &str) -> Command {
        let mut fuzz = Command::new(&self.program);
        fuzz.env("RL_FUZZ_READER", reader).args(BOUNDS);
        fuzz
    }

    /// Tries a reader; returns how many inputs it read, and how many of them reached something new.
    fn run(&self, reader: &str, seconds: u64) -> Result<[u64; 2]> {
        let mut fuzz = self.command(reader);
        fuzz.args([LENGTH_MAX, "-print_final_stats=1", "-verbosity=0"]);
        fuzz.arg(format!("-max_total_time={seconds}"));
        fuzz.arg(format!("-artifact_prefix={}/", self.corpora.display()));
        let output = fuzz.arg(self.corpora.join(reader)).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{reader}: {}", said.trim());
        let number = |name: &str| {
            let line = said.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|rest| rest.trim_start_matches(':').trim().parse().ok());
            number.with_context(|| format!("libFuzzer says no {name}: {}", said.trim()))
        };
        Ok([
            number("stat::number_of_executed_units")?,
            number("stat::new_units_added")?,
        ])
    }

    /// Reduces each corpus to inputs that reach different code, and writes it into the repository.
    fn keep(&self, workspace: &Workspace, readers: &[String]) -> Result<()> {
        let kept = self.corpora.with_file_name("kept");
        for reader in readers {
            let to = kept.join(reader);
            if to.exists() {
                std::fs::remove_dir_all(&to)?;
            }
            std::fs::create_dir_all(&to)?;
            let mut merge = self.command(reader);
            merge.args(["-merge=1", "-verbosity=0"]);
            command::run(merge.args([to, self.corpora.join(reader)]))?;
        }
        let path = kept.to_string_lossy();
        command::run(helper(workspace, &["pack", &path])?.args(readers))
    }
}
