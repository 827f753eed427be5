//! Leases: what is granted, and how it is settled.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use policy::Compiled;
use protocol::{Answer, Check, Lease, LeaseRequest, LimitRequest, Settlement};
use store::{CheckError, Credit, LimitOf, ResetScope, Store};

use crate::{
    given::{by, check, name, policy, publish, request},
    on_both_servers, on_every_store,
    servers::{Server, until},
};

on_both_servers!(a_flushed_script_settles_once);

const PATIENCE: Duration = Duration::from_secs(20);

type Shared = Arc<dyn Store>;

on_every_store!(
    returned_lease_units_are_credited_once_and_spent_ones_are_not,
    a_denied_check_and_a_peek_settle_but_grant_nothing,
    a_skipped_limit_still_grants_a_lease_beside_charged_limits,
    every_leased_algorithm_grants_and_accepts_returns,
    a_reset_keeps_leased_units,
    units_leased_from_a_reset_window_count_until_its_end,
    a_credit_keeps_leased_units,
    a_stale_check_settles_once,
    an_override_too_small_for_the_ttl_is_not_leased,
);

/// A hundred units that do not refill within a test.
const API: &str = "  - {name: api, rate: 100/1d, lease: {ttl: 1m}}\n";

fn leasing(cost: u64, want: u64, settle: &[Settlement]) -> Check {
    Check {
        cost,
        limits: vec![LimitRequest {
            lease: Some(LeaseRequest {
                want,
                settle: settle.to_vec(),
            }),
            ..LimitRequest::new(name("api"))
        }],
        ..request(&[])
    }
}

fn settled(lease: Lease, spent: u64, returned: u64) -> Settlement {
    Settlement {
        epoch: lease.epoch,
        spent,
        returned,
    }
}

/// A grant of `units`, for a minute, or until its window ends: midnight may be nearer.
async fn grant(store: &Shared, policy: &Compiled, units: u64) -> Result<(Lease, Answer)> {
    let answer = check(store, policy, &leasing(1, units, &[])).await?;
    let lease = answer.limits[0].lease.context("a grant")?;
    assert_eq!(lease.units, units);
    assert!((1..=60_000).contains(&lease.ttl_ms), "{lease:?}");
    Ok((lease, answer))
}

/// What is left and what is leased.
async fn standing(store: &Shared, policy: &Compiled) -> Result<(u64, u64)> {
    let seen = store.inspect(policy, &name("api"), &[], 1).await?;
    Ok((seen.answer.remaining, seen.leased))
}

async fn returned_lease_units_are_credited_once_and_spent_ones_are_not(
    store: Shared,
) -> Result<()> {
    let policy = publish(&store, &policy(API)).await?;
    let (lease, answer) = grant(&store, &policy, 10).await?;
    assert_eq!(
        (answer.limits[0].charged, answer.limits[0].remaining),
        (1, 89)
    );
    assert_eq!(standing(&store, &policy).await?, (89, 10));
    let foreign = Settlement {
        epoch: lease.epoch + 5,
        ..settled(lease, 1, 1)
    };
    let settle = leasing(0, 0, &[foreign, settled(lease, 4, 5)]);
    let answer = check(&store, &policy, &settle).await?;
    assert_eq!((answer.allowed, answer.limits[0].charged), (true, 0));
    assert_eq!(standing(&store, &policy).await?, (94, 1));
    // More than was granted is not given back.
    check(&store, &policy, &leasing(0, 0, &[settled(lease, 0, 9)])).await?;
    assert_eq!(standing(&store, &policy).await?, (95, 0));
    check(&store, &policy, &leasing(0, 0, &[settled(lease, 0, 9)])).await?;
    assert_eq!(standing(&store, &policy).await?, (95, 0));
    // At most half of what is left, and less the more proxies there are.
    let greedy = check(&store, &policy, &leasing(1, 1000, &[])).await?;
    assert_eq!(greedy.limits[0].lease.map(|lease| lease.units), Some(47));
    let second = Check {
        proxy: 7,
        ..leasing(0, 1000, &[])
    };
    let second = check(&store, &policy, &second).await?;
    assert_eq!(second.limits[0].lease.map(|lease| lease.units), Some(11));
    Ok(())
}

