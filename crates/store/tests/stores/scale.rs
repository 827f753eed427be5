//! Domains with very many overrides, and long histories.

use std::sync::Arc;

use anyhow::{Context, Result};
use harness::Engine;
use policy::{Override, Policy};
use store::{Change, LimitOf, OverrideChange, OverrideEdit, Overrides, ResetScope, Store, Stored};

use crate::{
    given::{by, name, policy, read, write},
    on_both_servers, on_every_store,
    servers::Server,
};

on_both_servers!(many_overrides_are_written_whole_and_leave_nothing_behind);

on_every_store!(the_history_is_bounded_in_bytes);

/// More than are written or read in one step.
const MANY: usize = 3000;

fn with_overrides(rate: u64) -> Policy {
    let overrides: Vec<String> = (0..MANY)
        .map(|i| format!("      - {{values: {{user: user{i}}}, rate: {rate}/s}}\n"))
        .collect();
    let overrides = overrides.concat();
    policy(&format!(
        "  - name: per-user\n    per: [user]\n    rate: 10/s\n    overrides:\n{overrides}"
    ))
}

/// The overrides in a fixed order.
fn sorted(stored: &Stored) -> Result<Policy> {
    let mut policy = stored.policy().context("limits")?.clone();
    for limit in &mut policy.limits {
        limit.overrides.sort_by(|a, b| a.values.cmp(&b.values));
    }
    Ok(policy)
}

async fn revision(store: &Arc<dyn Store>) -> Result<policy::Revision> {
    let stored = read(store).await?;
    Ok(stored.policy().context("limits")?.revision.clone())
}

async fn calls(server: &Server, command: &str) -> Result<String> {
    let stats: String = server.ask(&["INFO", "commandstats"]).await?;
    let line = stats
        .lines()
        .find(|l| l.starts_with(&format!("cmdstat_{command}:")));
    let calls = line.and_then(|line| line.split(',').next());
    Ok(calls.unwrap_or_default().to_owned())
}

async fn set_override(
    store: &Arc<dyn Store>,
    user: &str,
    to: Option<&Override>,
) -> Result<policy::Revision> {
    let base = store.read(&name("shop"), Overrides::None).await?;
    let change = Change::Override {
        limit: &name("per-user"),
        values: &[Some(user.as_bytes().to_vec())],
        to,
    };
    Ok(write(store, &base, change).await?)
}

