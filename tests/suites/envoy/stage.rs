//! What the tests of this suite are told with: a plan says what differs from
//! the usual, a stage is that plan running.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use harness::{
    Client, Cluster, Engine, Envoy, EnvoyConfig, Gate, Limiter, LimiterPlan, Ports, Programs,
    RawClient, Redis, Reply, Request, StoppedRedis, Upstream, free_port, until,
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// An edit is in force everywhere within a second.
pub const EDIT_MAX: Duration = Duration::from_secs(1);
/// Patience with what promises no time.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How Envoy logs the end of a VM.
const TRAP: &str = "failed: Uncaught RuntimeError";

/// Workers of every Envoy: as few as there can be and still disagree.
const WORKERS: u32 = 2;

/// A limit that no test counts on: requests of this path show whether Envoy
/// follows the limits already.
const PROBE_PATH: &str = "/probe";
const PROBE: &str = "  - {name: probe, match: {path: /probe}, rate: 1000000/s}\n";

/// What keeps the buckets.
enum Keeps {
    /// One server.
    Server(Engine),
    /// A Redis Cluster of three nodes.
    Cluster,
    /// One limiter's memory.
    Memory,
    /// Nothing: there are no limiters either.
    Nothing,
}

/// A store that runs, and its URL.
#[derive(Default)]
struct Store {
    url: String,
    redis: Option<Redis>,
    cluster: Option<Cluster>,
}

/// What is to be started.
pub struct Plan {
    limits: String,
    keeps: Keeps,
    envoys: usize,
    workers: u32,
    patient: bool,
    gate: Option<Gate>,
    config: Box<dyn Fn(EnvoyConfig) -> EnvoyConfig>,
}

/// Redis, two limiters, a service and one Envoy under these limits: the items
/// of the list `limits` in YAML, one a line.
pub fn limits(items: &[&str]) -> Plan {
    let items: Vec<String> = items.iter().map(|item| format!("  - {item}\n")).collect();
    Plan {
        limits: format!("domain: shop\nlimits:\n{PROBE}{}", items.concat()),
        keeps: Keeps::Server(Engine::Redis),
        envoys: 1,
        workers: WORKERS,
        patient: true,
        gate: None,
        config: Box::new(|config| config),
    }
}

/// A service and one Envoy, and nothing else: these limits are in the filter's configuration, and
/// what no bucket of the proxy decides, nobody does.
pub fn alone(items: &[&str]) -> Plan {
    let items: Vec<Value> = items
        .iter()
        .map(|item| serde_saphyr::from_str(item).unwrap())
        .collect();
    let plan = limits(&[]).filter(move |config| {
        config["limiter"]["cluster"] = json!("no-such-cluster");
        config["limits"] = json!(items);
    });
    plan.without_limiters()
}

impl Plan {
    /// Another store than Redis 7.
    pub fn engine(mut self, engine: Engine) -> Self {
        self.keeps = Keeps::Server(engine);
        self
    }

    /// A Redis Cluster of three nodes.
    pub fn on_a_cluster(mut self) -> Self {
        self.keeps = Keeps::Cluster;
        self
    }

    /// More than one Envoy before the same limiters.
    pub fn envoys(mut self, envoys: usize) -> Self {
        self.envoys = envoys;
        self
    }

    /// Another number of workers in each Envoy.
    pub fn workers(mut self, workers: u32) -> Self {
        self.workers = workers;
        self
    }

    /// One limiter that keeps the buckets in its memory, and no Redis.
    pub fn in_memory(mut self) -> Self {
        self.keeps = Keeps::Memory;
        self
    }

    /// The timeouts of the shipped files: 20 ms for the limiter, 10 ms for its
    /// store. Tests of exact counts wait longer, so that what they count does
    /// not depend on how busy the machine is.
    pub fn shipped_timeouts(mut self) -> Self {
        self.patient = false;
        self
    }

    /// Edits the filter's configuration.
    pub fn filter(self, edit: impl Fn(&mut Value) + 'static) -> Self {
        self.config(move |config| config.filter_config(&edit).unwrap())
    }

    /// Edits Envoy's configuration, after whatever edits it already.
    pub fn config(mut self, edit: impl Fn(EnvoyConfig) -> EnvoyConfig + 'static) -> Self {
        let before = self.config;
        self.config = Box::new(move |config| edit(before(config)));
        self
    }

    /// Puts a gate before the first limiter; nobody calls the other.
    pub fn behind(mut self, gate: &Gate) -> Self {
        let port = gate.port();
        self.gate = Some(gate.clone());
        self.may_use(port)
            .config(move |config| config.limiter_at(port).unwrap())
    }

    /// Starts neither limiters nor a store.
    pub fn without_limiters(mut self) -> Self {
        self.keeps = Keeps::Nothing;
        self
    }

    /// A port that the configuration names beside the documented ones.
    pub fn may_use(self, port: u16) -> Self {
        self.config(move |config| config.keep_port(port))
    }

    /// Puts a filter before the rate limit filter.
    pub fn after(self, filter: Value) -> Self {
        self.config(move |config| {
            let insert = |filters: &mut Vec<Value>| filters.insert(0, filter.clone());
            config.http_filters(insert).unwrap()
        })
    }

