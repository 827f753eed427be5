use super::*;
use crate::OverrideQuota;

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
