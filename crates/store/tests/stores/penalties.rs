//! Buckets that were denied too often.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use policy::{Compiled, Penalty};
use protocol::{Check, LimitAnswer, LimitRequest};
use store::{Credit, LimitOf, ResetScope, Store};

use crate::{
    given::{by, check, current, name, policy, publish, read, request},
    on_every_store,
    servers::until,
};

type Shared = Arc<dyn Store>;

on_every_store!(
    denials_begin_a_penalty_whatever_is_left,
    a_penalty_that_grows_is_longer_each_time_until_a_reset,
    only_denials_by_the_limit_itself_count,
    each_of_several_limits_counts_its_own_denials,
    reported_denials_count,
    a_shadow_limit_has_penalties_in_shadow,
    a_reset_or_a_credit_ends_a_penalty,
    a_reset_of_the_limit_ends_penalties_of_unused_buckets,
);

const HOUR_MS: u64 = 3_600_000;

/// Two a second and user, and an hour's penalty after three denials.
const LOGINS: &str = "  - {name: logins, per: [user], rate: 2/1s}\n";

/// The domain's limits as they stand, each with a penalty.
async fn penalized(store: &Shared) -> Result<Compiled> {
    let mut policy = read(store).await?.policy().context("limits")?.clone();
    for limit in &mut policy.limits {
        limit.penalty = Some(Penalty::new(3, 60_000, HOUR_MS));
    }
    Ok(Compiled::new(policy))
}

async fn publish_penalized(store: &Shared, limits: &str) -> Result<Compiled> {
    publish(store, &policy(limits)).await?;
    penalized(store).await
}

fn of(user: &str) -> Check {
    request(&[("user", user)])
}

/// The first limit's answer.
async fn ask(store: &Shared, policy: &Compiled, asked: &Check) -> Result<LimitAnswer> {
    let answer = check(store, policy, asked).await?;
    Ok(answer.limits[0].clone())
}

/// Waits until the bucket has all its units again, whatever its penalty is.
async fn refills(store: &Shared, user: &str) -> Result<()> {
    let without_penalties = current(store).await?;
    let peek = Check {
        peek: true,
        ..of(user)
    };
    until("the bucket is whole", Duration::from_secs(10), async || {
        let seen = ask(store, &without_penalties, &peek).await.ok()?;
        (seen.remaining == 2).then_some(())
    })
    .await?;
    Ok(())
}

/// Uses up the second's units and is then denied `denials` times.
async fn exceed(store: &Shared, policy: &Compiled, user: &str, denials: u64) -> Result<()> {
    let whole = Check {
        cost: 2,
        ..of(user)
    };
    let mut denied = 0;
    while denied < denials {
        denied += u64::from(!ask(store, policy, &whole).await?.allowed);
    }
    Ok(())
}

async fn denials_begin_a_penalty_whatever_is_left(store: Shared) -> Result<()> {
    let policy = publish_penalized(&store, LOGINS).await?;
    exceed(&store, &policy, "alice", 2).await?;
    refills(&store, "alice").await?;
    let pass = ask(&store, &policy, &of("alice")).await?;
    assert!(pass.allowed && pass.penalty.denials == 2, "{pass:?}");
    let mut begun = 0;
    for _ in 0..8 {
        begun += u64::from(ask(&store, &policy, &of("alice")).await?.penalty.begun);
    }
    assert_eq!(begun, 1);
    refills(&store, "alice").await?;
    for cost in [0, 1] {
        let denied = ask(
            &store,
            &policy,
            &Check {
                cost,
                ..of("alice")
            },
        )
        .await?;
        let left_ms = denied.penalty.left_ms;
        assert!(!denied.allowed && denied.remaining == 0, "{denied:?}");
        assert!((HOUR_MS - 60_000..HOUR_MS).contains(&left_ms), "{denied:?}");
        assert_eq!(denied.retry_after_ms, Some(left_ms));
        assert_eq!(denied.reset_after_ms, left_ms);
    }
    assert!(ask(&store, &policy, &of("bob")).await?.allowed);
    let alice = [Some(b"alice".to_vec())];
    let seen = store.inspect(&policy, &name("logins"), &alice, 1).await?;
    assert!(seen.answer.penalty.left_ms > HOUR_MS - 60_000, "{seen:?}");
    Ok(())
}

