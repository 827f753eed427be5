//! `rlctl export`.

use clap::Args;
use policy::Policy;
use serde::{Serialize, Serializer};
use store::Overrides;

use crate::{
    args::{Global, examples},
    error::Error,
    exit::Exit,
    printer::Printer,
    render::{Page, View},
    session::Session,
};

/// Print a domain as a limits file.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl export > limits.yaml"
    "rlctl export --domain shop -o json > shop.json"
    "rlctl export | rlctl --redis redis://staging:6379 apply -f -"
))]
pub struct Export {}

impl Export {
    /// YAML, unless JSON is asked for.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let policy = session.policy(Overrides::All).await?;
        printer.data(&File(policy))?;
        Ok(Exit::Done)
    }
}

struct File(Policy);

impl Serialize for File {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.to_node().serialize(serializer)
    }
}

impl View for File {
    fn text(&self, _page: Page) -> String {
        self.0.to_node().to_yaml()
    }

    fn names(&self) -> Vec<String> {
        self.0
            .limits
            .iter()
            .map(|limit| limit.name.to_string())
            .collect()
    }
}
