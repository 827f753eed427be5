//! The filter's configuration changes while checks are in flight, units are leased, or two plugins
//! share a VM.

use harness::{Gate, RawClient, flood};
use protocol::compact::Batch;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::reconfiguration::Delivered;
use crate::stage::{Plan, Stage, eventually, limits};

const PER_USER: &str = "{name: per-user, match: {path: /}, per: [user], rate: 1000/1d}";

/// Checks may be held as long as a test needs, and old connections are closed `drain_s` seconds
/// after a change.
fn patient(gate: &Gate, drain_s: &'static str) -> Plan {
    limits(&[PER_USER])
        .filter(|config| config["limiter"]["timeout"] = json!("10s"))
        .config(move |config| config.arguments(&["--drain-time-s", drain_s]))
        .behind(gate)
}

fn get(host: &str, user: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nhost: {host}\r\nx-user-id: {user}\r\n\r\n").into_bytes()
}

/// Sends one request on each of these connections; returns the statuses, 0 for a closed connection.
fn send(port: u16, connections: usize) -> JoinSet<u16> {
    let mut sent = JoinSet::new();
    for _ in 0..connections {
        sent.spawn(async move {
            let mut client = RawClient::new(port);
            let reply = client.send(&get("any", "alice")).await.unwrap();
            reply.map_or(0, |reply| reply.status)
        });
    }
    sent
}

/// Waits until this many requests are in the proxy.
async fn in_flight(stage: &Stage, count: usize) {
    eventually("the requests are in flight", async || {
        let active = stage
            .envoy()
            .stat("http.ingress.downstream_rq_active")
            .await;
        (active.unwrap() == count as u64).then_some(())
    })
    .await;
}

/// The number of checks in all calls after the first `calls`.
fn checks_since(gate: &Gate, calls: usize) -> u64 {
    let calls = gate.checks().split_off(calls);
    let checks = calls
        .iter()
        .map(|call| Batch::decode(call).unwrap().checks.len() as u64);
    checks.sum()
}

fn titled(title: &str) -> impl FnOnce(&mut Value) + use<> {
    let message = json!({"message": title});
    move |config| config["deny"] = message
}

#[tokio::test]
async fn checks_in_flight_are_answered_under_the_configuration_that_sent_them() {
    const REQUESTS: usize = 24;
    let gate = Gate::start().await.unwrap();
    let delivered = Delivered::from_plan(patient(&gate, "600")).await;
    let stage = &delivered.stage;
    let before = gate.checks().len();

    // Requests are in flight from each of three configurations.
    gate.hold();
    let mut sent = JoinSet::new();
    for round in 1..=3 {
        let mut more = send(delivered.port, REQUESTS);
        in_flight(stage, round * REQUESTS).await;
        delivered
            .change("update_success", titled(&round.to_string()))
            .await;
        sent.spawn(async move {
            let mut statuses = Vec::new();
            while let Some(status) = more.join_next().await {
                statuses.push(status.unwrap());
            }
            statuses
        });
    }
    gate.open();
    let statuses = sent.join_all().await.concat();

    assert_eq!(statuses, [200; 3 * REQUESTS]);
    assert_eq!(checks_since(&gate, before), 3 * REQUESTS as u64);
    let used = &stage.inspect("per-user", &["user=alice"])["used"];
    assert_eq!(*used, 3 * REQUESTS);
}

#[tokio::test]
async fn tearing_down_a_filter_with_checks_in_flight_leaves_nothing_behind() {
    const REQUESTS: usize = 24;
    let gate = Gate::start().await.unwrap();
    let delivered = Delivered::from_plan(patient(&gate, "1")).await;
    let stage = &delivered.stage;
    let before = gate.checks().len();
    gate.hold();
    let sent = send(delivered.port, REQUESTS);
    in_flight(stage, REQUESTS).await;

    delivered.change("update_success", titled("new")).await;
    eventually("the old ones are closed", async || {
        let active = stage
            .envoy()
            .stat("http.ingress.downstream_rq_active")
            .await;
        (active.unwrap() == 0).then_some(())
    })
    .await;
    assert_eq!(
        sent.join_all().await,
        [0; REQUESTS],
        "closed without an answer"
    );
    let asked = gate.checks().len();
    gate.open();

    // New requests are decided as if nothing had happened, and each is checked once.
    let port = delivered.port;
    let passed = flood(port, 8, 80, |_| get("any", "alice")).await.unwrap();
    assert_eq!(passed, 80);
    assert_eq!(checks_since(&gate, asked), 80);
    // Requests that were in flight are charged or not, depending on their calls.
    let used = stage.inspect("per-user", &["user=alice"])["used"].as_u64();
    let most = checks_since(&gate, before);
    assert!(
        (Some(80)..=Some(most)).contains(&used),
        "{used:?} of {most}"
    );
    assert!(most <= 80 + REQUESTS as u64, "each was asked for once");
}

