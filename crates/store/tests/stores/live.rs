//! Buckets as operators see them, and the server itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use anyhow::Result;
use policy::BucketEdits;
use store::{
    CheckError, CheckPlanError, Credit, Cursor, EditError, KeyValue, LimitOf, ResetOf, ResetScope,
    Store,
};

use crate::{
    given::{
        EVERY_ALGORITHM, TEN_A_DAY, by, check, current, name, policy, publish, request, reset,
    },
    on_every_store,
};

type Shared = Arc<dyn Store>;

on_every_store!(
    a_bucket_can_be_inspected,
    edits_of_more_buckets_than_a_snapshot_has_room_for_are_one_of_all,
    every_algorithm_is_decided_shown_and_reset,
    listings_find_every_bucket_once,
    a_reset_forgets_usage_and_raises_the_generation,
    every_algorithm_gives_units_back_and_raises_the_generation,
    a_credit_by_old_limits_is_stale,
    proxies_are_counted_per_limit,
    the_server_reports_its_version_role_and_scripts,
);

async fn a_bucket_can_be_inspected(store: Shared) -> Result<()> {
    let policy = publish(&store, &policy(TEN_A_DAY)).await?;
    let (limit, alice) = (name("per-user"), [Some(b"alice".to_vec())]);
    let unused = store.inspect(&policy, &limit, &alice, 1).await?;
    assert_eq!(unused.key, "rl:b:shop:per-user:alice");
    assert_eq!((unused.state, unused.ttl_ms), (None, None));
    assert_eq!(unused.answer.verdict.decision.remaining, 10);
    check(&store, &policy, &request(&[("user", "alice")])).await?;
    let used = store.inspect(&policy, &limit, &alice, 1).await?;
    assert_eq!(
        (
            used.answer.verdict.decision.remaining,
            used.answer.verdict.charged
        ),
        (9, 0)
    );
    assert!(used.state.is_some());
    assert!(
        used.ttl_ms
            .is_some_and(|ms| ms >= used.answer.verdict.decision.reset_after_ms)
    );
    let wrong = store.inspect(&policy, &limit, &[], 1).await;
    assert!(matches!(
        wrong,
        Err(CheckError::Plan(CheckPlanError::WrongBucket {
            expected: 1,
            given: 0,
            ..
        }))
    ));
    let unknown = store.inspect(&policy, &name("nobody"), &[], 1).await;
    assert_eq!(
        unknown,
        Err(CheckError::Plan(CheckPlanError::UnknownLimit(name(
            "nobody"
        ))))
    );
    Ok(())
}

async fn every_algorithm_is_decided_shown_and_reset(store: Shared) -> Result<()> {
    let compiled = publish(&store, &policy(EVERY_ALGORITHM)).await?;
    let alice = [Some(b"alice".to_vec())];
    for allowed in [true, true, false] {
        let answer = check(&store, &compiled, &request(&[("user", "alice")])).await?;
        assert_eq!(answer.allowed, allowed, "{answer:?}");
    }
    for limit in compiled.limits() {
        let seen = store.inspect(&compiled, &limit.name, &alice, 1).await?;
        assert_eq!(seen.answer.verdict.decision.remaining, 0, "{seen:?}");
        assert!(
            seen.state.is_some_and(|state| !state.is_empty()),
            "{}",
            limit.name
        );
        assert!(
            seen.ttl_ms
                .is_some_and(|ms| ms >= seen.answer.verdict.decision.reset_after_ms)
        );
        let buckets = reset(&store, limit, ResetScope::Bucket(&alice)).await?;
        assert_eq!(buckets, 1, "{}", limit.name);
    }
    let compiled = current(&store).await?;
    assert!(
        check(&store, &compiled, &request(&[("user", "alice")]))
            .await?
            .allowed
    );
    Ok(())
}

