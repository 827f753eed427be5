//! `scope: proxy`: buckets in Envoy, exact across its workers.

use harness::until;
use serde_json::{Value, json};

use crate::stage::{PATIENCE, alone, at_once, compiled, eventually, header, limits, statuses};

#[tokio::test]
async fn a_bucket_of_the_proxy_is_exact_over_its_workers() {
    for algorithm in [
        "token_bucket",
        "gcra",
        "leaky_bucket",
        "fixed_window",
        "sliding_window",
    ] {
        let item = format!(
            "{{name: here, per: [user], algorithm: {algorithm}, rate: 40/1h, scope: proxy}}"
        );
        let stage = alone(&[&item]).workers(4).await;

        let (passed, denied) = at_once(&stage.get("/", "alice"), 120).await;

        assert_eq!((passed, denied), (40, 80), "{algorithm}");
    }
}

#[tokio::test]
async fn a_bucket_of_the_proxy_makes_no_calls() {
    let stage = limits(&["{name: here, per: [user], rate: 5/1h, scope: proxy}"]).await;
    let checks = stage.limiter_counter("rl_checks_total").await;

    let answers = statuses(&stage.get("/", "alice"), 7).await;

    assert_eq!(answers, [200, 200, 200, 200, 200, 429, 429]);
    assert_eq!(stage.limiter_counter("rl_checks_total").await, checks);
}

#[tokio::test]
async fn a_precheck_denies_before_the_limiter_is_called() {
    let stage = limits(&["{name: per-user, per: [user], rate: 5/1h, precheck: 100%}"])
        .access_log()
        .await;
    let (one, two) = (stage.get("/", "alice"), stage.get("/", "alice"));
    assert_eq!(statuses(&one, 5).await, [200; 5]);

    let reply = two.send().await.unwrap();

    assert_eq!(reply.status, 429);
    assert_eq!(header(&reply, "ratelimit").split(';').nth(1), Some("r=0"));
    eventually("the precheck has denied", async || {
        let log = stage.envoy().process().log();
        log.contains("rl_denied:per-user:precheck").then_some(())
    })
    .await;
}

/// A second filter in the same VM, with its own root and configuration.
fn second_plugin(config: harness::EnvoyConfig, domain: &str, rate: &str) -> harness::EnvoyConfig {
    let (domain, rate) = (domain.to_owned(), rate.to_owned());
    let insert = |filters: &mut Vec<Value>| {
        let mut second = filters[0].clone();
        second["name"] = json!("second");
        let plugin = &mut second["typed_config"]["config"];
        plugin["name"] = json!("second");
        plugin["root_id"] = json!("second");
        let value = plugin["configuration"]["value"].as_str().unwrap();
        let mut own: Value = serde_json::from_str(value).unwrap();
        own["domain"] = json!(domain);
        let limit = format!("{{name: per-user, per: [user], rate: {rate}, scope: proxy}}");
        own["limits"] = json!(compiled(&domain, &[&limit]));
        plugin["configuration"]["value"] = json!(own.to_string());
        filters.insert(1, second);
    };
    config.http_filters(insert).unwrap()
}

#[tokio::test]
async fn two_plugins_in_one_vm_keep_their_buckets_apart() {
    let stage = alone(&["{name: per-user, per: [user], rate: 5/1h, scope: proxy}"])
        .access_log()
        .config(|config| second_plugin(config, "other", "3/1h"))
        .await;

    let answers = statuses(&stage.get("/", "alice"), 8).await;

    // The second plugin allows three. The first decides before it, and counts what the second
    // denies.
    assert_eq!(answers, [200, 200, 200, 429, 429, 429, 429, 429]);
    let names = [
        "wasmcustom.rl_decisions.allowed.proxy.per-user",
        "wasmcustom.rl_decisions.denied.proxy.per-user",
    ];
    eventually("both have counted", async || {
        let allowed = stage.envoy().stat(names[0]).await.unwrap();
        let denied = stage.envoy().stat(names[1]).await.unwrap();
        ((allowed, denied) == (5 + 3, 2 + 3)).then_some(())
    })
    .await;
}

/// The canary VM, which only validates the configuration, and the main thread's VM make no calls,
/// count nothing, and do not register as proxies.
#[tokio::test]
async fn a_vm_without_requests_counts_nothing() {
    let stage = limits(&["{name: per-user, per: [user], rate: 1000/30d}"])
        .start_unlimited()
        .await;
    assert_eq!(stage.limiter_counter("rl_checks_total").await, 0);
    let page = stage.envoy().admin("/stats?filter=rl_decisions").await;
    assert_eq!(page.unwrap(), "");

    at_once(&stage.get("/", "alice"), 50).await;

    let counted = until("all are counted", PATIENCE, async || {
        let page = stage
            .envoy()
            .admin("/stats?filter=rl_decisions")
            .await
            .ok()?;
        let counts = page.lines().filter_map(|line| line.rsplit_once(": "));
        let all: u64 = counts.map(|(_, count)| count.parse::<u64>().unwrap()).sum();
        (all >= 50).then_some(all)
    });
    assert_eq!(counted.await.unwrap(), 50);
    assert_eq!(stage.inspect("per-user", &["user=alice"])["used"], 50);
}