async fn a_denied_check_and_a_peek_settle_but_grant_nothing(store: Shared) -> Result<()> {
    let limits = format!("{API}  - {{name: closed, rate: 1/1d, burst: 0}}\n");
    let policy = publish(&store, &policy(&limits)).await?;
    let alone = |check: Check| Check {
        only: vec![name("api")],
        ..check
    };
    let answer = check(&store, &policy, &alone(leasing(1, 10, &[]))).await?;
    let lease = answer.limits[0].lease.context("a grant")?;
    let denied = leasing(1, 10, &[settled(lease, 0, 3)]);
    let answer = check(&store, &policy, &denied).await?;
    assert!(!answer.allowed);
    assert_eq!(answer.limits[0].lease, None);
    assert_eq!(standing(&store, &policy).await?, (92, 7));
    let peek = Check {
        peek: true,
        ..alone(leasing(1, 10, &[settled(lease, 0, 3)]))
    };
    let answer = check(&store, &policy, &peek).await?;
    assert_eq!((answer.allowed, answer.limits[0].lease), (true, None));
    assert_eq!(standing(&store, &policy).await?, (95, 4));
    Ok(())
}

async fn a_skipped_limit_still_grants_a_lease_beside_charged_limits(store: Shared) -> Result<()> {
    let limits = format!("{API}  - {{name: other, rate: 10/1d}}\n");
    let policy = publish(&store, &policy(&limits)).await?;
    let mut skipping = leasing(1, 10, &[]);
    skipping.limits[0].skip = true;
    let answer = check(&store, &policy, &skipping).await?;
    assert_eq!(answer.limits.len(), 2);
    assert_eq!(
        [answer.limits[0].charged, answer.limits[1].charged],
        [0, 1],
        "the proxy took it from its lease"
    );
    assert!(answer.limits[0].lease.is_some());
    assert_eq!(standing(&store, &policy).await?, (90, 10));
    Ok(())
}

async fn every_leased_algorithm_grants_and_accepts_returns(store: Shared) -> Result<()> {
    for (kind, more) in [
        ("token_bucket", ""),
        ("gcra", ""),
        ("leaky_bucket", ""),
        ("fixed_window", ""),
        ("fixed_window", ", align: first_request"),
        ("sliding_window", ""),
        ("sliding_window_buckets", ", sub_windows: 2"),
    ] {
        // Each with a bucket of its own.
        let limit = format!("{}-{}", kind.replace('_', "-"), more.len());
        let limits = format!(
            "  - {{name: {limit}, algorithm: {kind}, rate: 100/1d{more}, lease: {{ttl: 1m}}}}\n"
        );
        let policy = publish(&store, &policy(&limits)).await?;
        let named = |mut check: Check| {
            check.limits[0].limit = name(&limit);
            check
        };
        let answer = check(&store, &policy, &named(leasing(1, 10, &[]))).await?;
        let lease = answer.limits[0].lease.with_context(|| limit.clone())?;
        assert_eq!(lease.units, 10, "{limit}");
        assert!((1..=60_000).contains(&lease.ttl_ms), "{limit} {lease:?}");
        assert_eq!(answer.limits[0].remaining, 89, "{limit}");
        let back = named(leasing(0, 0, &[settled(lease, 3, 7)]));
        let answer = check(&store, &policy, &back).await?;
        assert_eq!(answer.limits[0].remaining, 96, "{limit}");
        // A settlement counts only as far as units are outstanding.
        let again = named(leasing(0, 0, &[settled(lease, 0, 5)]));
        let answer = check(&store, &policy, &again).await?;
        assert_eq!(answer.limits[0].remaining, 96, "{limit}");
    }
    Ok(())
}

async fn a_reset_keeps_leased_units(store: Shared) -> Result<()> {
    for kind in [
        "token_bucket",
        "gcra",
        "fixed_window",
        "fixed_window, align: first_request",
        "sliding_window",
        "sliding_window_buckets, sub_windows: 2",
    ] {
        let limits =
            format!("  - {{name: api, algorithm: {kind}, rate: 100/1d, lease: {{ttl: 1m}}}}\n");
        let policy = publish(&store, &policy(&limits)).await?;
        let (lease, _) = grant(&store, &policy, 10).await?;
        let of = LimitOf {
            domain: &name("shop"),
            limit: &policy.limits()[0],
        };
        let report = store
            .reset(&of, ResetScope::Bucket(&[]), &by("ann"))
            .await?;
        assert_eq!(report.buckets, 1);
        let policy = crate::given::current(&store).await?;
        assert_eq!(standing(&store, &policy).await?, (90, 10), "{kind}");
        check(&store, &policy, &leasing(0, 0, &[settled(lease, 0, 10)])).await?;
        assert_eq!(standing(&store, &policy).await?, (100, 0), "{kind}");
    }
    Ok(())
}

