//! The commands, one file each.

mod completions;
mod man;
mod validate;

use clap::Subcommand;

use crate::{error::Error, exit::Exit, printer::Printer};

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum Command {
    #[expect(missing_docs, reason = "each command's arguments say what it does")]
    Completions(completions::Completions),
    #[expect(missing_docs, reason = "likewise")]
    Man(man::Man),
    #[expect(missing_docs, reason = "likewise")]
    Validate(validate::Validate),
}

impl Command {
    /// Does it.
    pub fn run(self, printer: &Printer) -> Result<Exit, Error> {
        match self {
            Self::Completions(command) => command.run(printer),
            Self::Man(command) => command.run(printer),
            Self::Validate(command) => command.run(printer),
        }
    }
}
