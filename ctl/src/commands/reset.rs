//! `rlctl reset`.

use clap::Args;
use policy::{Compiled, Node, Policy};
use serde::Serialize;
use store::{Cursor, LimitOf, Overrides, ResetScope};

use crate::{
    args::{Global, examples},
    bucket::{self, BucketArgs},
    dedup::KeyDedup,
    edit::EditArgs,
    error::Error,
    exit::Exit,
    printer::{Pending, Printer},
    prompt::{Yes, confirm},
    render::{Page, View, counted},
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

    #[command(flatten)]
    yes: Yes,
}

impl Reset {
    /// Confirms, resets and reports the number of buckets.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let policy = session.policy(Overrides::None).await?;
        let limit = session::find_limit(&policy, &self.limit)?;
        let (name, domain) = (&limit.name, &policy.domain);
        let all = self.bucket.is_empty();
        let values = if all {
            Vec::new()
        } else {
            session.bucket(domain, &self.bucket).await?.of(limit)?
        };
        let shown = (!all).then(|| bucket::display(&limit.per, &values));
        let pairs = limit.per.iter().zip(&values);
        let pairs = pairs.map(|(key, v)| (key.as_str(), policy::value_to_node(v.as_deref())));
        let bucket = (!all).then(|| Node::map(pairs));
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
            confirm(question, &self.yes).await?;
            let of = LimitOf { domain, limit };
            printer.set_pending(Some(match which {
                ResetScope::All => Pending::Reset,
                ResetScope::Bucket(_) => Pending::Bucket,
            }));
            let signature = self.edit.signature();
            let reset = session.store.reset(&of, which, &signature);
            let report = match which {
                ResetScope::All => session.with_progress(reset).await,
                ResetScope::Bucket(_) => reset.await,
            };
            printer.set_pending(None);
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
                .store
                .list(&policy.domain, Some(&limit.name), from)
                .await;
            let page = page.map_err(|error| session.failed(&error))?;
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
        let count = usize::try_from(self.buckets).unwrap_or(usize::MAX);
        let would = if self.dry_run { "would be " } else { "" };
        let what = match (self.buckets, &self.bucket) {
            (0, Some(_)) => "was unused".to_owned(),
            (0, None) => "no bucket held usage".to_owned(),
            (_, Some(_)) => format!("{would}reset"),
            (_, None) => format!("{} {would}reset", counted(count, "bucket")),
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
