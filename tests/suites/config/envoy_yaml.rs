//! envoy.yaml as shipped.

use std::path::Path;

use harness::{EnvoyConfig, Ports};
use serde_json::Value;

fn shipped() -> EnvoyConfig {
    EnvoyConfig::shipped(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))).unwrap()
}

#[test]
fn every_port_is_documented_and_replaceable() {
    let ports = Ports {
        envoy: 1,
        envoy_admin: 2,
        limiters: [3, 4],
        upstream: 5,
    };
    let config = shipped().ports(&ports).unwrap().tree().to_string();
    for port in 1..=5 {
        assert!(
            config.contains(&format!("\"port_value\":{port}}}")),
            "port {port} in {config}"
        );
    }
}

#[test]
fn the_filter_is_configured_by_json_for_the_domain_of_limits_yaml() {
    let mut seen = Value::Null;
    shipped()
        .filter_config(|config| seen = config.clone())
        .unwrap();
    assert_eq!(seen["domain"], "shop");
    assert_eq!(seen["limiter"]["cluster"], "limiter");
}

#[test]
fn a_client_cannot_choose_its_address_or_spell_a_path_twice() {
    let config = shipped();
    let manager = config
        .tree()
        .pointer("/static_resources/listeners/0/filter_chains/0/filters/0/typed_config")
        .unwrap();
    assert_eq!(manager["use_remote_address"], true);
    assert_eq!(manager["normalize_path"], true);
    assert_eq!(manager["merge_slashes"], true);
    assert_eq!(
        manager["path_with_escaped_slashes_action"],
        "UNESCAPE_AND_REDIRECT"
    );
}
