//! The commands, one file each.

mod completions;
mod man;

use clap::Subcommand;

use crate::{cli::Global, error::Error, exit::Exit, printer::Printer};

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum Command {
    #[expect(missing_docs, reason = "each command's arguments say what it does")]
    Completions(completions::Completions),
    #[expect(missing_docs, reason = "likewise")]
    Man(man::Man),
}

impl Command {
    /// Does it.
    pub async fn run(self, _global: &Global, printer: &Printer) -> Result<Exit, Error> {
        match self {
            Self::Completions(command) => command.run(printer),
            Self::Man(command) => command.run(printer),
        }
    }
}
