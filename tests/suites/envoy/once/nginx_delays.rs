//! A queue behind a burst beside a real NGINX: the same delays on the same arrivals.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use harness::{Client, Nginx, Random};
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

/// Directives of `http` and of its server.
fn configuration() -> [String; 2] {
    let mut http = "access_log off; limit_req_status 429;\n".to_owned();
    let mut locations = String::new();
    for (n, (rate, burst, delay)) in ZONES.into_iter().enumerate() {
        let zone = format!("limit_req_zone $server_addr zone=z{n}:1m rate={rate}r/s;");
        let delay = if delay == 0 {
            String::new()
        } else {
            format!("delay={delay}")
        };
        writeln!(http, "{zone}").unwrap();
        writeln!(
            locations,
            "location /{n} {{ limit_req zone=z{n} burst={burst} {delay}; empty_gif; }}"
        )
        .unwrap();
    }
    [http, locations]
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
    let mut random = Random(zone as u64);
    let (client, mut requests) = (Client::new(), JoinSet::new());
    let interval_us = 1_000_000 / ZONES[zone].0;
    for _ in 0..REQUESTS {
        let request = client.get(&format!("http://127.0.0.1:{port}/{zone}"));
        requests.spawn(async move { request.send().await.unwrap().status });
        let pause_us = match random.below(8) {
            0..=2 => 0,
            3 => random.below(6 * interval_us),
            _ => random.below(interval_us),
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
    let [http, locations] = configuration();
    // Its debug log says when each timer was set, by the clock that decided.
    let nginx = Nginx::start("debug.log debug", &http, &locations);
    let nginx = nginx.await.unwrap();

    let mut loads = JoinSet::new();
    for zone in 0..ZONES.len() {
        loads.spawn(load(nginx.port(), zone));
    }
    while let Some(done) = loads.join_next().await {
        done.unwrap();
    }
    let log = nginx.stop("debug.log").await.unwrap();
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
            passed as u64 > *delay && held.len() > 10,
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
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scenarios.json");
    std::fs::write(&file, json!({"scenarios": scenarios}).to_string()).unwrap();
    let file = file.display().to_string();
    for engine in ["local", "redis"] {
        let said = stage.rlctl(&["simulate", "-f", &file, "--engine", engine]);
        assert!(said.contains("as expected"), "{said}");
    }
}
