//! What the fleet reports to operators: revisions in force, decisions, denials.

use harness::Host;
use serde_json::Value;

use crate::stage::{Stage, at_once, eventually, limits, statuses};

/// The output of `rlctl ... -o json`.
fn asked(stage: &Stage, arguments: &[&str]) -> Value {
    let arguments = [arguments, &["-o", "json"]].concat();
    serde_json::from_str(&stage.rlctl(&arguments)).unwrap()
}

#[tokio::test]
async fn the_proxies_and_limiters_that_follow_the_limits_are_listed() {
    let stage = limits(&["{name: per-user, per: [user], rate: 1/1h}"])
        .envoys(2)
        .await;
    let count = |rows: &Value, kind: &str, state: &str| {
        let rows = rows.as_array().unwrap().iter();
        rows.filter(|row| row["kind"] == kind && row["state"] == state)
            .count()
    };
    eventually("all are listed", async || {
        let rows = asked(&stage, &["list-proxies"]);
        let found = (
            count(&rows, "proxy", "current"),
            count(&rows, "limiter", "current"),
        );
        (found == (2, 2)).then_some(())
    })
    .await;

    // Once this returns, the whole fleet has the edit.
    stage.rlctl(&["set-limit", "per-user", "--rate", "3/1h", "--wait=20s"]);
    for n in 0..2 {
        let user = format!("user-{n}");
        let alice = stage.nth_envoy(n).get("/").header("x-user-id", &user);
        assert_eq!(statuses(&alice, 4).await, [200, 200, 200, 429]);
    }
    let rows = asked(&stage, &["list-proxies"]);
    assert_eq!(count(&rows, "proxy", "behind"), 0, "{rows}");
    let filter = if Host::is_module() { "module" } else { "wasm" };
    let proxies = rows
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["kind"] == "proxy");
    assert!(proxies.clone().all(|row| row["filter"] == filter), "{rows}");
}

#[tokio::test]
async fn a_limiter_that_was_killed_is_missed_and_one_that_was_stopped_is_not() {
    let limit = ["{name: per-user, per: [user], rate: 1000/s}"];
    // The limiters that report, and those that are missed.
    let fleet = |stage: &Stage| {
        let report = stage.doctor();
        let names = |list: &Value, field: &str| -> Vec<String> {
            let named = list.as_array().unwrap().iter();
            let named = named.filter(|one| one["check"].is_null() || one["check"] == "fleet");
            named
                .map(|one| one[field].as_str().unwrap().to_owned())
                .collect()
        };
        let missed = names(&report["findings"], "place");
        (names(&report["limiters"], "name"), missed)
    };
    let mut stage = limits(&limit).await;
    let both = async |stage: &Stage| {
        eventually("both report", async || {
            let (reporting, missed) = fleet(stage);
            (reporting.len() == 2 && missed.is_empty()).then_some(())
        })
        .await;
    };
    both(&stage).await;
    stage.stop_one_limiter().await;
    let (reporting, missed) = fleet(&stage);
    assert_eq!((reporting.len(), missed.len()), (1, 0), "{missed:?}");
    stage.start_limiters().await;
    both(&stage).await;
    stage.kill_one_limiter().await;
    let killed = stage.stopped_port();
    let (reporting, missed) = eventually("it is missed", async || {
        let found = fleet(&stage);
        (!found.1.is_empty()).then_some(found)
    })
    .await;
    assert!(
        missed.len() == 1 && missed[0].ends_with(&format!(":{killed}")),
        "{missed:?}"
    );
    assert!(
        reporting.len() == 1 && !missed[0].ends_with(&reporting[0]),
        "{reporting:?}"
    );
}

#[tokio::test]
async fn doctor_names_entries_that_no_live_proxy_supplies() {
    let stage = limits(&[
        "{name: supplied, per: [user], match: {tenant: acme, session: x}, rate: 1000/s}",
        "{name: unsupplied, per: [nonsense], match: {path: /x}, rate: 1000/s}",
    ])
    .with_credentials()
    .envoys(2)
    .await;
    let unsupplied = eventually("doctor lists the entries", async || {
        let report = stage.doctor();
        let findings = report["findings"].as_array().unwrap().iter();
        let found: Vec<Value> = findings
            .filter(|finding| finding["check"] == "unmeant")
            .cloned()
            .collect();
        (!found.is_empty()).then_some(found)
    })
    .await;
    let [finding] = unsupplied.as_slice() else {
        panic!("{unsupplied:#?}");
    };
    assert_eq!(finding["place"], "shop/unsupplied");
    assert_eq!(
        finding["what"],
        "per[0]: no live proxy supplies `nonsense`, so every request counts as one without it"
    );
}

