use policy::Name;
use proptest::{collection::vec, option, prelude::*};
use redis_link::slot;

use super::{KeyValue, Keys};

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn names(n: usize) -> Vec<Name> {
    (0..n).map(|i| name(&format!("k{i}"))).collect()
}

fn key(values: &[Option<Vec<u8>>], partition: &[Name]) -> String {
    Keys::default().bucket(
        &name("shop"),
        &name("per-user"),
        &names(values.len()),
        partition,
        values,
    )
}

/// Values as attackers choose them: short ones made of what has a meaning in keys, and long ones.
fn value() -> impl Strategy<Value = Option<Vec<u8>>> {
    let tricky = vec(
        prop_oneof![
            Just(b'%'),
            Just(b':'),
            Just(b'{'),
            Just(b'}'),
            Just(b'-'),
            Just(b'~'),
            Just(b'0'),
            any::<u8>()
        ],
        0..6,
    );
    let long = (120usize..140, any::<u8>()).prop_map(|(n, b)| vec![b; n]);
    option::weighted(0.9, prop_oneof![4 => tricky, 1 => long])
}

#[test]
fn keys_are_readable() {
    assert_eq!(key(&[], &[]), "rl:b:shop:per-user");
    assert_eq!(
        key(&[Some(b"alice smith".to_vec()), None], &[]),
        "rl:b:shop:per-user:alice smith:%-"
    );
    assert_eq!(
        key(&[Some(b"a:b{c}%\xff\n".to_vec()), Some(Vec::new())], &[]),
        "rl:b:shop:per-user:a%3Ab%7Bc%7D%25%FF%0A:%0"
    );
    assert_eq!(
        key(
            &[Some(b"alice".to_vec()), Some(b"acme".to_vec())],
            &[name("k1")]
        ),
        "rl:b:shop:per-user:{acme}:alice"
    );
    assert!(key(&[Some(vec![b'x'; 129])], &[]).starts_with("rl:b:shop:per-user:%~"));
}

#[test]
fn a_domains_record_lives_in_one_slot() {
    let (keys, domain, limit) = (Keys::default(), name("shop"), name("per-user"));
    let expected = slot(b"shop");
    for key in [
        keys.policy(&domain),
        keys.history(&domain),
        keys.overrides(&domain, &limit),
        keys.proxies(&domain, Some(&limit)),
        keys.proxies(&domain, None),
    ] {
        assert_eq!(slot(key.as_bytes()), expected, "{key}");
    }
}

#[test]
fn foreign_keys_are_not_buckets() {
    let keys = Keys::default();
    for foreign in [
        &b"rl:b"[..],
        b"rl:b:shop",
        b"rl:b::x",
        b"rl:b:%53hop:x",
        b"rl:b:shop:X",
        b"rl:b:shop:x:%2",
        b"rl:b:shop:x:%41",
        b"rl:b:shop:x:%~abc",
        b"rl:b:shop:x:{a",
        b"rl:b:shop:x:{a}b",
        b"rl:b:shop:x:",
        b"rl:{shop}:policy",
        b"rl:b:shop:x:\xff",
        b"other:b:shop:x",
    ] {
        let text = String::from_utf8_lossy(foreign);
        assert_eq!(keys.parse_bucket(foreign), None, "{text}");
    }
}

#[test]
fn a_prefix_cannot_hold_a_hash_tag_or_a_glob() {
    for bad in ["", "a{b}", "a*", "a b", "ü", &"x".repeat(65)] {
        assert!(bad.parse::<Keys>().is_err(), "{bad}");
    }
    assert_eq!("prod/rl:".parse::<Keys>().unwrap().prefix(), "prod/rl:");
}

proptest! {
    #[test]
    fn different_values_never_share_a_key(
        a in vec(value(), 0..4),
        b in vec(value(), 0..4),
        split in 0usize..4,
    ) {
        let partition = |n: usize| names(n).into_iter().skip(split).collect::<Vec<_>>();
        let (ka, kb) = (key(&a, &partition(a.len())), key(&b, &partition(b.len())));
        prop_assert_eq!(a == b, ka == kb, "{} {}", ka, kb);
    }

    #[test]
    fn a_key_reads_back(values in vec(value(), 0..4), split in 0usize..4) {
        let per = names(values.len());
        let partition: Vec<Name> = per.iter().skip(split).rev().cloned().collect();
        let key = key(&values, &partition);
        let parsed = Keys::default().parse_bucket(key.as_bytes()).unwrap();
        prop_assert_eq!(&parsed.domain, &name("shop"));
        prop_assert_eq!(&parsed.limit, &name("per-user"));
        let expected: Vec<_> = values.iter().map(|v| KeyValue::new(v.as_deref())).collect();
        prop_assert_eq!(parsed.arrange(&per, &partition), Some(expected));
    }

    #[test]
    fn the_bucket_without_per_is_named_as_it_is_written(domain in "[ -~]{1,20}") {
        prop_assume!(Name::domain(&domain).is_ok());
        let (domain, limit) = (Name::domain(&domain).unwrap(), name("a"));
        let bare = Keys::default().bare_bucket(&domain, &limit);
        let none: [Option<Vec<u8>>; 0] = [];
        prop_assert_eq!(&bare, &Keys::default().bucket(&domain, &limit, &[], &[], &none));
        prop_assert!(!bare.contains(['*', '?', '[', '\'', ' ']), "{}", bare);
    }

    #[test]
    fn only_the_partition_chooses_the_slot(
        tenant in value(),
        users in (value(), value()),
    ) {
        let partition = [name("k0")];
        let a = key(&[tenant.clone(), users.0], &partition);
        let b = key(&[tenant, users.1], &partition);
        prop_assert_eq!(slot(a.as_bytes()), slot(b.as_bytes()));
    }

    #[test]
    fn without_a_partition_no_value_makes_a_hash_tag(values in vec(value(), 0..4)) {
        let key = key(&values, &[]);
        prop_assert!(!key.contains(['{', '}']), "{}", key);
    }

    #[test]
    fn any_bytes_are_a_bucket_or_refused(key in vec(any::<u8>(), 0..80)) {
        let mut ours = b"rl:b:shop:l:".to_vec();
        ours.extend(&key);
        let _ = Keys::default().parse_bucket(&key);
        let _ = Keys::default().parse_bucket(&ours);
    }
}
