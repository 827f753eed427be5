//! The progress output of tasks: to stderr, in colour only on a terminal.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Result;
use console::{StyledObject, style};

/// The output of a task.
pub struct Ui;

/// Text for stderr, which may get a colour.
pub fn styled(text: impl fmt::Display) -> StyledObject<String> {
    style(text.to_string()).for_stderr()
}

#[expect(clippy::unused_self, reason = "all talk goes through the same place")]
impl Ui {
    /// Starts a part of the work.
    pub fn heading(&self, text: &str) {
        eprintln!("\n{}", styled(text).bold());
    }

    /// One line of a part.
    pub fn line(&self, text: &str) {
        eprintln!("  {text}");
    }

    /// Runs one piece of work that may take a while: prints its name first, then the time it took.
    pub fn step<T>(&self, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let started = Instant::now();
        eprintln!("  {name} ...");
        let result = work();
        let mark = mark(result.is_ok(), "done");
        eprintln!("  {name}: {mark} in {}", seconds(started.elapsed()));
        result
    }

    /// Reports why a task stopped, and the remedies.
    pub fn error(&self, error: &anyhow::Error) {
        eprintln!("\n{} {error}", styled("error:").red().bold());
        for cause in error.chain().skip(1) {
            let cause = cause.to_string().replace('\n', "\n           ");
            eprintln!("  because: {cause}");
        }
        if let Some(Help(_, remedies)) = error.downcast_ref::<Help>() {
            for remedy in remedies {
                eprintln!("  {} {remedy}", styled("try:").cyan().bold());
            }
        }
    }
}

/// `good`, or that it failed.
pub fn mark(is_good: bool, good: &str) -> StyledObject<String> {
    if is_good {
        styled(good).green()
    } else {
        styled("failed").red()
    }
}

/// A duration as text: `0.3 s`, `12.0 s`, `3 min 05 s`.
pub fn seconds(duration: Duration) -> String {
    let whole = duration.as_secs();
    if whole < 60 {
        format!("{whole}.{} s", duration.subsec_millis() / 100)
    } else {
        format!("{} min {:02} s", whole / 60, whole % 60)
    }
}

/// A problem that a person can solve, and the remedies, best first.
#[derive(Debug)]
pub struct Help(String, Vec<String>);

/// States a problem, and at least one remedy.
pub fn help(problem: impl Into<String>, remedies: &[&str]) -> Help {
    let remedies = remedies.iter().map(ToString::to_string);
    Help(problem.into(), remedies.collect())
}

impl fmt::Display for Help {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Help {}
