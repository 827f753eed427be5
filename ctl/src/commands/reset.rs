//! `rlctl reset` and `rlctl credit`: edits of buckets.

use clap::Args;
use policy::{Compiled, Limit, Name, Node, Policy, Scope};
use serde::Serialize;
use store::{CheckError, CreditReport, Cursor, EditError, LimitOf, Overrides, ResetScope};

use crate::{
    bucket::{self, BucketArgs, Values, parse_whole_number},
    cli::{Global, examples},
    commands::list_keys::KeyDedup,
    edit::EditArgs,
    error::{Error, Exit},
    printer::{Pending, Printer},
    render::{self, Page, View, counted},
    session::{self, Session},
};

/// Reset one bucket, or every bucket of a limit, to unused.
///
/// Proxies drop what they cached of the limit.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl reset per-user user=alice"
    "rlctl reset per-user user=alice --yes --reason 'ticket 4711'"
    "rlctl reset per-user                   # every bucket of the limit"
    "rlctl reset per-user user=alice --dry-run"
))]
pub struct Reset {
    /// The limit.
    limit: String,

    #[command(flatten)]
    bucket: BucketArgs,

    #[command(flatten)]
    edit: EditArgs,
}

impl Reset {
    /// Confirms, resets and reports the number of buckets.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let policy = session.record_for(&self.limit).await?.policy;
        let limit = session::find_limit(&policy, &self.limit)?;
        let (name, domain) = (&limit.name, &policy.domain);
        let all = self.bucket.is_empty();
        let values = if all {
            Vec::new()
        } else {
            session.bucket(domain, &self.bucket).await?.of(limit)?
        };
        let shown = (!all).then(|| bucket::display(&limit.per, &values));
        let bucket = (!all).then(|| bucket::to_node(limit, &values));
        let which = if all {
            ResetScope::All
        } else {
            ResetScope::Bucket(&values)
        };
        let (buckets, revision) = if self.edit.dry_run {
            (
                would_forget(&session, &policy, &self.limit, which).await?,
                policy.revision.number,
            )
        } else {
            let what = shown.as_deref().unwrap_or("every bucket");
            let question = format!("reset {what} of limit {name}, domain {domain}");
            self.edit.confirm(question).await?;
            let of = LimitOf { domain, limit };
            let signature = self.edit.signature();
            let reset = session.store.reset(&of, which, &signature);
            let report = match which {
                ResetScope::All => {
                    let reset = session.with_progress(reset);
                    printer.while_pending(Pending::Reset, reset).await
                }
                ResetScope::Bucket(_) => printer.while_pending(Pending::Bucket, reset).await,
            };
            let report = report.map_err(|error| {
                let uncertain = "it may be reset already, though the history does not show it; \
                                 the same command may be repeated";
                session.bucket_change_failed(&error, uncertain.to_owned())
            })?;
            (report.buckets, report.revision)
        };
        printer.data(&Report {
            domain: domain.to_string(),
            limit: name.to_string(),
            bucket,
            shown,
            buckets,
            revision,
            dry_run: self.edit.dry_run,
        })?;
        let revision = (!self.edit.dry_run).then_some(revision);
        session.follow_up(domain, revision, &self.edit).await
    }
}

/// How many buckets hold usage.
async fn would_forget(
    session: &Session<'_>,
    policy: &Policy,
    limit: &str,
    which: ResetScope<'_>,
) -> Result<u64, Error> {
    let limit = session::find_limit(policy, limit)?;
    let ResetScope::Bucket(values) = which else {
        let mut seen = KeyDedup::default();
        let mut cursor = Some(Cursor::default());
        while let Some(from) = cursor {
            let page = session
                .call(session.store.list(&policy.domain, Some(&limit.name), from))
                .await?;
            for bucket in page.buckets {
                seen.insert(&bucket.key);
            }
            cursor = page.next;
        }
        return Ok(seen.distinct());
    };
    let compiled = Compiled::new(policy.clone());
    let inspection = session
        .store
        .inspect(&compiled, &limit.name, values, 1)
        .await;
    let inspection = inspection.map_err(|error| session.check_failed(&error))?;
    Ok(u64::from(inspection.state.is_some()))
}

#[derive(Serialize)]
struct Report {
    domain: String,
    limit: String,
    /// Null stands for every bucket of the limit.
    bucket: Option<Node>,
    #[serde(skip)]
    shown: Option<String>,
    buckets: u64,
    revision: u64,
    dry_run: bool,
}

impl View for Report {
    fn text(&self, _page: Page) -> String {
        let bucket = self
            .shown
            .as_ref()
            .map(|bucket| format!(" {bucket}"))
            .unwrap_or_default();
        let would = if self.dry_run { "would be " } else { "" };
        let what = match (self.buckets, &self.bucket) {
            (0, Some(_)) => "was unused".to_owned(),
            (0, None) => "no bucket held usage".to_owned(),
            (_, Some(_)) => format!("{would}reset"),
            (_, None) => format!("{} {would}reset", counted(self.buckets, "bucket")),
        };
        let how = if self.dry_run {
            "dry run, nothing was written".to_owned()
        } else {
            format!("revision {}", self.revision)
        };
        format!("{}{bucket}: {what}; {how}\n", self.limit)
    }

    fn names(&self) -> Vec<String> {
        vec![self.limit.clone()]
    }
}

// --- `rlctl credit`.