/// The configuration changes repeatedly under load, and old listeners close with unused units: no
/// unit is used without a charge, and each closing loses a bounded number of units.
#[tokio::test]
async fn leased_units_are_used_or_returned() {
    let plan = limits(&[
        "{name: all, match: {path: /}, algorithm: fixed_window, rate: 400000/30d, lease: {ttl: 200ms}}",
        "{name: rate, match: {path: /}, rate: 100000/s, lease: {ttl: 200ms}}",
    ])
    .config(|config| config.arguments(&["--drain-time-s", "1"]));
    let delivered = Delivered::from_plan(plan).await;
    let (stage, port) = (&delivered.stage, delivered.port);
    let load = || tokio::spawn(flood(port, 8, 100, |_| get("any", "alice")));
    let mut passed = 0;
    for round in 0..3 {
        let mut loaded = load();
        let title = round.to_string();
        delivered.change("update_success", titled(&title)).await;
        // The load continues until the old listeners are closed.
        while draining(stage).await > 0 {
            passed += loaded.await.unwrap().unwrap();
            loaded = load();
        }
        passed += loaded.await.unwrap().unwrap();
    }
    eventually("nothing is leased any more", async || {
        let leased = ["all", "rate"].map(|limit| stage.inspect(limit, &[])["leased"].as_u64());
        (leased == [Some(0); 2]).then_some(())
    })
    .await;
    let used = stage.inspect("all", &[])["used"].as_u64().unwrap();
    assert!(
        (passed..=passed + passed / 10).contains(&used),
        "{used} of {passed}"
    );
}

/// The number of listeners and filter chains that are still draining.
async fn draining(stage: &Stage) -> u64 {
    let mut sum = 0;
    for of in ["listeners", "filter_chains"] {
        let name = format!("listener_manager.total_{of}_draining");
        sum += stage.envoy().stat(&name).await.unwrap();
    }
    sum
}

/// The limits of the second plugin's domain, one of which has the name of a limit of the first.
const OTHER: &str = "domain: other
limits:
  - {name: second, match: {path: /probe}, rate: 1000000/s}
  - {name: per-user, match: {path: /}, per: [user], rate: 300/1d}
";

/// Adds another filter behind the first, in the same VM, with a domain of its own.
fn and_other(filters: &mut Vec<Value>) {
    let mut second = filters[0].clone();
    second["name"] = json!("second");
    let plugin = &mut second["typed_config"]["config"];
    (plugin["name"], plugin["root_id"]) = (json!("second"), json!("second"));
    let value = plugin["configuration"]["value"].as_str().unwrap();
    let own = value.replace("\"shop\"", "\"other\"");
    assert_ne!(own, value);
    plugin["configuration"]["value"] = json!(own);
    filters.insert(1, second);
}

#[tokio::test]
async fn two_domains_in_one_vm_do_not_mix_while_one_is_configured_anew() {
    let plan = limits(&["{name: per-user, match: {path: /}, per: [user], rate: 500/1d}"])
        .config(|config| config.http_filters(and_other).unwrap());
    let delivered = Delivered::from_plan(plan).await;
    let (stage, port) = (&delivered.stage, delivered.port);
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    std::fs::write(&file, OTHER).unwrap();
    stage.rlctl(&["apply", "-f", file.path().to_str().unwrap()]);
    eventually("every worker follows both", async || {
        for _ in 0..12 {
            let reply = RawClient::new(port).get(b"/probe", &[]).await.ok()??;
            let limits = reply.header("ratelimit-policy").concat();
            (limits.contains("probe") && limits.contains("second")).then_some(())?;
        }
        Some(())
    })
    .await;

    let mut passed = 0;
    for round in 0..4 {
        let load = tokio::spawn(flood(port, 8, 200, |n| {
            get("any", ["alice", "bob"][(n % 2) as usize])
        }));
        delivered
            .change("update_success", titled(&round.to_string()))
            .await;
        passed += load.await.unwrap().unwrap();
    }

    // Of each user's four hundred requests, three hundred pass both.
    assert_eq!(passed, 2 * 300);
    for (domain, used) in [("shop", 400), ("other", 300)] {
        for user in ["user=alice", "user=bob"] {
            let bucket = stage.inspect("per-user", &[user, "--domain", domain]);
            assert_eq!(bucket["used"], used, "{domain} {user}");
        }
    }
}
