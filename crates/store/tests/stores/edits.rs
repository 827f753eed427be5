//! Records of limits.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use policy::{Override, Pause, Policy};
use store::{
    Change, Edit, EditError, EditPlanError, HeadState, InvalidOverride, LimitOf, OverrideCursor,
    OverrideEdit, OverrideEdits, Overrides, Signature, Store, Stored,
};

use crate::{
    given::{TEN_A_DAY, name, policy, read, write},
    on_every_store,
    servers::until,
};

type Shared = Arc<dyn Store>;

on_every_store!(
    a_record_reads_back_as_it_was_written,
    only_limits_that_change_get_a_new_generation,
    two_editors_never_lose_an_edit,
    concurrent_override_edits_all_arrive,
    a_deleted_domain_continues_its_revision_numbers,
    the_history_tells_who_changed_what,
    reasons_count_towards_the_bytes_of_a_history,
    watchers_get_a_hint_of_an_edit,
    overrides_follow_their_limit,
    an_edit_of_a_missing_or_partly_read_record_is_refused,
    one_override_is_read_without_the_others,
    an_edit_of_fields_leaves_overrides_it_never_read,
    an_edit_names_the_overrides_it_changes,
    a_scan_of_overrides_reports_which_do_not_fit_the_limit,
    a_pause_of_the_domain_is_stored_and_in_the_history,
);

