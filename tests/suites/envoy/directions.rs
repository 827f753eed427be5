//! The traffic direction decides whether a request counts.

use harness::{Client, free_port};
use serde_json::json;

use crate::stage::{alone, statuses};

const SIDECAR: &str = "sidecar~10.0.0.2~orders-1.shop~shop.svc.cluster.local";
const GATEWAY: &str = "router~10.0.0.1~gateway-1.istio-ingress~istio-ingress.svc.cluster.local";

/// The `direction` of a filter, the kind of its listener, and whether it limits requests there.
type Case = (&'static str, &'static str, bool);

/// Each case has a listener of one Envoy, and a user, for all filters share their buckets.
async fn are_limited(node: &'static str, cases: &'static [Case]) {
    let ports: Vec<u16> = cases.iter().map(|_| free_port().unwrap()).collect();
    let at = ports.clone();
    let _stage = alone(&["{name: everything, per: [user], rate: 1/1h, scope: proxy}"])
        .config(move |mut config| {
            for ((direction, kind, _), port) in cases.iter().zip(&at) {
                config = config
                    .filter_config(|filter| filter["direction"] = json!(direction))
                    .unwrap();
                config = config.keep_port(*port).edit(|tree| {
                    tree["node"] = json!({"id": node, "cluster": "test"});
                    let listeners = tree["static_resources"]["listeners"]
                        .as_array_mut()
                        .unwrap();
                    let mut listener = listeners[0].clone();
                    listener["name"] = json!(format!("{direction}-{kind}"));
                    listener["traffic_direction"] = json!(kind);
                    listener["address"]["socket_address"]["port_value"] = json!(port);
                    listeners.push(listener);
                });
            }
            config
        })
        .await;
    for ((direction, kind, limited), port) in cases.iter().zip(ports) {
        let request = Client::new().get(&format!("http://127.0.0.1:{port}/"));
        let request = request.header("x-user-id", format!("{direction}-{kind}"));
        let second = if *limited { 429 } else { 200 };
        assert_eq!(
            statuses(&request, 2).await,
            [200, second],
            "{direction} {kind}"
        );
    }
}

#[tokio::test]
async fn a_sidecar_counts_inbound_requests_by_default() {
    let cases = &[
        ("auto", "INBOUND", true),
        ("auto", "OUTBOUND", false),
        ("inbound", "INBOUND", true),
        ("inbound", "OUTBOUND", false),
        ("outbound", "INBOUND", false),
        ("outbound", "OUTBOUND", true),
        ("both", "INBOUND", true),
        ("both", "OUTBOUND", true),
    ];
    are_limited(SIDECAR, cases).await;
}

#[tokio::test]
async fn a_gateway_counts_everything_by_default() {
    let cases = &[
        ("auto", "INBOUND", true),
        ("auto", "OUTBOUND", true),
        ("auto", "UNSPECIFIED", true),
        ("inbound", "INBOUND", true),
        ("inbound", "OUTBOUND", false),
        ("inbound", "UNSPECIFIED", false),
        ("outbound", "INBOUND", false),
        ("outbound", "OUTBOUND", true),
        ("outbound", "UNSPECIFIED", false),
    ];
    are_limited(GATEWAY, cases).await;
}
