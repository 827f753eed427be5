use algorithms::{Kind, Parameters, Rate};

use super::{super::walk::request_limit, *};
use crate::{Algorithm, OverrideQuota, Revision};

/// A limit of so many requests a second for each value of an entry.
fn limit(name: &str, per: &str, units: u64, overrides: Vec<Override>) -> Limit {
    let parameters = Parameters::new(Kind::TokenBucket, units, 1000);
    Limit {
        name: name.parse().unwrap(),
        per: vec![per.parse().unwrap()],
        quota: Algorithm::new(&parameters).unwrap(),
        overrides,
        ..request_limit().unwrap()
    }
}

fn policy(limits: impl IntoIterator<Item = Limit>) -> Policy {
    Policy {
        limits: limits.into_iter().collect(),
        ..Policy::empty("shop".parse().unwrap())
    }
}

fn rate_of(user: &str, units: u64) -> Override {
    Override {
        values: vec![Some(user.into())],
        quota: OverrideQuota::Quota {
            kind: Kind::TokenBucket,
            rate: Some(Rate::new(units, 1000)),
            burst: None,
            time_zone: None,
            edges: None,
        },
        until_ms: None,
    }
}

/// The limits `a`, with overrides of x and y, and `b`, in this order.
fn live() -> Compiled {
    let overrides = vec![rate_of("x", 9), rate_of("y", 8)];
    let b = limit("b", "user", 1, vec![rate_of("x", 4)]);
    Compiled::new(policy([
        placed(1, limit("a", "user", 1, overrides)),
        placed(2, b),
    ]))
}

fn placed(place: u64, limit: Limit) -> Limit {
    Limit { place, ..limit }
}

/// Edits that make revision 7.
fn edits(limits: impl IntoIterator<Item = (&'static str, Option<Limit>)>) -> Edits {
    let limits = limits.into_iter();
    let revision = Revision {
        number: 7,
        digest: 0,
    };
    Edits {
        domain: Policy {
            revision,
            ..policy([])
        },
        base: 0,
        limit_count: 2,
        limits: limits
            .map(|(name, to)| (name.parse().unwrap(), to))
            .collect(),
        cleared: Vec::new(),
        overrides: Vec::new(),
    }
}

fn rate(compiled: &Compiled, user: &str) -> u64 {
    match compiled.quota_for(0, &[Some(user)], 0) {
        Some(quota) => quota.parameters().rate.units,
        other => panic!("{other:?}"),
    }
}

fn change(user: &str, to: Option<u64>) -> OverrideChange {
    OverrideChange {
        limit: "a".parse().unwrap(),
        values: vec![Some(user.into())],
        to: to.map(|units| rate_of(user, units)),
    }
}

fn a(units: u64) -> Limit {
    placed(1, limit("a", "user", units, Vec::new()))
}

fn names(compiled: &Compiled) -> Vec<&str> {
    let limits = compiled.limits().iter();
    limits.map(|limit| limit.name.as_str()).collect()
}

#[test]
fn an_edit_of_overrides_shares_the_rest() {
    let before = live();
    let raised = Limit {
        generation: 7,
        ..a(1)
    };
    let after = before.caught_up(Edits {
        overrides: vec![
            change("x", Some(5)),
            change("y", None),
            change("z", Some(3)),
        ],
        ..edits([("a", Some(raised))])
    });
    let after = after.unwrap();
    let rates = ["x", "y", "z", "other"].map(|user| rate(&after, user));
    assert_eq!(rates, [5, 1, 3, 1]);
    assert_eq!(["x", "y", "z"].map(|user| rate(&before, user)), [9, 8, 1]);
    assert_eq!(after.limits()[0].generation, 7);
    assert_eq!(after.revision().number, 7);
    assert!(Arc::ptr_eq(&before.shape, &after.shape));
    assert!(Arc::ptr_eq(&before.limits()[1], &after.limits()[1]));
}

#[test]
fn overrides_stay_where_they_mean_the_same_under_other_numbers() {
    let before = live();
    let after = before.caught_up(edits([("a", Some(a(2)))])).unwrap();
    assert_eq!(["x", "other"].map(|user| rate(&after, user)), [9, 2]);
    assert!(Arc::ptr_eq(&before.shape, &after.shape));

    let slots = Parameters::new(Kind::Concurrency, 5, 60_000);
    let other_kind = Limit {
        quota: Algorithm::new(&slots).unwrap(),
        ..a(1)
    };
    // A burst that the window of an override cannot have.
    let mut window = Parameters::new(Kind::FixedWindow, 5, 1000);
    window.rate.period_ms = 2000;
    let window = Limit {
        quota: Algorithm::new(&window).unwrap(),
        ..a(1)
    };
    for other in [
        placed(1, limit("a", "ip", 1, Vec::new())),
        other_kind,
        window,
    ] {
        assert!(before.caught_up(edits([("a", Some(other))])).is_none());
    }
}

#[test]
fn limits_come_move_and_go_with_their_overrides() {
    let before = live();
    let new = || placed(3, limit("new", "user", 2, Vec::new()));
    let one_more = || Edits {
        limit_count: 3,
        ..edits([("new", Some(new()))])
    };
    let after = before.caught_up(one_more()).unwrap();
    assert_eq!(names(&after), ["a", "b", "new"]);
    assert_eq!(after.position("new"), Some(2));
    let first = Limit { place: 1, ..new() };
    let moved = Limit { place: 4, ..a(1) };
    let after = after.caught_up(Edits {
        limit_count: 3,
        ..edits([("new", Some(first)), ("a", Some(moved))])
    });
    let after = after.unwrap();
    assert_eq!(names(&after), ["new", "b", "a"]);
    assert_eq!([0, 1, 2].map(|at| after.overrides(at).count()), [0, 1, 2]);
    let after = after.caught_up(Edits {
        overrides: vec![change("x", None)],
        ..edits([("a", None), ("never", None)])
    });
    let after = after.unwrap();
    assert_eq!(names(&after), ["new", "b"]);
    assert_eq!(after.overrides(1).count(), 1);
}

#[test]
fn overrides_that_went_do_not_come_back() {
    let again = Edits {
        cleared: vec!["a".parse().unwrap()],
        overrides: vec![change("z", Some(3))],
        ..edits([("a", Some(placed(1, limit("a", "user", 1, Vec::new()))))])
    };
    let after = live().caught_up(again).unwrap();
    assert_eq!(["x", "y", "z"].map(|user| rate(&after, user)), [1, 1, 3]);
}

/// Otherwise those that a lost record had would stay in force.
#[test]
fn limits_that_went_unsaid_are_noticed() {
    for limit_count in [0, 1, 3] {
        let few = Edits {
            limit_count,
            ..edits([("a", Some(a(2)))])
        };
        assert!(live().caught_up(few).is_none(), "{limit_count}");
    }
}

#[test]
fn an_edit_of_all_limits_raises_every_generation() {
    let before = live();
    let after = before.caught_up(Edits {
        base: 7,
        ..edits([])
    });
    let after = after.unwrap();
    assert!(after.limits().iter().all(|limit| limit.generation == 7));
    assert!(before.limits().iter().all(|limit| limit.generation == 0));
}
