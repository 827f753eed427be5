//! A queue behind a burst beside a real NGINX: the same delays on the same arrivals.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

use harness::{Client, Process, free_port, variable};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::stage::limits;

/// `limit_req_zone … rate=…r/s` with `limit_req burst=… delay=…`. The last rate's interval is no whole
/// millisecond, and without `delay` it is 0.
const ZONES: [(u64, u64, u64); 5] = [
    (10, 8, 4),
    (50, 20, 5),
    (100, 30, 12),
    (200, 100, 0),
    (30, 12, 3),
];

const REQUESTS: u64 = 120;

/// What NGINX decided about a request.
struct Decision {
    /// By its clock.
    at_ms: u64,
    /// Thousandths of a request above the rate, this one included.
    excess: u64,
    denied: bool,
    /// Between the decision and the timer that follows it: the delay, unless the request passed at once.
    timer_ms: u64,
}

fn configuration(port: u16) -> String {
    let (mut zones, mut locations) = (String::new(), String::new());
    for (n, (rate, burst, delay)) in ZONES.into_iter().enumerate() {
        let zone = format!("limit_req_zone $server_addr zone=z{n}:1m rate={rate}r/s;");
        let delay = if delay == 0 {
            String::new()
        } else {
            format!("delay={delay}")
        };
        writeln!(zones, "{zone}").unwrap();
        writeln!(
            locations,
            "location /{n} {{ limit_req zone=z{n} burst={burst} {delay}; empty_gif; }}"
        )
        .unwrap();
    }
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary = temporary.map(|of| format!("{of}_temp_path tmp;")).concat();
    // One process has one clock, and its debug log says when each timer was set, by that clock.
    format!(
        "worker_processes 1; daemon off; master_process off; pid nginx.pid; error_log debug.log debug;
        events {{}}
        http {{
            {temporary} access_log off; limit_req_status 429;
            {zones}
            server {{ listen 127.0.0.1:{port}; {locations} location /ready {{ empty_gif; }} }}
        }}"
    )
}

/// The decisions of each zone, in their order. `*N` names the connection in each line of the log.
fn decisions(log: &str) -> Vec<Vec<Decision>> {
    let mut zones: Vec<Vec<Decision>> = ZONES.iter().map(|_| Vec::new()).collect();
    let mut zone_of = BTreeMap::new();
    let mut decided = BTreeMap::new();
    for line in log.lines() {
        let Some((connection, said)) = line
            .split_once(" *")
            .and_then(|(_, rest)| rest.split_once(' '))
        else {
            continue;
        };
        if let Some(path) = said.strip_prefix("http request line: \"GET /") {
            let zone = path.split(' ').next().unwrap().parse::<usize>();
            zone.map(|zone| zone_of.insert(connection, zone)).ok();
        } else if let Some(said) = said.strip_prefix("limit_req[0]: ") {
            let (code, excess) = said.split_once(' ').unwrap();
            let excess: u64 = excess.replace('.', "").parse().unwrap();
            decided.insert(connection, (code == "-3", excess));
        } else if let Some(timer) = said.strip_prefix("event timer add: ") {
            let Some((denied, excess)) = decided.remove(connection) else {
                continue;
            };
            let numbers: Vec<u64> = { timer.split(':') }
                .map(|number| number.trim().parse().unwrap())
                .collect();
            zones[zone_of[connection]].push(Decision {
                at_ms: numbers[2] - numbers[1],
                excess,
                denied,
                timer_ms: numbers[1],
            });
        }
    }
    zones
}

/// Requests that arrive at random, more than the rate, some of them at once.
async fn load(port: u16, zone: usize) {
    let mut seed = zone as u64;
    let mut below = |bound: u64| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % bound
    };
    let (client, mut requests) = (Client::new(), JoinSet::new());
    let interval_us = 1_000_000 / ZONES[zone].0;
    for _ in 0..REQUESTS {
        let request = client.get(&format!("http://127.0.0.1:{port}/{zone}"));
        requests.spawn(async move { request.send().await.unwrap().status });
        let pause_us = match below(8) {
            0..=2 => 0,
            3 => below(6 * interval_us),
            _ => below(interval_us),
        };
        tokio::time::sleep(Duration::from_micros(pause_us)).await;
    }
    while let Some(status) = requests.join_next().await {
        assert!([200, 429].contains(&status.unwrap().as_u16()));
    }
}

