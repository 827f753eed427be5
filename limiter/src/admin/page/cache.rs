//! Values read from the store at most once per period, for all readers.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{sync::Mutex, time::Instant};

/// The most values kept; one more replaces the oldest.
const KEPT_MAX: usize = 32;

/// The last good value, and any error since.
#[derive(Debug)]
pub(super) struct Reading<T> {
    /// `None`: the store never returned it.
    pub(super) value: Option<Arc<T>>,
    /// How old the value is.
    pub(super) age: Duration,
    /// Why the store did not return a newer one.
    pub(super) error: Option<String>,
}

struct Kept<T> {
    value: Option<Arc<T>>,
    read: Instant,
    tried: Instant,
    error: Option<String>,
}

/// Readings by key.
pub(super) struct Cache<K, T> {
    valid: Duration,
    kept: Mutex<BTreeMap<K, Kept<T>>>,
}

impl<K: Ord + Clone, T> Cache<K, T> {
    pub(super) fn new(valid: Duration) -> Self {
        Self {
            valid,
            kept: Mutex::new(BTreeMap::new()),
        }
    }

    /// The value of a key, read again if it is old.
    pub(super) async fn get<E: std::fmt::Display>(
        &self,
        key: K,
        read: impl AsyncFnOnce() -> Result<T, E>,
    ) -> Reading<T> {
        // The lock is held during the read, so that a second reader gets the first one's result.
        let mut kept = self.kept.lock().await;
        if kept
            .get(&key)
            .is_none_or(|kept| kept.tried.elapsed() >= self.valid)
        {
            let result = read().await;
            let now = Instant::now();
            let before = kept.remove(&key);
            let fresh = match result {
                Ok(value) => Kept {
                    value: Some(Arc::new(value)),
                    read: now,
                    tried: now,
                    error: None,
                },
                Err(error) => Kept {
                    read: before.as_ref().map_or(now, |kept| kept.read),
                    value: before.and_then(|kept| kept.value),
                    tried: now,
                    error: Some(error.to_string()),
                },
            };
            if kept.len() >= KEPT_MAX {
                let oldest = kept.iter().min_by_key(|(_, kept)| kept.tried);
                let oldest = oldest.map(|(key, _)| key.clone());
                oldest.map(|oldest| kept.remove(&oldest));
            }
            kept.insert(key.clone(), fresh);
        }
        let kept = kept.get(&key);
        Reading {
            value: kept.and_then(|kept| kept.value.clone()),
            age: kept.map_or(Duration::ZERO, |kept| kept.read.elapsed()),
            error: kept.and_then(|kept| kept.error.clone()),
        }
    }
}

impl<T> Default for Reading<T> {
    fn default() -> Self {
        Self {
            value: None,
            age: Duration::ZERO,
            error: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_last_good_value_stays_while_the_store_is_away() {
        let cache: Cache<&str, u8> = Cache::new(Duration::ZERO);
        let good = cache.get("a", async || Ok::<_, String>(1)).await;
        assert_eq!((good.value.as_deref(), good.error), (Some(&1), None));
        let bad = cache.get("a", async || Err("away")).await;
        assert_eq!(
            (bad.value.as_deref(), bad.error.as_deref()),
            (Some(&1), Some("away"))
        );
        let other = cache.get("b", async || Err("away")).await;
        assert_eq!(other.value, None);
    }

    #[tokio::test]
    async fn a_value_is_read_once_while_it_is_valid() {
        let cache: Cache<usize, u8> = Cache::new(Duration::from_mins(1));
        cache.get(0, async || Ok::<_, String>(1)).await;
        let again = cache.get(0, async || Ok::<_, String>(2)).await;
        assert_eq!(again.value.as_deref(), Some(&1));
        for key in 1..100 {
            cache.get(key, async || Ok::<_, String>(1)).await;
        }
        assert_eq!(cache.kept.lock().await.len(), KEPT_MAX);
    }
}
