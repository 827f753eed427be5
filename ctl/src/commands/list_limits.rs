//! `rlctl list-limits`.

use clap::Args;
use policy::{Exemption, Limit, Policy};
use serde::{Serialize, Serializer, ser::SerializeStruct};
use store::Overrides;

use crate::{
    args::{Format, Global, examples},
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
        // Tables show the number of overrides, JSON shows the overrides.
        let whole = matches!(printer.format(), Format::Json | Format::Yaml);
        let overrides = if whole {
            Overrides::All
        } else {
            Overrides::None
        };
        let policy = session.policy(overrides).await?;
        let counts = if whole {
            Vec::new()
        } else {
            session.override_counts(&policy).await?
        };
        if policy.limits.is_empty() {
            printer.note(format_args!("domain {} has no limits", policy.domain));
        }
        session.warn_of_pause(&policy, &[]);
        printer.data(&Report { policy, counts })?;
        Ok(Exit::Done)
    }
}

struct Report {
    policy: Policy,
    counts: Vec<u64>,
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let policy = &self.policy;
        let limits: Vec<_> = policy.limits.iter().map(Limit::to_node).collect();
        let mut fields = serializer.serialize_struct("Policy", 5)?;
        fields.serialize_field("domain", policy.domain.as_str())?;
        fields.serialize_field("revision", &policy.revision.number)?;
        if let Some(paused) = policy.paused {
            fields.serialize_field("paused", &paused.to_node())?;
        }
        if !policy.exempt.is_empty() {
            fields.serialize_field("exempt", &Exemption::list_node(&policy.exempt))?;
        }
        fields.serialize_field("limits", &limits)?;
        fields.end()
    }
}

impl View for Report {
    fn text(&self, page: Page) -> String {
        let Policy { limits, exempt, .. } = &self.policy;
        let mut tables = Vec::new();
        if !limits.is_empty() {
            tables.push(limits::table(limits, &self.counts, page));
        }
        if !exempt.is_empty() {
            tables.push(limits::exemptions(exempt, page));
        }
        tables.join("\n")
    }

    fn names(&self) -> Vec<String> {
        let limits = self.policy.limits.iter();
        limits.map(|limit| limit.name.to_string()).collect()
    }
}
