//! The top-k buckets by count, in bounded memory (space-saving: Metwally, Agrawal, El Abbadi,
//! 2005). A bucket with more than 1/[`COUNTERS`] of the total count is always among them.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash, Hasher, RandomState},
};

use policy::Name;
use protocol::compact::Report;
use store::{BucketActivity, Denial};

/// Buckets that are counted at once.
const COUNTERS: usize = 128;

/// The most buckets in a report.
const REPORTED: usize = 50;

/// The values of a limit's `per`, as answers have them.
pub(super) type Values = [(Name, Option<Vec<u8>>)];

/// The top-k buckets of an interval.
#[derive(Debug, Default)]
pub(super) struct TopK {
    hasher: RandomState,
    counted: HashMap<u64, Counted>,
    /// The least count when last searched for, and the keys of buckets that had it then.
    least: (u64, Vec<u64>),
}

#[derive(Debug)]
struct Counted {
    limit: Name,
    bucket: Vec<(Name, Option<Vec<u8>>)>,
    /// The count, and how much of it may be the count of the bucket that this one replaced.
    count: u64,
    inherited: u64,
    last: Option<Denial>,
}

impl TopK {
    /// Counts a bucket.
    pub(super) fn add(&mut self, limit: &Name, bucket: &Values, by: u64, last: Option<Denial>) {
        let key = self.key(limit, bucket);
        if let Some(known) = self.counted.get_mut(&key) {
            known.count = known.count.saturating_add(by);
            if last.is_some() {
                known.last = last;
            }
            return;
        }
        let inherited = self.make_room();
        let counted = Counted {
            limit: limit.clone(),
            bucket: cut_values(bucket),
            count: inherited.saturating_add(by),
            inherited,
            last,
        };
        self.counted.insert(key, counted);
    }

    /// Adds what was counted elsewhere.
    pub(super) fn merge(&mut self, other: Self) {
        for counted in other.counted.into_values() {
            let count = counted.count.saturating_sub(counted.inherited);
            self.add(&counted.limit, &counted.bucket, count, counted.last);
        }
    }

    /// Hashes a bucket; only a collision merges two buckets.
    fn key(&self, limit: &Name, bucket: &Values) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        limit.hash(&mut hasher);
        for (_, value) in bucket {
            value.as_deref().map(cut).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Removes the least counted bucket if there are too many; returns its count.
    fn make_room(&mut self) -> u64 {
        if self.counted.len() < COUNTERS {
            return 0;
        }
        if let Some(count) = self.remove_least() {
            return count;
        }
        // Counts only grow, so one scan serves until all buckets with the least count are removed
        // or have grown.
        let count = self.counted.values().map(|counted| counted.count).min();
        let of_least = self.counted.iter();
        let of_least = of_least.filter(|(_, counted)| Some(counted.count) == count);
        self.least = (count.unwrap_or(0), of_least.map(|(key, _)| *key).collect());
        self.remove_least().unwrap_or(0)
    }

    /// Removes a bucket that still has the least count; `None`: none is known.
    fn remove_least(&mut self) -> Option<u64> {
        let (count, keys) = &mut self.least;
        while let Some(key) = keys.pop() {
            if self
                .counted
                .get(&key)
                .is_some_and(|counted| counted.count == *count)
            {
                self.counted.remove(&key);
                return Some(*count);
            }
        }
        None
    }

    /// The most counted, each with a lower bound of its count.
    fn top(&self) -> impl Iterator<Item = (u64, &Counted)> {
        let mut all: Vec<(u64, &Counted)> = self
            .counted
            .values()
            .map(|counted| (counted.count.saturating_sub(counted.inherited), counted))
            .collect();
        all.sort_unstable_by_key(|(count, _)| std::cmp::Reverse(*count));
        all.into_iter().take(REPORTED)
    }
}

/// The top buckets by requests and by denials, merged.
pub(super) fn buckets(busy: &TopK, denied: &TopK) -> Vec<BucketActivity> {
    let activity = |(requests, counted): (u64, &Counted)| BucketActivity {
        limit: counted.limit.clone(),
        bucket: counted.bucket.clone(),
        requests,
        denied: 0,
        last: None,
    };
    let mut all: Vec<BucketActivity> = busy.top().map(activity).collect();
    for (count, counted) in denied.top() {
        let same = |b: &&mut BucketActivity| b.limit == counted.limit && b.bucket == counted.bucket;
        if let Some(known) = all.iter_mut().find(same) {
            known.denied = count;
            known.requests = known.requests.max(count);
            known.last.clone_from(&counted.last);
        } else {
            all.push(BucketActivity {
                denied: count,
                last: counted.last.clone(),
                ..activity((count, counted))
            });
        }
    }
    all
}

/// The reported part of a value: enough to recognise it, and too short to fill the store.
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
        let mut busy = TopK::default();
        let limit = name("per-user");
        for n in 0..40 {
            for _ in 0..=n {
                busy.add(&limit, &user(&format!("u{n}")), 1, None);
            }
        }
        busy.add(&name("other"), &user("u0"), 5, None);
        let all = buckets(&busy, &TopK::default());
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
        let all = buckets(&busy, &TopK::default());
        assert_eq!(all.len(), REPORTED);
        let alice = count_of(&all, "alice").expect("2 % of all");
        assert!((1000..=2000).contains(&alice), "{alice}");
        assert!(all.iter().all(|bucket| bucket.requests <= 2000));
    }

    #[test]
    fn long_values_are_cut() {
        let mut busy = TopK::default();
        busy.add(&name("a"), &user(&"x".repeat(70_000)), 1, None);
        let all = buckets(&busy, &TopK::default());
        assert_eq!(
            all[0].bucket[0].1.as_ref().unwrap().len(),
            Report::MAX_VALUE
        );
    }
}
