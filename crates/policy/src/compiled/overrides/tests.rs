use super::*;
use crate::{OverrideQuota, Resolved};

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

fn policy(limits: &str) -> Policy {
    let file = format!("domain: shop\nlimits: [{limits}]\n");
    Policy::from_yaml("test", file.as_bytes()).unwrap()
}

const LIVE: &str = "{name: a, per: [user], rate: 1/s, \
     overrides: [{values: {user: x}, rate: 9/s}, {values: {user: y}, rate: 8/s}]}";

fn rate(compiled: &Compiled, user: &str) -> u64 {
    match compiled.quota_for(0, &[Some(user)], 0) {
        Some(Resolved::Quota(quota)) => quota.parameters().rate.units,
        other => panic!("{other:?}"),
    }
}

fn change(user: &str, to: Option<u64>) -> (Name, Vec<Option<Vec<u8>>>, Option<Override>) {
    let limit = policy("{name: a, per: [user], rate: 1/s}").limits.remove(0);
    let json = |rate: u64| format!("{{\"values\":{{\"user\":\"{user}\"}},\"rate\":\"{rate}/s\"}}");
    let to = to.map(|rate| {
        let node = serde_json::from_str(&json(rate)).unwrap();
        limit.read_override(&node).unwrap()
    });
    (limit.name, vec![Some(user.as_bytes().to_vec())], to)
}

#[test]
fn an_edit_of_overrides_shares_the_rest() {
    let before = Compiled::new(policy(LIVE));
    let mut limits = policy("{name: a, per: [user], rate: 1/s}");
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
    let before = Compiled::new(policy(LIVE));
    let moved = "{name: new, rate: 2/s}, {name: a, per: [user], rate: 1/s, hidden: true}";
    let after = before.caught_up(policy(moved), []).unwrap();
    assert_eq!(after.overrides(1).count(), 2);
    assert_eq!(after.overrides(0).count(), 0);
    for other in [
        "{name: a, per: [user], rate: 2/s}",
        "{name: a, per: [ip], rate: 1/s}",
    ] {
        assert!(before.caught_up(policy(other), []).is_none(), "{other}");
    }
    let gone = before.caught_up(policy("{name: b, rate: 1/s}"), [change("x", None)]);
    assert_eq!(gone.unwrap().overrides(0).count(), 0);
}
