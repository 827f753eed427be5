//! The progress output of tasks: to stderr, in colour only on a terminal.

use std::fmt;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

/// The output of a task.
pub struct Ui {
    terminal: bool,
    colour: bool,
}

impl Ui {
    /// Decides on colours and the spinner by stderr and `NO_COLOR`.
    pub fn detect() -> Self {
        let terminal = std::io::stderr().is_terminal();
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            terminal,
            colour: terminal && !no_color,
        }
    }

    /// Starts a part of the work.
    pub fn heading(&self, text: &str) {
        eprintln!("\n{}", self.paint("1", text));
    }

    /// One line of a part.
    #[expect(clippy::unused_self, reason = "all talk goes through the same place")]
    pub fn line(&self, text: &str) {
        eprintln!("  {text}");
    }

    /// Runs one piece of work that may take a while: prints its name first, then the time it took.
    /// `work` must not write to the terminal itself.
    pub fn step<T>(&self, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let started = Instant::now();
        let spinner = self.terminal.then(|| spinner(name));
        if spinner.is_none() {
            eprintln!("  {name} ...");
        }
        let result = work();
        if let Some(spinner) = spinner {
            spinner.finish_and_clear();
        }
        let (mark, colour) = if result.is_ok() {
            ("done", "32")
        } else {
            ("failed", "31")
        };
        let mark = self.paint(colour, mark);
        eprintln!("  {name}: {mark} in {}", seconds(started.elapsed()));
        result
    }

    /// Reports why a task stopped, and the remedies.
    pub fn error(&self, error: &anyhow::Error) {
        eprintln!("\n{} {error}", self.paint("1;31", "error:"));
        for cause in error.chain().skip(1) {
            for (index, line) in cause.to_string().lines().enumerate() {
                let lead = if index == 0 {
                    "  because: "
                } else {
                    "           "
                };
                eprintln!("{lead}{line}");
            }
        }
        for remedy in error
            .downcast_ref::<Help>()
            .map(Help::remedies)
            .unwrap_or_default()
        {
            eprintln!("  {} {remedy}", self.paint("1;36", "try:"));
        }
    }

    /// `text` in the colour of an ANSI code, if colours are on.
    pub fn paint(&self, code: &str, text: &str) -> String {
        if self.colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
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

/// Shows that work is in progress, and for how long.
fn spinner(name: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("  {msg} {spinner} {elapsed}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner());
    let spinner = ProgressBar::new_spinner()
        .with_style(style)
        .with_message(name.to_owned());
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

/// A problem that a person can solve, and how.
#[derive(Debug)]
pub struct Help {
    problem: String,
    remedies: Vec<String>,
}

impl Help {
    /// States the problem; add at least one remedy.
    pub fn new(problem: impl Into<String>) -> Self {
        Self {
            problem: problem.into(),
            remedies: Vec::new(),
        }
    }

    /// Adds a remedy.
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedies.push(remedy.into());
        self
    }

    /// The remedies, best first.
    pub fn remedies(&self) -> &[String] {
        &self.remedies
    }
}

impl fmt::Display for Help {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

impl std::error::Error for Help {}
