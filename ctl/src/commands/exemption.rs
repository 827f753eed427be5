//! `rlctl set-exemption` and `rlctl delete-exemption`.

use clap::Args;
use policy::{Name, Node, Policy, Problems};
use store::{Overrides, Record};

use super::set_limit::matchers;
use crate::{
    bucket::Pair,
    cli::{Global, examples},
    edit::{EditArgs, Edited},
    error::{self, Error, Exit},
    printer::Printer,
    session::Session,
};

/// Exempt requests: no limit of the domain applies to them.
///
/// Every --match has to hold for certain: a request that lacks the entry, or gives it several values,
/// is not exempt. Proxies let exempt requests pass within a second, and count them.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl set-exemption health --match path=/healthz --match method=GET"
    "rlctl set-exemption internal --match remote_address=cidr:10.0.0.0/8"
    "rlctl set-exemption internal --match remote_address=cidr:10.0.0.0/8 --match 'path=!/login' --dry-run"
))]
pub struct SetExemption {
    /// The exemption.
    name: String,

    /// Exempts only where this entry matches; at least one, and they replace all that were there.
    /// The same key again adds an alternative.
    #[arg(long = "match", value_name = "KEY=PATTERN", required = true)]
    matches: Vec<Pair>,

    #[command(flatten)]
    edit: EditArgs,
}

/// Delete an exemption: limits apply to its requests again.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl delete-exemption partner"
    "rlctl delete-exemption partner --yes --reason 'the contract ended'"
))]
pub struct DeleteExemption {
    /// The exemption.
    name: String,

    #[command(flatten)]
    edit: EditArgs,
}

impl SetExemption {
    /// Makes the edit and shows what it did.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let node = Node::map([
            ("name", Node::text(&self.name)),
            ("match", matchers(&self.matches)),
        ]);
        let exemption = limits_file::exemption_from_node(&node);
        let exemption = exemption.map_err(|problems| self.invalid(&problems))?;
        let session = Session::open(global, printer)?;
        let base = session.record(Overrides::None).await?;
        let edit = |policy: &Policy| {
            let edited = limits_file::edit::with_exemption(policy, exemption.clone());
            edited.map_err(|problems| self.invalid(&problems))
        };
        let edited = set(&session, base, &exemption.name, edit, &self.edit).await?;
        session.finish(&edited.report, &self.edit).await
    }

    fn invalid(&self, problems: &Problems) -> Error {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        Error::usage(format!("exemption {}: {}", self.name, lines.join("; ")))
    }
}

impl DeleteExemption {
    /// Confirms, deletes and shows what was deleted.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let base = session.record(Overrides::None).await?;
        let policy = &base.policy;
        let known = policy
            .exempt
            .iter()
            .map(|exemption| exemption.name.as_str());
        let found = policy
            .exempt
            .iter()
            .find(|one| one.name.as_str() == self.name);
        let found = found.ok_or_else(|| {
            let (name, domain) = (&self.name, &policy.domain);
            let error = Error::not_found(format!("domain {domain} has no exemption {name}"));
            error.hint(error::hint(name, "exemption", known))
        })?;
        let name = found.name.clone();
        let question = format!("delete exemption {name} of domain {}", policy.domain);
        self.edit.confirm(question).await?;
        let edit = |policy: &Policy| {
            let mut edited = policy.clone();
            edited.exempt.retain(|exemption| exemption.name != name);
            Ok(edited)
        };
        let edited = set(&session, base, &name, edit, &self.edit).await?;
        session.finish(&edited.report, &self.edit).await
    }
}

/// Writes the new state of one exemption.
async fn set(
    session: &Session<'_>,
    base: Box<Record>,
    name: &Name,
    edit: impl Fn(&Policy) -> Result<Policy, Error>,
    args: &EditArgs,
) -> Result<Edited, Error> {
    let about = |policy: &Policy| {
        let mut exempt = policy.exempt.iter();
        exempt.find(|exemption| exemption.name == *name).cloned()
    };
    let change = |policy: &mut Policy| {
        *policy = edit(policy)?;
        Ok(Vec::new())
    };
    session.edit_fields(args, base, about, change).await
}
