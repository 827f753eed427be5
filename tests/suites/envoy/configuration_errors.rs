//! A configuration with mistakes is rejected before a request is served, and every mistake is named.

use std::time::Duration;

use anyhow::Result;
use harness::{Envoy, EnvoyConfig, Ports, Programs, until};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Starts Envoy with an edited configuration of the filter.
async fn started(edit: impl FnOnce(&mut Value)) -> Result<(Envoy, TempDir)> {
    let programs = Programs::from_env()?;
    let dir = tempfile::tempdir()?;
    let config = EnvoyConfig::shipped(&programs.root)?
        .filter_code(&programs.filter)?
        .filter_config(edit)?;
    let envoy = Envoy::start(&programs, config, Ports::free()?, 1, dir.path()).await?;
    Ok((envoy, dir))
}

/// As [`started`]; returns the error with which Envoy refuses to start.
async fn refusal(edit: impl FnOnce(&mut Value)) -> String {
    let Err(error) = started(edit).await else {
        panic!("Envoy must refuse this configuration");
    };
    format!("{error:#}")
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

#[tokio::test]
async fn a_misspelt_cluster_is_named_before_the_first_request() {
    let (envoy, _dir) = started(|config| config["limiter"]["cluster"] = json!("limitter"))
        .await
        .unwrap();

    let line = "a call of limitter failed: no such cluster";
    until(line, Duration::from_secs(20), async || {
        envoy.process().log().contains(line).then_some(())
    })
    .await
    .unwrap();
}