    /// What its operator calls each Envoy.
    pub fn node(mut self, id: &'static str) -> Self {
        let node = serde_json::json!({"id": id, "cluster": "edge"});
        self.config = Box::new(move |config| config.edit(|tree| tree["node"] = node.clone()));
        self
    }

    /// Has Envoy log the details of each response.
    pub fn access_log(self) -> Self {
        self.config(|config| config.access_log().unwrap())
    }

    /// Starts everything; returns once Envoy follows the limits.
    pub async fn start(self) -> Stage {
        let alone = matches!(self.keeps, Keeps::Nothing);
        let stage = self.start_unlimited().await;
        for envoy in stage.envoys.iter().filter(|_| !alone) {
            follows(envoy).await;
        }
        stage
    }

    /// Starts everything, without waiting for Envoy to follow the limits.
    pub async fn start_unlimited(self) -> Stage {
        let programs = Programs::from_env().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("limits.yaml");
        std::fs::write(&file, &self.limits).unwrap();
        let upstream = Upstream::start(0).await.unwrap();
        let mut ports = Ports {
            upstream: upstream.port(),
            ..Ports::free().unwrap()
        };
        if matches!(self.keeps, Keeps::Memory) {
            // One limiter has both addresses, so that no call goes astray.
            ports.limiters[1] = ports.limiters[0];
        }
        let store = self.store(&programs, dir.path()).await;
        if store.redis.is_some() || store.cluster.is_some() {
            rlctl(&programs, &store.url, &["load-scripts"]);
            let apply = ["apply", "-f", file.to_str().unwrap()];
            rlctl(&programs, &store.url, &apply);
        }
        let replicas = match self.keeps {
            Keeps::Nothing => &[],
            Keeps::Memory => &ports.limiters[..1],
            Keeps::Server(_) | Keeps::Cluster => &ports.limiters[..],
        };
        let mut limiters = Vec::new();
        for &port in replicas {
            let ports = [port, free_port().unwrap()];
            let mut plan = LimiterPlan::new(&programs, &store.url, ports, dir.path());
            plan.arguments = self.limiter_arguments(&file);
            limiters.push(plan.start().await.unwrap());
        }
        if let Some(gate) = &self.gate {
            gate.forward_to(ports.limiters[0]);
        }
        let mut envoys = Vec::new();
        for _ in 0..self.envoys {
            let own = Ports {
                envoy: free_port().unwrap(),
                envoy_admin: free_port().unwrap(),
                ..ports
            };
            let config = self.envoy_config(&programs);
            let envoy = Envoy::start(&programs, config, own, self.workers, dir.path())
                .await
                .unwrap();
            envoys.push(envoy);
        }
        Stage {
            programs,
            upstream,
            store: store.url,
            redis: store.redis,
            cluster: store.cluster,
            stopped_redis: None,
            limiters,
            stopped: Vec::new(),
            envoys,
            _dir: dir,
        }
    }

    fn limiter_arguments(&self, limits: &Path) -> Vec<String> {
        let mut arguments = Vec::new();
        if matches!(self.keeps, Keeps::Memory) {
            arguments.extend(["--limits", limits.to_str().unwrap()]);
        }
        if self.patient {
            arguments.extend(["--store-timeout", "1s"]);
        }
        arguments.into_iter().map(str::to_owned).collect()
    }

    fn envoy_config(&self, programs: &Programs) -> EnvoyConfig {
        let shipped = EnvoyConfig::shipped(&programs.root).unwrap();
        let mut config = shipped.filter_code(&programs.filter).unwrap();
        if self.patient {
            config = config.limiter_timeout("2s").unwrap();
        }
        (self.config)(config)
    }

    async fn store(&self, programs: &Programs, dir: &Path) -> Store {
        match self.keeps {
            Keeps::Server(engine) => {
                let port = free_port().unwrap();
                let redis = Redis::start(programs, engine, port, dir).await.unwrap();
                Store {
                    url: redis.url(),
                    redis: Some(redis),
                    ..Store::default()
                }
            }
            Keeps::Cluster => {
                let cluster = Cluster::start(&programs.redis, dir).await.unwrap();
                Store {
                    url: cluster.url(),
                    cluster: Some(cluster),
                    ..Store::default()
                }
            }
            Keeps::Memory | Keeps::Nothing => Store {
                url: "memory".to_owned(),
                ..Store::default()
            },
        }
    }
}

/// A plan that runs.
pub struct Stage {
    programs: Programs,
    pub upstream: Upstream,
    store: String,
    redis: Option<Redis>,
    cluster: Option<Cluster>,
    stopped_redis: Option<StoppedRedis>,
    limiters: Vec<Limiter>,
    stopped: Vec<LimiterPlan>,
    envoys: Vec<Envoy>,
    _dir: TempDir,
}

