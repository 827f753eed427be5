//! `Enforced`: true only when every Ready proxy Pod of a Gateway answers by the limits.

use serde_json::{Value, json};

use crate::stage::{
    Gateway, Stage, condition, condition_at, eventually, message, rate_limit, with_limits,
};

/// Three real Envoys of two Gateways, with node ids of both forms. Whenever the status says so, each answers by that
/// version.
#[tokio::test]
async fn when_it_is_true_each_proxy_of_the_gateway_answers_by_that_generation() {
    let mut stage = Stage::start().await;
    stage.add_envoy(Gateway::Public, "public-a").await;
    stage.add_envoy(Gateway::Public, "public-b").await;
    stage.add_envoy(Gateway::Internal, "internal-c").await;
    for number in [100, 90, 80] {
        let mut generations = Vec::new();
        for gateway in ["public", "internal"] {
            let object = rate_limit("infra", gateway, "Gateway", gateway, number);
            generations.push(stage.write(&object).await.unwrap());
        }
        for (gateway, generation) in [Gateway::Public, Gateway::Internal]
            .into_iter()
            .zip(generations)
        {
            let status = stage.enforced("infra", gateway.name(), generation).await;
            assert_eq!(status["enforced"], "True");
            assert_eq!(condition(&status, "Accepted")["status"], "True");
            assert_eq!(condition(&status, "Programmed")["status"], "True");
            for (_, pod, envoy) in stage.envoys.iter().filter(|(of, ..)| *of == gateway) {
                let answered = stage.answered_by(envoy, "/").await;
                assert_eq!(answered, Some(number.to_string()), "{pod}");
            }
        }
    }
}

/// A proxy that hangs keeps the old limits. It is named, with how many have the new ones.
#[tokio::test]
async fn a_proxy_that_is_stopped_is_named_until_it_goes_on() {
    let mut stage = Stage::start().await;
    for pod in ["public-a", "public-b", "public-c"] {
        stage.add_envoy(Gateway::Public, pod).await;
    }
    let first = stage.limit("all", 100).await;
    stage.enforced("infra", "all", first).await;
    stage.envoys[2].2.process().pause().unwrap();
    let second = stage.limit("all", 90).await;
    let is_named = |status: &Value| {
        let (condition, said) = (condition(status, "Enforced"), message(status, "Enforced"));
        condition["observedGeneration"] == second
            && condition["reason"] == "Reconciling"
            && said.contains("2 of 3")
            && said.contains("infra/public-c")
    };
    let status = stage
        .status("infra", "all", "2 of 3 have it", is_named)
        .await;
    assert_eq!(status["enforced"], "Reconciling");
    stage.envoys[2].2.process().resume().unwrap();
    stage.enforced("infra", "all", second).await;
}

/// What kuadrant-operator#653 was about: enforced, although no proxy had loaded the filter. Proxies of another Gateway of
/// the domain are no substitute.
#[tokio::test]
async fn a_gateway_whose_proxies_have_no_filter_or_do_not_report_is_not_enforced() {
    let mut stage = Stage::start().await;
    stage.add_envoy(Gateway::Public, "public-a").await;
    stage
        .add_envoy_with(Gateway::Internal, "internal-c", false)
        .await;
    stage
        .write(&rate_limit("infra", "without", "Gateway", "internal", 100))
        .await
        .unwrap();
    let generation = stage.limit("with", 100).await;
    stage.enforced("infra", "with", generation).await;
    let status = stage
        .reason("infra", "without", "Enforced", "NoProxies")
        .await;
    assert_eq!(condition(&status, "Enforced")["status"], "False");
    assert_eq!(condition(&status, "Programmed")["status"], "True");
    let said = message(&status, "Enforced");
    assert!(said.contains("0 of 1"), "{said}");
    // A Pod without a proxy that is not Ready does not count, and without any Pod nothing is known.
    let labels = json!({
        "gateway.envoyproxy.io/owning-gateway-name": "internal",
        "gateway.envoyproxy.io/owning-gateway-namespace": "infra",
    });
    stage.put_pod("envoy-gateway-system", "internal-c", &labels, false);
    let status = stage
        .reason("infra", "without", "Enforced", "ProxiesUnknown")
        .await;
    assert_eq!(condition(&status, "Enforced")["status"], "Unknown");
    // Beside one that reports, a Ready Pod that does not is named.
    stage.add_pod(Gateway::Public, "public-b");
    let is_named = |status: &Value| {
        message(status, "Enforced") == "1 of 2 proxies have it; infra/public-b does not report"
    };
    stage
        .status("infra", "with", "the other is named", is_named)
        .await;
}

