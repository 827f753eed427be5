//! The pair of docs/cookbook.md that needs nested metadata. Envoy gives a module none: it refuses such a configuration.

use harness::{Host, Request};

use crate::{
    once::cookbook::{answers_as_the_page_says, stage},
    response_costs::{Service, plain},
};

#[tokio::test]
async fn plans_limit_by_claim_and_addresses_regardless_of_the_key() {
    if Host::is_module() {
        return;
    }
    let service = Service::start(vec![("/x", vec![plain("200 OK", &[], b"")])]).await;
    let stage = stage("plans", &service).await;
    let request = |path: &str, plan: &str, key: &str| -> Request {
        let request = stage.envoy().get(path);
        request.header("x-plan", plan).header("x-api-key", key)
    };
    for (plan, key, limit) in [
        ("gold", "a", 1000),
        ("silver", "b", 100),
        ("gold", "partner", 5000),
    ] {
        let reply = request("/x", plan, key).send().await.unwrap();
        let policy = reply.header("ratelimit-policy").unwrap();
        assert!(
            policy.contains(&format!("q={limit};")),
            "{plan} {key}: {policy}"
        );
        assert!(policy.contains("\"per-address\""), "{policy}");
    }
}

/// Behind Envoy's JWT filter, as the page configures it.
#[tokio::test]
async fn requests_of_the_recipe_plans() {
    if !Host::is_module() {
        answers_as_the_page_says("plans").await;
    }
}