/// Whatever a test is about: the filter's VM lives through it.
impl Drop for Stage {
    fn drop(&mut self) {
        for envoy in self.envoys.iter().filter(|_| !std::thread::panicking()) {
            let log = envoy.process().log();
            let traps: Vec<&str> = log.lines().filter(|line| line.contains(TRAP)).collect();
            assert!(traps.is_empty(), "the filter trapped: {traps:#?}");
        }
    }
}

impl Stage {
    /// The only Envoy, or the first.
    pub fn envoy(&self) -> &Envoy {
        self.nth_envoy(0)
    }

    /// One of several.
    pub fn nth_envoy(&self, n: usize) -> &Envoy {
        self.envoys.get(n).expect("the plan has that many Envoys")
    }

    /// A client that keeps to no rules.
    pub fn raw(&self) -> RawClient {
        RawClient::new(self.envoy().port())
    }

    /// A GET as a user.
    pub fn get(&self, path: &str, user: &str) -> Request {
        self.envoy().get(path).header("x-user-id", user)
    }

    /// Redis's process.
    pub fn redis(&self) -> &Redis {
        self.redis.as_ref().expect("the plan has a Redis")
    }

    /// The Cluster.
    pub fn cluster(&self) -> &Cluster {
        self.cluster.as_ref().expect("the plan has a Cluster")
    }

    /// Runs rlctl on the store and expects it to succeed.
    pub fn rlctl(&self, arguments: &[&str]) -> String {
        rlctl(&self.programs, &self.store, arguments)
    }

    /// `rlctl inspect LIMIT KEY=VALUE... -o json`.
    pub fn inspect(&self, limit: &str, bucket: &[&str]) -> Value {
        let arguments = [&["inspect", limit], bucket, &["-o", "json"]].concat();
        serde_json::from_str(&self.rlctl(&arguments)).unwrap()
    }

    /// Stops all limiters; connections to them are refused from then on.
    pub async fn stop_limiters(&mut self) {
        for limiter in std::mem::take(&mut self.limiters) {
            self.stopped.push(limiter.stop().await.unwrap());
        }
    }

    /// Stops one of two.
    pub async fn stop_one_limiter(&mut self) {
        let limiter = self.limiters.pop().expect("a limiter runs");
        self.stopped.push(limiter.stop().await.unwrap());
    }

    /// Stops Redis and starts it empty on the same port.
    pub async fn restart_redis_empty(&mut self) {
        let redis = self.redis.take().expect("the plan has a Redis");
        self.redis = Some(redis.restart_empty().await.unwrap());
    }

    /// Stops Redis with its keys saved; connections to it are refused from then on.
    pub async fn stop_redis(&mut self) {
        let redis = self.redis.take().expect("the plan has a Redis");
        self.stopped_redis = Some(redis.stop_saved().await.unwrap());
    }

    /// Starts it again.
    pub async fn start_redis(&mut self) {
        let stopped = self.stopped_redis.take().expect("it was stopped");
        self.redis = Some(stopped.start().await.unwrap());
    }

    /// Starts them again.
    pub async fn start_limiters(&mut self) {
        for plan in std::mem::take(&mut self.stopped) {
            self.limiters.push(plan.start().await.unwrap());
        }
    }

    /// The sum of a counter over all limiters and labels.
    pub async fn limiter_counter(&self, name: &str) -> u64 {
        let mut sum = 0;
        for limiter in &self.limiters {
            let url = format!("{}/metrics", limiter.admin_url());
            let page = Client::new().get(&url).send().await.unwrap().text();
            sum += page
                .lines()
                .filter(|line| line.split(['{', ' ']).next() == Some(name))
                .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
                .sum::<u64>();
        }
        sum
    }
}

/// Waits until every worker of an Envoy follows the limits: connections are
/// spread over the workers, so a dozen new ones meet all of them.
async fn follows(envoy: &Envoy) {
    until("Envoy follows the limits", PATIENCE, async || {
        for _ in 0..12 {
            let reply = Client::new()
                .get(&envoy.url(PROBE_PATH))
                .send()
                .await
                .unwrap();
            reply.header("ratelimit-policy")?;
        }
        Some(())
    })
    .await
    .unwrap();
}

/// Runs rlctl and expects it to succeed.
fn rlctl(programs: &Programs, store: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(&programs.rlctl);
    let output = command
        .args(arguments)
        .env("RL_STORE", store)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "rlctl {arguments:?}: {}\n{said}",
        output.status
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The statuses of `n` answers, one request after the other.
pub async fn statuses(request: &Request, n: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..n {
        statuses.push(request.send().await.unwrap().status.as_u16());
    }
    statuses
}

/// Sends `n` requests at once; how many were answered with 200 and with 429.
pub async fn at_once(request: &Request, n: usize) -> (usize, usize) {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..n {
        let request = request.clone();
        tasks.spawn(async move { request.send().await.unwrap().status.as_u16() });
    }
    let statuses = tasks.join_all().await;
    let count = |wanted| statuses.iter().filter(|&&status| status == wanted).count();
    (count(200), count(429))
}

/// The value of a header, which must be there.
pub fn header<'a>(reply: &'a Reply, name: &str) -> &'a str {
    reply
        .header(name)
        .unwrap_or_else(|| panic!("no {name} in {:?}", reply.headers))
}
