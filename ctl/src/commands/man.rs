//! `rlctl man`.

use std::path::PathBuf;

use clap::Args;

use crate::{args::examples, error::Error, exit::Exit, printer::Printer};

/// Print the manual.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl man | man -l -"
    "rlctl man --dir ~/.local/share/man/man1"
))]
pub struct Man {
    /// Write rlctl.1 and a page for every command to this folder.
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

impl Man {
    /// Writes the page or pages.
    pub fn run(&self, command: &clap::Command, printer: &Printer) -> Result<Exit, Error> {
        let failed = |error| Error::new(Exit::Usage, format!("cannot write the manual: {error}"));
        if let Some(dir) = &self.dir {
            std::fs::create_dir_all(dir)
                .and_then(|()| clap_mangen::generate_to(command.clone(), dir))
                .map_err(failed)?;
            printer.note(format_args!("wrote the manual to {}", dir.display()));
        } else {
            let mut page = Vec::new();
            clap_mangen::Man::new(command.clone())
                .render(&mut page)
                .map_err(failed)?;
            printer.raw(&String::from_utf8_lossy(&page))?;
        }
        Ok(Exit::Done)
    }
}
