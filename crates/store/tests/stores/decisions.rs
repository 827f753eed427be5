//! Checks.

use std::sync::Arc;

use anyhow::Result;
use protocol::{Check, Debit, LimitRequest, Mode};
use store::{CheckError, CheckPlanError, Store};

use crate::{
    given::{TEN_A_DAY, check, current, name, policy, publish, read, request, units_left, write},
    on_every_store,
};

type Shared = Arc<dyn Store>;

on_every_store!(
    each_user_has_a_separate_bucket,
    several_limits_are_charged_all_or_none,
    all_or_nothing_holds_under_concurrency,
    costs_peeks_and_debits_charge_the_right_units,
    shadow_and_degrade_never_deny,
    a_missing_entry_is_shared_skipped_or_denied,
    overrides_change_single_buckets,
    only_skip_and_require_match_select_limits,
    a_check_with_an_old_policy_is_stale,
    a_batch_is_decided_in_order,
    any_bytes_may_identify_a_bucket,
    a_denial_frees_the_turn_granted_by_a_queue_in_another_slot,
);

async fn each_user_has_a_separate_bucket(store: Shared) -> Result<()> {
    let policy = publish(&store, &policy(TEN_A_DAY)).await?;
    for user in ["alice", "bob", "a:b", "{x}", ""] {
        let answer = check(&store, &policy, &request(&[("user", user)])).await?;
        let [limit] = answer.limits.as_slice() else {
            panic!("one limit matches: {answer:?}")
        };
        assert!(answer.allowed);
        let decision = limit.verdict.decision;
        assert_eq!((limit.limit, decision.remaining), (Some(10), 9), "{user}");
        let bucket = vec![(name("user"), Some(user.as_bytes().to_vec()))];
        assert_eq!(limit.bucket, bucket);
        assert!(decision.reset_after_ms > 0 && answer.now_ms > 1_600_000_000_000);
        assert_eq!(&answer.revision, policy.revision());
    }
    Ok(())
}

const NARROW_AND_WIDE: &str = "
  - {name: per-user, per: [user], rate: 2/1d}
  - {name: everybody, rate: 10/1d}
";

async fn several_limits_are_charged_all_or_none(store: Shared) -> Result<()> {
    let policy = publish(&store, &policy(NARROW_AND_WIDE)).await?;
    let alice = request(&[("user", "alice")]);
    for remaining in [(1, 9), (0, 8)] {
        let answer = check(&store, &policy, &alice).await?;
        let left: Vec<_> = answer
            .limits
            .iter()
            .map(|l| l.verdict.decision.remaining)
            .collect();
        assert_eq!(left, [remaining.0, remaining.1]);
    }
    let denied = check(&store, &policy, &alice).await?;
    assert!(!denied.allowed);
    let said: Vec<_> = denied
        .limits
        .iter()
        .map(|l| &l.verdict)
        .map(|of| (of.decision.allowed, of.charged, of.decision.remaining))
        .collect();
    assert_eq!(
        said,
        [(false, 0, 0), (true, 0, 8)],
        "the wide one keeps its units"
    );
    Ok(())
}

async fn all_or_nothing_holds_under_concurrency(store: Shared) -> Result<()> {
    let policy = Arc::new(publish(&store, &policy(NARROW_AND_WIDE)).await?);
    let mut clients = tokio::task::JoinSet::new();
    for i in 0..60 {
        let (store, policy) = (Arc::clone(&store), Arc::clone(&policy));
        clients.spawn(async move {
            let user = format!("user{}", i % 3);
            check(&store, &policy, &request(&[("user", &user)])).await
        });
    }
    let mut admitted = 0;
    while let Some(answer) = clients.join_next().await {
        admitted += u64::from(answer??.allowed);
    }
    assert_eq!(admitted, 6, "two for each of three users");
    let left = check(&store, &policy, &peek(&[("user", "other")])).await?;
    assert_eq!(
        left.limits[1].verdict.decision.remaining, 4,
        "54 denials took nothing"
    );
    Ok(())
}

