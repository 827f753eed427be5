//! Policies, edits and checks for tests.

use std::sync::Arc;

use anyhow::Result;
use policy::{Compiled, Descriptor, Limit, Name, Policy};
use protocol::{Answer, Check};
use store::{
    Change, CheckError, Edit, EditError, LimitOf, Overrides, ResetScope, Signature, Store, Stored,
};

pub fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

/// The domain `shop` with these limits, as YAML list items.
pub fn policy(limits: &str) -> Policy {
    let text = format!("domain: shop\nlimits:\n{limits}");
    limits_file::read("test", text.as_bytes()).unwrap_or_else(|problems| panic!("{problems}"))
}

/// Ten units that do not refill within a test.
pub const TEN_A_DAY: &str = "  - {name: per-user, per: [user], rate: 10/1d}\n";

/// Two a day by every algorithm.
pub const EVERY_ALGORITHM: &str = "
  - {name: token-bucket, per: [user], algorithm: token_bucket, rate: 2/1d}
  - {name: gcra, per: [user], algorithm: gcra, rate: 2/1d}
  - {name: meter, per: [user], algorithm: leaky_bucket, rate: 2/1d}
  - {name: queue, per: [user], algorithm: leaky_bucket, rate: 2/1d, over_limit: queue, max_delay: 1d}
  - {name: fixed, per: [user], algorithm: fixed_window, align: first_request, rate: 2/1d}
  - {name: log, per: [user], algorithm: sliding_window_log, rate: 2/1d}
  - {name: sub-windows, per: [user], algorithm: sliding_window_buckets, sub_windows: 24, rate: 2/1d}
  - {name: sliding, per: [user], algorithm: sliding_window, rate: 2/1d}
";

pub fn by(author: &str) -> Signature {
    Signature {
        author: author.to_owned(),
        reason: "test".to_owned(),
    }
}

pub async fn read(store: &Arc<dyn Store>) -> Result<Stored> {
    Ok(store.read(&name("shop"), Overrides::All).await?)
}

/// Makes these the domain's limits, whatever was there, and reads them back compiled.
pub async fn publish(store: &Arc<dyn Store>, policy: &Policy) -> Result<Compiled> {
    let base = read(store).await?;
    write(store, &base, Change::Limits(policy)).await?;
    current(store).await
}

pub async fn current(store: &Arc<dyn Store>) -> Result<Compiled> {
    let stored = read(store).await?;
    Ok(Compiled::new(stored.policy().expect("limits").clone()))
}

pub async fn write(
    store: &Arc<dyn Store>,
    base: &Stored,
    change: Change<'_>,
) -> Result<policy::Revision, EditError> {
    let edit = Edit {
        domain: &name("shop"),
        base,
        change,
        by: &by("ann"),
    };
    store.write(&edit).await
}

/// A request with these descriptor entries.
pub fn request(entries: &[(&str, &str)]) -> Check {
    let entries = entries
        .iter()
        .map(|(k, v)| (name(k), v.as_bytes().to_vec()));
    Check {
        descriptor: entries.collect::<Descriptor>(),
        cost: 1,
        ..Check::default()
    }
}

pub async fn check(
    store: &Arc<dyn Store>,
    policy: &Compiled,
    check: &Check,
) -> Result<Answer, CheckError> {
    let results = store
        .check(policy, std::slice::from_ref(check), false)
        .await;
    assert_eq!(results.len(), 1, "one result per check");
    results.into_iter().next().expect("one result")
}

/// Resets buckets of a limit; returns how many.
pub async fn reset(
    store: &Arc<dyn Store>,
    limit: &Limit,
    scope: ResetScope<'_>,
) -> Result<u64, EditError> {
    let domain = &name("shop");
    let of = LimitOf { domain, limit };
    let report = store.reset(&of, scope, &by("ann")).await?;
    Ok(report.buckets)
}

/// What the first limit has left after a check.
pub fn units_left(answer: &Answer) -> u64 {
    answer.limits[0].verdict.decision.remaining
}