#[tokio::test]
async fn denials_that_no_limiter_sees_are_shown_with_the_rest() {
    let stage = limits(&["{name: per-user, per: [user], match: {path: /x}, rate: 2/1h}"])
        .node("edge-1")
        .await;
    let alice = stage.get("/x", "alice");
    assert_eq!(statuses(&alice, 102).await[2..], [429; 100]);

    let limit = eventually("all denials are reported", async || {
        let stats = asked(&stage, &["stats", "per-user"]);
        let limit = stats["limits"][0].clone();
        (limit["denied"]["count"] == 100).then_some(limit)
    })
    .await;
    assert_eq!(limit["allowed"]["count"], 2);
    assert_eq!(stage.rlctl(&["list-proxies", "-o", "name"]), "edge-1\n");
    assert_eq!(limit["proxies"], 1);
    let by = &limit["denied"]["by"];
    let (cached, metrics_in) = (by["deny_cache"].as_u64(), by["limiter"].as_u64());
    assert_eq!(cached.unwrap() + metrics_in.unwrap(), 100);
    assert!(cached.unwrap() > 50, "{limit}");

    let denials = asked(&stage, &["denials", "-d", "user=alice"]);
    let [alice] = denials.as_array().unwrap().as_slice() else {
        panic!("{denials}");
    };
    assert_eq!(alice["limit"], "per-user");
    assert_eq!(alice["request"]["path"], "/x");
    // Buckets are listed per interval of five seconds, one of which may just have ended.
    assert!(alice["denied"].as_u64().unwrap() > 50, "{denials}");
    assert_eq!(
        asked(&stage, &["denials", "-d", "user=bob"]),
        Value::Array(Vec::new())
    );
}

#[tokio::test]
async fn requests_admitted_by_leases_are_counted_in_the_statistics() {
    let stage = limits(&["{name: fast, per: [user], rate: 1000/s, lease: {ttl: 100ms}}"]).await;
    let alice = stage.get("/", "alice");
    assert_eq!(statuses(&alice, 400).await, [200; 400]);

    let by = eventually("all requests are reported", async || {
        let stats = asked(&stage, &["stats", "fast"]);
        let allowed = stats["limits"][0]["allowed"].clone();
        // The requests with which the stage checked that Envoy has the limits are counted too.
        (allowed["count"].as_u64() >= Some(400)).then(|| allowed["by"].clone())
    })
    .await;
    assert!(by["lease"].as_u64() > Some(100), "{by}");
}

/// The sum over all limiters of `rl_decisions_total` with these labels.
async fn decisions(stage: &Stage, labels: &[&str]) -> u64 {
    let pages = stage.limiter_pages().await;
    let lines = pages.iter().flat_map(|page| page.lines());
    lines
        .filter(|line| line.starts_with("rl_decisions_total{"))
        .filter(|line| labels.iter().all(|label| line.contains(label)))
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

const DENIED: &str = r#"decision="denied""#;

/// Metrics of the limiters alone show what clients saw: each denial once, wherever it was decided.
#[tokio::test]
async fn denials_counted_by_limiters_are_those_that_clients_saw() {
    let stage = limits(&[
        "{name: per-user, per: [user], match: {path: /x}, rate: 2/1h}",
        "{name: here, scope: proxy, match: {path: /here}, rate: 3/1h}",
    ])
    .envoys(2)
    .await;
    let mut seen = [0, 0];
    for n in 0..2 {
        let get = |path| stage.nth_envoy(n).get(path).header("x-user-id", "alice");
        for path in ["/x", "/here"] {
            let (allowed, denied) = at_once(&get(path), 50).await;
            seen = [seen[0] + allowed, seen[1] + denied];
        }
        // Sequential, so that the deny cache answers nearly all of them.
        assert_eq!(statuses(&get("/x"), 100).await, [429; 100]);
        seen[1] += 100;
    }
    assert_eq!(seen, [2 + 2 * 3, 298 + 2 * 47]);
    let seen = seen.map(|n| u64::try_from(n).unwrap());

    let counted = async || {
        let of = async |decision| {
            let per_user = decisions(&stage, &[r#"limit="per-user""#, decision]).await;
            per_user + decisions(&stage, &[r#"limit="here""#, decision]).await
        };
        [of(r#"decision="allowed""#).await, of(DENIED).await]
    };
    eventually("all are counted", async || {
        (counted().await == seen).then_some(())
    })
    .await;
    let cached = [DENIED, r#"source="deny_cache""#];
    assert!(decisions(&stage, &cached).await > 100);

    // None is counted twice: later requests add exactly what clients see.
    let alice = stage.get("/x", "alice");
    assert_eq!(statuses(&alice, 5).await, [429; 5]);
    eventually("five more are counted", async || {
        let [allowed, denied] = counted().await;
        assert!(
            allowed == seen[0] && denied <= seen[1] + 5,
            "{allowed} {denied}"
        );
        (denied == seen[1] + 5).then_some(())
    })
    .await;
}

/// Prometheus sees no increase of a counter that appears with its first events.
#[tokio::test]
async fn counters_begin_at_0() {
    let stage = limits(&[]).await;
    let page = stage.envoy().admin("/stats/prometheus").await.unwrap();
    let mut names = vec![
        "rl_unlimited_no_policy{} 0",
        "rl_callouts_failed{} 0",
        "rl_missing{} 0",
    ];
    if Host::is_module() {
        names.push("rl_panics{} 0");
    }
    for name in names {
        // Envoy strips the prefix of the wasm filter's metrics.
        let prefix = if Host::is_module() {
            "envoy_dynamicmodulescustom_"
        } else {
            ""
        };
        let line = format!("{prefix}{name}");
        assert!(page.lines().any(|of| of == line), "{line}\n{page}");
    }
}
