use super::*;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn user(user: &str) -> Vec<(Name, Option<Vec<u8>>)> {
    vec![(name("user"), Some(user.as_bytes().to_vec()))]
}

fn count_of(all: &[BucketActivity], who: &str) -> Option<u64> {
    let bucket = all.iter().find(|b| b.bucket == user(who))?;
    Some(bucket.requests)
}

#[test]
fn few_buckets_are_counted_exactly() {
    let mut tops = Tops::default();
    let busy = &mut tops.busy;
    let limit = name("per-user");
    for n in 0..40 {
        for _ in 0..=n {
            busy.add(&limit, &user(&format!("u{n}")), 1, None);
        }
    }
    busy.add(&name("other"), &user("u0"), 5, None);
    let all = tops.buckets();
    assert_eq!(all.len(), 41);
    assert_eq!(count_of(&all, "u39"), Some(40));
}

#[test]
fn a_flood_of_others_hides_no_busy_bucket_and_takes_no_memory() {
    let mut tops = Tops::default();
    let busy = &mut tops.busy;
    let limit = name("per-user");
    for n in 0..100_000 {
        busy.add(&limit, &user(&format!("once-{n}")), 1, None);
        if n % 50 == 0 {
            busy.add(&limit, &user("alice"), 1, None);
        }
    }
    assert_eq!(tops.busy.counted.len(), COUNTERS);
    let all = tops.buckets();
    assert_eq!(all.len(), BUCKETS_REPORTED);
    let alice = count_of(&all, "alice").expect("2 % of all");
    assert!((1000..=2000).contains(&alice), "{alice}");
    assert!(all.iter().all(|bucket| bucket.requests <= 2000));
}

#[test]
fn long_values_are_cut() {
    let mut tops = Tops::default();
    let busy = &mut tops.busy;
    busy.add(&name("a"), &user(&"x".repeat(70_000)), 1, None);
    let all = tops.buckets();
    assert_eq!(
        all[0].bucket[0].1.as_ref().unwrap().len(),
        compact::Report::MAX_VALUE
    );
}

#[test]
fn denials_that_were_not_enforced_take_no_place_from_those_that_were() {
    let mut tops = Tops::default();
    let denial = |outcome| Denial {
        at_ms: 1,
        outcome,
        by: DecidedBy::Limiter,
        proxy: None,
        descriptor: Vec::new(),
    };
    for n in 0..10_000 {
        let tried = denial(Outcome::WouldDeny);
        tops.add(&name("trial"), &user(&format!("u{n}")), 50, Some(tried));
    }
    let real = denial(Outcome::Denied);
    tops.add(&name("per-user"), &user("alice"), 3, Some(real));
    let mut long = Tops::default();
    long.merge(&tops, Resolution::Hourly);
    for (tops, has_last) in [(&tops, true), (&long, false)] {
        let all = tops.buckets();
        let denied: Vec<&BucketActivity> = all.iter().filter(|b| b.denied > 0).collect();
        let [alice] = denied[..] else {
            panic!("{denied:?}");
        };
        assert_eq!((alice.denied, alice.over), (3, 0));
        assert_eq!(alice.last.is_some(), has_last);
        let over = all.iter().filter(|b| b.over > 0);
        assert_eq!(over.count(), BUCKETS_REPORTED);
    }
}

#[test]
fn what_is_lost_by_merging_is_bounded() {
    let mut day = Tops::default();
    let limit = name("per-user");
    let (mut all, mut of_alice) = (0, 0);
    for second in 0..600 {
        let mut lane = Tops::default();
        for n in 0..400 {
            let other = format!("u{}", (second * 7919 + n * 31) % 100_000);
            lane.add(&limit, &user(&other), 1, None);
            if n % 20 == 0 {
                lane.add(&limit, &user("alice"), 1, None);
                of_alice += 1;
            }
        }
        all += 420;
        day.merge(&lane, Resolution::Hourly);
    }
    let alice = count_of(&day.buckets(), "alice").expect("5 % of all");
    let lost = 2 * all / u64::try_from(COUNTERS).unwrap();
    assert!(
        alice <= of_alice && alice + lost >= of_alice,
        "{alice} of {of_alice}"
    );
}