/// A rollout that has not reached every proxy: at one, the filter's configuration lacks an entry by which a limit matches,
/// so that it passes what the limit would deny.
#[tokio::test]
async fn a_proxy_without_an_entry_that_a_limit_needs_is_named_until_it_is_replaced() {
    let mut stage = Stage::start().await;
    stage.add_envoy(Gateway::Internal, "internal-a").await;
    stage
        .add_envoy_without(Gateway::Internal, "internal-b", "user")
        .await;
    let limit =
        json!({"name": "all", "scope": "proxy", "rate": "100/1h", "match": {"user": ["alice"]}});
    let of_alice = with_limits("infra", "all", "Gateway", "internal", &json!([limit]));
    let generation = stage.write(&of_alice).await.unwrap();
    // Of another object, whose limits do not need it, both enforce the limits.
    let object = rate_limit("infra", "other", "Gateway", "internal", 200);
    let other = stage.write(&object).await.unwrap();
    stage.enforced("infra", "other", other).await;
    let is_named = |status: &Value| {
        let said =
            "1 of 2 proxies have it; envoy-gateway-system/internal-b does not supply `user`: ";
        condition(status, "Enforced")["reason"] == "Reconciling"
            && message(status, "Enforced").starts_with(said)
    };
    let status = stage.status("infra", "all", "it is named", is_named).await;
    assert_eq!(condition(&status, "Programmed")["status"], "True");
    // That is how it is.
    let answers = async |stage: &Stage| {
        let mut answers = Vec::new();
        for (_, pod, envoy) in &stage.envoys {
            answers.push((pod.clone(), stage.answered_by(envoy, "/").await.unwrap()));
        }
        answers
    };
    let answer = |pod: &str, number: &str| (pod.to_owned(), number.to_owned());
    let before = [answer("internal-a", "100"), answer("internal-b", "200")];
    assert_eq!(answers(&stage).await, before);
    stage.add_envoy(Gateway::Internal, "internal-c").await;
    stage.remove_envoy(Gateway::Internal, "internal-b");
    stage.enforced("infra", "all", generation).await;
    let after = [answer("internal-a", "100"), answer("internal-c", "100")];
    assert_eq!(answers(&stage).await, after);
}

/// Rules are found by their names once every proxy reads them: before, a limit by its name would not apply at the others.
#[tokio::test]
async fn a_limit_of_a_rule_holds_at_every_proxy_while_only_some_read_its_name() {
    let mut stage = Stage::start().await;
    let parents = json!([{"name": "internal", "namespace": "infra"}]);
    stage.apply(&json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"name": "checkout", "namespace": "shop"},
        "spec": {"parentRefs": parents, "rules": [{"name": "pay", "matches": [{"path": {"type": "PathPrefix", "value": "/checkout"}}]}]},
    }));
    stage.apply(&json!({
        "apiVersion": "rl.example.com/v1alpha1", "kind": "RateLimitDomain", "metadata": {"name": "shop"},
        "spec": {"domain": "shop", "gateways": [{"namespace": "infra", "name": "internal"}]},
    }));
    stage.add_envoy(Gateway::Internal, "internal-a").await;
    stage
        .add_envoy_without(Gateway::Internal, "internal-b", "route_rule")
        .await;
    let mut object = rate_limit("shop", "pay", "HTTPRoute", "checkout", 100);
    object["spec"]["targetRefs"][0]["sectionName"] = "pay".into();
    let generation = stage.write(&object).await.unwrap();
    let all_answer = async |stage: &Stage| {
        stage.enforced("shop", "pay", generation).await;
        for (_, pod, envoy) in &stage.envoys {
            let answered = stage.answered_by(envoy, "/checkout").await;
            assert_eq!(answered.as_deref(), Some("100"), "{pod}");
            assert_eq!(stage.answered_by(envoy, "/elsewhere").await, None, "{pod}");
        }
    };
    let matches = |stage: &Stage, entry: &str| {
        let limit = [
            "get-limit",
            "shop.pay.all",
            "--domain",
            "shop",
            "-o",
            "yaml",
        ];
        stage.rlctl(&limit).contains(entry)
    };
    all_answer(&stage).await;
    assert!(!matches(&stage, "route_rule"));
    stage.add_envoy(Gateway::Internal, "internal-c").await;
    stage.remove_envoy(Gateway::Internal, "internal-b");
    eventually("the rule is found by its name", async || {
        matches(&stage, "route_rule: pay").then_some(())
    })
    .await;
    all_answer(&stage).await;
}

