//! What becomes of limits when objects, people, the controller, the API server or the store come and go.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};

use crate::stage::{Gateway, Stage, condition, eventually, message, rate_limit, with_limits};

async fn has_limits(stage: &Stage, wanted: &[&str]) {
    eventually(&format!("the store has {wanted:?}"), async || {
        (stage.limits() == wanted).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_object_that_is_deleted_leaves_nothing_also_while_no_controller_runs() {
    let mut stage = Stage::start().await;
    for name in ["a", "b", "c"] {
        stage.limit(name, 10).await;
    }
    has_limits(&stage, &["infra.a.all", "infra.b.all", "infra.c.all"]).await;
    // What people make by hand is theirs.
    stage.rlctl(&[
        "set-limit",
        "by-hand",
        "--domain",
        "shop",
        "--rate",
        "1/s",
        "--match",
        "path=/x",
    ]);
    stage.delete("infra", "a").await;
    has_limits(&stage, &["by-hand", "infra.b.all", "infra.c.all"]).await;
    stage.kill_controller().await;
    stage.delete("infra", "b").await;
    // Gone at once: nothing holds it up.
    assert_eq!(stage.read("infra", "b").await, Value::Null);
    stage.start_controller().await;
    has_limits(&stage, &["by-hand", "infra.c.all"]).await;
    // The whole domain, while it is away.
    stage.kill_controller().await;
    stage.delete("infra", "c").await;
    stage
        .api
        .kubectl(&["delete", "ratelimitdomain", "shop"], "")
        .unwrap();
    stage.start_controller().await;
    has_limits(&stage, &["by-hand"]).await;
}

/// "A namespace that is deleted first": its objects go at once while the controller and the store are gone.
#[tokio::test]
async fn no_namespace_hangs_while_the_controller_and_the_store_are_gone() {
    let mut stage = Stage::start().await;
    stage.limit("a", 10).await;
    has_limits(&stage, &["infra.a.all"]).await;
    stage.kill_controller().await;
    let saved = stage.redis.take().unwrap().stop_saved().await.unwrap();
    let deleted = stage.api.kubectl(
        &[
            "delete",
            "ratelimits",
            "--all",
            "-n",
            "infra",
            "--timeout",
            "5s",
        ],
        "",
    );
    deleted.unwrap();
    assert_eq!(
        stage
            .api
            .kubectl(&["get", "ratelimits", "-A", "-o", "name"], "")
            .unwrap(),
        ""
    );
    stage.redis = Some(saved.start().await.unwrap());
    stage.start_controller().await;
    has_limits(&stage, &[]).await;
}

#[tokio::test]
async fn an_edit_by_hand_stays_and_shows_as_drift_until_the_object_changes() {
    let stage = Stage::start().await;
    stage.limit("a", 10).await;
    stage.programmed("infra", "a").await;
    stage.rlctl(&[
        "set-limit",
        "infra.a.all",
        "--domain",
        "shop",
        "--rate",
        "5/1h",
    ]);
    let status = stage.reason("infra", "a", "Programmed", "Drift").await;
    let said = message(&status, "Programmed");
    assert!(said.contains("infra.a.all"), "{said}");
    assert_eq!(status["enforced"], "Drift");
    assert!(stage.has_rate("infra.a.all", "5/h"));
    stage.limit("a", 11).await;
    stage.programmed("infra", "a").await;
    assert!(stage.has_rate("infra.a.all", "11/h"));
    // A domain that goes takes its drift along.
    let edit = [
        "set-limit",
        "infra.a.all",
        "--domain",
        "shop",
        "--rate",
        "5/1h",
    ];
    stage.rlctl(&edit);
    let drift = "rl_controller_drift{domain=\"shop\"} ";
    stage.metric_is(drift, "1").await;
    stage
        .api
        .kubectl(&["delete", "ratelimitdomain", "shop"], "")
        .unwrap();
    eventually("nothing drifts", async || {
        stage.metric(drift).await.is_none().then_some(())
    })
    .await;
}

/// What somebody else's finalizer holds limits nothing any more, and says so.
#[tokio::test]
async fn an_object_that_is_being_deleted_is_not_enforced() {
    let mut stage = Stage::start().await;
    stage.add_envoy(Gateway::Public, "public-a").await;
    let mut object = rate_limit("infra", "a", "Gateway", "public", 10);
    object["metadata"]["finalizers"] = json!(["example.com/theirs"]);
    let generation = stage.write(&object).await.unwrap();
    stage.enforced("infra", "a", generation).await;
    stage.delete("infra", "a").await;
    let status = stage.reason("infra", "a", "Enforced", "Deleting").await;
    assert_eq!(status["enforced"], "Deleting");
    has_limits(&stage, &[]).await;
    let finalizers = r#"{"metadata": {"finalizers": null}}"#;
    let patch = [
        "patch",
        "ratelimit",
        "-n",
        "infra",
        "a",
        "--type=merge",
        "-p",
        finalizers,
    ];
    stage.api.kubectl(&patch, "").unwrap();
    eventually("it is gone", async || {
        (stage.read("infra", "a").await == Value::Null).then_some(())
    })
    .await;
}

/// The kill switch is nobody's but the operator's.
#[tokio::test]
async fn a_pause_is_shown_and_never_undone() {
    let mut stage = Stage::start().await;
    stage.add_envoy(Gateway::Public, "public-a").await;
    let generation = stage.limit("a", 10).await;
    stage.enforced("infra", "a", generation).await;
    stage.rlctl(&["pause", "infra.a.all", "--domain", "shop"]);
    stage.reason("infra", "a", "Enforced", "Paused").await;
    let generation = stage.limit("a", 11).await;
    let still = |status: &Value| {
        let enforced = condition(status, "Enforced");
        enforced["reason"] == "Paused" && enforced["observedGeneration"] == generation
    };
    stage.status("infra", "a", "the pause stays", still).await;
    stage.rlctl(&["resume", "infra.a.all", "--domain", "shop"]);
    stage.enforced("infra", "a", generation).await;
    // The whole domain, which no object of this limit names.
    stage.rlctl(&["pause", "--domain", "shop", "--yes"]);
    stage
        .status("infra", "a", "the domain's shows", still)
        .await;
    stage.rlctl(&["resume", "--domain", "shop"]);
    stage.enforced("infra", "a", generation).await;
}

/// The last accepted version of an invalid object stays in force, also after a restart, and holds up no other.
#[tokio::test]
async fn an_invalid_object_keeps_its_last_good_version_and_holds_up_no_other() {
    let mut stage = Stage::start().await;
    stage.limit("a", 10).await;
    stage.programmed("infra", "a").await;
    // No rule of the definition finds it: only the reader of limits files does.
    let limits = json!([{"name": "all", "rate": "10/1h", "match": {"path": ["re:("]}}]);
    stage
        .write(&with_limits("infra", "a", "Gateway", "public", &limits))
        .await
        .unwrap();
    stage.limit("b", 20).await;
    stage.programmed("infra", "b").await;
    let status = stage.reason("infra", "a", "Accepted", "Invalid").await;
    assert_eq!(condition(&status, "Programmed")["observedGeneration"], 1);
    assert!(stage.has_rate("infra.a.all", "10/h"));
    stage.kill_controller().await;
    stage.start_controller().await;
    stage.limit("b", 21).await;
    stage.programmed("infra", "b").await;
    has_limits(&stage, &["infra.a.all", "infra.b.all"]).await;
}

/// A limit becomes one that an override, which somebody made of it, does not fit. That is found when the domain is written,
/// with all of its objects.
#[tokio::test]
async fn an_edit_that_does_not_fit_holds_up_no_other_and_is_named() {
    let mut stage = Stage::start().await;
    let bucket = json!({"name": "all", "per": ["user"], "rate": "10/1h"});
    let proxy = json!({"name": "more", "scope": "proxy", "rate": "5/1h"});
    let both = with_limits("infra", "a", "Gateway", "public", &json!([bucket, proxy]));
    stage.write(&both).await.unwrap();
    stage.limit("b", 20).await;
    stage.programmed("infra", "a").await;
    let of_vip = ["infra.a.all", "--domain", "shop", "--for", "user=vip"];
    stage.rlctl(&[&["set-limit"], &of_vip[..], &["--burst", "99"]].concat());
    let window =
        json!({"name": "all", "per": ["user"], "rate": "11/1h", "algorithm": "fixed_window"});
    let window = with_limits("infra", "a", "Gateway", "public", &json!([window]));
    stage.write(&window).await.unwrap();
    stage.limit("b", 21).await;
    stage.programmed("infra", "b").await;
    let status = stage.reason("infra", "a", "Programmed", "NotWritten").await;
    let said = message(&status, "Programmed");
    assert!(
        said.contains("user=vip: burst") && said.contains("generation 1 stays"),
        "{said}"
    );
    let said = stage.domain_has("Programmed", "NotWritten").await;
    assert!(said.contains("RateLimit infra/a: "), "{said}");
    // All of the version before, also by a controller that has only the store to know it from.
    let before = ["infra.a.all", "infra.a.more", "infra.b.all"];
    has_limits(&stage, &before).await;
    stage.kill_controller().await;
    stage.start_controller().await;
    stage.limit("b", 22).await;
    stage.programmed("infra", "b").await;
    has_limits(&stage, &before).await;
    assert!(stage.has_rate("infra.a.all", "10/h"));
    stage.rlctl(&[&["delete-limit"], &of_vip[..], &["--yes"]].concat());
    stage.programmed("infra", "a").await;
    has_limits(&stage, &["infra.a.all", "infra.b.all"]).await;
    assert!(stage.has_rate("infra.a.all", "11/h"));
}

/// kuadrant-operator#603: a Gateway's policy kept its status when that of a route was deleted; and #406, "enforced" on a
/// route that does not exist.
#[tokio::test]
async fn a_target_that_goes_takes_its_limits_along_and_the_others_stay() {
    let stage = Stage::start().await;
    stage.limit("gateway", 10).await;
    stage
        .write(&rate_limit("shop", "route", "HTTPRoute", "checkout", 10))
        .await
        .unwrap();
    has_limits(&stage, &["infra.gateway.all", "shop.route.all"]).await;
    stage
        .api
        .kubectl(&["delete", "httproute", "-n", "shop", "checkout"], "")
        .unwrap();
    has_limits(&stage, &["infra.gateway.all"]).await;
    let status = stage
        .reason("shop", "route", "Accepted", "TargetNotFound")
        .await;
    assert_ne!(condition(&status, "Enforced")["status"], "True");
    stage.programmed("infra", "gateway").await;
}

/// A store that lost its data gets all limits again; what proxies had before proves nothing about it.
#[tokio::test]
async fn a_store_that_lost_its_data_is_written_again() {
    let mut stage = Stage::start().await;
    stage.add_envoy(Gateway::Public, "public-a").await;
    let generation = stage.limit("a", 10).await;
    stage.enforced("infra", "a", generation).await;
    let emptied = stage.redis.take().unwrap().restart_empty().await.unwrap();
    stage.redis = Some(emptied);
    has_limits(&stage, &["infra.a.all"]).await;
    let generation = stage.limit("a", 9).await;
    stage.enforced("infra", "a", generation).await;
    let (_, _, envoy) = &stage.envoys[0];
    assert_eq!(stage.answered_by(envoy, "/").await.as_deref(), Some("9"));
}

/// While the store is away, a new version is not said to be in it.
#[tokio::test]
async fn while_the_store_is_away_a_status_says_so_and_later_all_is_written() {
    let mut stage = Stage::start().await;
    stage.add_envoy(Gateway::Public, "public-a").await;
    let generation = stage.limit("a", 10).await;
    stage.enforced("infra", "a", generation).await;
    let saved = stage.redis.take().unwrap().stop_saved().await.unwrap();
    // Nobody knows what the proxies have.
    let status = stage
        .reason("infra", "a", "Enforced", "ProxiesUnknown")
        .await;
    assert_eq!(condition(&status, "Enforced")["status"], "Unknown");
    stage.limit("a", 11).await;
    let waits = |status: &Value| {
        let programmed = condition(status, "Programmed");
        programmed["status"] == "False" && programmed["observedGeneration"] == 2
    };
    stage
        .status("infra", "a", "it is not in the store", waits)
        .await;
    stage.redis = Some(saved.start().await.unwrap());
    stage.programmed("infra", "a").await;
    assert!(stage.has_rate("infra.a.all", "11/h"));
}

/// Two replicas: one acts; when it is stopped in order, the other does at once.
#[tokio::test]
async fn of_two_replicas_one_acts_and_the_other_takes_over() {
    let mut stage = Stage::start().await;
    stage.metric_is("rl_controller_active ", "1").await;
    let first_port = stage.controller_port;
    stage.controller_port = harness::free_port().unwrap();
    let second = stage.another_controller(stage.controller_port);
    stage.metric_is("rl_controller_active ", "0").await;
    assert_ne!(first_port, stage.controller_port);
    stage.controller.take().unwrap().stop().await.unwrap();
    stage.metric_is("rl_controller_active ", "1").await;
    stage.limit("a", 10).await;
    has_limits(&stage, &["infra.a.all"]).await;
    second.stop().await.unwrap();
}

/// An API server that ends, and one that starts and does not know the kinds yet, delete nothing.
#[tokio::test]
async fn an_api_server_or_an_etcd_that_is_killed_changes_nothing() {
    let mut stage = Stage::start().await;
    stage.limit("a", 10).await;
    stage.programmed("infra", "a").await;
    let revisions = stage.rlctl(&["history", "--domain", "shop", "-o", "name"]);
    stage.api.kill().await.unwrap();
    stage.api.kill_etcd().await.unwrap();
    let mut object = rate_limit("infra", "b", "Gateway", "public", 10);
    object["metadata"]["labels"] = json!({"after": "restart"});
    eventually("the API server answers again", async || {
        stage.write(&object).await.ok()
    })
    .await;
    stage.programmed("infra", "b").await;
    has_limits(&stage, &["infra.a.all", "infra.b.all"]).await;
    let after = stage.rlctl(&["history", "--domain", "shop", "-o", "name"]);
    assert_eq!(
        after.lines().count(),
        revisions.lines().count() + 1,
        "{after}"
    );
}

/// Limits of objects stay for files to take over, or go, when somebody stops using objects.
#[tokio::test]
async fn release_keeps_or_deletes_what_objects_have() {
    let mut stage = Stage::start().await;
    stage.limit("a", 10).await;
    stage.programmed("infra", "a").await;
    stage.controller.take().unwrap().stop().await.unwrap();
    stage.rlctl(&["controller", "--release", "keep"]);
    assert_eq!(stage.limits(), ["infra.a.all"]);
    // They are nobody's now.
    stage.rlctl(&["controller", "--release", "delete"]);
    assert_eq!(stage.limits(), ["infra.a.all"]);
    // Until the controller is back.
    stage.start_controller().await;
    stage.limit("a", 11).await;
    stage.programmed("infra", "a").await;
    stage.controller.take().unwrap().stop().await.unwrap();
    stage.rlctl(&["controller", "--release", "delete"]);
    assert_eq!(stage.rlctl(&["list-domains", "-o", "name"]), "");
}

/// A cluster whose objects are in the same store, by the UID of its `kube-system`: neither its start nor a domain of the
/// same name touches what the first has, until somebody says that the first is gone.
#[tokio::test]
async fn a_second_cluster_leaves_the_firsts_limits_alone_until_they_are_released() {
    let mut stage = Stage::start().await;
    stage.limit("a", 10).await;
    stage.programmed("infra", "a").await;
    let own = [
        "get",
        "namespace",
        "kube-system",
        "-o",
        "jsonpath={.metadata.uid}",
    ];
    let first = stage.api.kubectl(&own, "").unwrap();
    stage.kill_controller().await;
    stage.delete("infra", "a").await;
    for gone in [["ratelimitdomain", "shop"], ["namespace", "kube-system"]] {
        let delete = [&["delete"][..], &gone].concat();
        stage.api.kubectl(&delete, "").unwrap();
    }
    stage.apply(
        &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}}),
    );
    assert_ne!(stage.api.kubectl(&own, "").unwrap(), first);
    stage.start_controller().await;
    // A second turn: the first has found what it takes for abandoned.
    stage.limit("b", 20).await;
    stage.reason("infra", "b", "Accepted", "NoDomain").await;
    assert_eq!(stage.limits(), ["infra.a.all"]);
    stage.apply(&json!({
        "apiVersion": "rl.example.com/v1alpha1", "kind": "RateLimitDomain", "metadata": {"name": "shop"},
        "spec": {"domain": "shop", "gateways": [{"namespace": "infra", "name": "public"}]},
    }));
    let status = stage.reason("infra", "b", "Programmed", "Conflicted").await;
    let said = message(&status, "Programmed");
    assert!(said.contains(&format!("--cluster {first}")), "{said}");
    assert_eq!(condition(&status, "Enforced")["status"], "Unknown");
    stage.domain_has("Programmed", "Conflicted").await;
    // Without the name of the first it releases nothing.
    stage.rlctl(&["controller", "--release", "keep"]);
    stage.reason("infra", "b", "Programmed", "Conflicted").await;
    assert_eq!(stage.limits(), ["infra.a.all"]);
    stage.rlctl(&["controller", "--release", "keep", "--cluster", &first]);
    stage.programmed("infra", "b").await;
    assert_eq!(stage.limits(), ["infra.a.all", "infra.b.all"]);
}

