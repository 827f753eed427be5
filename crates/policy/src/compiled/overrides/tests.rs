use algorithms::{Kind, Parameters, Rate};

use super::{super::walk::request_limit, *};
use crate::{OverrideQuota, Quota, Resolved};

#[test]
fn buckets_of_the_same_hash_are_told_apart() {
    let limit: Name = "a".parse().unwrap();
    let of = |user: &str| Override {
        values: vec![Some(user.as_bytes().to_vec())],
        quota: OverrideQuota::Unlimited,
        until_ms: None,
    };
    let hash = bucket_hash(&limit, &[Some("alice")]);
    let overrides = Overrides::by(|_| hash, vec![of("bob"), of("alice"), of("carol")]);
    assert_eq!(overrides.iter().count(), 3);
    assert_eq!(overrides.get(&limit, &[Some("alice")]), Some(&of("alice")));
    // Another bucket does not find it, not even by the same hash.
    let overrides = Overrides::by(|_| hash, vec![of("bob")]);
    assert_eq!(overrides.get(&limit, &[Some("alice")]), None);
}

/// A domain may have 100,000 of them.
#[test]
fn an_override_takes_little_memory() {
    assert!(size_of::<Override>() <= 120, "{}", size_of::<Override>());
}

#[test]
fn setting_overrides_one_by_one_equals_setting_all_at_once() {
    let limit: Name = "a".parse().unwrap();
    let of = |user: u64, until_ms| Override {
        values: vec![Some(user.to_string().into_bytes())],
        quota: OverrideQuota::Unlimited,
        until_ms,
    };
    let mut grown = Overrides::default();
    for user in 0..3000 {
        let one = of(user, None);
        grown.set(&limit, &one.values, Some(one.clone()));
    }
    let before = grown.clone();
    for user in 0..3000 {
        let to = (user % 3 > 0).then(|| of(user, Some(user)));
        grown.set(&limit, &of(user, None).values, to);
    }
    assert_eq!((before.iter().count(), grown.iter().count()), (3000, 2000));
    assert!(grown.any() && grown.shards.len() > 1);
    for user in 0..3000 {
        let values = of(user, None).values;
        let changed = (user % 3 > 0).then(|| of(user, Some(user)));
        assert_eq!(grown.get(&limit, &values), changed.as_ref());
        assert_eq!(before.get(&limit, &values), Some(&of(user, None)));
    }
}

/// A limit of so many requests a second for each value of an entry.
fn limit(name: &str, per: &str, units: u64, overrides: Vec<Override>) -> Limit {
    let parameters = Parameters::new(Kind::TokenBucket, units, 1000);
    Limit {
        name: name.parse().unwrap(),
        per: vec![per.parse().unwrap()],
        quota: Quota::new(&parameters).unwrap(),
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

fn live() -> Compiled {
    let overrides = vec![rate_of("x", 9), rate_of("y", 8)];
    Compiled::new(policy([limit("a", "user", 1, overrides)]))
}

fn rate(compiled: &Compiled, user: &str) -> u64 {
    match compiled.quota_for(0, &[Some(user)], 0) {
        Some(Resolved::Quota(quota)) => quota.parameters().rate.units,
        other => panic!("{other:?}"),
    }
}

fn change(user: &str, to: Option<u64>) -> (Name, Vec<Option<Vec<u8>>>, Option<Override>) {
    let to = to.map(|units| rate_of(user, units));
    ("a".parse().unwrap(), vec![Some(user.into())], to)
}

#[test]
fn an_edit_of_overrides_shares_the_rest() {
    let before = live();
    let mut limits = policy([limit("a", "user", 1, Vec::new())]);
    limits.limits[0].generation = 7;
    let changed = [
        change("x", Some(5)),
        change("y", None),
        change("z", Some(3)),
    ];
    let after = before.caught_up(limits, changed).unwrap();
    let rates = ["x", "y", "z", "other"].map(|user| rate(&after, user));
    assert_eq!(rates, [5, 1, 3, 1]);
    assert_eq!(["x", "y", "z"].map(|user| rate(&before, user)), [9, 8, 1]);
    assert_eq!(after.limits()[0].generation, 7);
    assert!(Arc::ptr_eq(&before.shape, &after.shape));
}

#[test]
fn overrides_stay_with_a_limit_that_keeps_its_rate_and_per() {
    let before = live();
    let none = Vec::new;
    let moved = Limit {
        hidden: false,
        ..limit("a", "user", 1, none())
    };
    let moved = policy([limit("new", "user", 2, none()), moved]);
    let after = before.caught_up(moved, []).unwrap();
    assert_eq!(after.overrides(1).count(), 2);
    assert_eq!(after.overrides(0).count(), 0);
    for other in [limit("a", "user", 2, none()), limit("a", "ip", 1, none())] {
        assert!(before.caught_up(policy([other]), []).is_none());
    }
    let gone = policy([limit("b", "user", 1, none())]);
    let gone = before.caught_up(gone, [change("x", None)]);
    assert_eq!(gone.unwrap().overrides(0).count(), 0);
}