/// The same arrivals for the limit that is said to be the same, with the delays that NGINX's excess means:
/// rounded up, where NGINX rounds down.
fn scenario(zone: usize, decisions: &[Decision]) -> Value {
    let (rate, burst, delay) = ZONES[zone];
    let steps = decisions.iter().map(|of| {
        let held = of.excess.saturating_sub(1000 * delay);
        let expect = if of.denied {
            json!({"allowed": false})
        } else {
            json!({"allowed": true, "delay_ms": held.div_ceil(rate)})
        };
        json!({"t_ms": of.at_ms, "cost": 1, "expect": expect})
    });
    let algorithm = ["token_bucket", "gcra"][zone % 2];
    json!({
        "id": format!("{rate}r/s burst={burst} delay={delay}"),
        "limits": [{
            "name": "queue",
            "algorithm": algorithm,
            "rate": format!("{rate}/s"),
            "burst": delay + 1,
            "over_limit": "queue",
            "max_delay": format!("{}ms", (burst - delay) * 1000 / rate),
        }],
        "steps": steps.collect::<Vec<_>>(),
    })
}

#[tokio::test]
async fn a_queue_behind_a_burst_delays_as_nginx_does() {
    let stage = limits(&["{name: queue, rate: 10/s}"]).await;
    let (dir, port) = (tempfile::tempdir().unwrap(), free_port().unwrap());
    std::fs::write(dir.path().join("nginx.conf"), configuration(port)).unwrap();
    let folder = format!("{}/", dir.path().display());
    let mut command = Command::new(variable("RL_TEST_NGINX"));
    command.args(["-e", "stderr", "-p", &folder, "-c", "nginx.conf"]);
    let mut nginx = Process::start("nginx", &mut command, dir.path()).unwrap();
    let (client, url) = (Client::new(), format!("http://127.0.0.1:{port}/ready"));
    let ready = nginx.ready(async || client.get(&url).send().await.ok());
    ready.await.unwrap();

    let mut loads = JoinSet::new();
    for zone in 0..ZONES.len() {
        loads.spawn(load(port, zone));
    }
    while let Some(done) = loads.join_next().await {
        done.unwrap();
    }
    nginx.stop().await.unwrap();

    let log = std::fs::read_to_string(dir.path().join("debug.log")).unwrap();
    let zones = decisions(&log);
    for ((rate, _, delay), decisions) in ZONES.iter().zip(&zones) {
        assert_eq!(decisions.len() as u64, REQUESTS);
        let admitted = || decisions.iter().filter(|of| !of.denied);
        let held_ms = |of: &Decision| of.excess.saturating_sub(1000 * delay) / rate;
        // The delay follows from the excess, as this test relies on.
        let held: Vec<&Decision> = admitted().filter(|of| held_ms(of) > 0).collect();
        assert!(held.iter().all(|of| of.timer_ms == held_ms(of)));
        let passed = admitted().count() - held.len();
        let denied = decisions.len() - admitted().count();
        assert!(
            passed > 2 && held.len() > 10,
            "{rate}/s: {passed} passed, {} were held",
            held.len()
        );
        eprintln!(
            "{rate}/s: {passed} passed, {} held, {denied} denied",
            held.len()
        );
    }
    let denied = zones.iter().flatten().filter(|of| of.denied).count();
    assert!(denied > 20, "{denied}");

    let scenarios: Vec<Value> = zones
        .iter()
        .enumerate()
        .map(|(zone, decisions)| scenario(zone, decisions))
        .collect();
    let file = dir.path().join("scenarios.json");
    std::fs::write(&file, json!({"scenarios": scenarios}).to_string()).unwrap();
    let file = file.display().to_string();
    for engine in ["local", "redis"] {
        let said = stage.rlctl(&["simulate", "-f", &file, "--engine", engine]);
        assert!(said.contains("as expected"), "{said}");
    }
}