fn peek(entries: &[(&str, &str)]) -> Check {
    Check {
        peek: true,
        ..request(entries)
    }
}

async fn costs_peeks_and_debits_charge_the_right_units(store: Shared) -> Result<()> {
    let limits = "  - {name: per-user, per: [user], rate: 10/1d, cost: 2}\n";
    let policy = publish(&store, &policy(limits)).await?;
    let alice = [("user", "alice")];
    let of_cost = |cost| Check {
        cost,
        ..request(&alice)
    };
    let three = check(&store, &policy, &of_cost(3)).await?;
    assert_eq!(
        (three.limits[0].verdict.charged, units_left(&three)),
        (6, 4)
    );
    for question in [of_cost(0), peek(&alice)] {
        let answer = check(&store, &policy, &question).await?;
        assert!(answer.allowed);
        assert_eq!(
            (answer.limits[0].verdict.charged, units_left(&answer)),
            (0, 4)
        );
    }
    let never = check(&store, &policy, &of_cost(6)).await?;
    assert!(!never.allowed);
    assert_eq!(
        never.limits[0].verdict.decision.retry_after.millis(),
        None,
        "12 of 10 never pass"
    );
    let later = check(&store, &policy, &of_cost(3)).await?;
    assert!(
        later.limits[0]
            .verdict
            .decision
            .retry_after
            .millis()
            .is_some_and(|ms| ms > 0)
    );
    let huge = check(&store, &policy, &of_cost(u64::MAX)).await?;
    assert_eq!(huge.limits[0].verdict.decision.retry_after.millis(), None);
    let debited = Check {
        limits: vec![LimitRequest {
            debit: Some(Debit {
                serial: None,
                units: 9,
            }),
            ..LimitRequest::new(name("per-user"))
        }],
        ..of_cost(1)
    };
    let debited = check(&store, &policy, &debited).await?;
    assert!(!debited.allowed, "the debit took what was left");
    assert_eq!(units_left(&debited), 0);
    Ok(())
}

async fn shadow_and_degrade_never_deny(store: Shared) -> Result<()> {
    let limits = "
  - {name: trial, rate: 1/1d, enforce: 0%}
  - {name: soft, rate: 2/1d, over_limit: degrade}
  - {name: hard, rate: 3/1d}
";
    let policy = publish(&store, &policy(limits)).await?;
    let mut said = Vec::new();
    for _ in 0..4 {
        let answer = check(&store, &policy, &request(&[])).await?;
        let each: Vec<_> = answer
            .limits
            .iter()
            .map(|l| l.verdict.decision.allowed)
            .collect();
        said.push((answer.allowed, each));
    }
    let modes: Vec<_> = check(&store, &policy, &peek(&[])).await?.limits;
    let modes: Vec<_> = modes.iter().map(|l| l.mode).collect();
    assert_eq!(modes, [Mode::Shadow, Mode::Degrade, Mode::Enforce]);
    assert_eq!(
        said,
        [
            (true, vec![true, true, true]),
            (true, vec![false, true, true]),
            (true, vec![false, false, true]),
            (false, vec![false, false, false]),
        ]
    );
    Ok(())
}

async fn a_missing_entry_is_shared_skipped_or_denied(store: Shared) -> Result<()> {
    let limits = "
  - {name: shared, per: [user], rate: 10/1d}
  - {name: skipped, per: [user], rate: 10/1d, if_missing: skip}
";
    let compiled = publish(&store, &policy(limits)).await?;
    let answer = check(&store, &compiled, &request(&[])).await?;
    let [shared] = answer.limits.as_slice() else {
        panic!("one limit applies: {answer:?}")
    };
    assert_eq!(shared.bucket, [(name("user"), None)]);

    let strict =
        format!("{limits}  - {{name: strict, per: [user], rate: 10/1d, if_missing: deny}}");
    let compiled = publish(&store, &policy(&strict)).await?;
    let denied = check(&store, &compiled, &request(&[])).await?;
    assert!(!denied.allowed);
    let said: Vec<_> = denied
        .limits
        .iter()
        .map(|l| (l.name.as_str(), l.verdict.decision.allowed))
        .collect();
    assert_eq!(said, [("shared", true), ("strict", false)]);
    assert_eq!(units_left(&denied), 9, "nothing is charged");
    assert_eq!(denied.limits[1].verdict.decision.retry_after.millis(), None);

    // `over_limit` makes no difference to a missing entry.
    let degrading = strict.replace("if_missing: deny", "if_missing: deny, over_limit: degrade");
    let compiled = publish(&store, &policy(&degrading)).await?;
    assert!(!check(&store, &compiled, &request(&[])).await?.allowed);
    Ok(())
}

