//! Policies, edits and batches for tests.

use std::sync::Arc;

use anyhow::Result;
use policy::{Name, Policy};
use protocol::compact::{Batch, BatchCheck};
use store::{Change, Edit, Overrides, Signature, Store};

/// Ten units that do not come back within a test.
pub const PER_USER: &str = "  - {name: per-user, per: [user], rate: 10/1d}\n";

pub fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

/// The domain `shop` with these limits, as YAML list items.
pub fn policy(limits: &str) -> Policy {
    let text = format!("domain: shop\nlimits:\n{limits}");
    limits_file::read("test", text.as_bytes()).unwrap_or_else(|problems| panic!("{problems}"))
}

/// Makes these the limits of `shop`, whatever was there.
pub async fn publish(store: &Arc<dyn Store>, limits: &str) -> Result<u64> {
    write(store, Change::Limits(&policy(limits))).await
}

/// Makes an edit of `shop`; returns the revision's number.
pub async fn write(store: &Arc<dyn Store>, change: Change<'_>) -> Result<u64> {
    let domain = name("shop");
    let base = store.read(&domain, Overrides::All).await?;
    let edit = Edit {
        domain: &domain,
        base: &base,
        change,
        by: &Signature::default(),
    };
    Ok(store.write(&edit).await?.number)
}

/// An id in the form that filters generate, for the proxy of that name.
pub fn proxy_id(name: &str) -> String {
    let number = name.bytes().fold(0_u128, |n, b| n << 8 | u128::from(b));
    format!("{number:032x}")
}

/// A batch of one check for each user, as the proxy of that name sends it.
pub fn compact(proxy: &str, users: &[&str]) -> Vec<u8> {
    let check = |user: &&str| BatchCheck {
        values: vec![Some(user.as_bytes().to_vec())],
        cost: 1,
        ..BatchCheck::default()
    };
    let batch = Batch {
        domain: name("shop"),
        proxy: proxy_id(proxy),
        revision: None,
        keys: vec![name("user")],
        checks: users.iter().map(check).collect(),
    };
    batch.encode()
}
