//! Who may do what: the controller's role, which every test of this suite runs with, and a namespace's own users.

use std::time::{Duration, Instant};

use harness::free_port;
use serde_json::{Value, json};

use crate::stage::{CONTROLLER, Stage, TENANT, eventually, rate_limit, with_limits};

#[tokio::test]
async fn the_controller_may_neither_read_secrets_nor_change_what_is_not_its_own() {
    let stage = Stage::start().await;
    let denied = [
        &["get", "secrets", "-A"][..],
        &["get", "configmaps", "-A"],
        &["delete", "ratelimits", "-n", "infra", "one"],
        &["delete", "pods", "-n", "infra", "one"],
        &["annotate", "gateways", "-n", "infra", "public", "a=b"],
        &["get", "leases", "-n", "infra"],
    ];
    for arguments in denied {
        let output = stage.api.kubectl_as(CONTROLLER, arguments, "").unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && said.contains("orbidden"),
            "{arguments:?}: {said}"
        );
    }
    let output = stage
        .api
        .kubectl_as(CONTROLLER, &["get", "ratelimits", "-A"], "");
    assert!(output.unwrap().status.success());
}

/// Without the component that loads the filter, and as the store's user of the shipped list of users.
#[tokio::test]
async fn the_base_role_and_the_stores_user_suffice_where_the_filter_is_not_managed() {
    let mut stage = Stage::start().await;
    stage.kill_controller().await;
    let shipped = |file: &str| {
        let path = stage
            .programs
            .root
            .join("deploy/kubernetes/components")
            .join(file);
        std::fs::read_to_string(path).unwrap()
    };
    let filters = shipped("controller-filter/rbac.yaml");
    stage.api.kubectl(&["delete", "-f", "-"], &filters).unwrap();
    let users = shipped("redis/users.acl");
    let rules = users
        .lines()
        .find_map(|line| line.strip_prefix("user rlctl on #RLCTL_PASSWORD "));
    let mut user = vec!["ACL", "SETUSER", "rlctl", "on", ">secret"];
    user.extend(rules.unwrap().split_whitespace());
    let redis = stage.redis.as_ref().unwrap();
    redis.command(&user).await.unwrap();
    stage.store = redis.url().replace("redis://", "redis://rlctl:secret@");
    stage.start_controller().await;
    stage.limit("a", 10).await;
    stage.programmed("infra", "a").await;
    stage.limit("b", 10).await;
    stage.programmed("infra", "b").await;
    stage.delete("infra", "a").await;
    eventually("its limit goes", async || {
        (stage.limits() == ["infra.b.all"]).then_some(())
    })
    .await;
    let domain = ["delete", "ratelimitdomain", "shop"];
    stage.api.kubectl(&domain, "").unwrap();
    eventually("the domain goes", async || {
        stage.limits().is_empty().then_some(())
    })
    .await;
    for cause in ["store", "api_server", "watch"] {
        let failures = format!("rl_controller_failures_total{{cause=\"{cause}\"}} ");
        assert_eq!(
            stage.metric(&failures).await.as_deref(),
            Some("0"),
            "{cause}"
        );
    }
}

/// An install whose role lacks the Lease acts never, and says why.
#[tokio::test]
async fn a_controller_that_may_not_take_the_lease_says_so() {
    let mut stage = Stage::start().await;
    stage.kill_controller().await;
    let lease = ["-n", "ratelimit", "delete", "role", "rl-controller"];
    stage.api.kubectl(&lease, "").unwrap();
    let port = free_port().unwrap();
    let _controller = stage.another_controller(port);
    let url = format!("http://127.0.0.1:{port}/readyz");
    eventually("it says that it cannot take the Lease", async || {
        let reply = stage.http.get(&url).send().await.ok()?;
        let said = reply.text();
        (reply.status == 503
            && said.contains("Lease ratelimit/rl-controller")
            && said.contains("orbidden"))
        .then_some(())
    })
    .await;
    stage.controller_port = port;
    eventually("it counts that", async || {
        let failures = stage
            .metric("rl_controller_failures_total{cause=\"api_server\"} ")
            .await?;
        (failures != "0").then_some(())
    })
    .await;
}

