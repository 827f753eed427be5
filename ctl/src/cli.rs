//! The whole command line: the commands, their dispatch and the help that lists them.

use std::ffi::{OsStr, OsString};

use anstream::ColorChoice;
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};

use crate::{
    args::{Color, Global},
    commands::{
        apply, check, completions, convert, credit, delete_domain, delete_limit, denials,
        diff, doctor, exemption, explain, export, get_limit, history, inspect, list_domains,
        list_keys, list_limits, list_proxies, load_scripts, man, pause, ping, reset, rollback,
        set_limit, simulate, stats, top, validate,
    },
    error::Error,
    exit::Exit,
    printer::Printer,
};

mod help;

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

/// What can be done. Each command's own documentation is its help.
#[derive(Debug, Subcommand)]
#[expect(
    missing_docs,
    reason = "a comment here would replace the help that the commands give"
)]
pub enum Command {
    Apply(apply::Apply),
    Completions(completions::Completions),
    Convert(convert::Convert),
    Credit(credit::Credit),
    DeleteDomain(delete_domain::DeleteDomain),
    DeleteExemption(exemption::DeleteExemption),
    DeleteLimit(delete_limit::DeleteLimit),
    Denials(denials::Denials),
    Diff(diff::Diff),
    Export(export::Export),
    GetLimit(get_limit::GetLimit),
    ListDomains(list_domains::ListDomains),
    ListLimits(list_limits::ListLimits),
    ListProxies(list_proxies::ListProxies),
    LoadScripts(load_scripts::LoadScripts),
    Man(man::Man),
    Pause(pause::PauseCommand),
    Ping(ping::Ping),
    SetExemption(exemption::SetExemption),
    SetLimit(Box<set_limit::SetLimit>),
    Check(check::Check),
    Doctor(doctor::Doctor),
    Explain(explain::Explain),
    History(history::History),
    Inspect(inspect::Inspect),
    ListKeys(list_keys::ListKeys),
    Reset(reset::Reset),
    Resume(pause::Resume),
    Rollback(rollback::Rollback),
    Simulate(simulate::Simulate),
    Stats(stats::Stats),
    Top(top::Top),
    Validate(validate::Validate),
}

impl Command {
    /// Runs the command.
    pub async fn run(self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        match self {
            Self::Apply(args) => args.run(global, printer).await,
            Self::Completions(args) => args.run(&command(), global, printer).await,
            Self::Convert(args) => args.run(global, printer).await,
            Self::DeleteDomain(args) => args.run(global, printer).await,
            Self::DeleteExemption(args) => args.run(global, printer).await,
            Self::SetExemption(args) => args.run(global, printer).await,
            Self::Credit(args) => args.run(global, printer).await,
            Self::DeleteLimit(args) => args.run(global, printer).await,
            Self::Denials(args) => args.run(global, printer).await,
            Self::Diff(args) => args.run(global, printer).await,
            Self::Export(args) => args.run(global, printer).await,
            Self::GetLimit(args) => args.run(global, printer).await,
            Self::ListDomains(args) => args.run(global, printer).await,
            Self::ListLimits(args) => args.run(global, printer).await,
            Self::ListProxies(args) => args.run(global, printer).await,
            Self::LoadScripts(args) => args.run(global, printer).await,
            Self::Man(args) => args.run(&command(), printer),
            Self::Pause(args) => args.run(global, printer).await,
            Self::Ping(args) => args.run(global, printer).await,
            Self::SetLimit(args) => args.run(global, printer).await,
            Self::Check(args) => args.run(global, printer).await,
            Self::Doctor(args) => args.run(global, printer).await,
            Self::Explain(args) => args.run(global, printer).await,
            Self::History(args) => args.run(global, printer).await,
            Self::Inspect(args) => args.run(global, printer).await,
            Self::ListKeys(args) => args.run(global, printer).await,
            Self::Reset(args) => args.run(global, printer).await,
            Self::Resume(args) => args.run(global, printer).await,
            Self::Rollback(args) => args.run(global, printer).await,
            Self::Simulate(args) => args.run(global, printer).await,
            Self::Stats(args) => args.run(global, printer).await,
            Self::Top(args) => args.run(global, printer).await,
            Self::Validate(args) => args.run(global, printer).await,
        }
    }
}

/// The whole command tree, its help in groups.
pub fn command() -> clap::Command {
    help::grouped(Cli::command())
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
            .and_then(|value| Color::from_str(value, false).ok())
            .or(choice);
    }
    match choice {
        Some(Color::Always) => ColorChoice::Always,
        Some(Color::Never) => ColorChoice::Never,
        Some(Color::Auto) | None => ColorChoice::Auto,
    }
}