async fn every_algorithm_gives_units_back_and_raises_the_generation(store: Shared) -> Result<()> {
    let mut compiled = publish(&store, &policy(EVERY_ALGORITHM)).await?;
    let alice = [Some(b"alice".to_vec())];
    for allowed in [true, true, false] {
        let answer = check(&store, &compiled, &request(&[("user", "alice")])).await?;
        assert_eq!(answer.allowed, allowed, "{answer:?}");
    }
    let names: Vec<_> = compiled.limits().iter().map(|l| l.name.clone()).collect();
    for limit in &names {
        let mut credit = Credit {
            policy: &compiled,
            limit,
            values: &alice,
            units: 1,
            peek: true,
            force: false,
        };
        let asked = store.credit(&credit, &by("ann")).await?;
        assert_eq!(
            (asked.used, asked.left_before, asked.left),
            (true, 0, 1),
            "{limit}"
        );
        credit.peek = false;
        let given = store.credit(&credit, &by("ann")).await?;
        assert_eq!((given.left_before, given.left), (0, 1), "{limit}");
        assert!(given.revision > asked.revision, "{limit}");
        let entry = store.history(&name("shop"), 1).await?.remove(0);
        assert_eq!(
            (entry.operation.as_str(), entry.limit.as_ref()),
            ("credit", Some(limit))
        );
        assert_eq!(entry.after, format!("1 rl:b:shop:{limit}:alice"));
        compiled = current(&store).await?;
        let at = compiled.position(limit.as_str()).expect("the limit");
        assert_eq!(compiled.limits()[at].generation_of(&alice), given.revision);
        let seen = store.inspect(&compiled, limit, &alice, 1).await?;
        assert_eq!(seen.answer.verdict.decision.remaining, 1, "{seen:?}");
    }
    let answers = [true, false];
    for allowed in answers {
        let answer = check(&store, &compiled, &request(&[("user", "alice")])).await?;
        assert_eq!(answer.allowed, allowed, "{answer:?}");
    }
    let unused = Credit {
        policy: &compiled,
        limit: &names[0],
        values: &[Some(b"bob".to_vec())],
        units: 1,
        peek: false,
        force: false,
    };
    let nothing = store.credit(&unused, &by("ann")).await?;
    assert!(!nothing.used && nothing.revision == compiled.revision().number);
    Ok(())
}

async fn a_credit_by_old_limits_is_stale(store: Shared) -> Result<()> {
    let old = publish(&store, &policy(TEN_A_DAY)).await?;
    let new = publish(
        &store,
        &policy("  - {name: per-user, per: [user], rate: 20/1d}\n"),
    )
    .await?;
    check(&store, &new, &request(&[("user", "alice")])).await?;
    let mut credit = Credit {
        policy: &old,
        limit: &name("per-user"),
        values: &[Some(b"alice".to_vec())],
        units: 1,
        peek: false,
        force: false,
    };
    let stale = store.credit(&credit, &by("ann")).await;
    assert_eq!(stale, Err(EditError::Bucket(CheckError::Stale)));
    credit.policy = &new;
    assert_eq!(store.credit(&credit, &by("ann")).await?.left, 20);
    Ok(())
}

async fn listed(store: &Shared, limit: Option<&str>) -> Result<Vec<store::ListedBucket>> {
    let limit = limit.map(name);
    let (mut all, mut cursor) = (Vec::new(), Some(Cursor::default()));
    while let Some(from) = cursor {
        let page = store.list(&name("shop"), limit.as_ref(), from).await?;
        all.extend(page.buckets);
        cursor = page.next;
    }
    Ok(all)
}

