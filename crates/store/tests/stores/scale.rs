//! Domains with very many overrides, and long histories.

use std::sync::Arc;

use anyhow::{Context, Result};
use policy::{Override, Policy};
use store::{Change, LimitOf, Overrides, Store, Stored, Which};

use crate::{
    given::{by, name, policy, read, write},
    on_every_store,
    servers::{REDIS, Server, VALKEY},
};

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

#[tokio::test(flavor = "multi_thread")]
async fn many_overrides_are_written_whole_and_leave_nothing_behind() -> Result<()> {
    for kind in [REDIS, VALKEY] {
        let server = Server::start(kind).await?;
        let store = server.store()?;
        let first = with_overrides(100);
        write(&store, &Stored::Absent, Change::Limits(&first)).await?;
        let base = read(&store).await?;
        assert_eq!(sorted(&base)?.limits[0].overrides.len(), MANY);
        // A conflicting edit leaves all as it was.
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
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_of_one_override_is_read_alone() -> Result<()> {
    let server = Server::start(REDIS).await?;
    let (editor, reader) = (server.store()?, server.store()?);
    let first = with_overrides(100);
    write(&editor, &Stored::Absent, Change::Limits(&first)).await?;
    read(&reader).await?;
    let scans = calls(&server, "hscan").await?;

    let mut faster = first.limits[0].overrides[7].clone();
    faster.until_ms = Some(4_000_000_000_000);
    set_override(&editor, "user7", Some(&faster)).await?;
    set_override(&editor, "user8", None).await?;
    set_override(&editor, "user8", None).await?;
    set_override(&editor, "user9", None).await?;
    set_override(&editor, "user9", Some(&first.limits[0].overrides[9])).await?;
    let limit = first.limits[0].clone();
    let domain = name("shop");
    let of = LimitOf {
        domain: &domain,
        limit: &limit,
    };
    editor.reset(&of, Which::All, &by("ann")).await?;
    let caught_up = sorted(&read(&reader).await?)?;
    assert_eq!(
        calls(&server, "hscan").await?,
        scans,
        "nothing was read whole"
    );
    let fresh = sorted(&read(&server.store()?).await?)?;
    assert_eq!(caught_up, fresh);
    assert_eq!(fresh.limits[0].overrides.len(), MANY - 1);
    assert!(fresh.limits[0].overrides.contains(&faster));

    // Any other edit, and a history that does not reach back, are read whole.
    let edited = policy("  - {name: per-user, per: [user], rate: 11/s}\n");
    let mut edited = edited.clone();
    edited.limits[0].overrides = fresh.limits[0].overrides.clone();
    write(&editor, &read(&editor).await?, Change::Limits(&edited)).await?;
    set_override(&editor, "user10", None).await?;
    server.command(&["DEL", "rl:{shop}:history"]).await?;
    assert_eq!(
        sorted(&read(&reader).await?)?,
        sorted(&read(&server.store()?).await?)?
    );
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
