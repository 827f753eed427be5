//! The dashboard and the alerts in a real Prometheus, over a limiter and Envoys with traffic.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use harness::{Client, EnvoyConfig, LimiterPlan, Process, Programs, Redis, free_port, until};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::checks::{documents, file, text, variable};
use crate::monitoring::{alerts, is_of_what_runs_elsewhere, queries, unreachable};
use crate::running::{GATEWAY, OTHER_LIMITS, Running, WatchedFiles, port_of, statuses};

const PATIENCE: Duration = Duration::from_mins(1);

/// A limit that denies, one that only reports, and one that leases.
const LIMITS: &str = "domain: shop
limits:
  - {name: per-user, per: [user], if_missing: skip, rate: 5/1h, match: {path: \"/api/**\"}}
  - {name: trial, per: [user], if_missing: skip, rate: 1/1h, enforce: 0%, match: {path: \"/api/**\"}}
  - {name: leased, per: [user], if_missing: skip, rate: 20/1h, lease: {ttl: 1s}, match: {path: /leased}}
";

/// A Prometheus that scrapes every second, with the shipped rules. Their alerts fire after a second
/// instead of minutes.
struct Prometheus {
    url: String,
    client: Client,
    _process: Process,
    _dir: TempDir,
}

impl Prometheus {
    async fn start(limiters: &[u16], envoys: &[u16], files: &[u16]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let targets = |ports: &[u16]| {
            let targets: Vec<String> = ports
                .iter()
                .map(|port| format!("\"127.0.0.1:{port}\""))
                .collect();
            targets.join(", ")
        };
        let rules = dir.path().join("rules.yaml");
        std::fs::write(&rules, impatient_rules()).unwrap();
        let config = format!(
            "rule_files: [rules.yaml]\n\
             global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}\n\
             scrape_configs:\n\
             - {{job_name: limiter, static_configs: [{{targets: [{}]}}]}}\n\
             - {{job_name: envoy, metrics_path: /stats/prometheus, static_configs: [{{targets: [{}]}}]}}\n\
             - {{job_name: files, static_configs: [{{targets: [{}]}}]}}\n",
            targets(limiters),
            targets(envoys),
            targets(files)
        );
        Self::run(&config, dir).await
    }

    /// With a configuration whose rules are in `dir`.
    async fn run(config: &str, dir: TempDir) -> Self {
        let path = dir.path().join("prometheus.yaml");
        std::fs::write(&path, config).unwrap();
        let port = free_port().unwrap();
        let mut command = Command::new(variable("RL_TEST_PROMETHEUS"));
        command
            .arg(format!("--config.file={}", path.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                dir.path().join("data").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let process = Process::start("prometheus", &mut command, dir.path()).unwrap();
        let started = Self {
            url: format!("http://127.0.0.1:{port}"),
            client: Client::new(),
            _process: process,
            _dir: dir,
        };
        let ready = started.client.get(&format!("{}/-/ready", started.url));
        until("Prometheus is ready", PATIENCE, async || {
            (ready.send().await.ok()?.status == 200).then_some(())
        })
        .await
        .unwrap();
        started
    }

    /// The alerts that fire.
    async fn firing(&self) -> BTreeSet<String> {
        let alerts = self.client.get(&format!("{}/api/v1/alerts", self.url));
        let reply = alerts.send().await.unwrap().json().unwrap();
        let alerts = reply["data"]["alerts"].as_array().unwrap();
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        let names = firing.map(|alert| alert["labels"]["alertname"].as_str().unwrap().to_owned());
        names.collect()
    }

    /// Waits until an alert fires, or does not.
    async fn until_firing(&self, alert: &str, fires: bool) {
        until(&format!("{alert} fires: {fires}"), PATIENCE, async || {
            (self.firing().await.contains(alert) == fires).then_some(())
        })
        .await
        .unwrap();
    }

    /// The series that a query returns now.
    async fn query(&self, query: &str) -> Vec<Value> {
        let encoded = query
            .bytes()
            .fold(String::new(), |text, byte| text + &format!("%{byte:02x}"));
        let url = format!("{}/api/v1/query?query={encoded}", self.url);
        let reply = self.client.get(&url).send().await.unwrap().json().unwrap();
        assert_eq!(reply["status"], "success", "{query}: {reply}");
        let found = reply["data"]["result"].as_array().unwrap().clone();
        // 0 divided by 0 draws nothing.
        found
            .into_iter()
            .filter(|series| series["value"][1] != "NaN")
            .collect()
    }

    async fn number(&self, query: &str) -> u64 {
        let found = self.query(query).await;
        let value = found
            .first()
            .map_or("0", |series| series["value"][1].as_str().unwrap());
        value.parse().unwrap()
    }

    /// Waits until every query returns a series. Requests continue meanwhile: a counter with only
    /// one sample has a rate of zero, and the quotient of two such rates is not a number.
    async fn answers_all(&self, queries: &[String], running: &Running) {
        for query in queries {
            until(&format!("{query} is not empty"), PATIENCE, async || {
                denials(running, "/api/x", "grace", 1).await;
                (!self.query(query).await.is_empty()).then_some(())
            })
            .await
            .unwrap();
        }
    }
}

/// The shipped rules with `for: 1s`: what they would do in minutes, the tests see in seconds.
fn impatient_rules() -> String {
    let shipped = text("deploy/monitoring/rules.yaml");
    let lines = shipped.lines().map(|line| match line.split_once("for: ") {
        Some((indent, _)) if indent.trim().is_empty() => format!("{indent}for: 1s\n"),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

/// A query as a panel sends it.
fn drawn(query: &str) -> String {
    query
        .replace("$__rate_interval", "1m")
        .replace("$domain", ".*")
}

/// An alert's expression whose comparisons return 0 if the alert does not fire, so that the result
/// is empty only if its series are missing.
fn comparable(expression: &str) -> String {
    let mut compared = expression.replace('\n', " ");
    for operator in ["==", "!=", ">"] {
        compared = compared.replace(&format!(" {operator} "), &format!(" {operator} bool "));
    }
    compared
}

fn expression(alert: &Value) -> &str {
    alert["expr"].as_str().unwrap()
}

/// Settles a cost, denies a bucket until its penalty begins, and frees a slot.
async fn settle_penalize_and_free(running: &Running) {
    let call = async |path: &str, body: Value| {
        let url = format!("{}{path}", running.limiter.url());
        let reply = Client::new().post(&url, body.to_string()).send().await;
        let reply = reply.unwrap();
        assert_eq!(reply.status, 200, "{path} {body}: {}", reply.text());
        reply.json().unwrap()
    };
    let check = async |path: &str, reserve: bool| {
        let descriptor = json!({"path": path});
        let body = json!({"domain": "shop", "descriptor": descriptor, "reserve": reserve});
        call("/v1/check", body).await
    };
    for cost in [3, 50] {
        let reserved = check("/tokens", true).await;
        call(
            "/v1/settle",
            json!({"token": reserved["token"], "cost": cost}),
        )
        .await;
    }
    for _ in 0..3 {
        check("/guess", false).await;
    }
    let entered = check("/flight", false).await;
    let slot = &entered["limits"][0]["slot"];
    let free =
        json!({"domain": "shop", "descriptor": {"path": "/flight"}, "slots": {"in-flight": slot}});
    call("/v1/release", free).await;
}

/// How many of these requests are denied.
async fn denials(running: &Running, path: &str, user: &str, requests: usize) -> u64 {
    let mut denied = 0;
    for _ in 0..requests {
        let reply = running
            .envoy
            .get(path)
            .header("x-user-id", user)
            .send()
            .await
            .unwrap();
        denied += u64::from(reply.status == 429);
    }
    denied
}

#[tokio::test]
async fn every_panel_and_alert_shows_what_happens() {
    let config = EnvoyConfig::read(&file("deploy/envoy/gateway.yaml")).unwrap();
    let limits = format!("{LIMITS}{OTHER_LIMITS}");
    let running = Running::under(&limits, config, GATEWAY, &[]).await;
    let stranded = Running::under(LIMITS, unreachable(), GATEWAY, &[]).await;
    let limiter = port_of(&running.limiter.admin_url());
    let admin = |running: &Running| running.envoy.admin_port();
    let files = WatchedFiles::start().await;
    let envoys = [admin(&running), admin(&stranded)];
    let prometheus = Prometheus::start(&[limiter], &envoys, &[files.port]).await;

    let users = ["alice", "bob", "carol"];
    let (mut checked, mut leased) = (0, 0);
    for user in users {
        checked += denials(&running, "/api/x", user, 12).await;
        leased += denials(&running, "/leased", user, 40).await;
    }
    assert_eq!(checked, 21, "7 of 12 for each");
    assert!(leased > 0);
    for (limit, seen) in [("per-user", checked), ("leased", leased)] {
        let query = format!("sum(rl_decisions_total{{decision=\"denied\",limit=\"{limit}\"}})");
        until(
            &format!("{limit}: {seen} denials, as clients saw"),
            PATIENCE,
            async || (prometheus.number(&query).await == seen).then_some(()),
        )
        .await
        .unwrap();
    }
    // Proxies denied most of them without a call; the dashboard counts these too.
    let alone = "sum(rl_decisions_total{decision=\"denied\",source!=\"limiter\"})";
    assert!(prometheus.number(alone).await > 0);

    // For the other panels: an invalid request, and one that no limit matches.
    let nonsense = format!("{}/v1/check", running.limiter.url());
    Client::new().post(&nonsense, "?").send().await.unwrap();
    let unmatched = "{\"domain\":\"shop\",\"descriptor\":{}}";
    Client::new()
        .post(&nonsense, unmatched)
        .send()
        .await
        .unwrap();
    denials(&stranded, "/api/x", "dave", 3).await;
    settle_penalize_and_free(&running).await;
    let outage = outage(&running, &prometheus).await;
    assert!(outage.contains(&"RateLimiterGone".to_owned()), "{outage:?}");

    let panels: Vec<String> = queries().iter().map(|query| drawn(query)).collect();
    assert!(panels.len() >= 18, "{panels:?}");
    prometheus.answers_all(&panels, &running).await;
    let alerts = alerts();
    let others: Vec<String> = alerts
        .iter()
        .filter(|alert| alert["alert"] != "RateLimiterGone" && !is_of_what_runs_elsewhere(alert))
        .map(|alert| comparable(expression(alert)))
        .collect();
    assert!(others.len() >= 11, "{others:?}");
    prometheus.answers_all(&others, &running).await;
}

/// Pauses the limiter until the breaker opens, and resumes it; returns the alerts that would fire.
async fn outage(running: &Running, prometheus: &Prometheus) -> Vec<String> {
    running.limiter.process().pause().unwrap();
    until("the circuit breaker is open", PATIENCE, async || {
        denials(running, "/api/x", "erin", 1).await;
        (prometheus.number("sum(rl_breaker_open)").await > 0).then_some(())
    })
    .await
    .unwrap();
    let gone = alerts()
        .into_iter()
        .find(|alert| alert["alert"] == "RateLimiterGone")
        .unwrap();
    until("no limiter is up", PATIENCE, async || {
        (!prometheus.query(expression(&gone)).await.is_empty()).then_some(())
    })
    .await
    .unwrap();
    let mut firing = Vec::new();
    for alert in alerts() {
        if !prometheus.query(expression(&alert)).await.is_empty() {
            firing.push(alert["alert"].as_str().unwrap().to_owned());
        }
    }
    // The proxy decides these without a call, and reports them once a limiter answers. Reports that
    // it sent to the paused limiter may be lost.
    denials(running, "/api/x", "frank", 20).await;
    running.limiter.process().resume().unwrap();
    firing
}

/// The critical alerts, from real faults. No fault that can be made from outside crashes the filter's VM,
/// so another module does.
#[tokio::test]
async fn real_faults_fire_the_critical_alerts() {
    let programs = Programs::from_env().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(&programs.redis, free_port().unwrap(), dir.path());
    let redis = redis.await.unwrap();
    let limits = dir.path().join("limits.yaml");
    std::fs::write(&limits, LIMITS).unwrap();
    let url = redis.url();
    let apply = || {
        let mut rlctl = Command::new(&programs.rlctl);
        rlctl.args(["apply", "--yes", "--redis", &url, "--file"]);
        let output = rlctl.arg(&limits).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    };
    apply();
    let ports = [free_port().unwrap(), free_port().unwrap()];
    let plan = LimiterPlan::new(&programs, &url, ports, dir.path());
    let limiter = plan.start().await.unwrap();
    let gateway = EnvoyConfig::read(&file("deploy/envoy/gateway.yaml")).unwrap();
    let running = Running::before(limiter, gateway, GATEWAY, dir).await;
    let stranded = Running::under(LIMITS, unreachable(), GATEWAY, &[]).await;
    let gateway = EnvoyConfig::read(&file("deploy/envoy/gateway.yaml")).unwrap();
    let crashing = Running::with_module(&trapping_module(), gateway, GATEWAY).await;
    let envoys = [&running, &stranded, &crashing].map(|running| running.envoy.admin_port());
    let prometheus = Prometheus::start(&[ports[1]], &envoys, &[]).await;

    let mut unseen = critical_alerts();
    // Envoys and limiters are scraped, and nothing is wrong.
    denials(&running, "/api/x", "alice", 7).await;
    until("every target is up", PATIENCE, async || {
        (prometheus.number("sum(up)").await == 4).then_some(())
    })
    .await
    .unwrap();
    prometheus.until_firing("RateLimiterGone", false).await;
    assert!(prometheus.firing().await.is_disjoint(&unseen));
    let mut sees = async |alert: &str| {
        prometheus.until_firing(alert, true).await;
        assert!(unseen.remove(alert), "{alert} is not critical");
    };

    // This Envoy's configuration names another cluster than that of the limiters.
    assert_eq!(statuses(&stranded.get("alice"), 3).await, [200; 3]);
    sees("RateLimitNoPolicy").await;
    // Each request crashes the VM, and the next restarts it, if it comes later than Envoy's backoff.
    let restarted = async || {
        let _ = statuses(&crashing.get("alice"), 1).await;
        let firing = prometheus.firing().await;
        firing.contains("RateLimitFilterReloads").then_some(())
    };
    until("the VM is restarted", PATIENCE, restarted)
        .await
        .unwrap();
    sees("RateLimitFilterReloads").await;
    // Somebody empties the store, and applies the limits again.
    redis.command(&["FLUSHALL"]).await.unwrap();
    sees("RateLimiterPolicyFault").await;
    apply();
    prometheus
        .until_firing("RateLimiterPolicyFault", false)
        .await;
    redis.stop().await.unwrap();
    sees("RateLimiterStoreDown").await;
    running.limiter.kill().await.unwrap();
    sees("RateLimiterGone").await;
    assert_eq!(unseen, BTreeSet::new());
}

/// What Envoy 1.40 shows of the dynamic module, shortened.
const MODULES_PAGE: &str = "# TYPE envoy_dynamicmodulescustom_rl_unlimited_no_policy counter
envoy_dynamicmodulescustom_rl_unlimited_no_policy{} 3
# TYPE envoy_dynamicmodulescustom_rl_breaker_open gauge
envoy_dynamicmodulescustom_rl_breaker_open{} 1
# TYPE envoy_dynamicmodulescustom_rl_panics counter
envoy_dynamicmodulescustom_rl_panics{} 2
# TYPE envoy_dynamicmodulescustom_rl_decisions counter
envoy_dynamicmodulescustom_rl_decisions{decision=\"denied\",source=\"deny_cache\",limit=\"per-user\"} 5
# TYPE envoy_dynamicmodulescustom_rl_costs_reserved counter
envoy_dynamicmodulescustom_rl_costs_reserved{limit=\"tokens\"} 7
";

/// The relabelling of a scrape job as each shipped configuration has it.
fn relabelling() -> Vec<Value> {
    let of_prometheus = documents("deploy/monitoring/prometheus.yaml").remove(0);
    let jobs = of_prometheus["scrape_configs"].as_array().unwrap();
    let envoys = jobs.iter().filter(|job| job["job_name"] != "limiter");
    let mut all: Vec<Value> = envoys
        .map(|job| job["metric_relabel_configs"].clone())
        .collect();
    let monitors = documents("deploy/kubernetes/components/monitoring/pod-monitors.yaml");
    let of_proxies = |name: &Value| *name == "istio-proxies" || *name == "envoy-gateway-proxies";
    for monitor in { monitors.iter() }.filter(|one| of_proxies(&one["metadata"]["name"])) {
        let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
        // The operator's names, as Prometheus has them.
        let rules = endpoint["metricRelabelings"].to_string();
        let rules = rules.replace("sourceLabels", "source_labels");
        all.push(serde_json::from_str(&rules.replace("targetLabel", "target_label")).unwrap());
    }
    all
}

/// A web server with one page.
async fn page(text: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nconnection: close";
            let answer = format!("{head}\r\ncontent-length: {}\r\n\r\n{text}", text.len());
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    port
}

/// Envoy strips the prefix of the wasm filter's metrics, and not that of a module's.
#[tokio::test]
async fn the_modules_metrics_have_the_names_that_alerts_look_for() {
    let port = page(MODULES_PAGE).await;
    let all = relabelling();
    let jobs = all.iter().enumerate().map(|(n, rules)| {
        json!({
            "job_name": n.to_string(), "metric_relabel_configs": rules,
            "static_configs": [{"targets": [format!("127.0.0.1:{port}")]}],
        })
    });
    let config = json!({
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": jobs.collect::<Vec<_>>(),
    });
    let dir = tempfile::tempdir().unwrap();
    let prometheus = Prometheus::run(&config.to_string(), dir).await;
    for series in [
        "rl_unlimited_no_policy == 3",
        "rl_breaker_open == 1",
        "rl_panics == 2",
        "rl_decisions{decision=\"denied\",source=\"deny_cache\",limit=\"per-user\"}",
        "rl_costs_reserved{limit=\"tokens\"}",
    ] {
        let query = format!("count({series})");
        until(&query, PATIENCE, async || {
            (prometheus.number(&query).await == 4).then_some(())
        })
        .await
        .unwrap();
    }
}

fn critical_alerts() -> BTreeSet<String> {
    let alerts = alerts();
    let critical = alerts
        .iter()
        .filter(|alert| alert["labels"]["severity"] == "critical");
    let names = critical.map(|alert| alert["alert"].as_str().unwrap().to_owned());
    names.collect()
}

/// A module that traps at each request.
fn trapping_module() -> Vec<u8> {
    // Parameters and results, all of them i32.
    let types = [(0, 0), (2, 1), (2, 0), (3, 1), (1, 1)];
    let types = types.map(|(parameters, results)| {
        let numbers = |count| counted(count, &vec![0x7f; count]);
        [vec![0x60], numbers(parameters), numbers(results)].concat()
    });
    // `i32.const`, `unreachable` and `end`.
    let functions: [(&str, u8, &[u8]); 7] = [
        ("_initialize", 0, &[0x0b]),
        ("proxy_abi_version_0_2_1", 0, &[0x0b]),
        ("proxy_on_memory_allocate", 4, &[0x41, 0x80, 0x08, 0x0b]),
        ("proxy_on_vm_start", 1, &[0x41, 1, 0x0b]),
        ("proxy_on_configure", 1, &[0x41, 1, 0x0b]),
        ("proxy_on_context_create", 2, &[0x0b]),
        ("proxy_on_request_headers", 3, &[0x00, 0x0b]),
    ];
    let export = |name: &str, kind: u8, index: u8| {
        [counted(name.len(), name.as_bytes()), vec![kind, index]].concat()
    };
    let mut exports = vec![export("memory", 2, 0)];
    exports.extend(
        (0..)
            .zip(functions)
            .map(|(n, (name, ..))| export(name, 0, n)),
    );
    let bodies = functions.map(|(.., body)| counted(body.len() + 1, &[&[0], body].concat()));
    [
        b"\0asm\x01\0\0\0".to_vec(),
        section(1, &types),
        section(3, &functions.map(|(_, kind, _)| vec![kind])),
        section(5, &[vec![0, 16]]),
        section(7, &exports),
        section(10, &bodies),
    ]
    .concat()
}

fn section(id: u8, items: &[Vec<u8>]) -> Vec<u8> {
    let body = counted(items.len(), &items.concat());
    [vec![id], counted(body.len(), &body)].concat()
}

/// A number below 2^14 as WebAssembly encodes it, and what it counts.
fn counted(number: usize, bytes: &[u8]) -> Vec<u8> {
    let byte = |number| u8::try_from(number).unwrap();
    [&[byte(number % 128) | 0x80, byte(number / 128)], bytes].concat()
}