async fn listings_find_every_bucket_once(store: Shared) -> Result<()> {
    let limits = "
  - {name: per-user, per: [user, tenant], partition: [tenant], rate: 10/1d}
  - {name: per-user2, per: [user], rate: 10/1d}
";
    let policy = publish(&store, &policy(limits)).await?;
    let users: Vec<String> = (0..1500).map(|i| format!("u:{i}")).collect();
    let checks: Vec<_> = users
        .iter()
        .map(|u| request(&[("user", u), ("tenant", "t")]))
        .collect();
    for result in store.check(&policy, &checks, false).await {
        result?;
    }
    let found = listed(&store, Some("per-user")).await?;
    let values: BTreeSet<_> = found
        .iter()
        .map(|bucket| {
            assert_eq!(bucket.limit, name("per-user"));
            assert_eq!(bucket.partition, [KeyValue::Plain(b"t".to_vec())]);
            match bucket.values.as_slice() {
                [KeyValue::Plain(user)] => String::from_utf8(user.clone()).expect("text"),
                other => panic!("{other:?}"),
            }
        })
        .collect();
    assert_eq!(values, users.into_iter().collect());
    assert_eq!(listed(&store, None).await?.len(), 3000);
    assert!(listed(&store, Some("nobody")).await?.is_empty());
    Ok(())
}

async fn a_reset_forgets_usage_and_raises_the_generation(store: Shared) -> Result<()> {
    let compiled = publish(&store, &policy(TEN_A_DAY)).await?;
    for user in ["alice", "bob", "carol"] {
        check(&store, &compiled, &request(&[("user", user)])).await?;
    }
    let (domain, limit) = (name("shop"), compiled.limits()[0].clone());
    let of = LimitOf {
        domain: &domain,
        limit: &limit,
    };
    let alice = [Some(b"alice".to_vec())];
    let report = store
        .reset(&of, ResetScope::Bucket(&alice), &by("ann"))
        .await?;
    assert_eq!((report.buckets, report.revision), (1, 2));
    let compiled = current(&store).await?;
    let limit = &compiled.limits()[0];
    assert_eq!(
        (
            limit.generation_of(&alice),
            limit.reset_generation_of(&alice)
        ),
        (2, 2)
    );
    assert_eq!((limit.generation, limit.reset_generation), (1, 0));
    let left = |user: &'static str| {
        let (store, compiled) = (&store, &compiled);
        async move {
            let values = [Some(user.as_bytes().to_vec())];
            let seen = store.inspect(compiled, &name("per-user"), &values, 1).await;
            seen.map(|seen| seen.answer.verdict.decision.remaining)
        }
    };
    assert_eq!((left("alice").await?, left("bob").await?), (10, 9));
    let report = store.reset(&of, ResetScope::All, &by("ann")).await?;
    assert_eq!((report.buckets, report.revision), (2, 4));
    assert_eq!((left("bob").await?, left("carol").await?), (10, 10));
    let history = store.history(&domain, 3).await?;
    assert_eq!(history[0].operation, "reset");
    assert_eq!(
        (history[0].after.as_str(), &history[0].limit),
        ("*", &Some(name("per-user")))
    );
    assert_eq!(history[1].reset_of(), ResetOf::AllStarted);
    assert_eq!(history[2].after, "rl:b:shop:per-user:alice");

    let elsewhere = name("elsewhere");
    let nowhere = LimitOf {
        domain: &elsewhere,
        limit,
    };
    let refused = store.reset(&nowhere, ResetScope::All, &by("ann")).await;
    assert!(matches!(
        refused,
        Err(EditError::Conflict { found: None, .. })
    ));
    Ok(())
}