/// What is in force keeps its place until its own object lets it go, and then whoever waited for it need not ask again.
#[tokio::test]
async fn an_object_that_waits_for_room_gets_it_when_another_shrinks() {
    let stage = Stage::start().await;
    stage.apply(&json!({
        "apiVersion": "rl.example.com/v1alpha1", "kind": "RateLimitDomain", "metadata": {"name": "shop"},
        "spec": {
            "domain": "shop", "gateways": [{"namespace": "infra", "name": "public"}],
            "caps": {"limitsPerNamespace": 3},
        },
    }));
    let write = async |object: &str, limits: &[&str]| {
        let limits = limits
            .iter()
            .map(|name| json!({"name": name, "rate": "10/1h"}));
        let limits = Value::Array(limits.collect());
        let object = with_limits("infra", object, "Gateway", "public", &limits);
        stage.write(&object).await.unwrap();
    };
    write("a", &["x"]).await;
    write("b", &["y", "z"]).await;
    has_limits(&stage, &["infra.a.x", "infra.b.y", "infra.b.z"]).await;
    write("a", &["x", "more"]).await;
    stage.reason("infra", "a", "Accepted", "CapExceeded").await;
    write("b", &["y"]).await;
    has_limits(&stage, &["infra.a.more", "infra.a.x", "infra.b.y"]).await;
    stage.reason("infra", "a", "Accepted", "Accepted").await;
}

