//! Domains with very many overrides, and long histories.

use std::sync::Arc;

use anyhow::{Context, Result};
use harness::Engine;
use policy::{Compiled, Limit, Name, Override, OverrideChange, Policy};
use store::{Change, EditError, EditPlanError, OverrideEdit, Overrides, ResetScope, Store, Stored};

use crate::{
    given::{name, policy, read, reset, write},
    on_both_servers, on_every_store,
    servers::Server,
};

on_both_servers!(
    many_overrides_are_written_whole_and_leave_nothing_behind,
    who_reads_changes_has_what_who_reads_all_has,
);

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
    assert_eq!(
        permanent.len(),
        5,
        "domains, and of this one the record, limits, changes, history: {keys:?}"
    );
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

    let mut faster = first.limits[0].overrides[7].clone();
    faster.until_ms = Some(4_000_000_000_000);
    set_override(&store, "user7", Some(&faster)).await?;
    set_override(&store, "user8", None).await?;
    set_override(&store, "user8", None).await?;
    set_override(&store, "user9", None).await?;
    set_override(&store, "user9", Some(&first.limits[0].overrides[9])).await?;
    let limit = first.limits[0].clone();
    let domain = name("shop");
    reset(&store, &limit, ResetScope::All).await?;
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
    let scans = calls(&server, "hscan").await?;
    let since = store.changes_since(&domain, &known).await?;
    let since = since.expect("the store lists them");
    assert_eq!(
        calls(&server, "hscan").await?,
        scans,
        "nothing was read whole"
    );
    let after = read(&store).await?;
    let after = after.policy().expect("limits");
    assert_eq!(since.domain.revision, after.revision);
    assert_eq!(since.limits.len(), 1);
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
    let mut found = since.overrides;
    found.sort_by(|a, b| a.values.cmp(&b.values));
    assert_eq!(found, expected);
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
    let scans = async || -> Result<u32> {
        let calls = calls(&server, "hscan").await?;
        Ok(calls
            .rsplit('=')
            .next()
            .map_or(0, |n| n.parse().unwrap_or(0)))
    };
    let sets = calls(&server, "hset").await?;
    let before = scans().await?;
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
    let read = scans().await? - before;
    assert!(
        (3..=6).contains(&read),
        "{read} pages of limits, and none of overrides"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn changes_are_unknown_after_another_history_or_a_lost_list() -> Result<()> {
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
    server.command(&["DEL", "rl:{shop}:changes"]).await?;
    assert_eq!(store.changes_since(&domain, &known).await?, None);
    // Nor after later edits.
    let later = set_override(&store, "user9", None).await?;
    assert_eq!(store.changes_since(&domain, &known).await?, None);
    set_override(&store, "user10", None).await?;
    let since = store.changes_since(&domain, &later).await?;
    assert_eq!(since.map(|since| since.overrides.len()), Some(1));
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

/// What a limiter has in force: limits in their order with what the store keeps beside them, and overrides.
fn in_force(compiled: &Compiled) -> Vec<(Limit, Vec<Override>)> {
    let limits = compiled.limits().iter().enumerate();
    let limits = limits.map(|(at, limit)| {
        let mut overrides: Vec<Override> = compiled.overrides(at).cloned().collect();
        overrides.sort_by(|a, b| a.values.cmp(&b.values));
        (Limit::clone(limit), overrides)
    });
    limits.collect()
}

/// A policy after a random edit: limits that come, change, move and go, and their overrides.
fn edited(policy: &Policy, dice: &mut fastrand::Rng) -> Policy {
    let mut policy = policy.clone();
    let limits = &mut policy.limits;
    for _ in 0..dice.usize(1..4) {
        let at = dice.usize(0..=limits.len());
        match (dice.u8(0..7), limits.get_mut(at)) {
            (0 | 1, _) => {
                let free = (0..).map(|n| format!("l{n}"));
                let mut free = free.filter(|name| limits.iter().all(|l| l.name.as_str() != name));
                let free_name = free.next().expect("endless");
                let new = format!("  - {{name: {free_name}, per: [user], rate: 10/s}}\n");
                limits.insert(at, crate::given::policy(&new).limits.remove(0));
            }
            (2, Some(_)) => drop(limits.remove(at)),
            (3, Some(_)) => {
                let moved = limits.remove(at);
                limits.insert(dice.usize(0..=limits.len()), moved);
            }
            (4, Some(limit)) => {
                let rate = dice.u32(1..50);
                let other = format!("  - {{name: a, per: [user], rate: {rate}/s}}\n");
                limit.quota = crate::given::policy(&other).limits[0].quota;
            }
            (5, Some(limit)) => limit.overrides.clear(),
            (_, Some(limit)) => {
                let user = format!("u{}", dice.u8(0..4));
                let values = vec![Some(user.into_bytes())];
                limit.overrides.retain(|found| found.values != values);
                let until = Some(4_000_000_000_000 + dice.u64(0..1000));
                let quota = policy::OverrideQuota::Unlimited;
                limit.overrides.push(Override {
                    values,
                    quota,
                    until_ms: until,
                });
            }
            (_, None) => {}
        }
    }
    policy
}

/// Makes a random edit of the domain.
async fn make_an_edit(
    store: &Arc<dyn Store>,
    base: &Stored,
    dice: &mut fastrand::Rng,
) -> Result<()> {
    let limits = base.policy().context("limits")?;
    let a_limit: Option<Name> = dice.choice(&limits.limits).map(|limit| limit.name.clone());
    match (dice.u8(0..8), a_limit) {
        (0, Some(limit)) => {
            reset(
                store,
                limits.limit(limit.as_str()).context("it")?,
                ResetScope::All,
            )
            .await?;
        }
        (1, Some(limit)) => {
            let change = Change::Override {
                limit: &limit,
                values: &[Some(b"u1".to_vec())],
                to: None,
            };
            write(store, base, change).await?;
        }
        (2, _) => {
            let all = Change::Delete(&std::collections::BTreeMap::new());
            write(store, base, all).await?;
            let again = edited(limits, dice);
            write(store, &read(store).await?, Change::Limits(&again)).await?;
        }
        _ => {
            let after = edited(limits, dice);
            write(store, base, Change::Limits(&after)).await?;
        }
    }
    Ok(())
}

/// After edits of all kinds, one or several, limits that were caught up with equal those that were read whole.
async fn who_reads_changes_has_what_who_reads_all_has(server: Server) -> Result<()> {
    let store = server.store()?;
    let mut dice = fastrand::Rng::with_seed(7);
    let first = edited(&policy("  []\n"), &mut dice);
    write(&store, &Stored::Absent, Change::Limits(&first)).await?;
    let mut follower = crate::given::current(&store).await?;
    let (mut caught_up, mut refused) = (0, 0);
    for _ in 0..150 {
        let base = read(&store).await?;
        make_an_edit(&store, &base, &mut dice).await?;
        if dice.u8(0..3) == 0 {
            continue;
        }
        let whole = crate::given::current(&store).await?;
        let edits = store
            .changes_since(&name("shop"), follower.revision())
            .await?;
        let Some(next) = edits.and_then(|edits| follower.caught_up(edits)) else {
            refused += 1;
            follower = whole;
            continue;
        };
        caught_up += 1;
        assert_eq!(in_force(&next), in_force(&whole));
        assert_eq!(next.revision(), whole.revision());
        for (at, limit) in whole.limits().iter().enumerate() {
            assert_eq!(next.position(limit.name.as_str()), Some(at));
        }
        follower = next;
    }
    assert!(caught_up > 60 && refused < 40, "{caught_up} and {refused}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn an_edit_of_one_limit_writes_and_reads_that_limit() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let store = server.store()?;
    let limit = |n: u32, rate: u32| {
        let values = format!("{{user: u{n}}}");
        format!(
            "  - {{name: l{n}, per: [user], rate: {rate}/s, overrides: [{{values: {values}, \
             unlimited: true}}]}}\n"
        )
    };
    let limits: String = (0..300).map(|n| limit(n, 10)).collect();
    write(&store, &Stored::Absent, Change::Limits(&policy(&limits))).await?;
    let base = read(&store).await?;
    let follower = Compiled::new(base.policy().context("limits")?.clone());
    let mut faster = base.policy().context("limits")?.clone();
    faster.limits[7].quota = policy(&limit(7, 20)).limits[0].quota;
    let counted = async |command| calls(&server, command).await;
    let scans = counted("hscan").await?;
    write(&store, &base, Change::Fields(&faster)).await?;
    let edits = store
        .changes_since(&name("shop"), follower.revision())
        .await?;
    let edits = edits.context("they are listed")?;
    assert_eq!(edits.limits.len(), 1);
    let next = follower.caught_up(edits).context("its override stays")?;
    assert_eq!(next.limits()[7].quota, faster.limits[7].quota);
    assert_eq!(next.overrides(7).count(), 1);
    assert_eq!(counted("hscan").await?, scans);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn limits_have_a_size_together_and_each() -> Result<()> {
    const RECORD: &str = "rl:{shop}:policy";
    let server = Server::start(Engine::Redis).await?;
    let store = server.store()?;
    let bytes = async || -> Result<usize> { server.ask(&["HGET", RECORD, "bytes"]).await };
    let described = |length: usize| {
        let text = "x".repeat(length);
        policy(&format!(
            "  - {{name: a, rate: 1/s, description: {text}}}\n  - {{name: b, rate: 1/s}}\n"
        ))
    };
    write(&store, &Stored::Absent, Change::Limits(&described(100))).await?;
    let first = bytes().await?;
    let longer = described(600);
    write(&store, &read(&store).await?, Change::Limits(&longer)).await?;
    assert_eq!(bytes().await?, first + 500);
    let almost = ((40 << 20) - 399).to_string();
    server.command(&["HSET", RECORD, "bytes", &almost]).await?;
    let refused = write(
        &store,
        &read(&store).await?,
        Change::Limits(&described(999)),
    )
    .await;
    assert!(refused.is_ok(), "{refused:?}");
    let base = read(&store).await?;
    let mut new = described(999);
    new.limits
        .extend(policy("  - {name: c, rate: 1/s}\n").limits);
    let refused = write(&store, &base, Change::Limits(&new)).await;
    let Err(EditError::Plan(EditPlanError::TooLarge { bytes: found, max })) = refused else {
        panic!("{refused:?}")
    };
    assert!(found > max && max == 40 << 20);
    // What makes them smaller is written.
    write(&store, &base, Change::Limits(&described(10))).await?;
    assert_eq!(
        read(&store).await?.policy().context("limits")?.limits.len(),
        2
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn an_edit_of_one_limit_reads_it_alone_and_counts_what_proxies_get_of_all() -> Result<()> {
    const RECORD: &str = "rl:{shop}:policy";
    let server = Server::start(Engine::Redis).await?;
    let store = server.store()?;
    let limit =
        |n: u32, path: &str| format!("  - {{name: l{n}, match: {{path: {path}}}, rate: 1/s}}\n");
    let limits: String = (0..50).map(|n| limit(n, "/a")).collect();
    write(&store, &Stored::Absent, Change::Limits(&policy(&limits))).await?;
    let counted = async || -> Result<u64> { server.ask(&["HGET", RECORD, "snapshot_bytes"]).await };
    let first = counted().await?;
    let scans = calls(&server, "hscan").await?;
    let l7 = name("l7");
    let edit = async |path: &str| -> Result<Result<_, EditError>> {
        let base = store.read_part(&name("shop"), &[&l7]).await?;
        assert_eq!(base.policy().context("limits")?.limits.len(), 1);
        Ok(write(&store, &base, Change::Fields(&policy(&limit(7, path)))).await)
    };
    edit("/a-longer-path").await?.context("it fits")?;
    assert_eq!(calls(&server, "hscan").await?, scans);
    assert_eq!(counted().await?, first + 12);
    let stored = read(&store).await?;
    let stored = stored.policy().context("limits")?;
    assert_eq!(
        (stored.limits.len(), stored.limits[7].name.as_str()),
        (50, "l7")
    );
    // Proxies read 8 MiB.
    server
        .command(&["HSET", RECORD, "snapshot_bytes", "8323072"])
        .await?;
    let refused = edit("/an-even-longer-path").await?;
    let Err(EditError::Plan(EditPlanError::SnapshotTooLarge { bytes, max })) = refused else {
        panic!("{refused:?}")
    };
    assert!(bytes > max && max < 8 << 20);
    edit("/a").await?.context("a shorter one is written")?;
    // A limit that is not there may be a new one, which all others matter to.
    let base = store.read_part(&name("shop"), &[&name("new")]).await?;
    assert_eq!(base.policy().context("limits")?.limits.len(), 50);
    Ok(())
}
