//! Redirects that Envoy follows itself: each causes a second request to the service, which is charged
//! like any other.

use serde_json::{Value, json};

use crate::stage::{Plan, limits, statuses};

/// Envoy follows redirects, and the service redirects `/from` to `/to`.
fn following(items: &[&str]) -> Plan {
    limits(items).config(|config| {
        let route = |manager: &mut Value| {
            let path = "/route_config/virtual_hosts/0/routes/1/route";
            let route = manager.pointer_mut(path).unwrap();
            route["internal_redirect_policy"] = json!({});
        };
        config.manager_edit(route).unwrap()
    })
}

#[tokio::test]
async fn a_redirect_that_envoy_follows_is_charged_once_more() {
    let stage = following(&["{name: per-user, per: [user], rate: 4/1d}"]).await;
    stage.upstream.redirect("/from", "/to");

    assert_eq!(statuses(&stage.get("/from", "alice"), 1).await, [200]);
    let bucket = stage.inspect("per-user", &["user=alice"]);
    assert_eq!(bucket["remaining"], 2, "{bucket}");
    assert_eq!(
        statuses(&stage.get("/from", "alice"), 2).await,
        [200, 429],
        "two redirects, four requests to the service"
    );
    assert_eq!(stage.upstream.requests_for("/from"), 2);
    assert_eq!(stage.upstream.requests_for("/to"), 2);
}

#[tokio::test]
async fn limits_of_the_path_that_a_redirect_leads_to_hold() {
    let stage = following(&[
        "{name: asked, match: {path: /from}, rate: 10/1d}",
        "{name: led-to, match: {path: /to}, rate: 1/1d}",
    ])
    .await;
    stage.upstream.redirect("/from", "/to");

    let answers = statuses(&stage.get("/from", "alice"), 3).await;
    assert_eq!(answers, [200, 429, 429]);
    assert_eq!(stage.upstream.requests_for("/from"), 3);
    assert_eq!(stage.upstream.requests_for("/to"), 1);
    // A limit that should count clients' own requests matches the paths that clients request.
    let bucket = stage.inspect("asked", &[]);
    assert_eq!(bucket["remaining"], 7, "{bucket}");
}
