//! The pictures of the page in `docs/pictures`; `cargo xtask pictures` makes them.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::stage::Stage;

const LIMITS: &str = "domain: shop
limits:
  - {name: per-user, description: One user's request rate, per: [user], rate: 40/1m, burst: 60, match: {path: \"/api/**\"}}
  - {name: login, per: [remote_address], algorithm: sliding_window, rate: 10/15m, match: {path: /login, method: POST}}
  - {name: checkout, per: [user], algorithm: leaky_bucket, rate: 2/s, burst: 6, match: {path: /checkout}}
  - {name: search, per: [api_key], rate: 100/1m, match: {path: /search}, lease: {ttl: 100ms}}
  - {name: exports, rate: 30/1m, match: {path: \"/export/**\"}, description: Everybody's exports together}
  - {name: trial-quota, per: [user], rate: 5/1h, enforce: 0%, match: {path: \"/api/**\"}}
  - {name: webhooks, per: [tenant], algorithm: fixed_window, rate: 1000/1h, match: {path: /hooks}}
";

fn edit(stage: &Stage) {
    stage.rlctl(&[
        "set-limit",
        "per-user",
        "--rate",
        "50/1m",
        "--author",
        "mia",
        "--reason",
        "spring sale",
    ]);
    stage.rlctl(&[
        "set-limit",
        "per-user",
        "--for",
        "user=carol",
        "--rate",
        "500/1m",
        "--author",
        "jon",
        "--reason",
        "partner integration test",
    ]);
}

async fn traffic(stage: &Stage) {
    // Other times of the pictures do not matter: their tests are the other files.
    for round in 0..40_u32 {
        for (user, path) in [
            ("alice", "/api/orders"),
            ("bob", "/api/cart"),
            ("alice", "/api/orders"),
            ("carol", "/api/items"),
        ] {
            stage.check(json!({"user": user, "path": path})).await;
        }
        stage
            .check(json!({"remote_address": "192.0.2.17", "path": "/login", "method": "POST"}))
            .await;
        stage
            .check(json!({"api_key": format!("key-{}", round % 3), "path": "/search"}))
            .await;
        stage.check(json!({"path": "/export/month"})).await;
        stage
            .check(json!({"tenant": "acme", "path": "/hooks"}))
            .await;
        stage
            .check(json!({"user": "dave", "path": "/checkout"}))
            .await;
    }
}

#[tokio::test]
async fn pictures_are_made() {
    let mut stage = Stage::signed_in(LIMITS).await;
    edit(&stage);
    traffic(&stage).await;
    stage.shows(&["revision 3"]).await;
    let revision = stage.revision().await;
    for (number, node) in (1..).zip(["edge-fra-1", "edge-fra-2", "edge-iad-1", "mesh-cart-7d4b9"]) {
        stage.poll(node, number, Some(&revision)).await;
    }
    stage.browser.show(1600, false).await.unwrap();
    stage
        .shows(&["user=alice", "192.0.2.17", "Proxies\n4\nall current"])
        .await;
    // Without a variable, the test only shows that the pictures can be made. The documentation has one of
    // them; the others are for whoever changes the page.
    let documented = std::env::var_os("RL_PICTURES").map(PathBuf::from);
    let others = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pictures");
    std::fs::create_dir_all(&others).unwrap();
    let shoot = [
        ("/", "page", 1600, false),
        ("/", "page-dark", 1600, true),
        ("/", "page-narrow", 400, false),
        ("/", "page-1280", 1280, false),
        ("/", "page-1280-dark", 1280, true),
        ("/", "page-narrow-dark", 400, true),
        ("/limits", "page-limits", 1600, false),
        (
            "/bucket?domain=shop&limit=per-user&v.user=alice",
            "page-bucket",
            1600,
            false,
        ),
        ("/history", "page-history", 1600, false),
        ("/problems", "page-problems", 1600, true),
        (
            "/limit?domain=shop&name=per-user",
            "page-limit",
            1600,
            false,
        ),
        ("/fleet", "page-fleet", 400, true),
    ];
    for (view, name, width, dark) in shoot {
        stage.browser.show(width, dark).await.unwrap();
        stage.open(view).await;
        let folder = documented.as_ref().filter(|_| name == "page");
        let path = folder.unwrap_or(&others).join(format!("{name}.png"));
        stage.browser.picture(&path, 1400).await.unwrap();
        assert!(std::fs::metadata(&path).unwrap().len() > 10_000, "{name}");
    }
}
