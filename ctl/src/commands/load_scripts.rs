//! `rlctl load-scripts`.

use clap::Args;
use serde::Serialize;

use crate::{
    args::{Global, examples},
    error::Error,
    exit::Exit,
    printer::Printer,
    render::{Page, Table, View, counted},
    session::Session,
};

/// Load the Lua scripts into Redis.
///
/// Limiters load a script themselves when Redis does not have it; this command warms up a new
/// server, or loads them where limiters may run scripts but not load them.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl load-scripts"
    "rlctl load-scripts --check || echo 'a limiter will have to load them'"
))]
pub struct LoadScripts {
    /// Load nothing; exit with 1 if a script is missing.
    #[arg(long)]
    check: bool,
}

impl LoadScripts {
    /// Loads the scripts unless `--check`, and lists them.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        if !self.check {
            let loaded = session.store.load_scripts().await;
            loaded.map_err(|error| session.failed(&error))?;
        }
        let scripts = session
            .store
            .scripts()
            .await
            .map_err(|error| session.failed(&error))?;
        let rows = scripts.into_iter().map(|script| Script {
            name: script.name,
            sha1: script.sha1,
            loaded: script.loaded,
        });
        let report = Report(rows.collect());
        printer.data(&report)?;
        let missing = report.0.iter().filter(|script| !script.loaded).count();
        if missing == 0 {
            return Ok(Exit::Done);
        }
        printer.warn(format_args!("{} missing", counted(missing, "script")));
        if self.check {
            printer.hint("`rlctl load-scripts` loads them");
        }
        Ok(Exit::No)
    }
}

#[derive(Serialize)]
#[serde(transparent)]
struct Report(Vec<Script>);

#[derive(Serialize)]
struct Script {
    name: &'static str,
    sha1: String,
    loaded: bool,
}

impl View for Report {
    fn text(&self, page: Page) -> String {
        let mut table = Table::new(["SCRIPT", "LOADED", "SHA1"]);
        for script in &self.0 {
            let loaded = if script.loaded { "yes" } else { "no" };
            table.row([
                script.name.to_owned(),
                loaded.to_owned(),
                script.sha1.clone(),
            ]);
        }
        table.draw(page)
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().map(|script| script.name.to_owned()).collect()
    }
}
