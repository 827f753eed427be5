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
    let mut busy = TopK::default();
    let limit = name("per-user");
    for n in 0..40 {
        for _ in 0..=n {
            busy.add(&limit, &user(&format!("u{n}")), 1, None);
        }
    }
    busy.add(&name("other"), &user("u0"), 5, None);
    let all = top_buckets(&busy, &TopK::default());
    assert_eq!(all.len(), 41);
    assert_eq!(count_of(&all, "u39"), Some(40));
}

#[test]
fn a_flood_of_others_hides_no_busy_bucket_and_takes_no_memory() {
    let mut busy = TopK::default();
    let limit = name("per-user");
    for n in 0..100_000 {
        busy.add(&limit, &user(&format!("once-{n}")), 1, None);
        if n % 50 == 0 {
            busy.add(&limit, &user("alice"), 1, None);
        }
    }
    assert_eq!(busy.counted.len(), COUNTERS);
    let all = top_buckets(&busy, &TopK::default());
    assert_eq!(all.len(), BUCKETS_REPORTED);
    let alice = count_of(&all, "alice").expect("2 % of all");
    assert!((1000..=2000).contains(&alice), "{alice}");
    assert!(all.iter().all(|bucket| bucket.requests <= 2000));
}

#[test]
fn long_values_are_cut() {
    let mut busy = TopK::default();
    busy.add(&name("a"), &user(&"x".repeat(70_000)), 1, None);
    let all = top_buckets(&busy, &TopK::default());
    assert_eq!(
        all[0].bucket[0].1.as_ref().unwrap().len(),
        compact::Report::MAX_VALUE
    );
}
