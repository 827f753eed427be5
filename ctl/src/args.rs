//! The options that every command takes, and the examples of its help.

use clap::{Args, ValueEnum};

/// What every command takes.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Redis or Valkey [env: RLCTL_REDIS, RL_STORE, REDIS_URL; default: redis://127.0.0.1:6379].
    #[arg(long, global = true, value_name = "URL")]
    pub redis: Option<String>,

    /// The domain of the limits [env: RLCTL_DOMAIN; default: the only one there is].
    #[arg(long, global = true, value_name = "NAME")]
    pub domain: Option<String>,

    /// The prefix of every key in Redis [env: RL_KEY_PREFIX; default: rl:].
    #[arg(long, global = true, value_name = "PREFIX")]
    pub key_prefix: Option<String>,

    /// How long to wait for Redis, as in 500ms or 2s [env: RLCTL_TIMEOUT; default: 1s].
    #[arg(long, global = true, value_name = "TIME")]
    pub timeout: Option<String>,

    /// How results are written: table, wide, json, yaml or name.
    #[arg(
        short,
        long,
        global = true,
        value_name = "FORMAT",
        default_value = "table",
        hide_possible_values = true
    )]
    pub output: Format,

    /// When to use color: auto, always or never [env: NO_COLOR].
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true
    )]
    pub color: Color,

    /// Print only warnings and errors on stderr.
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

/// A duration in milliseconds, for flags.
pub fn millis(text: &str) -> Result<u64, String> {
    policy::parse_duration(text).map_err(|error| error.to_string())
}

/// How results are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// For people, with more columns.
    Wide,
    /// For programs.
    Json,
    /// For files; what `apply -f` reads.
    Yaml,
    /// Names only, one a line.
    Name,
}

/// When to use color.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal.
    Auto,
    /// Also in a pipe.
    Always,
    /// Not at all.
    Never,
}

/// The examples at the end of a command's help.
macro_rules! examples {
    ($($line:literal)*) => {
        concat!("\x1b[1m\x1b[4mExamples:\x1b[0m", $("\n  ", $line),*)
    };
}
pub(crate) use examples;