async fn overrides_change_single_buckets(store: Shared) -> Result<()> {
    let limits = "
  - name: per-user
    per: [user]
    rate: 10/1d
    overrides:
      - {values: {user: alice}, rate: 100/1d}
      - {values: {user: probe}, unlimited: true}
      - {values: {user: once}, rate: 100/1d, until: 2020-01-01T00:00Z}
";
    let policy = publish(&store, &policy(limits)).await?;
    let mut quotas = Vec::new();
    for user in ["alice", "probe", "once", "bob"] {
        let answer = check(&store, &policy, &request(&[("user", user)])).await?;
        assert!(answer.allowed);
        quotas.push(answer.limits[0].limit);
    }
    assert_eq!(quotas, [Some(100), None, Some(10), Some(10)]);
    Ok(())
}

fn skipped(limit: &str) -> LimitRequest {
    LimitRequest {
        skip: true,
        ..LimitRequest::new(name(limit))
    }
}

async fn only_skip_and_require_match_select_limits(store: Shared) -> Result<()> {
    let policy = publish(&store, &policy(NARROW_AND_WIDE)).await?;
    let alice = request(&[("user", "alice")]);
    let only = Check {
        only: vec![name("everybody")],
        ..alice.clone()
    };
    let skip = Check {
        limits: vec![skipped("everybody")],
        ..alice.clone()
    };
    let names = |answer: protocol::Answer| {
        let names = answer.limits.into_iter().map(|l| l.name.to_string());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(check(&store, &policy, &only).await?), ["everybody"]);
    assert_eq!(names(check(&store, &policy, &skip).await?), ["per-user"]);
    let unknown = Check {
        only: vec![name("nobody")],
        ..alice.clone()
    };
    let unknown = check(&store, &policy, &unknown).await;
    assert_eq!(
        unknown,
        Err(CheckError::Plan(CheckPlanError::UnknownLimit(name(
            "nobody"
        ))))
    );
    let all_skipped = Check {
        limits: vec![skipped("everybody"), skipped("per-user")],
        require_match: true,
        ..alice
    };
    let none = check(&store, &policy, &all_skipped).await;
    assert_eq!(none, Err(CheckError::Plan(CheckPlanError::NoMatch)));
    let free = Check {
        require_match: false,
        ..all_skipped
    };
    let answer = check(&store, &policy, &free).await?;
    assert!(answer.allowed && answer.limits.is_empty() && answer.now_ms > 0);
    Ok(())
}

async fn a_check_with_an_old_policy_is_stale(store: Shared) -> Result<()> {
    let old = publish(&store, &policy(TEN_A_DAY)).await?;
    let alice = request(&[("user", "alice")]);
    check(&store, &old, &alice).await?;
    let raised = policy("  - {name: per-user, per: [user], rate: 20/1d}\n");
    let new = publish(&store, &raised).await?;
    assert_eq!(units_left(&check(&store, &new, &alice).await?), 18);
    let stale = check(&store, &old, &alice).await;
    assert_eq!(stale, Err(CheckError::Stale));
    let again = current(&store).await?;
    assert_eq!(units_left(&check(&store, &again, &alice).await?), 17);
    // The bucket has a newer generation after a backup was restored: the record decides.
    let forced = store.check(&old, std::slice::from_ref(&alice), true).await;
    assert!(forced[0].as_ref().is_ok_and(|answer| answer.allowed));
    Ok(())
}