const RICH: &str = "
  - name: per-user
    description: one user's \"rate\", é
    match: {path: \"/api/**\", method: [GET, \"!POST\"]}
    per: [user, tenant]
    if_missing: skip
    algorithm: gcra
    rate: 5/1500ms
    burst: 20
    cost: 2
    on_failure: deny
    hidden: true
    partition: [tenant]
    overrides:
      - {values: {user: alice, tenant: acme}, rate: 100/s, burst: 200, until: 2099-12-01T00:00Z}
      - {values: {user: probe, tenant: acme}, unlimited: true}
  - {name: everybody, rate: 1000/s, enforce: 5%, replaces: [per-user]}
";

/// The limits without what the store adds to them, overrides in a fixed order.
fn as_written(policy: &Policy) -> Policy {
    let mut policy = policy.clone();
    policy.revision = policy::Revision::default();
    for limit in &mut policy.limits {
        (limit.generation, limit.place) = (0, 0);
        limit.overrides.sort_by(|a, b| a.values.cmp(&b.values));
    }
    policy
}

async fn a_record_reads_back_as_it_was_written(store: Shared) -> Result<()> {
    assert_eq!(read(&store).await?, Stored::Absent);
    assert!(store.heads().await?.is_empty());
    let written = policy(RICH);
    let revision = write(&store, &Stored::Absent, Change::Limits(&written)).await?;
    assert_eq!(revision.number, 1, "the first write makes revision 1");
    let stored = read(&store).await?;
    let found = stored.policy().expect("limits");
    assert_eq!(found.revision, revision);
    assert_eq!(as_written(found), as_written(&written));
    let heads = store.heads().await?;
    assert_eq!(heads.len(), 1);
    assert_eq!(heads[0].domain, name("shop"));
    assert_eq!(heads[0].state, HeadState::Live(revision));
    let without = store.read(&name("shop"), Overrides::None).await?;
    let without = without.policy().expect("limits");
    assert!(
        without
            .limits
            .iter()
            .all(|limit| limit.overrides.is_empty())
    );
    Ok(())
}

async fn only_limits_that_change_get_a_new_generation(store: Shared) -> Result<()> {
    let two = "  - {name: a, rate: 1/s}\n  - {name: b, rate: 1/s}\n";
    write(&store, &Stored::Absent, Change::Limits(&policy(two))).await?;
    let changed = "  - {name: c, rate: 1/s}\n  - {name: b, rate: 2/s}\n  - {name: a, rate: 1/s}\n";
    let base = read(&store).await?;
    write(&store, &base, Change::Limits(&policy(changed))).await?;
    let stored = read(&store).await?;
    let limits = &stored.policy().expect("limits").limits;
    let generations: Vec<_> = limits
        .iter()
        .map(|l| (l.name.as_str(), l.generation))
        .collect();
    assert_eq!(generations, [("c", 2), ("b", 2), ("a", 1)]);
    // An edit of all limits is stored as one number; the next one may be of one limit again.
    for (rates, expected) in [([3, 3], [3, 3]), ([3, 4], [3, 4]), ([5, 5], [5, 5])] {
        let [a, b] = rates;
        let two = format!("  - {{name: a, rate: {a}/s}}\n  - {{name: b, rate: {b}/s}}\n");
        let base = read(&store).await?;
        write(&store, &base, Change::Limits(&policy(&two))).await?;
        let stored = read(&store).await?;
        let limits = stored.policy().expect("limits").limits.iter();
        assert_eq!(limits.map(|l| l.generation).collect::<Vec<_>>(), expected);
    }
    Ok(())
}

async fn two_editors_never_lose_an_edit(store: Shared) -> Result<()> {
    write(&store, &Stored::Absent, Change::Limits(&policy(TEN_A_DAY))).await?;
    let again = write(&store, &Stored::Absent, Change::Limits(&policy(TEN_A_DAY))).await;
    assert!(matches!(
        again,
        Err(EditError::Conflict {
            expected: None,
            found: Some(_)
        })
    ));

    let base = read(&store).await?;
    let faster = policy("  - {name: per-user, per: [user], rate: 20/1d}\n");
    let first = write(&store, &base, Change::Limits(&faster)).await?;
    let slower = policy("  - {name: per-user, per: [user], rate: 5/1d}\n");
    let second = write(&store, &base, Change::Limits(&slower)).await;
    let Err(EditError::Conflict { expected, found }) = second else {
        panic!("the second edit is a conflict: {second:?}")
    };
    assert_eq!(expected.as_ref(), base.policy().map(|p| &p.revision));
    assert_eq!(found, Some(first));
    let kept = read(&store).await?;
    assert_eq!(
        kept.policy().expect("limits").limits[0].quota,
        faster.limits[0].quota
    );
    Ok(())
}

fn override_of(user: &str) -> Override {
    let limits = format!(
        "  - {{name: per-user, per: [user], rate: 10/1d, overrides: \
         [{{values: {{user: {user}}}, rate: 7/1d}}]}}\n"
    );
    policy(&limits).limits.remove(0).overrides.remove(0)
}

async fn concurrent_override_edits_all_arrive(store: Shared) -> Result<()> {
    write(&store, &Stored::Absent, Change::Limits(&policy(TEN_A_DAY))).await?;
    let mut editors = tokio::task::JoinSet::new();
    for i in 0..20 {
        let store = Arc::clone(&store);
        editors.spawn(async move {
            let new = override_of(&format!("user{i}"));
            let mut conflicts = 0;
            loop {
                let base = store.read(&name("shop"), Overrides::None).await?;
                let change = Change::Override {
                    limit: &name("per-user"),
                    values: &new.values,
                    to: Some(&new),
                };
                match write(&store, &base, change).await {
                    Ok(_) => return anyhow::Ok(conflicts),
                    Err(EditError::Conflict { .. }) => conflicts += 1,
                    Err(error) => return Err(error.into()),
                }
            }
        });
    }
    while let Some(editor) = editors.join_next().await {
        editor??;
    }
    let stored = read(&store).await?;
    let policy = stored.policy().expect("limits");
    assert_eq!(policy.revision.number, 21);
    assert_eq!(policy.limits[0].overrides.len(), 20);
    let limit = &policy.limits[0];
    assert_eq!(limit.generation, 1);
    let generations = limit.overrides.iter();
    let generations = generations.map(|found| limit.generation_of(&found.values));
    assert_eq!(generations.max(), Some(21));
    let gone = override_of("user3");
    let remove = Change::Override {
        limit: &name("per-user"),
        values: &gone.values,
        to: None,
    };
    write(&store, &stored, remove).await?;
    let stored = read(&store).await?;
    assert_eq!(
        stored.policy().expect("limits").limits[0].overrides.len(),
        19
    );
    let history = store.history(&name("shop"), 1).await?;
    assert_eq!(history[0].operation, "override");
    assert!(history[0].before.contains("user3") && history[0].after.is_empty());
    Ok(())
}

async fn a_deleted_domain_continues_its_revision_numbers(store: Shared) -> Result<()> {
    write(&store, &Stored::Absent, Change::Limits(&policy(RICH))).await?;
    let base = read(&store).await?;
    let deleted = write(&store, &base, Change::Delete(&OverrideEdits::new())).await?;
    assert_eq!(deleted.number, 2);
    assert_eq!(read(&store).await?, Stored::Deleted(deleted.clone()));
    assert_eq!(
        store.heads().await?[0].state,
        HeadState::Deleted(deleted.clone())
    );
    let stale = write(&store, &base, Change::Limits(&policy(TEN_A_DAY))).await;
    assert!(matches!(
        stale,
        Err(EditError::Conflict { found: None, .. })
    ));
    let tombstone = read(&store).await?;
    let again = write(&store, &tombstone, Change::Limits(&policy(RICH))).await?;
    assert_eq!(again.number, 3);
    let stored = read(&store).await?;
    let limits = &stored.policy().expect("limits").limits;
    assert!(limits.iter().all(|limit| limit.generation == 3));
    assert_eq!(
        limits[0].overrides.len(),
        2,
        "those of the deleted domain are not back"
    );
    Ok(())
}

async fn the_history_tells_who_changed_what(store: Shared) -> Result<()> {
    write(&store, &Stored::Absent, Change::Limits(&policy(TEN_A_DAY))).await?;
    let base = read(&store).await?;
    let other = policy("  - {name: other, rate: 3/s}\n");
    write(&store, &base, Change::Limits(&other)).await?;
    let history = store.history(&name("shop"), 10).await?;
    let numbers: Vec<_> = history.iter().map(|entry| entry.revision.number).collect();
    assert_eq!(numbers, [2, 1]);
    let last = &history[0];
    assert_eq!(
        (last.operation.as_str(), last.by.author.as_str()),
        ("fields", "ann")
    );
    assert_eq!(last.by.reason, "test");
    assert!(last.before.contains("per-user") && !last.before.contains("other"));
    assert!(last.after.contains("other") && !last.after.contains("per-user"));
    assert!(last.at_ms > 1_600_000_000_000);
    assert_eq!(store.history(&name("shop"), 1).await?.len(), 1);
    assert!(store.history(&name("elsewhere"), 9).await?.is_empty());
    Ok(())
}

async fn watchers_get_a_hint_of_an_edit(store: Shared) -> Result<()> {
    let mut hints = store.watch_edits();
    // The subscription itself counts as a hint, where there is one.
    let _ = tokio::time::timeout(Duration::from_secs(2), hints.changed()).await;
    hints.mark_unchanged();
    write(&store, &Stored::Absent, Change::Limits(&policy(TEN_A_DAY))).await?;
    let hinted = async || hints.has_changed().ok().filter(|changed| *changed);
    until("a hint", Duration::from_secs(2), hinted).await?;
    Ok(())
}

async fn overrides_follow_their_limit(store: Shared) -> Result<()> {
    write(&store, &Stored::Absent, Change::Limits(&policy(RICH))).await?;
    // Other `per` entries: the old values no longer name anything.
    let other_per = "
  - {name: per-user, per: [user], rate: 5/s, overrides: [{values: {user: bob}, burst: 9}]}
";
    let base = read(&store).await?;
    write(&store, &base, Change::Limits(&policy(other_per))).await?;
    let stored = read(&store).await?;
    assert_eq!(
        as_written(stored.policy().expect("limits")),
        as_written(&policy(other_per))
    );
    write(
        &store,
        &stored,
        Change::Limits(&policy("  - {name: other, rate: 1/s}\n")),
    )
    .await?;
    let stored = read(&store).await?;
    write(
        &store,
        &stored,
        Change::Limits(&policy("  - {name: per-user, per: [user], rate: 5/s}\n")),
    )
    .await?;
    let stored = read(&store).await?;
    assert!(
        stored.policy().expect("limits").limits[0]
            .overrides
            .is_empty()
    );
    Ok(())
}

async fn an_edit_of_a_missing_or_partly_read_record_is_refused(store: Shared) -> Result<()> {
    let bob = override_of("bob");
    let change = Change::Override {
        limit: &name("per-user"),
        values: &bob.values,
        to: Some(&bob),
    };
    let refused = write(&store, &Stored::Absent, change).await;
    assert_eq!(
        refused,
        Err(EditError::Plan(EditPlanError::UnknownLimit(name(
            "per-user"
        ))))
    );
    let refused = write(
        &store,
        &Stored::Absent,
        Change::Delete(&OverrideEdits::new()),
    )
    .await;
    assert_eq!(
        refused,
        Err(EditError::Plan(EditPlanError::NothingToDelete))
    );
    write(&store, &Stored::Absent, Change::Limits(&policy(RICH))).await?;
    let partial = store.read(&name("shop"), Overrides::None).await?;
    let refused = write(&store, &partial, Change::Limits(&policy(TEN_A_DAY))).await;
    assert_eq!(refused, Err(EditError::Plan(EditPlanError::PartialBase)));
    Ok(())
}

async fn one_override_is_read_without_the_others(store: Shared) -> Result<()> {
    let written = policy(RICH);
    write(&store, &Stored::Absent, Change::Limits(&written)).await?;
    let domain = name("shop");
    for limit in &written.limits {
        let of = LimitOf {
            domain: &domain,
            limit,
        };
        for found in &limit.overrides {
            let read = store.read_override(&of, &found.values).await?;
            assert_eq!(read.as_ref(), Some(found));
        }
        let nobody = vec![Some(b"nobody".to_vec()); limit.per.len()];
        assert_eq!(store.read_override(&of, &nobody).await?, None);
    }
    Ok(())
}

async fn an_edit_of_fields_leaves_overrides_it_never_read(store: Shared) -> Result<()> {
    write(&store, &Stored::Absent, Change::Limits(&policy(RICH))).await?;
    // A reader's cache of an earlier record must not hide the edit.
    read(&store).await?;
    let base = store.read(&name("shop"), Overrides::None).await?;
    let mut paused = base.policy().expect("limits").clone();
    paused.limits[0].paused = Some(Pause { until_ms: None });
    write(&store, &base, Change::Fields(&paused)).await?;
    let stored = read(&store).await?;
    let found = &stored.policy().expect("limits").limits;
    assert!(found[0].paused.is_some());
    assert_eq!(found[0].overrides.len(), 2);
    let generations: Vec<u64> = found.iter().map(|limit| limit.generation).collect();
    assert_eq!(generations, [2, 1]);
    let names = [&found[0].name, &found[1].name];
    let counts = store.override_counts(&name("shop"), &names).await?;
    assert_eq!(counts, [2, 0]);
    let history = store.history(&name("shop"), 1).await?;
    assert_eq!(history[0].operation, "fields");
    assert!(!history[0].after.contains("overrides"), "{history:?}");

    paused.limits.remove(0);
    let gone = write(&store, &stored, Change::Fields(&paused)).await;
    assert!(
        matches!(gone, Err(EditError::Plan(EditPlanError::PartialBase))),
        "{gone:?}"
    );
    Ok(())
}

async fn an_edit_names_the_overrides_it_changes(store: Shared) -> Result<()> {
    write(&store, &Stored::Absent, Change::Limits(&policy(RICH))).await?;
    let base = store.read(&name("shop"), Overrides::None).await?;
    let mut limits = base.policy().expect("limits").clone();
    let written = policy(RICH).limits.remove(0).overrides;
    let faster = Override {
        until_ms: None,
        ..written[0].clone()
    };
    let mut edits = OverrideEdits::new();
    let edit = OverrideEdit {
        before: Some(written.clone()),
        after: vec![faster.clone()],
        listed: false,
    };
    edits.insert(name("per-user"), edit);
    let edited = Change::Parts {
        limits: &limits,
        overrides: &edits,
    };
    write(&store, &base, edited).await?;
    let stored = read(&store).await?;
    let found = &stored.policy().expect("limits").limits;
    assert_eq!(found[0].overrides, [faster]);
    let generations: Vec<u64> = found.iter().map(|limit| limit.generation).collect();
    assert_eq!(generations, [2, 1], "nothing of the other limit changed");
    let entry = store.history(&name("shop"), 1).await?.remove(0);
    assert_eq!(entry.operation, "edit");
    assert!(entry.before.contains("probe") && !entry.after.contains("probe"));
    assert!(!entry.after.contains("everybody"), "{entry:?}");

    // All of them go, and the history does not list which.
    let base = store.read(&name("shop"), Overrides::None).await?;
    limits.limits[0].overrides = Vec::new();
    edits.insert(name("per-user"), OverrideEdit::clear(None));
    let cleared = Change::Parts {
        limits: &limits,
        overrides: &edits,
    };
    write(&store, &base, cleared).await?;
    let stored = read(&store).await?;
    assert_eq!(stored.policy().expect("limits").limits[0].overrides, []);
    let entry = store.history(&name("shop"), 1).await?.remove(0);
    assert_eq!((entry.before.as_str(), entry.after.as_str()), ("", ""));
    Ok(())
}

async fn a_scan_of_overrides_reports_which_do_not_fit_the_limit(store: Shared) -> Result<()> {
    write(&store, &Stored::Absent, Change::Limits(&policy(RICH))).await?;
    let domain = name("shop");
    let as_window =
        policy("  - {name: per-user, per: [user, tenant], algorithm: fixed_window, rate: 5/s}\n");
    for (limit, fit) in [(&policy(RICH).limits[0], 2), (&as_window.limits[0], 1)] {
        let of = LimitOf {
            domain: &domain,
            limit,
        };
        let page = store.scan_overrides(&of, OverrideCursor::default()).await?;
        assert_eq!(page.next, None);
        let read = page
            .texts
            .into_iter()
            .map(|text| InvalidOverride::read(limit, text));
        let (good, bad): (Vec<_>, Vec<_>) = read.partition(Result::is_ok);
        assert_eq!((good.len(), bad.len()), (fit, 2 - fit));
        for unfit in bad.into_iter().filter_map(Result::err) {
            assert!(unfit.json.contains("alice"), "{unfit:?}");
            assert!(unfit.problems[0].contains("burst"), "{unfit:?}");
        }
    }
    Ok(())
}

async fn reasons_count_towards_the_bytes_of_a_history(store: Shared) -> Result<()> {
    let limits = policy(TEN_A_DAY);
    let long = Signature {
        author: "ann".repeat(1 << 20),
        reason: "because".repeat(1 << 20),
    };
    for kept in [1, 1, 1] {
        let base = read(&store).await?;
        let edit = Edit {
            domain: &name("shop"),
            base: &base,
            change: Change::Limits(&limits),
            by: &long,
        };
        store.write(&edit).await?;
        assert_eq!(store.history(&name("shop"), 9).await?.len(), kept);
    }
    let base = read(&store).await?;
    write(&store, &base, Change::Limits(&limits)).await?;
    assert_eq!(store.history(&name("shop"), 9).await?.len(), 2);
    Ok(())
}

async fn a_pause_of_the_domain_is_stored_and_in_the_history(store: Shared) -> Result<()> {
    write(&store, &Stored::Absent, Change::Limits(&policy(TEN_A_DAY))).await?;
    let base = store.read(&name("shop"), Overrides::None).await?;
    let mut paused = base.policy().expect("limits").clone();
    paused.paused = Some(Pause {
        until_ms: Some(4_070_908_800_000),
    });
    write(&store, &base, Change::Fields(&paused)).await?;
    let stored = read(&store).await?;
    let found = stored.policy().expect("limits");
    assert_eq!(found.paused, paused.paused);
    // Nothing of the limit itself changed.
    assert_eq!(found.limits[0].generation, 1);
    let entry = store.history(&name("shop"), 1).await?.remove(0);
    assert_eq!(entry.before, "[]");
    assert!(entry.after.contains("2099-01-01T00:00:00Z"), "{entry:?}");
    let compiled = crate::given::current(&store).await?;
    let mut request = crate::given::request(&[("user", "alice")]);
    request.require_match = true;
    let answer = crate::given::check(&store, &compiled, &request).await?;
    assert!(answer.allowed && answer.limits.is_empty(), "{answer:?}");
    Ok(())
}