async fn many_overrides_are_written_whole_and_leave_nothing_behind(server: Server) -> Result<()> {
    let store = server.store()?;
    let first = with_overrides(100);
    write(&store, &Stored::Absent, Change::Limits(&first)).await?;
    let base = read(&store).await?;
    assert_eq!(sorted(&base)?.limits[0].overrides.len(), MANY);
    // A conflicting edit changes nothing.
    let second = with_overrides(200);
    let stale = write(&store, &Stored::Absent, Change::Limits(&second)).await;
    assert!(stale.is_err());
    assert_eq!(sorted(&read(&store).await?)?, sorted(&base)?);
    write(&store, &base, Change::Limits(&second)).await?;
    let other = server.store()?;
    let (found, replaced) = (sorted(&read(&other).await?)?, sorted(&base)?);
    let pairs = || {
        let old = &replaced.limits[0].overrides;
        found.limits[0].overrides.iter().zip(old)
    };
    assert!(pairs().all(|(new, old)| new.values == old.values));
    assert!(pairs().all(|(new, old)| new.quota != old.quota));
    let none = policy("  - {name: per-user, per: [user], rate: 10/s}\n");
    write(&store, &read(&store).await?, Change::Limits(&none)).await?;
    assert!(sorted(&read(&other).await?)?.limits[0].overrides.is_empty());
    let keys: Vec<String> = server.ask(&["KEYS", "*"]).await?;
    let permanent: Vec<_> = keys.iter().filter(|key| !key.contains(":s:")).collect();
    assert_eq!(permanent.len(), 3, "domains, record, history: {keys:?}");
    for key in keys.iter().filter(|key| key.contains(":s:")) {
        let ttl: i64 = server.ask(&["PTTL", key]).await?;
        assert!(ttl > 0, "what the conflicting edit staged goes by itself");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn changes_since_a_revision_omit_unchanged_overrides() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let store = server.store()?;
    let first = with_overrides(100);
    write(&store, &Stored::Absent, Change::Limits(&first)).await?;
    let known = revision(&store).await?;
    let scans = calls(&server, "hscan").await?;

    let mut faster = first.limits[0].overrides[7].clone();
    faster.until_ms = Some(4_000_000_000_000);
    set_override(&store, "user7", Some(&faster)).await?;
    set_override(&store, "user8", None).await?;
    set_override(&store, "user8", None).await?;
    set_override(&store, "user9", None).await?;
    set_override(&store, "user9", Some(&first.limits[0].overrides[9])).await?;
    let limit = first.limits[0].clone();
    let domain = name("shop");
    let of = LimitOf {
        domain: &domain,
        limit: &limit,
    };
    store.reset(&of, ResetScope::All, &by("ann")).await?;
    let base = store.read(&domain, Overrides::None).await?;
    let edit = OverrideEdit {
        before: Some(vec![first.limits[0].overrides[3].clone()]),
        after: Vec::new(),
        listed: false,
    };
    let edit = Change::Parts {
        limits: base.policy().expect("limits"),
        overrides: &[(name("per-user"), edit)].into(),
    };
    write(&store, &base, edit).await?;
    let since = store.changes_since(&domain, &known).await?;
    let since = since.expect("the history lists them");
    assert_eq!(
        calls(&server, "hscan").await?,
        scans,
        "nothing was read whole"
    );
    let after = read(&store).await?;
    let after = after.policy().expect("limits");
    assert_eq!(since.policy.revision, after.revision);
    let of_user = |user: u8| Some(format!("user{user}").into_bytes());
    let change = |user, to| OverrideChange {
        limit: name("per-user"),
        values: vec![of_user(user)],
        to,
    };
    let expected = [
        change(3, None),
        change(7, Some(faster)),
        change(8, None),
        change(9, Some(first.limits[0].overrides[9].clone())),
    ];
    assert_eq!(since.overrides, expected);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn a_domain_has_at_most_as_many_overrides_as_limiters_load() -> Result<()> {
    const RECORD: &str = "rl:{shop}:policy";
    let server = Server::start(Engine::Redis).await?;
    let store = server.store()?;
    let known = async || -> Result<u64> { server.ask(&["HGET", RECORD, "overrides"]).await };
    let first = with_overrides(100);
    let many = u64::try_from(MANY)?;
    write(&store, &Stored::Absent, Change::Limits(&first)).await?;
    assert_eq!(known().await?, many, "staged");
    set_override(&store, "user8", None).await?;
    set_override(&store, "user8", None).await?;
    assert_eq!(known().await?, many - 1, "removed, and was not there");
    let mut few = first.clone();
    few.limits[0].overrides.truncate(5);
    write(&store, &read(&store).await?, Change::Limits(&few)).await?;
    assert_eq!(known().await?, 5);
    set_override(&store, "user3", Some(&few.limits[0].overrides[3])).await?;
    assert_eq!(known().await?, 5, "replaced");

    let almost = (policy::OVERRIDES_MAX - 1).to_string();
    server
        .command(&["HSET", RECORD, "overrides", &almost])
        .await?;
    let other = |user: &str| Override {
        values: vec![Some(user.as_bytes().to_vec())],
        ..few.limits[0].overrides[3].clone()
    };
    set_override(&store, "new", Some(&other("new"))).await?;
    let refused = set_override(&store, "newer", Some(&other("newer"))).await;
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.starts_with("the domain would have 100001 overrides"),
        "{refused}"
    );
    assert_eq!(known().await?, u64::try_from(policy::OVERRIDES_MAX)?);
    set_override(&store, "new", Some(&other("new"))).await?;
    set_override(&store, "new", None).await?;
    set_override(&store, "newer", Some(&other("newer"))).await?;
    let none = policy("  - {name: other, rate: 10/s}\n");
    write(&store, &read(&store).await?, Change::Limits(&none)).await?;
    assert_eq!(known().await?, u64::try_from(policy::OVERRIDES_MAX)? - 6);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn limits_without_overrides_are_not_searched_for_them() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let store = server.store()?;
    let limits = (0..2500).map(|n| format!("  - {{name: l{n}, rate: 10/s}}\n"));
    let limits = limits.collect::<String>();
    write(&store, &Stored::Absent, Change::Limits(&policy(&limits))).await?;
    let (scans, sets) = (
        calls(&server, "hscan").await?,
        calls(&server, "hset").await?,
    );
    assert!(
        sets.len() < "cmdstat_hset:calls=10".len(),
        "one field says that all changed: {sets}"
    );
    let found = read(&store).await?;
    assert!(
        found
            .policy()
            .context("limits")?
            .limits
            .iter()
            .all(|l| l.generation == 1)
    );
    assert_eq!(calls(&server, "hscan").await?, scans);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn changes_are_unknown_after_another_or_a_truncated_history() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let store = server.store()?;
    write(
        &store,
        &Stored::Absent,
        Change::Limits(&with_overrides(100)),
    )
    .await?;
    let known = revision(&store).await?;
    set_override(&store, "user8", None).await?;
    let domain = name("shop");
    let since = store.changes_since(&domain, &known).await?;
    assert_eq!(since.map(|since| since.overrides.len()), Some(1));
    let mut other = known.clone();
    other.digest ^= 1;
    assert_eq!(store.changes_since(&domain, &other).await?, None);
    server.command(&["DEL", "rl:{shop}:history"]).await?;
    assert_eq!(store.changes_since(&domain, &known).await?, None);
    Ok(())
}

async fn the_history_is_bounded_in_bytes(store: Arc<dyn Store>) -> Result<()> {
    let padding = "x".repeat(1000);
    let overrides: Vec<String> = (0..450)
        .map(|i| format!("{{values: {{user: {i}-{padding}}}, unlimited: true}}"))
        .collect();
    let overrides = overrides.join(", ");
    let mut limits = policy(&format!(
        "  - {{name: a, per: [user], rate: 1/s, overrides: [{overrides}]}}\n"
    ));
    let mut base = Stored::Absent;
    for rate in 1..=20 {
        let numbers = policy(&format!("  - {{name: a, per: [user], rate: {rate}/s}}\n"));
        limits.limits[0].quota = numbers.limits[0].quota;
        for found in &mut limits.limits[0].overrides {
            found.until_ms = Some(4_000_000_000_000 + rate);
        }
        write(&store, &base, Change::Limits(&limits)).await?;
        base = read(&store).await?;
    }
    let history = store.history(&name("shop"), 1000).await?;
    assert_eq!(history[0].revision.number, 20);
    let bytes: usize = history.iter().map(|e| e.before.len() + e.after.len()).sum();
    assert!(bytes > 8 << 20 && bytes <= 16 << 20, "{bytes}");
    assert!(history.len() < 20);
    Ok(())
}
