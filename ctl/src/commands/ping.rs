//! `rlctl ping`.

use clap::Args;
use serde::Serialize;

use crate::{
    args::{Global, examples},
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
    "until rlctl ping -q; do sleep 1; done"
))]
pub struct Ping {}

impl Ping {
    /// Prints which server answered, and how fast.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let pong = session
            .store
            .ping()
            .await
            .map_err(|error| session.failed(&error))?;
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