/// Whoever reads a status believes it: what others write there does not stay until the controller has news, nor is it
/// taken for what was in force.
#[tokio::test]
async fn a_status_that_somebody_overwrites_is_written_again() {
    let stage = Stage::start().await;
    stage.limit("a", 10).await;
    let before = stage
        .reason("infra", "a", "Enforced", "ProxiesUnknown")
        .await;
    let domain = eventually("the domain has the limit as well", async || {
        let status = stage.domain().await["status"].clone();
        (status["revision"] == before["ancestors"][0]["revision"]).then_some(status)
    })
    .await;
    for patch in [
        r#"{"status": {"enforced": "True", "inForce": {"spec": {"domain": "theirs", "limits": [{"name": "theirs", "rate": "1/s"}]}}}}"#,
        r#"{"status": null}"#,
    ] {
        let object = ["patch", "ratelimit", "-n", "infra", "a"];
        let of_domain = ["patch", "ratelimitdomain", "shop"];
        for object in [&object[..], &of_domain] {
            let how = ["--subresource=status", "--type=merge", "-p", patch];
            stage.api.kubectl(&[object, &how].concat(), "").unwrap();
        }
        let is_as_before = |status: &Value| *status == before;
        stage
            .status("infra", "a", "it is as before", is_as_before)
            .await;
        eventually("the domain's is as before", async || {
            (stage.domain().await["status"] == domain).then_some(())
        })
        .await;
    }
    assert_eq!(stage.limits(), ["infra.a.all"]);
}

