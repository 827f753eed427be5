//! A configuration with mistakes is rejected before a request is served, and every mistake is named.

use harness::{Envoy, EnvoyConfig, Ports, Programs};
use serde_json::{Value, json};

/// Edits the filter's configuration; returns the error with which Envoy refuses to start.
async fn refusal(edit: impl FnOnce(&mut Value)) -> String {
    let programs = Programs::from_env().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = EnvoyConfig::shipped(&programs.root)
        .and_then(|config| config.filter_code(&programs.filter))
        .and_then(|config| config.filter_config(edit))
        .unwrap();
    let ports = Ports::free().unwrap();
    let started = Envoy::start(&programs, config, ports, 1, dir.path()).await;
    format!(
        "{:#}",
        started.expect_err("Envoy must refuse this configuration")
    )
}

#[tokio::test]
async fn every_mistake_is_named_at_once() {
    let said = refusal(|config| {
        config["domian"] = json!("shop");
        config["failure_mode"] = json!("open");
        config["limiter"]["timeout"] = json!("20 minutes");
    })
    .await;

    for named in ["domian", "failure_mode", "limiter.timeout"] {
        assert!(said.contains(named), "{named} is not named in: {said}");
    }
}

#[tokio::test]
async fn an_empty_configuration_says_what_is_needed() {
    let said = refusal(|config| *config = json!({})).await;

    assert!(said.contains("domain"), "{said}");
}
