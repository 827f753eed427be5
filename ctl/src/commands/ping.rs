//! `rlctl ping` and `rlctl load-scripts`.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use store::{PingReply, StoreError};
use tokio::time::{Instant, sleep};

use crate::{
    cli::{Global, Wait, examples},
    error::{Error, Exit},
    printer::Printer,
    render::{Page, Table, View, counted},
    session::Session,
};

/// Check that Redis answers, and how fast.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl ping"
    "rlctl ping --redis rediss://cache.example.com:6380 --timeout 3s"
    "rlctl ping --wait=1m                          # until Redis has started"
), mut_arg("wait", |arg| arg.help(
    "Wait until Redis answers, this long at most [default: 5s]"
)))]
pub struct Ping {
    #[command(flatten)]
    wait: Wait,
}

/// The time between two attempts of `--wait`.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

impl Ping {
    /// Prints which server answered, and how fast.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let pong = self.pong(&session).await;
        let pong = pong.map_err(|error| session.failed(&error))?;
        printer.data(&Report {
            address: session.store.address(),
            server: pong.server,
            version: pong.version,
            role: pong.role,
            nodes: pong.nodes,
            latency_us: u64::try_from(pong.latency.as_micros()).unwrap_or(u64::MAX),
        })?;
        Ok(Exit::Done)
    }

    async fn pong(&self, session: &Session<'_>) -> Result<PingReply, StoreError> {
        let deadline = Instant::now() + Duration::from_millis(self.wait.ms.unwrap_or(0));
        loop {
            match session.store.ping().await {
                // A server that starts, loads its data or follows a new primary answers later; a
                // wrong password stays wrong.
                Err(error)
                    if !matches!(error, StoreError::Auth(_)) && Instant::now() < deadline =>
                {
                    sleep(RETRY_INTERVAL).await;
                }
                pong => return pong,
            }
        }
    }
}

#[derive(Serialize)]
struct Report {
    address: String,
    server: String,
    version: Option<String>,
    role: Option<String>,
    nodes: usize,
    latency_us: u64,
}

impl View for Report {
    fn text(&self, _page: Page) -> String {
        let version = self
            .version
            .as_deref()
            .map(|v| format!(" {v}"))
            .unwrap_or_default();
        let role = self
            .role
            .as_deref()
            .map(|role| match self.nodes {
                1 => format!(", {role}"),
                nodes => format!(", {nodes} {role}s"),
            })
            .unwrap_or_default();
        // Hundredths of a millisecond.
        let hundredths = self.latency_us.div_ceil(10);
        let (ms, rest) = (hundredths / 100, hundredths % 100);
        let (address, server) = (&self.address, &self.server);
        format!("{address} answers in {ms}.{rest:02} ms ({server}{version}{role})\n")
    }

    fn names(&self) -> Vec<String> {
        vec![self.address.clone()]
    }
}

// --- `rlctl load-scripts`.

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
            session.call(session.store.load_scripts()).await?;
        }
        let scripts = session.call(session.store.scripts()).await?;
        let rows = scripts.into_iter().map(|script| Script {
            name: script.name,
            sha1: script.sha1,
            loaded: script.loaded,
        });
        let report = Scripts(rows.collect());
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
struct Scripts(Vec<Script>);

#[derive(Serialize)]
struct Script {
    name: &'static str,
    sha1: String,
    loaded: bool,
}

impl View for Scripts {
    fn text(&self, page: Page) -> String {
        Table::of(&self.0)
            .column("SCRIPT", |script| script.name)
            .column("LOADED", |script| if script.loaded { "yes" } else { "no" })
            .column("SHA1", |script| &script.sha1)
            .draw(page)
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().map(|script| script.name.to_owned()).collect()
    }
}