/// These units are never settled: the proxy died, or a call was lost. The proxy may have used them in that
/// window, even after the reset, so they count until the window ends, long after the lease has expired.
async fn units_leased_from_a_reset_window_count_until_its_end(store: Shared) -> Result<()> {
    const WINDOW_MS: u64 = 1500;
    let limits = format!(
        "  - {{name: api, algorithm: fixed_window, rate: 100/{WINDOW_MS}ms, lease: {{ttl: 10ms}}}}\n"
    );
    let policy = publish(&store, &policy(&limits)).await?;
    // Almost all of a window is still to come.
    let fresh = async || {
        let answer = check(&store, &policy, &leasing(1, 10, &[])).await.ok()?;
        let lease = answer.limits.first()?.lease?;
        (answer.now_ms < lease.epoch + WINDOW_MS / 10).then_some(lease)
    };
    let (lease, _) = until("a grant of a new window", PATIENCE, fresh).await?;
    let (end_ms, leased) = (lease.epoch + WINDOW_MS, standing(&store, &policy).await?.1);
    assert!(leased >= 10, "{leased}");
    let of = LimitOf {
        domain: &name("shop"),
        limit: &policy.limits()[0],
    };
    store
        .reset(&of, ResetScope::Bucket(&[]), &by("ann"))
        .await?;
    let policy = crate::given::current(&store).await?;
    let mut kept_ms = 0;
    let ended = async || {
        let answer = check(&store, &policy, &leasing(0, 0, &[])).await.ok()?;
        let (now_ms, left) = (answer.now_ms, answer.limits[0].remaining);
        if now_ms >= end_ms {
            return Some(left);
        }
        assert_eq!(left, 100 - leased, "at {now_ms}");
        kept_ms = now_ms - lease.epoch;
        None
    };
    let (left, _) = until("the window has ended", PATIENCE, ended).await?;
    assert_eq!(left, 100);
    assert!(kept_ms > WINDOW_MS / 2, "{kept_ms} ms after its start");
    Ok(())
}

async fn a_credit_keeps_leased_units(store: Shared) -> Result<()> {
    for kind in [
        "gcra",
        "fixed_window",
        "sliding_window",
        "sliding_window_buckets, sub_windows: 2",
    ] {
        let limits =
            format!("  - {{name: api, algorithm: {kind}, rate: 100/1d, lease: {{ttl: 1m}}}}\n");
        let policy = publish(&store, &policy(&limits)).await?;
        grant(&store, &policy, 10).await?;
        check(&store, &policy, &leasing(20, 0, &[])).await?;
        let credit = Credit {
            policy: &policy,
            limit: &name("api"),
            values: &[],
            units: 15,
            peek: false,
            force: false,
        };
        let report = store.credit(&credit, &by("ann")).await?;
        assert_eq!((report.left_before, report.left), (69, 84), "{kind}");
        let report = store.credit(&credit, &by("ann")).await?;
        assert_eq!((report.left_before, report.left), (84, 90), "{kind}");
        assert_eq!(standing(&store, &policy).await?, (90, 10), "{kind}");
    }
    Ok(())
}

async fn a_stale_check_settles_once(store: Shared) -> Result<()> {
    let old = publish(&store, &policy(API)).await?;
    let (lease, _) = grant(&store, &old, 10).await?;
    let new = publish(&store, &policy(&API.replace("100/1d", "200/2d"))).await?;
    check(&store, &new, &leasing(1, 0, &[])).await?;
    let settle = leasing(0, 0, &[settled(lease, 0, 5)]);
    let stale = check(&store, &old, &settle).await;
    assert_eq!(stale, Err(CheckError::Stale));
    assert_eq!(standing(&store, &new).await?, (188, 10), "nothing happened");
    check(&store, &new, &settle).await?;
    assert_eq!(standing(&store, &new).await?, (193, 5));
    Ok(())
}

async fn an_override_too_small_for_the_ttl_is_not_leased(store: Shared) -> Result<()> {
    let limits = "
  - {name: api, per: [user], rate: 100/1d, lease: {ttl: 1m},
     overrides: [{values: {user: bob}, rate: 100/s}]}\n";
    let policy = publish(&store, &policy(limits)).await?;
    for (user, leased) in [("alice", true), ("bob", false)] {
        let asking = Check {
            descriptor: request(&[("user", user)]).descriptor,
            ..leasing(1, 10, &[])
        };
        let answer = check(&store, &policy, &asking).await?;
        assert!(answer.allowed);
        assert_eq!(answer.limits[0].lease.is_some(), leased, "{user}");
    }
    Ok(())
}

/// NOSCRIPT means that nothing ran, so a call with a settlement may be sent again; after any other
/// error it may not.
async fn a_flushed_script_settles_once(server: Server) -> Result<()> {
    let store = server.store()?;
    let policy = publish(&store, &policy(API)).await?;
    let (lease, _) = grant(&store, &policy, 40).await?;
    for round in 1..=8 {
        server.command(&["SCRIPT", "FLUSH"]).await?;
        check(&store, &policy, &leasing(0, 0, &[settled(lease, 2, 3)])).await?;
        let after = (59 + 3 * round, 40 - 5 * round);
        assert_eq!(standing(&store, &policy).await?, after, "round {round}");
    }
    Ok(())
}
