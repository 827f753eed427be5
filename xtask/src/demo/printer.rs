//! The demo's output: 80 columns, colours only on a terminal.

use std::io::IsTerminal;

use anyhow::{Context, Result, bail};
use harness::{Reply, shown};
use tokio::process::Command;

/// The columns of all output.
const WIDTH: usize = 80;

/// Lines of a program's output that are shown whole.
const OUTPUT_LINES: usize = 16;

/// Writes the demo's output to stdout.
pub struct Printer {
    colour: bool,
}

impl Printer {
    /// Decides on colours by stdout and `NO_COLOR`.
    pub fn detect() -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            colour: std::io::stdout().is_terminal() && !no_color,
        }
    }

    /// Begins a step.
    pub fn heading(&self, title: &str) {
        let rule = "─".repeat(WIDTH.saturating_sub(title.chars().count() + 4));
        println!("\n{}", self.paint("1", &format!("── {title} {rule}")));
    }

    /// A sentence or two, wrapped.
    #[expect(clippy::unused_self, reason = "all output goes through the printer")]
    pub fn text(&self, text: &str) {
        println!();
        for line in wrap(text, WIDTH - 2) {
            println!("  {line}");
        }
    }

    /// A line that must not be broken, such as one of a table.
    #[expect(clippy::unused_self, reason = "all output goes through the printer")]
    pub fn line(&self, text: &str) {
        println!("  {text}");
    }

    /// A command as typed; a long one is broken with backslashes.
    pub fn command(&self, command: &str) {
        println!();
        let lines = wrap(&bind_options(command), WIDTH - 8);
        for (index, line) in lines.iter().enumerate() {
            let lead = if index == 0 { "$ " } else { "    " };
            let more = if index + 1 < lines.len() { " \\" } else { "" };
            let line = line.replace(BOUND, " ");
            println!("  {}", self.paint("36", &format!("{lead}{line}{more}")));
        }
    }

    /// A program's output; the middle of a long one is left out.
    pub fn output(&self, text: &str) {
        let lines: Vec<&str> = text.trim_end().lines().collect();
        let left_out = match lines.len() {
            0..=OUTPUT_LINES => 0..0,
            all => OUTPUT_LINES - 4..all - 2,
        };
        for (index, line) in lines.iter().enumerate() {
            if !left_out.contains(&index) {
                println!("  {}", self.paint("2", line));
            } else if index == left_out.start {
                println!(
                    "  {}",
                    self.paint("2", &format!("... {} more lines", left_out.len()))
                );
            }
        }
    }

    /// Shows a command, runs it, shows its output and returns its stdout.
    pub async fn run(&self, command: &mut Command) -> Result<String> {
        let typed = shown(command.as_std());
        self.command(&typed);
        let output = command
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .with_context(|| format!("cannot start `{typed}`"))?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        self.output(&String::from_utf8_lossy(&output.stderr));
        self.output(&stdout);
        if !output.status.success() {
            bail!("`{typed}` failed ({})", output.status);
        }
        Ok(stdout)
    }

    /// One line for a request and its answer, with the quota of `limit` only.
    pub fn exchange(&self, request: &str, limit: &str, reply: &Reply) {
        let colour = if reply.status == 200 { "32" } else { "33" };
        let status = self.paint(colour, reply.status.as_str());
        let quota = match reply.header("retry-after") {
            Some(seconds) => format!("Retry-After: {seconds}"),
            None => {
                quota(reply, limit).map_or_else(String::new, |quota| format!("RateLimit: {quota}"))
            }
        };
        println!("  {request}  {status}  {}", self.paint("2", &quota));
    }

    /// A whole answer, as `curl --include` shows it.
    pub fn whole(&self, reply: &Reply) {
        let reason = reply.status.canonical_reason().unwrap_or_default();
        println!(
            "\n  {}",
            self.paint(
                "33",
                &format!("HTTP/1.1 {} {reason}", reply.status.as_str())
            )
        );
        for (name, value) in &reply.headers {
            let value = String::from_utf8_lossy(value.as_bytes());
            for (index, line) in wrap(&format!("{name}: {value}"), WIDTH - 6)
                .iter()
                .enumerate()
            {
                let lead = if index == 0 { "" } else { "    " };
                println!("  {lead}{line}");
            }
        }
        println!();
        match reply.json() {
            Ok(json) => self.output(&format!("{json:#}")),
            Err(_) => self.output(&reply.text()),
        }
    }

    /// Reports an expectation that holds.
    pub fn ok(&self, text: &str) {
        println!("\n  {} {text}", self.paint("32", "✓"));
    }

    /// Text in a colour, if colours are on.
    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Stands for a space at which a line must not break.
const BOUND: &str = "\u{a0}";

/// Keeps an option and its value on one line.
fn bind_options(command: &str) -> String {
    let mut bound = String::new();
    let mut after_option = false;
    for word in command.split(' ') {
        let option = word.starts_with('-');
        if !bound.is_empty() {
            bound.push_str(if after_option && !option { BOUND } else { " " });
        }
        bound.push_str(word);
        after_option = option;
    }
    bound
}

/// The item of a `RateLimit` header that is about one limit.
fn quota<'r>(reply: &'r Reply, limit: &str) -> Option<&'r str> {
    let name = format!("\"{limit}\"");
    reply
        .header("ratelimit")?
        .split(", ")
        .find(|item| item.starts_with(&name))
}

/// Breaks at spaces, so that no line is longer than `width` unless one word is.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