/// A watch that fails later on leaves the objects as they were: that is counted and said, and no reason to restart.
#[tokio::test]
async fn a_watch_that_fails_after_the_first_list_is_counted_and_said() {
    let mut stage = Stage::start().await;
    stage.limit("a", 10).await;
    stage.programmed("infra", "a").await;
    let role = stage
        .programs
        .root
        .join("deploy/kubernetes/components/controller/rbac.yaml");
    let role = std::fs::read_to_string(role).unwrap();
    let without = role.replace("httproutes", "nothing");
    assert_ne!(role, without);
    stage.api.kubectl(&["apply", "-f", "-"], &without).unwrap();
    // A watch that has begun is not asked again.
    stage.api.kill().await.unwrap();
    let page = async |stage: &Stage, page: &str| {
        let url = format!("http://127.0.0.1:{}/{page}", stage.controller_port);
        let reply = stage.http.get(&url).send().await.ok()?;
        Some((reply.status.as_u16(), reply.text()))
    };
    eventually("it is said", async || {
        let (status, said) = page(&stage, "readyz").await?;
        (status == 503 && said.starts_with("cannot watch httproutes: ")).then_some(())
    })
    .await;
    assert_eq!(page(&stage, "healthz").await.unwrap().0, 200);
    let failures = stage
        .metric("rl_controller_failures_total{cause=\"watch\"} ")
        .await;
    assert_ne!(failures.as_deref(), Some("0"));
    let log = stage.controller.as_ref().unwrap().log();
    assert!(log.contains("cannot watch httproutes"), "{log}");
    // The others go on.
    stage.limit("a", 11).await;
    stage.programmed("infra", "a").await;
    stage.api.kubectl(&["apply", "-f", "-"], &role).unwrap();
    eventually("it is well again", async || {
        (page(&stage, "readyz").await?.0 == 200).then_some(())
    })
    .await;
}

