//! The whole command line: the commands, their dispatch and the help that lists them.

use std::{
    ffi::{OsStr, OsString},
    fmt::Write as _,
};

use anstream::ColorChoice;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

#[cfg(feature = "controller")]
use crate::commands::controller;
use crate::{
    commands::{
        apply, check, completions, convert, delete_limit, denials, doctor, exemption, explain,
        history, inspect, list_keys, list_limits, list_proxies, pause, ping, replay, reset,
        set_limit, simulate, stats, suggest, test, top, validate,
    },
    error::{Error, Exit},
    printer::Printer,
};

/// Control plane of the rate limiter: edits limits, inspects and resets buckets.
#[derive(Debug, Parser)]
#[command(
    name = "rlctl",
    version,
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 100
)]
pub struct Cli {
    /// What every command takes.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands by task: what can be done, how, and which stand together in `rlctl --help`, in its order.
macro_rules! commands {
    ($($title:literal { $($(#[$only:meta])? $name:ident($args:ty),)* })*) => {
        /// What can be done. Each command's own documentation is its help.
        #[derive(Debug, Subcommand)]
        #[expect(
            missing_docs,
            reason = "a comment here would replace the help that the commands give"
        )]
        pub enum Command {
            $($($(#[$only])? $name($args),)*)*
        }

        impl Command {
            /// Runs the command.
            pub async fn run(self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
                match self {
                    $($($(#[$only])? Self::$name(args) => args.run(global, printer).await,)*)*
                }
            }
        }

        const GROUPS: &[(&str, &[&str])] =
            &[$(($title, &[$($(#[$only])? stringify!($name)),*])),*];
    };
}

commands! {
    "Limits" {
        ListLimits(list_limits::ListLimits),
        GetLimit(list_limits::GetLimit),
        SetLimit(Box<set_limit::SetLimit>),
        DeleteLimit(delete_limit::DeleteLimit),
        SetExemption(exemption::SetExemption),
        DeleteExemption(exemption::DeleteExemption),
        DeleteDomain(delete_limit::DeleteDomain),
        Validate(validate::Validate),
        Convert(convert::Convert),
        Diff(apply::Diff),
        Apply(apply::Apply),
        Export(list_limits::Export),
        History(history::History),
        Rollback(history::Rollback),
        Pause(pause::PauseCommand),
        Resume(pause::Resume),
    }
    "Live" {
        Inspect(inspect::Inspect),
        ListKeys(list_keys::ListKeys),
        Reset(reset::Reset),
        Credit(reset::Credit),
        Stats(stats::Stats),
        Denials(denials::Denials),
        Top(top::Top),
    }
    "What if" {
        Check(check::Check),
        Explain(explain::Explain),
        Test(test::Test),
        Replay(replay::ReplayCommand),
        Simulate(simulate::Simulate),
        Suggest(suggest::Suggest),
    }
    "Setup" {
        Ping(ping::Ping),
        Doctor(doctor::Doctor),
        LoadScripts(ping::LoadScripts),
        ListDomains(list_limits::ListDomains),
        ListProxies(list_proxies::ListProxies),
        #[cfg(feature = "controller")]
        Controller(controller::Controller),
        Completions(completions::Completions),
        Man(completions::Man),
    }
}

impl Command {
    /// Whether it ends by itself at Ctrl-C, with what it did so far.
    pub fn handles_interrupt(&self) -> bool {
        match self {
            Self::Replay(_) => true,
            Self::Suggest(suggest) => suggest.reads_logs(),
            _ => false,
        }
    }
}

/// The whole command tree, its help in groups.
pub fn command() -> clap::Command {
    grouped(Cli::command())
}

/// The value of `--color`. It is read first, because errors in the rest of the command line are
/// colored as well.
pub fn color_choice(arguments: &[OsString]) -> ColorChoice {
    let mut words = arguments.iter().map(OsString::as_os_str);
    let mut choice = None;
    while let Some(word) = words.next().filter(|word| *word != "--") {
        let value = match word.to_str() {
            Some("--color") => words.next().and_then(OsStr::to_str),
            Some(word) => word.strip_prefix("--color="),
            None => None,
        };
        choice = value
            .and_then(|value| clap::ColorChoice::from_str(value, false).ok())
            .or(choice);
    }
    match choice {
        Some(clap::ColorChoice::Always) => ColorChoice::Always,
        Some(clap::ColorChoice::Never) => ColorChoice::Never,
        Some(clap::ColorChoice::Auto) | None => ColorChoice::Auto,
    }
}

// --- `rlctl --help`: the commands in groups, by task.

/// Examples come before the options: they are what most people look for.
const COMMAND_TEMPLATE: &str =
    "{about-with-newline}\n{usage-heading} {usage}{after-help}\n\n{all-args}\n";

const CONNECTION: &str = "\
A Redis URL is redis://[[user]:password@]host[:port][/db], or rediss:// with TLS; valkey:// and \
valkeys:// are the same. redis-sentinel://host:port,host:port/service finds the primary by Sentinel, \
redis-cluster://host:port,host:port is a Cluster. Put one with a password into the environment: arguments are visible to \
other users of the machine.

Exit codes: 0 done or yes, 1 the answer is no, 2 usage, 3 Redis unreachable, 4 authentication, \
5 not found, 6 conflict, 7 declined, 8 refused by Redis, 9 written but not in force everywhere \
yet (--wait), 130 interrupted.";

/// Replaces clap's one long list of commands.
pub fn grouped(command: clap::Command) -> clap::Command {
    let listing = listing(&command);
    let template =
        format!("{{about}}\n\n{{usage-heading}} {{usage}}\n\n{listing}{{options}}{{after-help}}\n");
    command
        .mut_subcommands(|sub| sub.help_template(COMMAND_TEMPLATE))
        .help_template(template)
        .after_help(CONNECTION)
}

fn listing(command: &clap::Command) -> String {
    let mut commands = command.get_subcommands();
    let names = command.get_subcommands().map(clap::Command::get_name);
    let width = names.map(str::len).max().unwrap_or(0);
    let mut listing = String::new();
    for (title, names) in GROUPS {
        let _ = writeln!(listing, "\x1b[1m\x1b[4m{title}:\x1b[0m");
        for sub in commands.by_ref().take(names.len()) {
            let name = sub.get_name();
            let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(listing, "  \x1b[1m{name:width$}\x1b[0m  {about}");
        }
        listing.push('\n');
    }
    listing
}

// --- The options that every command takes, and the examples of its help.

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
    pub color: clap::ColorChoice,

    /// Print only warnings and errors on stderr.
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

/// How long to wait. Commands that wait for something else replace the help.
#[derive(Clone, Copy, Debug, Args)]
pub struct Wait {
    /// Wait until every live limiter and proxy has the edit, this long at most [default: 5s].
    #[arg(
        long = "wait",
        id = "wait",
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "5s",
        value_parser = millis
    )]
    pub ms: Option<u64>,
}

/// A duration in milliseconds, for flags.
fn millis(text: &str) -> Result<u64, String> {
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

/// The examples at the end of a command's help.
macro_rules! examples {
    ($($line:literal)*) => {
        concat!("\x1b[1m\x1b[4mExamples:\x1b[0m", $("\n  ", $line),*)
    };
}
pub(crate) use examples;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_edit_takes_yes() {
        let command = Cli::command();
        let takes = |sub: &clap::Command, long: &str| {
            let mut options = sub.get_arguments().filter_map(clap::Arg::get_long);
            options.any(|option| option == long)
        };
        let edits: Vec<&clap::Command> = { command.get_subcommands() }
            .filter(|sub| takes(sub, "dry-run"))
            .collect();
        assert!(edits.len() > 10);
        for edit in edits {
            assert!(takes(edit, "yes"), "{}", edit.get_name());
        }
    }

    #[test]
    fn every_command_has_examples() {
        for sub in Cli::command().get_subcommands() {
            let examples = sub.get_after_help().map(ToString::to_string);
            assert!(
                examples.is_some_and(|text| text.contains("rlctl")),
                "{}",
                sub.get_name()
            );
        }
    }

    #[test]
    fn the_tree_is_sound() {
        grouped(Cli::command()).debug_assert();
    }
}
