//! Buckets that were denied too often.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use policy::{Compiled, Penalty, SlotId};
use protocol::{
    Check, CostSettlement, LimitRequest, LimitVerdict, OwnUnits, RetryAfter, ServiceCheck,
    ServicePart,
};
use store::{Credit, ResetScope, Store};

use crate::{
    given::{by, check, current, name, policy, publish, read, request, reset},
    on_every_store,
    servers::until,
};

type Shared = Arc<dyn Store>;

on_every_store!(
    denials_begin_a_penalty_whatever_is_left,
    each_of_several_limits_counts_its_own_denials,
    a_reset_or_a_credit_ends_a_penalty,
    a_reset_of_the_limit_ends_penalties_of_unused_buckets,
    what_stands_for_no_request_is_not_counted,
    a_request_that_waits_for_a_slot_as_well_is_counted_once,
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

/// The first limit's verdict.
async fn ask(store: &Shared, policy: &Compiled, asked: &Check) -> Result<LimitVerdict> {
    let answer = check(store, policy, asked).await?;
    Ok(answer.limits[0].verdict.clone())
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
        (seen.decision.remaining == 2).then_some(())
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
        denied += u64::from(!ask(store, policy, &whole).await?.decision.allowed);
    }
    Ok(())
}

async fn denials_begin_a_penalty_whatever_is_left(store: Shared) -> Result<()> {
    let policy = publish_penalized(&store, LOGINS).await?;
    exceed(&store, &policy, "alice", 2).await?;
    refills(&store, "alice").await?;
    let pass = ask(&store, &policy, &of("alice")).await?;
    assert!(
        pass.decision.allowed && pass.penalty.denials == 2,
        "{pass:?}"
    );
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
        assert!(
            !denied.decision.allowed && denied.decision.remaining == 0,
            "{denied:?}"
        );
        assert!((HOUR_MS - 60_000..HOUR_MS).contains(&left_ms), "{denied:?}");
        assert_eq!(denied.decision.retry_after, RetryAfter::Millis(left_ms));
        assert_eq!(denied.decision.reset_after_ms, left_ms);
    }
    assert!(ask(&store, &policy, &of("bob")).await?.decision.allowed);
    let alice = [Some(b"alice".to_vec())];
    let seen = store.inspect(&policy, &name("logins"), &alice, 1).await?;
    assert!(
        seen.answer.verdict.penalty.left_ms > HOUR_MS - 60_000,
        "{seen:?}"
    );
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
        let counts: Vec<_> = denied
            .limits
            .iter()
            .map(|l| l.verdict.penalty.denials)
            .collect();
        assert_eq!(counts, [0, denials, denials]);
    }
    let penalized = check(&store, &policy, &of("alice")).await?;
    let begun: Vec<_> = penalized
        .limits
        .iter()
        .map(|l| l.verdict.penalty.begun)
        .collect();
    assert_eq!(begun, [false, true, true]);
    assert_eq!(penalized.limits[0].verdict.charged, 0);
    Ok(())
}