/// Give units back to one bucket.
///
/// The bucket becomes as if its last N units had not been taken; in windows and logs those are the
/// newest. Proxies drop what they cached of the limit. A credit of more than was used leaves the
/// bucket unused.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl credit per-user user=alice --units 50 --reason 'ticket 4711'"
    "rlctl credit per-user user=alice --units 50 --dry-run"
    "rlctl credit exports --units 1                # a limit with one bucket"
))]
pub struct Credit {
    /// The limit.
    limit: String,

    #[command(flatten)]
    bucket: BucketArgs,

    /// The number of units; a request takes the limit's `cost`, 1 by default.
    #[arg(long, value_name = "N", value_parser = parse_whole_number, allow_negative_numbers = true)]
    units: u64,

    #[command(flatten)]
    edit: EditArgs,
}

impl Credit {
    /// Credits the units, and reports what is left.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        if self.units == 0 {
            return Err(Error::usage("--units: expected more than 0"));
        }
        let session = Session::open(global, printer)?;
        let (domain, limit, values, done) = self.give(&session).await?;
        if !done.used {
            printer.note("the bucket was unused: there was nothing to credit");
        }
        printer.data(&Credited {
            domain: domain.to_string(),
            limit: limit.name.to_string(),
            bucket: bucket::to_node(&limit, &values),
            shown: bucket::display(&limit.per, &values),
            units: self.units,
            used: done.used,
            remaining_before: done.left_before,
            remaining: done.left,
            reset_after_ms: done.reset_after_ms,
            revision: done.revision,
            dry_run: self.edit.dry_run,
        })?;
        let revision = Some(done.revision).filter(|_| done.used && !self.edit.dry_run);
        session.follow_up(&domain, revision, &self.edit).await
    }

    /// Reads the limits again if the bucket has a newer generation.
    async fn give(
        &self,
        session: &Session<'_>,
    ) -> Result<(Name, Limit, Values, CreditReport), Error> {
        let mut force = false;
        let domain = session.domain().await?;
        let bucket = session.bucket(&domain, &self.bucket).await?;
        loop {
            let policy = session.policy(Overrides::None).await?;
            let limit = session::find_limit(&policy, &self.limit)?.clone();
            if limit.scope == Scope::Proxy {
                return Err(session::buckets_in_proxies(&limit));
            }
            let values = bucket.of(&limit)?;
            let policy = session
                .policy_for_bucket(policy, &limit.name, &values)
                .await?;
            let credit = store::Credit {
                policy: &Compiled::new(policy),
                limit: &limit.name,
                values: &values,
                units: self.units,
                peek: true,
                force,
            };
            let by = self.edit.signature();
            // Only the units left before the credit show later whether one without an answer was made.
            let before = match session.store.credit(&credit, &by).await {
                Ok(report) if self.edit.dry_run => return Ok((domain, limit, values, report)),
                Ok(report) => report,
                Err(EditError::Bucket(CheckError::Stale)) if !force => {
                    force = true;
                    continue;
                }
                Err(EditError::Store(error) | EditError::Bucket(CheckError::Store(error))) => {
                    return Err(session.failed(&error));
                }
                Err(error) => return Err(session.edit_failed(&error)),
            };
            let credit = store::Credit {
                peek: false,
                ..credit
            };
            let done = session.store.credit(&credit, &by);
            match session.printer.while_pending(Pending::Bucket, done).await {
                Ok(report) => return Ok((domain, limit, values, report)),
                Err(EditError::Bucket(CheckError::Stale)) if !force => force = true,
                Err(error) => {
                    let uncertain = uncertain(&limit.name, &before);
                    return Err(session.bucket_change_failed(&error, uncertain));
                }
            }
        }
    }
}

/// What may be the case after a credit without an answer, of a bucket that was so before.
fn uncertain(limit: &Name, before: &CreditReport) -> String {
    let left = before.left_before;
    let now = format!("`rlctl inspect {limit}` with its values shows what is now");
    if before.used {
        format!(
            "the bucket may have been credited, though the history does not show it: {left} were left before, and {now}"
        )
    } else {
        format!("the bucket was unused, so there was nothing to credit; {now}")
    }
}

#[derive(Serialize)]
struct Credited {
    domain: String,
    limit: String,
    bucket: Node,
    #[serde(skip)]
    shown: String,
    units: u64,
    used: bool,
    remaining_before: u64,
    remaining: u64,
    reset_after_ms: u64,
    revision: u64,
    dry_run: bool,
}

impl View for Credited {
    fn text(&self, page: Page) -> String {
        let Self {
            limit,
            shown,
            remaining_before,
            remaining,
            revision,
            ..
        } = self;
        let how = match (self.dry_run, self.used) {
            (true, _) => "dry run, nothing was written".to_owned(),
            (false, false) => format!("still at revision {revision}"),
            (false, true) => format!("revision {revision}"),
        };
        let arrow = render::arrow(page);
        format!("{limit} {shown}: left {remaining_before} {arrow} {remaining}; {how}\n")
    }

    fn names(&self) -> Vec<String> {
        vec![self.limit.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unused_bucket_is_not_said_to_have_been_credited() {
        let after = |used| {
            let before = CreditReport {
                used,
                left_before: 7,
                left: 10,
                reset_after_ms: 0,
                revision: 1,
            };
            uncertain(&"per-user".parse().unwrap(), &before)
        };
        assert!(
            after(true).contains("may have been credited") && after(true).contains("7 were left")
        );
        assert!(after(false).starts_with("the bucket was unused, so there was nothing to credit;"));
    }
}
