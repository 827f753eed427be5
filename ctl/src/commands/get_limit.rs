//! `rlctl get-limit`.

use clap::Args;
use policy::Limit;
use serde::{Serialize, Serializer};
use store::Overrides;

use crate::{
    cli::{Global, examples},
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
        let mut policy = session.policy(Overrides::None).await?;
        let limit = session::find_limit(&policy, &self.name)?;
        if session.override_count(&policy.domain, limit).await? > 0 {
            policy = session.policy(Overrides::All).await?;
        }
        let limit = session::find_limit(&policy, &self.name)?;
        session.warn_of_pause(&policy, &[self.name.as_str()]);
        printer.data(&Report(limit))?;
        printer.note(format_args!(
            "domain {}, last edited at revision {} of {}",
            policy.domain, limit.generation, policy.revision.number
        ));
        Ok(Exit::Done)
    }
}

struct Report<'l>(&'l Limit);

impl Serialize for Report<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.to_node().serialize(serializer)
    }
}

impl View for Report<'_> {
    fn text(&self, _page: Page) -> String {
        limits::card(self.0, OVERRIDES_SHOWN)
    }

    fn names(&self) -> Vec<String> {
        vec![self.0.name.to_string()]
    }
}
