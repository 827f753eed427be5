//! The commands, one file each.

mod apply;
mod check;
mod completions;
mod context;
mod credit;
mod delete_domain;
mod delete_limit;
mod denials;
mod diff;
mod doctor;
mod explain;
mod export;
mod get_limit;
mod history;
mod inspect;
mod list_domains;
mod list_keys;
mod list_limits;
mod list_proxies;
mod load_scripts;
mod man;
mod pause;
mod ping;
mod reset;
mod rollback;
mod set_limit;
mod simulate;
mod stats;
mod top;
mod validate;

use clap::Subcommand;

use crate::{cli::Global, error::Error, exit::Exit, printer::Printer};

/// What can be done. Each command's own documentation is its help.
#[derive(Debug, Subcommand)]
#[expect(
    missing_docs,
    reason = "a comment here would replace the help that the commands give"
)]
pub enum Command {
    Apply(apply::Apply),
    Completions(completions::Completions),
    Context(context::ContextCommand),
    Credit(credit::Credit),
    DeleteDomain(delete_domain::DeleteDomain),
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
    /// Does it.
    pub async fn run(self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        match self {
            Self::Apply(command) => command.run(global, printer).await,
            Self::Completions(command) => command.run(global, printer).await,
            Self::Context(command) => command.run(global, printer),
            Self::DeleteDomain(command) => command.run(global, printer).await,
            Self::Credit(command) => command.run(global, printer).await,
            Self::DeleteLimit(command) => command.run(global, printer).await,
            Self::Denials(command) => command.run(global, printer).await,
            Self::Diff(command) => command.run(global, printer).await,
            Self::Export(command) => command.run(global, printer).await,
            Self::GetLimit(command) => command.run(global, printer).await,
            Self::ListDomains(command) => command.run(global, printer).await,
            Self::ListLimits(command) => command.run(global, printer).await,
            Self::ListProxies(command) => command.run(global, printer).await,
            Self::LoadScripts(command) => command.run(global, printer).await,
            Self::Man(command) => command.run(printer),
            Self::Pause(command) => command.run(global, printer).await,
            Self::Ping(command) => command.run(global, printer).await,
            Self::SetLimit(command) => command.run(global, printer).await,
            Self::Check(command) => command.run(global, printer).await,
            Self::Doctor(command) => command.run(global, printer).await,
            Self::Explain(command) => command.run(global, printer).await,
            Self::History(command) => command.run(global, printer).await,
            Self::Inspect(command) => command.run(global, printer).await,
            Self::ListKeys(command) => command.run(global, printer).await,
            Self::Reset(command) => command.run(global, printer).await,
            Self::Resume(command) => command.run(global, printer).await,
            Self::Rollback(command) => command.run(global, printer).await,
            Self::Simulate(command) => command.run(global, printer).await,
            Self::Stats(command) => command.run(global, printer).await,
            Self::Top(command) => command.run(global, printer).await,
            Self::Validate(command) => command.run(printer).await,
        }
    }
}
