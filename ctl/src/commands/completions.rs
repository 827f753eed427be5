//! `rlctl completions`.

use clap::Args;
use clap_complete::{Shell, generate};

use crate::{
    cli::{self, examples},
    error::Error,
    exit::Exit,
    printer::Printer,
};

/// Print the completion script of a shell.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl completions bash > ~/.local/share/bash-completion/completions/rlctl"
    "rlctl completions zsh > ~/.zfunc/_rlctl"
    "rlctl completions fish > ~/.config/fish/completions/rlctl.fish"
))]
pub struct Completions {
    /// The shell.
    shell: Shell,
}

impl Completions {
    /// Writes the script to stdout.
    pub fn run(&self, printer: &Printer) -> Result<Exit, Error> {
        let mut script = Vec::new();
        generate(self.shell, &mut cli::command(), "rlctl", &mut script);
        printer.raw(&String::from_utf8_lossy(&script))?;
        Ok(Exit::Done)
    }
}
