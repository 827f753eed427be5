//! Instructions per check, which the load of the machine does not change.
//!
//! Each server is run under valgrind's callgrind in turn, which counts the instructions of the process but
//! not those of the kernel.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use harness::{Process, Programs, free_port};
use tempfile::TempDir;

use super::h2c::H2c;
use super::ready::Servers;
use super::setups::LIMITS;
use crate::command;
use crate::tools::{make_executable, on_path};

/// Calls that are counted, and as many before that are not.
const CALLS: u64 = 640;

/// The shapes of load: their name, calls at once, and checks a call.
const SHAPES: [(&str, u64, u64); 3] = [
    ("one check at a time", 1, 1),
    ("32 calls at once", 32, 1),
    ("batches of eight", 1, 8),
];

/// Counts, and prints a table.
pub async fn run(programs: &Programs) -> Result<String> {
    let Some(valgrind) = on_path("valgrind") else {
        return Ok("instructions: not counted: no valgrind on PATH\n".to_owned());
    };
    let [limiter, redis] = ["limiter", "redis"].map(|name| Counter::new(&valgrind, name));
    let (limiter, redis) = (limiter?, redis?);
    let of_limiter = Programs {
        limiter: limiter.wrap(&programs.limiter)?,
        ..programs.clone()
    };
    let of_redis = Programs {
        redis: redis.wrap(&programs.redis)?,
        ..programs.clone()
    };
    let servers = Servers::start(&of_limiter, LIMITS, &[free_port()?]).await?;
    let limiter = limiter
        .count(&servers, servers.limiter()?.process())
        .await?;
    let servers = Servers::start(&of_redis, LIMITS, &[free_port()?]).await?;
    let redis = redis.count(&servers, servers.redis.process()).await?;
    let mut table = format!(
        "{:<24}{:>11}{:>11}\n",
        "instructions a check", "limiter", "Redis"
    );
    for ((shape, limiter), redis) in SHAPES.iter().zip(limiter).zip(redis) {
        // Writing to a String cannot fail.
        let _ = writeln!(table, "{:<24}{limiter:>11}{redis:>11}", shape.0);
    }
    Ok(table)
}

/// Counts the instructions of one program.
struct Counter {
    valgrind: PathBuf,
    dir: TempDir,
    name: &'static str,
}

impl Counter {
    fn new(valgrind: &Path, name: &'static str) -> Result<Self> {
        Ok(Self {
            valgrind: valgrind.to_path_buf(),
            dir: tempfile::tempdir()?,
            name,
        })
    }

    /// A script that runs the program under callgrind.
    fn wrap(&self, program: &Path) -> Result<PathBuf> {
        let script = self.dir.path().join(self.name);
        let text = format!(
            "#!/bin/sh\nexec '{}' --tool=callgrind --trace-children=yes --instr-atstart=no '--callgrind-out-file={}' '{}' \"$@\"\n",
            self.valgrind.display(),
            self.dir.path().join("counts").display(),
            program.display()
        );
        std::fs::write(&script, text)?;
        make_executable(&script)?;
        Ok(script)
    }

    /// Instructions a check, for each shape.
    async fn count(&self, servers: &Servers, process: &Process) -> Result<Vec<u64>> {
        let limiter = H2c::connect(servers.limiter()?).await?;
        let control = |order: &[&str]| {
            let mut control = Command::new("callgrind_control");
            command::output(control.args(order).arg(process.id().to_string())).map(drop)
        };
        control(&["-i", "on"])?;
        let mut counts = Vec::new();
        for (number, (_, at_once, checks)) in SHAPES.into_iter().enumerate() {
            limiter.make(CALLS, at_once, checks).await?;
            control(&["-z"])?;
            limiter.make(CALLS, at_once, checks).await?;
            control(&["--dump"])?;
            let dump = self.dir.path().join(format!("counts.{}", number + 1));
            counts.push(summary(&dump)? / (CALLS * checks));
        }
        Ok(counts)
    }
}

/// The instructions of a dump.
fn summary(dump: &Path) -> Result<u64> {
    let text = std::fs::read_to_string(dump)
        .with_context(|| format!("callgrind wrote no {}", dump.display()))?;
    let mut lines = text.lines();
    let counted = lines.find_map(|line| {
        let count = line
            .strip_prefix("summary: ")
            .or(line.strip_prefix("totals: "));
        count?.trim().parse().ok()
    });
    let counted = counted.context("callgrind counted nothing")?;
    ensure!(counted > 0, "callgrind counted nothing");
    Ok(counted)
}