async fn a_batch_is_decided_in_order(store: Shared) -> Result<()> {
    let policy = publish(&store, &policy(NARROW_AND_WIDE)).await?;
    let mut checks: Vec<Check> = (0..5).map(|_| request(&[("user", "alice")])).collect();
    checks.insert(2, request(&[("user", "bob")]));
    let unknown = Check {
        only: vec![name("nobody")],
        ..request(&[])
    };
    checks.insert(3, unknown);
    // More buckets than one script call takes.
    checks.extend((0..100).map(|i| request(&[("user", &format!("u{i}"))])));
    let results = store.check(&policy, &checks, false).await;
    assert_eq!(results.len(), checks.len());
    assert_eq!(
        results[3],
        Err(CheckError::Plan(CheckPlanError::UnknownLimit(name(
            "nobody"
        ))))
    );
    let allowed: Vec<bool> = results
        .iter()
        .flatten()
        .map(|answer| answer.allowed)
        .collect();
    assert_eq!(allowed[..6], [true, true, true, false, false, false]);
    assert_eq!(
        allowed.iter().filter(|a| **a).count(),
        10,
        "everybody: 10/1d"
    );
    Ok(())
}

async fn any_bytes_may_identify_a_bucket(store: Shared) -> Result<()> {
    let policy = publish(&store, &policy(TEN_A_DAY)).await?;
    let values = [
        vec![0xff, 0, b'\r', b'\n'],
        vec![b'x'; 100_000],
        vec![b'%'; 64],
    ];
    for value in values {
        let mut request = request(&[]);
        request.descriptor.insert(name("user"), value);
        for left in [9, 8] {
            let answer = check(&store, &policy, &request).await?;
            assert_eq!(units_left(&answer), left);
        }
    }
    let stored = read(&store).await?;
    write(
        &store,
        &stored,
        store::Change::Delete(&store::OverrideEdits::new()),
    )
    .await?;
    Ok(())
}

/// Slots of a minute, longer than a test; and a queue that has room for one request of each user.
const WIDE_AND_NARROW_QUEUE: &str = "
  - {name: wide, algorithm: leaky_bucket, rate: 60/1h, over_limit: queue, max_delay: 1h}
  - {name: narrow, per: [user], algorithm: leaky_bucket, rate: 1/1d, over_limit: queue, max_delay: 1d}
";

/// Queues in several slots of a Cluster are charged one after the other.
async fn a_denial_frees_the_turn_granted_by_a_queue_in_another_slot(store: Shared) -> Result<()> {
    let policy = publish(&store, &policy(WIDE_AND_NARROW_QUEUE)).await?;
    let delay_ms = async |user: &str| -> Result<Option<u64>> {
        let answer = check(&store, &policy, &request(&[("user", user)])).await?;
        let [wide, narrow] = answer.limits.as_slice() else {
            panic!("two limits match: {answer:?}")
        };
        let (wide, narrow) = (&wide.verdict, &narrow.verdict);
        let each = [wide, narrow].map(|of| of.decision.allowed);
        assert_eq!(each, [true, answer.allowed]);
        let charged = u64::from(answer.allowed);
        assert_eq!((wide.charged, narrow.charged), (charged, charged));
        assert_eq!(wide.slot.is_some(), answer.allowed);
        Ok(answer.allowed.then_some(wide.decision.delay_ms))
    };
    assert_eq!(delay_ms("alice").await?, Some(0));
    let behind_one = delay_ms("bob").await?.expect("room");
    assert!((1..=60_000).contains(&behind_one), "{behind_one}");
    for _ in 0..5 {
        assert_eq!(delay_ms("alice").await?, None);
    }
    let wide = store.inspect(&policy, &name("wide"), &[], 1).await?;
    let narrow = [Some(b"carol".to_vec())];
    let narrow = store.inspect(&policy, &name("narrow"), &narrow, 1).await?;
    assert_ne!(wide.slot, narrow.slot);
    assert_eq!(wide.answer.verdict.decision.remaining, 58, "{wide:?}");
    let behind_two = delay_ms("carol").await?.expect("room");
    assert!((60_001..=120_000).contains(&behind_two), "{behind_two}");
    Ok(())
}
