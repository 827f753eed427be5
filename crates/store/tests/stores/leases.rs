//! Leases: what is granted, and how it is settled.

use std::sync::Arc;

use anyhow::{Context, Result};
use policy::Compiled;
use protocol::{Answer, Check, Lease, LeaseRequest, LimitRequest, Settlement};
use store::{CheckError, ResetScope, Store};

use crate::{
    given::{check, name, policy, publish, request, reset, units_left},
    on_both_servers, on_every_store,
    servers::Server,
};

on_both_servers!(a_flushed_script_settles_once);

type Shared = Arc<dyn Store>;

on_every_store!(
    returned_lease_units_are_credited_once_and_spent_ones_are_not,
    a_skipped_limit_still_grants_a_lease_beside_charged_limits,
    a_reset_keeps_leased_units,
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
    let lease = answer.limits[0].verdict.lease.context("a grant")?;
    assert_eq!(lease.units, units);
    assert!((1..=60_000).contains(&lease.ttl_ms), "{lease:?}");
    Ok((lease, answer))
}

/// What is left and what is leased.
async fn standing(store: &Shared, policy: &Compiled) -> Result<(u64, u64)> {
    let seen = store.inspect(policy, &name("api"), &[], 1).await?;
    let seen = seen.answer.verdict;
    Ok((seen.decision.remaining, seen.leased))
}

async fn returned_lease_units_are_credited_once_and_spent_ones_are_not(
    store: Shared,
) -> Result<()> {
    let policy = publish(&store, &policy(API)).await?;
    let (lease, answer) = grant(&store, &policy, 10).await?;
    assert_eq!(
        (answer.limits[0].verdict.charged, units_left(&answer)),
        (1, 89)
    );
    assert_eq!(standing(&store, &policy).await?, (89, 10));
    let foreign = Settlement {
        epoch: lease.epoch + 5,
        ..settled(lease, 1, 1)
    };
    let settle = leasing(0, 0, &[foreign, settled(lease, 4, 5)]);
    let answer = check(&store, &policy, &settle).await?;
    assert_eq!(
        (answer.allowed, answer.limits[0].verdict.charged),
        (true, 0)
    );
    assert_eq!(standing(&store, &policy).await?, (94, 1));
    // More than was granted is not given back.
    check(&store, &policy, &leasing(0, 0, &[settled(lease, 0, 9)])).await?;
    assert_eq!(standing(&store, &policy).await?, (95, 0));
    check(&store, &policy, &leasing(0, 0, &[settled(lease, 0, 9)])).await?;
    assert_eq!(standing(&store, &policy).await?, (95, 0));
    // At most half of what is left, and less the more proxies there are.
    let greedy = check(&store, &policy, &leasing(1, 1000, &[])).await?;
    assert_eq!(
        greedy.limits[0].verdict.lease.map(|lease| lease.units),
        Some(47)
    );
    let second = Check {
        proxy: 7,
        ..leasing(0, 1000, &[])
    };
    let second = check(&store, &policy, &second).await?;
    assert_eq!(
        second.limits[0].verdict.lease.map(|lease| lease.units),
        Some(11)
    );
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
        [
            answer.limits[0].verdict.charged,
            answer.limits[1].verdict.charged
        ],
        [0, 1],
        "the proxy took it from its lease"
    );
    assert!(answer.limits[0].verdict.lease.is_some());
    assert_eq!(standing(&store, &policy).await?, (90, 10));
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
        let report = reset(&store, &policy.limits()[0], ResetScope::Bucket(&[])).await?;
        assert_eq!(report, 1);
        let policy = crate::given::current(&store).await?;
        assert_eq!(standing(&store, &policy).await?, (90, 10), "{kind}");
        check(&store, &policy, &leasing(0, 0, &[settled(lease, 0, 10)])).await?;
        assert_eq!(standing(&store, &policy).await?, (100, 0), "{kind}");
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
        assert_eq!(answer.limits[0].verdict.lease.is_some(), leased, "{user}");
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
