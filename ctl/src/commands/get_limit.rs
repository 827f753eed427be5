//! `rlctl get-limit`.

use clap::Args;
use policy::Limit;
use serde::{Serialize, Serializer};
use store::Overrides;

use crate::{
    args::{Format, Global, examples},
    error::Error,
    exit::Exit,
    printer::Printer,
    render::{Page, View, limits},
    session::{self, Session},
};

/// Overrides that are shown to people.
const OVERRIDES_SHOWN: usize = 20;

/// Show everything about one limit.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl get-limit per-user"
    "rlctl get-limit per-user -o json | jq .rate"
))]
pub struct GetLimit {
    /// The limit.
    name: String,
}

impl GetLimit {
    /// Shows it as a limits file would.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let policy = session.policy(Overrides::None).await?;
        let found = session::find_limit(&policy, &self.name)?;
        let count = session.override_count(&policy.domain, found).await?;
        let max = match printer.format() {
            Format::Json | Format::Yaml => usize::MAX,
            _ => OVERRIDES_SHOWN,
        };
        let mut limit = found.clone();
        limit.overrides = session.some_overrides(&policy.domain, found, max).await?;
        session.warn_of_pause(&policy, &[self.name.as_str()]);
        printer.data(&Report { limit, count })?;
        printer.note(format_args!(
            "domain {}, last edited at revision {} of {}",
            policy.domain, found.generation, policy.revision.number
        ));
        Ok(Exit::Done)
    }
}

struct Report {
    limit: Limit,
    /// How many overrides there are.
    count: u64,
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.limit.to_node().serialize(serializer)
    }
}

impl View for Report {
    fn text(&self, _page: Page) -> String {
        limits::card(&self.limit, self.count)
    }

    fn names(&self) -> Vec<String> {
        vec![self.limit.name.to_string()]
    }
}