async fn edits_of_more_buckets_than_a_snapshot_has_room_for_are_one_of_all(
    store: Shared,
) -> Result<()> {
    const LIMITS: usize = 100;
    let limits = (0..LIMITS).map(|n| format!("  - {{name: l{n}, per: [user], rate: 10/1d}}\n"));
    let compiled = publish(&store, &policy(&limits.collect::<String>())).await?;
    let (domain, limit) = (name("shop"), compiled.limits()[7].clone());
    let of = LimitOf {
        domain: &domain,
        limit: &limit,
    };
    let users = (0..).map(|n| vec![Some(format!("u{n}").into_bytes())]);
    let mut slots = BTreeSet::new();
    let users = users.filter(|user| slots.insert(BucketEdits::slot_of(&limit.name, user)));
    let most = BucketEdits::most(LIMITS);
    let users: Vec<_> = users.take(most + 2).collect();
    let (first, last) = (&users[0], &users[most + 1]);
    for (nth, user) in users.iter().enumerate() {
        // The same bucket again is no further one.
        for _ in 0..2 {
            let scope = ResetScope::Bucket(user);
            let report = store.reset(&of, scope, &by("ann")).await?;
            let now = current(&store).await?;
            let limit = &now.limits()[7];
            assert_eq!(limit.generation_of(user), report.revision);
            assert_eq!(limit.reset_generation_of(user), report.revision);
            assert!(limit.bucket_edits.after(limit.generation) <= most);
            assert_eq!(limit.generation > 1, nth >= most, "edit {nth}");
        }
    }
    let now = current(&store).await?;
    let limit = &now.limits()[7];
    // The first edit too many concerns all buckets, the next one its own; no other was reset, nor another limit.
    assert_eq!(limit.generation_of(first), limit.generation);
    assert_eq!(limit.generation_of(last), limit.generation + 3);
    assert_eq!(
        (limit.reset_generation_of(first), limit.reset_generation),
        (3, 0)
    );
    assert_eq!(now.limits()[8].generation, 1);
    Ok(())
}

async fn proxies_are_counted_per_limit(store: Shared) -> Result<()> {
    let domain = name("shop");
    let seen = |a: &[&str], b: &[&str]| {
        let ids = |ids: &[&str]| ids.iter().map(ToString::to_string).collect();
        BTreeMap::from([(None, ids(a)), (Some(name("b")), ids(b))])
    };
    let counts = |a, b| BTreeMap::from([(None, a), (Some(name("b")), b)]);
    let first = store
        .count_proxies(&domain, &seen(&["p1", "p2"], &[]))
        .await?;
    assert_eq!(first, counts(2, 0));
    // Proxies that another limiter records are added, those recorded before are not.
    let second = store
        .count_proxies(&domain, &seen(&["p2", "p3"], &["p1"]))
        .await?;
    assert_eq!(second, counts(3, 1));
    let elsewhere = store.count_proxies(&name("other"), &seen(&[], &[])).await?;
    assert_eq!(elsewhere, counts(0, 0));
    assert!(
        store
            .count_proxies(&domain, &BTreeMap::new())
            .await?
            .is_empty()
    );

    // More than fit into one script call, of one limit and of many.
    let ids = (0..2000).map(|n| format!("p{n}")).collect();
    let limits = (0..1200).map(|n| Some(name(&format!("limit-{n}"))));
    let mut many: store::ActiveProxies =
        limits.map(|limit| (limit, vec!["p1".to_owned()])).collect();
    many.insert(None, ids);
    let counts = store.count_proxies(&domain, &many).await?;
    assert_eq!(counts.len(), many.len());
    assert_eq!(counts[&None], 2000);
    assert!(counts.iter().all(|(limit, n)| limit.is_none() || *n == 1));

    let ids = (0..10_500).map(|n| format!("q{n}")).collect();
    let flood = store.count_proxies(&domain, &[(None, ids)].into()).await?;
    assert_eq!(flood[&None], 10_000, "a count stays there");
    Ok(())
}

async fn the_server_reports_its_version_role_and_scripts(store: Shared) -> Result<()> {
    let pong = store.ping().await?;
    if pong.server != "memory" {
        assert!(pong.version.is_some_and(|version| version.contains('.')));
        assert_eq!(pong.role.as_deref(), Some("master"));
        let before = store.scripts().await?;
        assert!(!before.is_empty() && before.iter().all(|script| !script.loaded));
    }
    store.load_scripts().await?;
    assert!(store.scripts().await?.iter().all(|script| script.loaded));
    assert!(!store.address().contains('@'));
    Ok(())
}
