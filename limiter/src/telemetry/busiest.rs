//! The buckets that are counted most, in little memory (space-saving: Metwally, Agrawal, El Abbadi,
//! 2005). A bucket that makes up more than 1/[`KEPT`] of all that is counted is always among them.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash, Hasher, RandomState},
};

use policy::Name;
use protocol::compact::Report;
use store::{BucketActivity, Denial};

/// Buckets that are watched.
const KEPT: usize = 128;

/// Buckets that are told.
const TOLD: usize = 50;

/// The values of a limit's `per`, as answers have them.
pub(super) type Values = [(Name, Option<Vec<u8>>)];

/// The busiest buckets of a stretch of time.
#[derive(Debug, Default)]
pub(super) struct Busiest {
    hasher: RandomState,
    watched: HashMap<u64, Watched>,
}

#[derive(Debug)]
struct Watched {
    limit: Name,
    bucket: Vec<(Name, Option<Vec<u8>>)>,
    /// What it was counted, and may be too much of that: what the bucket whose place it took had.
    count: u64,
    inherited: u64,
    last: Option<Denial>,
}

impl Busiest {
    /// Counts a bucket.
    pub(super) fn add(&mut self, limit: &Name, bucket: &Values, by: u64, last: Option<Denial>) {
        let key = self.key(limit, bucket);
        if let Some(known) = self.watched.get_mut(&key) {
            known.count = known.count.saturating_add(by);
            if last.is_some() {
                known.last = last;
            }
            return;
        }
        let inherited = self.make_room();
        let watched = Watched {
            limit: limit.clone(),
            bucket: cut_values(bucket),
            count: inherited.saturating_add(by),
            inherited,
            last,
        };
        self.watched.insert(key, watched);
    }

    /// Two buckets are taken for one only if their hashes collide.
    fn key(&self, limit: &Name, bucket: &Values) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        limit.hash(&mut hasher);
        for (_, value) in bucket {
            value.as_deref().map(cut).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Gives up the least counted bucket if there are too many; what it was counted.
    fn make_room(&mut self) -> u64 {
        if self.watched.len() < KEPT {
            return 0;
        }
        let least = self.watched.iter().min_by_key(|(_, watched)| watched.count);
        let Some((key, count)) = least.map(|(key, watched)| (*key, watched.count)) else {
            return 0;
        };
        self.watched.remove(&key);
        count
    }

    /// The most counted, never with more than they had.
    fn told(&self) -> impl Iterator<Item = (u64, &Watched)> {
        let mut all: Vec<(u64, &Watched)> = self
            .watched
            .values()
            .map(|watched| (watched.count.saturating_sub(watched.inherited), watched))
            .collect();
        all.sort_unstable_by_key(|(count, _)| std::cmp::Reverse(*count));
        all.into_iter().take(TOLD)
    }
}

/// What is known of the busiest and of the most denied buckets together.
pub(super) fn buckets(busy: &Busiest, denied: &Busiest) -> Vec<BucketActivity> {
    let activity = |(requests, watched): (u64, &Watched)| BucketActivity {
        limit: watched.limit.clone(),
        bucket: watched.bucket.clone(),
        requests,
        denied: 0,
        last: None,
    };
    let mut all: Vec<BucketActivity> = busy.told().map(activity).collect();
    for (count, watched) in denied.told() {
        let same = |b: &&mut BucketActivity| b.limit == watched.limit && b.bucket == watched.bucket;
        if let Some(known) = all.iter_mut().find(same) {
            known.denied = count;
            known.requests = known.requests.max(count);
            known.last.clone_from(&watched.last);
        } else {
            all.push(BucketActivity {
                denied: count,
                last: watched.last.clone(),
                ..activity((count, watched))
            });
        }
    }
    all
}

/// As much of a value as is told: people recognise it, and no client fills the store with one.
pub(super) fn cut(value: &[u8]) -> &[u8] {
    value.get(..Report::MAX_VALUE).unwrap_or(value)
}

fn cut_values(values: &Values) -> Vec<(Name, Option<Vec<u8>>)> {
    let cut = |value: &Option<Vec<u8>>| value.as_deref().map(|value| cut(value).to_vec());
    let cut = values
        .iter()
        .map(|(name, value)| (name.clone(), cut(value)));
    cut.collect()
}

#[cfg(test)]
mod tests {
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
        let mut busy = Busiest::default();
        let limit = name("per-user");
        for n in 0..40 {
            for _ in 0..=n {
                busy.add(&limit, &user(&format!("u{n}")), 1, None);
            }
        }
        busy.add(&name("other"), &user("u0"), 5, None);
        let all = buckets(&busy, &Busiest::default());
        assert_eq!(all.len(), 41);
        assert_eq!(count_of(&all, "u39"), Some(40));
    }

    #[test]
    fn a_flood_of_others_hides_no_busy_bucket_and_takes_no_memory() {
        let mut busy = Busiest::default();
        let limit = name("per-user");
        for n in 0..100_000 {
            busy.add(&limit, &user(&format!("once-{n}")), 1, None);
            if n % 50 == 0 {
                busy.add(&limit, &user("alice"), 1, None);
            }
        }
        assert_eq!(busy.watched.len(), KEPT);
        let all = buckets(&busy, &Busiest::default());
        assert_eq!(all.len(), TOLD);
        let alice = count_of(&all, "alice").expect("2 % of all");
        assert!((1000..=2000).contains(&alice), "{alice}");
        assert!(all.iter().all(|bucket| bucket.requests <= 2000));
    }

    #[test]
    fn long_values_are_cut() {
        let mut busy = Busiest::default();
        busy.add(&name("a"), &user(&"x".repeat(70_000)), 1, None);
        let all = buckets(&busy, &Busiest::default());
        assert_eq!(
            all[0].bucket[0].1.as_ref().unwrap().len(),
            Report::MAX_VALUE
        );
    }
}