async fn a_penalty_that_grows_is_longer_each_time_until_a_reset(store: Shared) -> Result<()> {
    let growing = async || -> Result<Compiled> {
        let mut policy = read(&store).await?.policy().context("limits")?.clone();
        policy.limits[0].penalty = Some(Penalty {
            grow: 10,
            max_ms: HOUR_MS,
            ..Penalty::new(3, 60_000, 1000)
        });
        Ok(Compiled::new(policy))
    };
    publish(&store, &policy(LOGINS)).await?;
    let mut policy = growing().await?;
    let alice = [Some(b"alice".to_vec())];
    let seen = async |policy: &Compiled| -> Result<_> {
        let seen = store.inspect(policy, &name("logins"), &alice, 1).await?;
        Ok(seen.answer.penalty)
    };
    assert_eq!(seen(&policy).await?.next_ms, 1000);
    exceed(&store, &policy, "alice", 3).await?;
    let first = seen(&policy).await?;
    assert_eq!(first.next_ms, 10_000);
    assert_eq!(first.anew_ms, first.left_ms + 2 * 1000);
    until("the penalty ends", Duration::from_secs(10), async || {
        let left_ms = seen(&policy).await.ok()?.left_ms;
        (left_ms == 0).then_some(())
    })
    .await?;
    exceed(&store, &policy, "alice", 3).await?;
    let second = seen(&policy).await?;
    assert!((1001..=10_000).contains(&second.left_ms), "{second:?}");
    assert_eq!(second.next_ms, 100_000);
    let limit = policy.limits()[0].clone();
    let of_limit = LimitOf {
        domain: policy.domain(),
        limit: &limit,
    };
    let bucket = ResetScope::Bucket(&alice);
    store.reset(&of_limit, bucket, &by("ann")).await?;
    policy = growing().await?;
    let forgotten = seen(&policy).await?;
    assert_eq!((forgotten.left_ms, forgotten.next_ms), (0, 1000));
    Ok(())
}

async fn only_denials_by_the_limit_itself_count(store: Shared) -> Result<()> {
    let policy = publish_penalized(&store, LOGINS).await?;
    exceed(&store, &policy, "alice", 1).await?;
    for _ in 0..5 {
        let peek = Check {
            peek: true,
            cost: 2,
            ..of("alice")
        };
        ask(&store, &policy, &peek).await?;
        // It could never pass.
        let dear = Check {
            cost: 3,
            ..of("alice")
        };
        let denied = ask(&store, &policy, &dear).await?;
        assert_eq!(denied.retry_after_ms, None);
        assert_eq!(denied.penalty.denials, 1, "{denied:?}");
    }
    Ok(())
}

async fn each_of_several_limits_counts_its_own_denials(store: Shared) -> Result<()> {
    // On a Cluster in three slots.
    let limits = "
  - {name: wide, per: [user], rate: 1000/1h}
  - {name: a, per: [user], rate: 1/1h}
  - {name: b, per: [user], rate: 1/1h}
";
    let policy = publish_penalized(&store, limits).await?;
    assert!(check(&store, &policy, &of("alice")).await?.allowed);
    for denials in [1, 2] {
        let denied = check(&store, &policy, &of("alice")).await?;
        let counts: Vec<_> = denied.limits.iter().map(|l| l.penalty.denials).collect();
        assert_eq!(counts, [0, denials, denials]);
    }
    let penalized = check(&store, &policy, &of("alice")).await?;
    let begun: Vec<_> = penalized.limits.iter().map(|l| l.penalty.begun).collect();
    assert_eq!(begun, [false, true, true]);
    assert_eq!(penalized.limits[0].charged, 0);
    Ok(())
}

async fn reported_denials_count(store: Shared) -> Result<()> {
    let policy = publish_penalized(&store, LOGINS).await?;
    let report = |count| Check {
        cost: 0,
        limits: vec![LimitRequest {
            skip: true,
            denied: count,
            ..LimitRequest::new(name("logins"))
        }],
        ..of("alice")
    };
    let two = ask(&store, &policy, &report(2)).await?;
    assert!(two.allowed && two.penalty.denials == 2, "{two:?}");
    let more = ask(&store, &policy, &report(u64::MAX)).await?;
    assert!(!more.allowed && more.penalty.begun, "{more:?}");
    let late = ask(&store, &policy, &report(5)).await?;
    assert!(late.penalty.left_ms > 0 && !late.penalty.begun, "{late:?}");
    Ok(())
}

