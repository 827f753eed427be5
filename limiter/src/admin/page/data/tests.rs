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
