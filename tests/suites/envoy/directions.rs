//! The traffic direction decides whether a request counts.

use serde_json::json;

use crate::stage::{alone, statuses};

const SIDECAR: &str = "sidecar~10.0.0.2~orders-1.shop~shop.svc.cluster.local";
const GATEWAY: &str = "router~10.0.0.1~gateway-1.istio-ingress~istio-ingress.svc.cluster.local";

/// Whether a filter with this `direction` limits requests on a listener of this kind.
async fn is_limited(node: &'static str, direction: &'static str, listener: &'static str) -> bool {
    let stage = alone(&["{name: everything, rate: 1/1h, scope: proxy}"])
        .filter(move |config| config["direction"] = json!(direction))
        .config(move |config| {
            config.edit(|tree| {
                tree["node"] = json!({"id": node, "cluster": "test"});
                let listeners = &mut tree["static_resources"]["listeners"];
                listeners[0]["traffic_direction"] = json!(listener);
            })
        })
        .await;
    match statuses(&stage.get("/", "alice"), 2).await.as_slice() {
        [200, 200] => false,
        [200, 429] => true,
        odd => panic!("{node} {direction} {listener}: {odd:?}"),
    }
}

#[tokio::test]
async fn a_sidecar_counts_inbound_requests_by_default() {
    for (direction, inbound, outbound) in [
        ("auto", true, false),
        ("inbound", true, false),
        ("outbound", false, true),
        ("both", true, true),
    ] {
        assert_eq!(
            is_limited(SIDECAR, direction, "INBOUND").await,
            inbound,
            "{direction}"
        );
        assert_eq!(
            is_limited(SIDECAR, direction, "OUTBOUND").await,
            outbound,
            "{direction}"
        );
    }
}

#[tokio::test]
async fn a_gateway_counts_everything_by_default() {
    for (direction, inbound, outbound, neither) in [
        ("auto", true, true, true),
        ("inbound", true, false, false),
        ("outbound", false, true, false),
    ] {
        assert_eq!(
            is_limited(GATEWAY, direction, "INBOUND").await,
            inbound,
            "{direction}"
        );
        assert_eq!(
            is_limited(GATEWAY, direction, "OUTBOUND").await,
            outbound,
            "{direction}"
        );
        let unspecified = is_limited(GATEWAY, direction, "UNSPECIFIED").await;
        assert_eq!(unspecified, neither, "{direction}");
    }
}