async fn a_shadow_limit_has_penalties_in_shadow(store: Shared) -> Result<()> {
    let limits = "  - {name: logins, per: [user], rate: 1/1h, enforce: 0%}\n";
    let policy = publish_penalized(&store, limits).await?;
    for request in 0..6 {
        let answer = check(&store, &policy, &of("alice")).await?;
        assert!(answer.allowed);
        let penalized = answer.limits[0].penalty.left_ms > 0;
        assert_eq!(penalized, request >= 3, "request {request}");
    }
    Ok(())
}

async fn a_reset_or_a_credit_ends_a_penalty(store: Shared) -> Result<()> {
    let mut policy = publish_penalized(&store, LOGINS).await?;
    let alice = vec![Some(b"alice".to_vec())];
    for ends in ["reset", "reset all", "credit"] {
        exceed(&store, &policy, "alice", 3).await?;
        assert!(ask(&store, &policy, &of("alice")).await?.penalty.left_ms > 0);
        let limit = policy.limits()[0].clone();
        let of_limit = LimitOf {
            domain: policy.domain(),
            limit: &limit,
        };
        match ends {
            "reset" => {
                let bucket = ResetScope::Bucket(&alice);
                store.reset(&of_limit, bucket, &by("ann")).await?;
            }
            "reset all" => {
                store.reset(&of_limit, ResetScope::All, &by("ann")).await?;
            }
            _ => {
                // Nothing of the bucket is used any more: the penalty alone denies.
                refills(&store, "alice").await?;
                for peek in [true, false] {
                    let credit = Credit {
                        policy: &policy,
                        limit: &name("logins"),
                        values: &alice,
                        units: 1,
                        peek,
                        force: false,
                    };
                    let report = store.credit(&credit, &by("ann")).await?;
                    assert!(report.used, "{report:?}");
                    assert_eq!((report.left_before, report.left), (0, 2));
                }
            }
        }
        policy = penalized(&store).await?;
        let pass = ask(&store, &policy, &of("alice")).await?;
        assert!(pass.allowed, "{ends}: {pass:?}");
    }
    Ok(())
}

async fn a_reset_of_the_limit_ends_penalties_of_unused_buckets(store: Shared) -> Result<()> {
    let limits = "
  - {name: logins, per: [user], rate: 2/1s}
  - {name: logins-by-place, per: [user, place], partition: [user], rate: 2/1s}
";
    let policy = publish_penalized(&store, limits).await?;
    let here = |cost| Check {
        cost,
        ..request(&[("user", "alice"), ("place", "here")])
    };
    for _ in 0..5 {
        check(&store, &policy, &here(2)).await?;
    }
    let alice = Some(b"alice".to_vec());
    let buckets = [
        ("logins", vec![alice.clone()]),
        ("logins-by-place", vec![alice, Some(b"here".to_vec())]),
    ];
    for (limit, values) in buckets {
        until(
            "the bucket itself is gone",
            Duration::from_secs(10),
            async || {
                let seen = store.inspect(&policy, &name(limit), &values, 1).await;
                // The memory store forgets it later, but no longer counts it.
                let seen = seen.ok()?;
                (seen.state.is_none() || seen.ttl_ms == Some(0)).then_some(())
            },
        )
        .await?;
    }
    let denied = check(&store, &policy, &here(1)).await?;
    let left: Vec<_> = denied
        .limits
        .iter()
        .map(|l| l.penalty.left_ms > 0)
        .collect();
    assert_eq!(left, [true, true]);
    for (at, limit) in policy.limits().iter().enumerate() {
        let of_limit = LimitOf {
            domain: policy.domain(),
            limit,
        };
        store.reset(&of_limit, ResetScope::All, &by("ann")).await?;
        let policy = penalized(&store).await?;
        let now = check(&store, &policy, &here(1)).await?;
        let left: Vec<_> = now.limits.iter().map(|l| l.penalty.left_ms > 0).collect();
        // The denials of the other limit, whose name starts alike, stay.
        assert_eq!(left, [false, at == 0]);
    }
    Ok(())
}
