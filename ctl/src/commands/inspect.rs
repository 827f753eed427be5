//! `rlctl inspect`.

mod holders;
mod view;

use clap::Args;
use policy::{Compiled, Descriptor, Limit, Policy, Scope};
use store::{Inspection, Overrides};

use crate::{
    args::{Global, examples},
    bucket::{BucketArgs, Pair, Values},
    clock,
    error::Error,
    exit::Exit,
    printer::Printer,
    render::View,
    session::{self, Session},
};

use view::{Bucket, Report};

/// Show how much of a bucket is used, and when it is available again.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl inspect per-user user=alice"
    "rlctl inspect exports                                 # a limit with one bucket"
    "rlctl inspect -d user=alice -d path=/api/orders       # every limit of such a request"
    "rlctl inspect per-user --without user                 # the bucket of requests without a user"
    "rlctl inspect per-user user=alice -o json | jq .remaining"
))]
pub struct Inspect {
    /// The limit.
    #[arg(required_unless_present = "descriptor")]
    limit: Option<String>,

    #[command(flatten)]
    bucket: BucketArgs,

    /// Instead of a limit: show every limit of a request with these entries.
    #[arg(short, long = "descriptor", value_name = "KEY=VALUE",
        conflicts_with_all = ["limit", "values", "without"])]
    descriptor: Vec<Pair>,
}

impl Inspect {
    /// Shows one bucket, or those of a request.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let report = if let Some(name) = &self.limit {
            let policy = session.policy(Overrides::None).await?;
            session.warn_of_pause(&policy, &[name.as_str()]);
            let limit = session::find_limit(&policy, name)?.clone();
            let bucket = session.bucket(&policy.domain, &self.bucket).await?;
            let values = bucket.of(&limit)?;
            Report::one(one(&session, policy, &limit, values).await?)
        } else {
            let descriptor = session.descriptor(&self.descriptor).await?;
            let policy = session.policy_for_request(&descriptor).await?;
            session.warn_of_pause(&policy, &[]);
            Report::many(of_request(&session, &Compiled::new(policy), &descriptor).await?)
        };
        printer.data(&report)?;
        Ok(Exit::Done)
    }
}

/// One bucket, as text without colours.
pub(super) async fn card(
    session: &Session<'_>,
    name: &str,
    values: Values,
) -> Result<String, Error> {
    let policy = session.policy(Overrides::None).await?;
    let limit = session::find_limit(&policy, name)?.clone();
    let bucket = one(session, policy, &limit, values).await?;
    let text = Report::one(bucket).text(session.printer.page());
    Ok(anstream::adapter::strip_str(&text).to_string())
}

async fn one(
    session: &Session<'_>,
    policy: Policy,
    limit: &Limit,
    values: Values,
) -> Result<Bucket, Error> {
    let policy = session
        .policy_for_bucket(policy, &limit.name, &values)
        .await?;
    look(session, &Compiled::new(policy), limit, values).await
}

/// The buckets that a request would charge.
async fn of_request(
    session: &Session<'_>,
    compiled: &Compiled,
    descriptor: &Descriptor,
) -> Result<Vec<Bucket>, Error> {
    let printer = session.printer;
    let mut found = Vec::new();
    for matched in compiled.matching(descriptor, clock::now_ms()) {
        let limit = matched.limit;
        if let Some(name) = matched.missing {
            printer.warn(format_args!(
                "{} denies every request without `{name}`",
                limit.name
            ));
        } else if limit.scope == Scope::Proxy {
            printer.note(format_args!(
                "{} has its buckets in the proxies, not in Redis",
                limit.name
            ));
        } else {
            let values = matched
                .values
                .iter()
                .map(|v| v.map(<[u8]>::to_vec))
                .collect();
            found.push(look(session, compiled, limit, values).await?);
        }
    }
    if found.is_empty() {
        printer.note("no bucket to show; `rlctl explain` with the same -d says why");
    }
    Ok(found)
}

async fn look(
    session: &Session<'_>,
    compiled: &Compiled,
    limit: &Limit,
    values: Values,
) -> Result<Bucket, Error> {
    if limit.scope == Scope::Proxy {
        return Err(session::buckets_in_proxies(limit));
    }
    let ask = async |cost| -> Result<Inspection, Error> {
        let answer = session
            .store
            .inspect(compiled, &limit.name, &values, cost)
            .await;
        answer.map_err(|error| session.check_failed(&error))
    };
    let now = ask(1).await?;
    // One more unit is there when a request for all remaining units and one more would pass.
    let requests = now.answer.remaining.checked_div(limit.cost).unwrap_or(0);
    // Requests in flight end at no known time: their holders are shown instead.
    let next = match now.answer.limit {
        Some(quota) if now.answer.remaining < quota && !limit.gives_slots() => {
            ask(requests.saturating_add(1)).await.ok()
        }
        _ => None,
    };
    let next_ms = next.and_then(|next| next.answer.retry_after_ms);
    let index = compiled.position(limit.name.as_str());
    let found = index.and_then(|index| compiled.override_for(index, &values).cloned());
    let in_force = found.filter(|found| found.until_ms.is_none_or(|until| now.now_ms < until));
    let holders = if limit.gives_slots() {
        Some(holders::of(session, &now).await)
    } else {
        None
    };
    Ok(Bucket {
        holders,
        domain: compiled.domain().clone(),
        limit: limit.clone(),
        values,
        in_force,
        node: now.node.clone().unwrap_or_else(|| session.store.address()),
        inspection: now,
        next_ms,
        paused: index.is_some_and(|index| compiled.pause_of(index, clock::now_ms()).is_some()),
    })
}
