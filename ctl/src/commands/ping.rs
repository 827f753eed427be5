//! `rlctl ping`.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use store::{PingReply, StoreError};
use tokio::time::{Instant, sleep};

use crate::{
    args::{Global, examples, millis},
    error::Error,
    exit::Exit,
    printer::Printer,
    render::{Page, View},
    session::Session,
};

/// Check that Redis answers, and how fast.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl ping"
    "rlctl ping --redis rediss://cache.example.com:6380 --timeout 3s"
    "rlctl ping --wait=1m                          # until Redis has started"
))]
pub struct Ping {
    /// Wait until Redis answers, this long at most [default: 5s].
    #[arg(
        long,
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "5s",
        value_parser = millis
    )]
    wait: Option<u64>,
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
        let deadline = Instant::now() + Duration::from_millis(self.wait.unwrap_or(0));
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