/// envoyproxy/gateway#8707, #3086: of a Gateway's listeners only the first was limited, or the last; limitador#388: a limit
/// whose number was changed stopped limiting.
#[tokio::test]
async fn each_of_four_listeners_refuses_also_after_the_number_changes() {
    let mut stage = Stage::start().await;
    stage.listeners = (0..3).map(|_| harness::free_port().unwrap()).collect();
    stage.add_envoy(Gateway::Public, "public-a").await;
    let mut ports = stage.listeners.clone();
    ports.push(stage.envoys[0].2.port());
    for number in [4, 3] {
        let limits = json!([{"name": "all", "rate": format!("{number}/1h")}]);
        let object = with_limits("infra", "all", "Gateway", "public", &limits);
        let generation = stage.write(&object).await.unwrap();
        stage.enforced("infra", "all", generation).await;
        let mut statuses = Vec::new();
        for port in ports.iter().chain(&ports) {
            let url = format!("http://127.0.0.1:{port}/");
            let reply = stage.http.get(&url).send().await.unwrap();
            statuses.push(reply.status.as_u16());
        }
        // Together they have one bucket, which the first four have used up.
        assert_eq!(statuses[4..], [429; 4], "{number}: {statuses:?}");
        assert!(number == 3 || statuses[..4] == [200; 4], "{statuses:?}");
    }
}

/// A proxy that is replaced is a metric, and changes no status. One that stays away is named.
#[tokio::test]
async fn a_proxy_that_starts_again_changes_no_status_unless_it_stays_away() {
    let mut stage = Stage::start().await;
    stage.add_envoy(Gateway::Public, "public-a").await;
    stage.add_envoy(Gateway::Public, "public-b").await;
    let generation = stage.limit("all", 100).await;
    let before = stage.enforced("infra", "all", generation).await;
    drop(stage.envoys.pop());
    stage.metric_is("rl_controller_starting ", "1").await;
    assert_eq!(stage.read("infra", "all").await["status"], before);
    let is_named =
        |status: &Value| message(status, "Enforced").contains("infra/public-b does not report");
    stage.status("infra", "all", "it is named", is_named).await;
}

#[tokio::test]
async fn limits_that_deny_nothing_are_enforced_as_a_shadow() {
    let mut stage = Stage::start().await;
    stage.add_envoy(Gateway::Public, "public-a").await;
    let limits = json!([{"name": "all", "rate": "1/1h", "enforce": "0%"}]);
    stage
        .write(&with_limits("infra", "all", "Gateway", "public", &limits))
        .await
        .unwrap();
    stage.reason("infra", "all", "Enforced", "Shadow").await;
}

/// A route of both Gateways has an entry for each, and each has its own answer.
#[tokio::test]
async fn a_route_of_two_gateways_has_a_condition_for_each() {
    let mut stage = Stage::start().await;
    stage.add_envoy(Gateway::Public, "public-a").await;
    let parents = json!([{"name": "public", "namespace": "infra"}, {"name": "internal", "namespace": "infra"}]);
    stage.apply(&json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"name": "checkout", "namespace": "shop"},
        "spec": {"parentRefs": parents, "rules": [{"name": "pay", "matches": [{"path": {"type": "PathPrefix", "value": "/checkout"}}]}]},
    }));
    stage
        .write(&rate_limit("shop", "pay", "HTTPRoute", "checkout", 100))
        .await
        .unwrap();
    let both = |status: &Value| {
        let of = |n: usize| condition_at(status, n, "Enforced")["reason"].clone();
        // In the order of their names: internal, public.
        (of(0), of(1)) == ("ProxiesUnknown".into(), "Enforced".into())
    };
    let status = stage
        .status("shop", "pay", "one of them enforces it", both)
        .await;
    assert_eq!(status["enforced"], "ProxiesUnknown");
    let (_, _, envoy) = &stage.envoys[0];
    assert_eq!(
        stage.answered_by(envoy, "/checkout").await.as_deref(),
        Some("100")
    );
    assert_eq!(stage.answered_by(envoy, "/elsewhere").await, None);
}

/// A Service's limits are enforced by its callers, not by its Pods.
#[tokio::test]
async fn the_proxies_of_a_service_are_all_that_report_for_its_domain() {
    let stage = Stage::start().await;
    stage.apply(&json!({
        "apiVersion": "rl.example.com/v1alpha1", "kind": "RateLimitDomain", "metadata": {"name": "mesh"},
        "spec": {"domain": "mesh", "mesh": true},
    }));
    stage.apply(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "orders", "namespace": "shop"},
        "spec": {"selector": {"app": "orders"}, "ports": [{"port": 80}]},
    }));
    stage.put_pod("shop", "orders-1", &json!({"app": "orders"}), true);
    stage
        .write(&rate_limit("shop", "orders", "Service", "orders", 100))
        .await
        .unwrap();
    let is_unknown = |status: &Value| {
        condition(status, "Enforced")["reason"] == "ProxiesUnknown"
            && message(status, "Enforced").starts_with("no proxy reports")
    };
    let status = stage
        .status("shop", "orders", "nobody reports for the mesh", is_unknown)
        .await;
    assert_eq!(status["ancestors"][0]["ancestorRef"]["kind"], "Service");
}