/// Statuses are written when they change, and not again.
#[tokio::test]
async fn nothing_is_written_while_nothing_changes() {
    let stage = Stage::start().await;
    stage.limit("a", 10).await;
    let settled = async |name| {
        stage
            .reason("infra", name, "Enforced", "ProxiesUnknown")
            .await
    };
    settled("a").await;
    let version = async || stage.read("infra", "a").await["metadata"]["resourceVersion"].clone();
    let before = version().await;
    // What wakes the controller concerns another object.
    stage.limit("b", 10).await;
    settled("b").await;
    harness::until("further turns", Duration::from_secs(10), async || {
        (stage
            .metric("rl_controller_edits_total{domain=\"shop\"} ")
            .await?
            .as_str()
            >= "2")
            .then_some(())
    })
    .await
    .unwrap();
    assert_eq!(version().await, before);
    every_metric_of_the_alerts_exists(&stage).await;
}

/// The suite `deploy` tests when they fire, without a controller.
async fn every_metric_of_the_alerts_exists(stage: &Stage) {
    let rules = stage.programs.root.join("deploy/monitoring/rules.yaml");
    let rules = std::fs::read_to_string(rules).unwrap();
    let words = rules.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let used: BTreeSet<&str> = words
        .filter(|word| word.starts_with("rl_controller_"))
        .collect();
    assert!(used.len() >= 4, "{used:?}");
    let page = stage.metrics().await.unwrap();
    let has = |metric: &&str| {
        page.contains(&format!("\n{metric}{{")) || page.contains(&format!("\n{metric} "))
    };
    let missing: Vec<_> = used.iter().filter(|metric| !has(metric)).collect();
    assert!(missing.is_empty(), "{missing:?}\n{page}");
}