async fn a_reset_or_a_credit_ends_a_penalty(store: Shared) -> Result<()> {
    let mut policy = publish_penalized(&store, LOGINS).await?;
    let alice = vec![Some(b"alice".to_vec())];
    for ends in ["reset", "reset all", "credit"] {
        exceed(&store, &policy, "alice", 3).await?;
        assert!(ask(&store, &policy, &of("alice")).await?.penalty.left_ms > 0);
        let limit = &policy.limits()[0];
        match ends {
            "reset" => assert_eq!(1, reset(&store, limit, ResetScope::Bucket(&alice)).await?),
            "reset all" => assert_eq!(1, reset(&store, limit, ResetScope::All).await?),
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
        assert!(pass.decision.allowed, "{ends}: {pass:?}");
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
        .map(|l| l.verdict.penalty.left_ms > 0)
        .collect();
    assert_eq!(left, [true, true]);
    for (at, limit) in policy.limits().iter().enumerate() {
        reset(&store, limit, ResetScope::All).await?;
        let policy = penalized(&store).await?;
        let now = check(&store, &policy, &here(1)).await?;
        let left: Vec<_> = now
            .limits
            .iter()
            .map(|l| l.verdict.penalty.left_ms > 0)
            .collect();
        // The denials of the other limit, whose name starts alike, stay.
        assert_eq!(left, [false, at == 0]);
    }
    Ok(())
}

/// A settlement or an earlier request's units may leave the bucket in debt, but nobody was denied.
async fn what_stands_for_no_request_is_not_counted(store: Shared) -> Result<()> {
    let limits = "
  - {name: logins, per: [user], rate: 4/1h,
     cost: {from: {response_json: /total}, reserve: {default: 1}, max: 100}}
";
    let policy = publish_penalized(&store, limits).await?;
    let of_logins = || LimitRequest::new(name("logins"));
    let mut settle = Vec::new();
    for secret in 1..=3 {
        let reserving = Check {
            reserve: true,
            slot: Some(SlotId { stamp: 1, secret }),
            ..of("alice")
        };
        let answer = check(&store, &policy, &reserving).await?;
        let reservation = answer.limits[0].reservation.context("a reservation")?;
        settle.push(CostSettlement {
            reservation,
            units: 5,
        });
    }
    let settling = settle.into_iter().map(|settled| LimitRequest {
        settle: vec![settled],
        ..of_logins()
    });
    let reported = LimitRequest {
        denied: 1,
        skip: true,
        ..of_logins()
    };
    for (limit, denials) in settling.zip([0; 3]).chain([(reported, 1)]) {
        let check = Check {
            // As proxies send them, or with a request that another limit decides.
            cost: denials,
            limits: vec![limit],
            ..of("alice")
        };
        let answer = ask(&store, &policy, &check).await?;
        assert_eq!(answer.penalty.denials, denials, "{answer:?}");
    }
    let part = ServicePart {
        descriptor: of("alice").descriptor,
        cost: 1,
        rate: None,
    };
    let ended = Check {
        service: Some(Box::new(ServiceCheck {
            parts: vec![part],
            own: Some(OwnUnits::Charge(9)),
            quotas_elsewhere: false,
        })),
        ..of("alice")
    };
    for (check, denials) in [(ended, 1), (of("alice"), 2)] {
        let answer = ask(&store, &policy, &check).await?;
        assert!(!answer.decision.allowed);
        assert_eq!(answer.penalty.denials, denials, "{answer:?}");
    }
    Ok(())
}

/// The slot is taken for an hour, but may be freed at any moment.
async fn a_request_that_waits_for_a_slot_as_well_is_counted_once(store: Shared) -> Result<()> {
    let limits = "
  - {name: in-flight, per: [user], algorithm: concurrency, limit: 1, slot_ttl: 1h}
  - {name: logins, per: [user], rate: 1/1m}
";
    publish(&store, &policy(limits)).await?;
    let mut policy = read(&store).await?.policy().context("limits")?.clone();
    policy.limits[1].penalty = Some(Penalty::new(3, 60_000, HOUR_MS));
    let policy = Compiled::new(policy);
    let ask = async |patience_ms: u64| {
        let waiting = Check {
            patience_ms,
            slot: Some(SlotId::new(1, SlotId::PROGRAM, patience_ms + 1)),
            ..of("alice")
        };
        check(&store, &policy, &waiting).await
    };
    assert!(ask(0).await?.allowed);
    for (patience_ms, denials) in [(120_000, 0), (1000, 1), (0, 2)] {
        let denied = ask(patience_ms).await?;
        assert_eq!(denied.is_repeated(&policy, patience_ms), denials == 0);
        assert_eq!(
            denied.limits[1].verdict.penalty.denials, denials,
            "{denied:?}"
        );
    }
    Ok(())
}