/// A role without the verb for statuses: the limits are written all the same, and the API server is not flooded.
#[tokio::test]
async fn a_status_that_is_refused_is_tried_less_and_less_often() {
    let mut stage = Stage::start().await;
    stage.kill_controller().await;
    let role = ["get", "clusterrole", "rl-controller", "-o", "json"];
    let shipped = stage.api.kubectl(&role, "").unwrap();
    let mut without: Value = serde_json::from_str(&shipped).unwrap();
    let rules = without["rules"].as_array_mut().unwrap();
    rules.retain(|rule| rule["verbs"] != json!(["patch"]));
    let replace = ["replace", "--force", "-f", "-"];
    stage.api.kubectl(&replace, &without.to_string()).unwrap();
    let port = stage.controller_port;
    stage.controller = Some(stage.another_controller(port));
    stage.limit("a", 10).await;
    eventually("the limit is in the store", async || {
        (stage.limits() == ["infra.a.all"]).then_some(())
    })
    .await;
    let failures = "rl_controller_failures_total{cause=\"api_server\"} ";
    let count = async || {
        stage
            .metric(failures)
            .await
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    let url = format!("http://127.0.0.1:{port}/readyz");
    // It says so at the end of the turn in which the status was refused.
    eventually("a status is refused", async || {
        let reply = stage.http.get(&url).send().await.ok()?;
        (reply.status == 503 && reply.text().contains("orbidden")).then_some(())
    })
    .await;
    let (before, since) = (count().await, Instant::now());
    while since.elapsed() < Duration::from_secs(8) {
        let reply = stage.http.get(&url).send().await.unwrap();
        assert_eq!(reply.status, 503);
        assert!(reply.text().contains("orbidden"), "{}", reply.text());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Of two objects, after 1, 2, 4 and 8 s.
    let more = count().await - before;
    assert!(more <= 8, "{more}");
    stage.api.kubectl(&replace, &shipped).unwrap();
    stage.programmed("infra", "a").await;
}

/// Whoever may write objects of one namespace holds up no other's: the API server stores what JSON readers refuse.
#[tokio::test]
async fn an_object_that_is_nested_too_deeply_holds_up_no_other() {
    let mut stage = Stage::start().await;
    let mut deep = json!(1);
    for _ in 0..200 {
        deep = json!([deep]);
    }
    let limits = json!([{"name": "all", "rate": "1/s", "cost": deep}]);
    let deep = with_limits("shop", "deep", "HTTPRoute", "checkout", &limits);
    stage.apply(&deep);
    stage.limit("a", 10).await;
    stage.programmed("infra", "a").await;
    eventually("it is invalid", async || {
        let accepted = ["-o", "jsonpath={.status.accepted}"];
        let get = [&["get", "ratelimit", "-n", "shop", "deep"], &accepted[..]].concat();
        (stage.api.kubectl(&get, "").unwrap() == "Invalid").then_some(())
    })
    .await;
    // Neither after a start, which lists what is there.
    stage.kill_controller().await;
    stage.start_controller().await;
    stage.limit("b", 10).await;
    stage.programmed("infra", "b").await;
}

/// A user of one namespace limits its own routes, and neither those of another nor a Gateway's.
#[tokio::test]
async fn a_namespaces_user_limits_no_route_of_another() {
    let stage = Stage::start().await;
    for object in [
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": "limits", "namespace": "shop"},
            "rules": [{"apiGroups": ["rl.example.com"], "resources": ["ratelimits"], "verbs": ["*"]}],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "limits", "namespace": "shop"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "limits"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": TENANT}],
        }),
    ] {
        stage.apply(&object);
    }
    let elsewhere = rate_limit("infra", "mine", "Gateway", "public", 10).to_string();
    let output = stage
        .api
        .kubectl_as(TENANT, &["apply", "-f", "-"], &elsewhere)
        .unwrap();
    assert!(!output.status.success(), "{output:?}");
    // In its own namespace there is no such Gateway.
    let foreign = rate_limit("shop", "foreign", "Gateway", "public", 10).to_string();
    let own = rate_limit("shop", "own", "HTTPRoute", "checkout", 10).to_string();
    for manifest in [&foreign, &own] {
        let output = stage
            .api
            .kubectl_as(TENANT, &["apply", "-f", "-"], manifest)
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    stage
        .reason("shop", "foreign", "Accepted", "TargetNotFound")
        .await;
    stage.programmed("shop", "own").await;
    assert_eq!(stage.limits(), ["shop.own.all"]);
}
