//! Who may see the page.

use crate::stage::{LIMITS, Stage, TOKEN};

#[tokio::test]
async fn a_token_opens_the_view_that_was_asked_for() {
    let mut stage = Stage::start(LIMITS).await;
    stage.open("/limits?q=login").await;
    stage.shows(&["Token", "Sign in"]).await;
    stage.sign_in("not-one-of-the-tokens").await;
    stage.shows(&["none of the tokens", "Sign in"]).await;
    stage.sign_in(TOKEN).await;
    stage.shows(&["1 limit found", "login", "3/h"]).await;
    let cookies = stage.eval("document.cookie").await;
    assert_eq!(cookies, "", "scripts cannot read the session");
    stage.click("Sign out").await;
    stage.shows(&["Token", "Sign in"]).await;
    stage.open("/history").await;
    stage.shows(&["Token", "Sign in"]).await;
}

#[tokio::test]
async fn programs_show_a_bearer_token() {
    let stage = Stage::start(LIMITS).await;
    let url = format!("{}/limits", stage.limiter.admin_url());
    let none = stage.client.get(&url).send().await.unwrap();
    assert_eq!(none.status, 401);
    assert!(!none.text().contains("per-user"));
    let bearer = |token: &str| {
        stage
            .client
            .get(&url)
            .header("authorization", format!("Bearer {token}"))
    };
    let right = bearer(TOKEN).send().await.unwrap();
    assert_eq!(right.status, 200);
    assert!(right.text().contains("per-user"));
    let policy = right.header("content-security-policy").unwrap();
    assert!(
        policy.starts_with("default-src 'none';") && !policy.contains("unsafe"),
        "{policy}"
    );
    for _ in 0..10 {
        assert_eq!(
            bearer("wrong-wrong-wrong").send().await.unwrap().status,
            401
        );
    }
    let blocked = bearer("wrong-wrong-wrong").send().await.unwrap();
    assert_eq!(
        (blocked.status.as_u16(), blocked.header("retry-after")),
        (429, Some("60"))
    );
    let ready = format!("{}/readyz", stage.limiter.admin_url());
    assert_eq!(stage.client.get(&ready).send().await.unwrap().status, 200);
}
