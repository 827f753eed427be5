//! `rlctl delete-limit`.

use clap::Args;
use policy::{Limit, Name, Policy, RateText};
use store::{Change, Overrides, Stored};

use super::set_limit::between;
use crate::{
    bucket::{self, Pair},
    changes::LimitChange,
    cli::{Global, examples},
    edit::{EditArgs, EditReport, Prepared},
    error::Error,
    exit::Exit,
    printer::Printer,
    prompt::{Yes, confirm},
    render::counted,
    session::{self, Session},
};

/// Delete a limit, or the override of one bucket.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl delete-limit exports"
    "rlctl delete-limit exports --yes --reason 'the route is gone'"
    "rlctl delete-limit per-user --for user=alice        # alice has the limit's numbers again"
))]
pub struct DeleteLimit {
    /// The limit.
    name: String,

    /// Delete the override of this bucket only; name every entry of `per`.
    #[arg(long = "for", value_name = "KEY=VALUE")]
    bucket: Vec<Pair>,

    #[command(flatten)]
    edit: EditArgs,

    #[command(flatten)]
    yes: Yes,
}

impl DeleteLimit {
    /// Asks, deletes and shows what is gone.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let policy = session.policy(Overrides::All).await?;
        let limit = session::find_limit(&policy, &self.name)?;
        let question = self.question(&policy, limit)?;
        if !self.edit.dry_run {
            confirm(question, &self.yes).await?;
        }
        let report = if self.bucket.is_empty() {
            self.delete_limit(&session, &policy.domain, limit).await?
        } else {
            self.delete_override(&session, &policy.domain, limit)
                .await?
        };
        printer.data(&report)?;
        Ok(Exit::Done)
    }

    fn question(&self, policy: &Policy, limit: &Limit) -> Result<String, Error> {
        let (name, domain) = (&limit.name, &policy.domain);
        if self.bucket.is_empty() {
            let rate = RateText(limit.quota.parameters().rate);
            let overrides = match limit.overrides.len() {
                0 => String::new(),
                n => format!(", {}", counted(n, "override")),
            };
            return Ok(format!(
                "delete limit {name} of domain {domain} ({rate}{overrides})"
            ));
        }
        let values = bucket::bucket(limit, &self.bucket, &[])?;
        let shown = bucket::display(&limit.per, &values);
        if limit.overrides.iter().any(|entry| entry.values == values) {
            Ok(format!(
                "delete the override of {shown} in limit {name} of domain {domain}"
            ))
        } else {
            Err(
                Error::not_found(format!("limit {name} has no override for {shown}"))
                    .hint(format!("`rlctl get-limit {name}` shows those it has")),
            )
        }
    }

    async fn delete_limit(
        &self,
        session: &Session<'_>,
        domain: &Name,
        confirmed: &Limit,
    ) -> Result<EditReport, Error> {
        let name = confirmed.name.as_str();
        let limit_in = |base: &Stored| base.policy().and_then(|policy| policy.limit(name)).cloned();
        let attempt = async |base: &Stored| {
            let limit = limit_in(base);
            let policy = base.policy().filter(|_| limit.as_ref() == Some(confirmed));
            let Some(policy) = policy else {
                return Err(crate::edit::conflict());
            };
            let policy = without(policy, name)?;
            let change = LimitChange::between(limit.as_ref(), None);
            let prepared = Prepared {
                domain,
                base,
                change: Change::Limits(&policy),
                changes: change.into_iter().collect(),
            };
            Ok(session.edit(prepared, &self.edit).await)
        };
        session
            .edit_on_top(domain, Overrides::All, limit_in, attempt)
            .await
    }

    async fn delete_override(
        &self,
        session: &Session<'_>,
        domain: &Name,
        confirmed: &Limit,
    ) -> Result<EditReport, Error> {
        let values = bucket::bucket(confirmed, &self.bucket, &[])?;
        let override_in = |base: &Stored| {
            let limit = base.policy()?.limit(confirmed.name.as_str())?;
            limit
                .overrides
                .iter()
                .find(|entry| entry.values == values)
                .cloned()
        };
        let attempt = async |base: &Stored| {
            let before = override_in(base);
            let change = between(confirmed, before.as_ref(), None);
            let prepared = Prepared {
                domain,
                base,
                change: Change::Override {
                    limit: &confirmed.name,
                    values: &values,
                    to: None,
                },
                changes: vec![change],
            };
            Ok(session.edit(prepared, &self.edit).await)
        };
        session
            .edit_on_top(domain, Overrides::All, override_in, attempt)
            .await
    }
}

/// The other limits, which may not refer to the one that goes.
fn without(policy: &Policy, name: &str) -> Result<Policy, Error> {
    policy.without_limit(name).map_err(|problems| {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        Error::usage(format!(
            "limit {name} cannot be deleted: {}",
            problems.join("; ")
        ))
        .hint("change the limits that refer to it first")
    })
}
