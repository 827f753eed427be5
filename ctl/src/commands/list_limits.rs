//! `rlctl list-limits`.

use clap::Args;
use policy::{Limit, Policy};
use serde::{Serialize, Serializer, ser::SerializeStruct};
use store::Overrides;

use crate::{
    cli::{Global, examples},
    error::Error,
    exit::Exit,
    printer::Printer,
    render::{Page, View, limits},
    session::Session,
};

/// List the limits of a domain.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl list-limits"
    "rlctl list-limits --domain shop -o wide"
    "rlctl list-limits -o json | jq -r '.limits[] | [.name, .rate] | @tsv'"
))]
pub struct ListLimits {}

impl ListLimits {
    /// Lists them in the order of the policy.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let policy = session.policy(Overrides::All).await?;
        if policy.limits.is_empty() {
            printer.note(format_args!("domain {} has no limits", policy.domain));
        }
        printer.data(&Report(policy))?;
        Ok(Exit::Done)
    }
}

struct Report(Policy);

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let limits: Vec<_> = self.0.limits.iter().map(Limit::to_node).collect();
        let mut fields = serializer.serialize_struct("Policy", 3)?;
        fields.serialize_field("domain", self.0.domain.as_str())?;
        fields.serialize_field("revision", &self.0.revision.number)?;
        fields.serialize_field("limits", &limits)?;
        fields.end()
    }
}

impl View for Report {
    fn text(&self, page: Page) -> String {
        if self.0.limits.is_empty() {
            return String::new();
        }
        limits::table(&self.0.limits, page)
    }

    fn names(&self) -> Vec<String> {
        self.0
            .limits
            .iter()
            .map(|limit| limit.name.to_string())
            .collect()
    }
}
