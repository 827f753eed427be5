//! The page while the store is unavailable.

use crate::stage::{LIMITS, Stage};

#[tokio::test]
async fn limits_stay_readable_and_the_outage_is_named() {
    let mut stage = Stage::signed_in(LIMITS).await;
    stage.use_up("alice").await;
    stage.shows(&["user=alice"]).await;
    let stopped = stage.redis.stop().await.unwrap();
    stage
        .browser
        .shows(&[
            "The store does not answer.",
            "per-user",
            "ago: the store does not answer",
            "Error",
        ])
        .await
        .unwrap();
    for (view, text) in [
        ("/limits", "10/m"),
        (
            "/limit?domain=shop&name=per-user",
            "One user's request rate",
        ),
        (
            "/bucket?domain=shop&limit=per-user&v.user=alice",
            "The bucket cannot be read",
        ),
        ("/fleet", "Limiters"),
        ("/history", "Not known"),
        ("/problems", "it cannot be read"),
    ] {
        let url = format!("{}{view}", stage.limiter.admin_url());
        stage.browser.open(&url).await.unwrap();
        stage
            .browser
            .shows(&["The store does not answer.", text])
            .await
            .unwrap();
    }
    let redis = stopped.start().await.unwrap();
    let url = format!("{}/", stage.limiter.admin_url());
    stage.browser.open(&url).await.unwrap();
    let back =
        "until the store is back: !document.body.innerText.includes('The store does not answer.')";
    let expression = back.split_once(": ").unwrap().1;
    harness::until(back, std::time::Duration::from_secs(30), async || {
        (stage.browser.eval(expression).await.ok()? == true).then_some(())
    })
    .await
    .unwrap();
    drop(redis);
}
