//! What the tests of this suite are told with: a plan says what differs from
//! the usual, a stage is that plan running.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use harness::{
    Client, Engine, Envoy, EnvoyConfig, Limiter, LimiterPlan, Ports, Programs, Redis, Reply,
    Request, Upstream, free_port, until,
};
use serde_json::Value;
use tempfile::TempDir;

/// The promise about an edit: in force everywhere within this time.
pub const EDIT_MAX: Duration = Duration::from_secs(1);
/// Patience with what promises no time.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A limit that no test counts on: requests of this path show whether Envoy
/// follows the limits already.
const PROBE_PATH: &str = "/probe";
const PROBE: &str = "  - {name: probe, match: {path: /probe}, rate: 1000000/s}\n";

/// What is to be started.
pub struct Plan {
    limits: String,
    engine: Engine,
    envoys: usize,
    workers: u32,
    memory: bool,
    config: Box<dyn Fn(EnvoyConfig) -> EnvoyConfig>,
}

/// Redis, two limiters, a service and one Envoy under these limits: the items
/// of the list `limits` in YAML, one a line.
pub fn limits(items: &[&str]) -> Plan {
    let items: Vec<String> = items.iter().map(|item| format!("  - {item}\n")).collect();
    Plan {
        limits: format!("domain: shop\nlimits:\n{PROBE}{}", items.concat()),
        engine: Engine::Redis,
        envoys: 1,
        workers: 2,
        memory: false,
        config: Box::new(|config| config),
    }
}

impl Plan {
    /// Another store than Redis 7.
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = engine;
        self
    }

    /// More than one Envoy before the same limiters.
    pub fn envoys(mut self, envoys: usize) -> Self {
        self.envoys = envoys;
        self
    }

    /// One limiter that keeps the buckets in its memory, and no Redis.
    pub fn in_memory(mut self) -> Self {
        self.memory = true;
        self
    }

    /// Edits the filter's configuration.
    pub fn filter(mut self, edit: impl Fn(&mut Value) + 'static) -> Self {
        self.config = Box::new(move |config| config.filter_config(&edit).unwrap());
        self
    }

    /// Has Envoy log the details of each response.
    pub fn access_log(mut self) -> Self {
        self.config = Box::new(|config| config.access_log().unwrap());
        self
    }

    /// Starts everything; returns once Envoy follows the limits.
    pub async fn start(self) -> Stage {
        let stage = self.start_unlimited().await;
        for envoy in &stage.envoys {
            follows(envoy, "probe").await;
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
        let ports = Ports {
            upstream: upstream.port(),
            ..Ports::free().unwrap()
        };
        let (redis, store) = self.store(&programs, dir.path()).await;
        let mut limiters = Vec::new();
        if let Some(redis) = &redis {
            rlctl(&programs, redis, &["load-scripts"]);
            rlctl(&programs, redis, &["apply", "-f", file.to_str().unwrap()]);
        }
        let replicas = if self.memory {
            &ports.limiters[..1]
        } else {
            &ports.limiters[..]
        };
        for &port in replicas {
            let ports = [port, free_port().unwrap()];
            let mut plan = LimiterPlan::new(&programs, &store, ports, dir.path());
            if self.memory {
                plan.arguments = vec!["--limits".to_owned(), file.to_str().unwrap().to_owned()];
            }
            limiters.push(plan.start().await.unwrap());
        }
        let mut envoys = Vec::new();
        for _ in 0..self.envoys {
            let own = Ports {
                envoy: free_port().unwrap(),
                envoy_admin: free_port().unwrap(),
                ..ports
            };
            let shipped = EnvoyConfig::shipped(&programs.root).unwrap();
            let config = (self.config)(shipped.filter_code(&programs.filter).unwrap());
            envoys.push(
                Envoy::start(&programs, config, own, self.workers, dir.path())
                    .await
                    .unwrap(),
            );
        }
        Stage {
            programs,
            upstream,
            redis,
            limiters,
            stopped: Vec::new(),
            envoys,
            _dir: dir,
        }
    }

    async fn store(&self, programs: &Programs, dir: &Path) -> (Option<Redis>, String) {
        if self.memory {
            return (None, "memory".to_owned());
        }
        let port = free_port().unwrap();
        let redis = Redis::start(programs, self.engine, port, dir)
            .await
            .unwrap();
        let url = redis.url();
        (Some(redis), url)
    }
}

/// A plan that runs.
pub struct Stage {
    programs: Programs,
    pub upstream: Upstream,
    redis: Option<Redis>,
    limiters: Vec<Limiter>,
    stopped: Vec<LimiterPlan>,
    envoys: Vec<Envoy>,
    _dir: TempDir,
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

    /// A GET as a user.
    pub fn get(&self, path: &str, user: &str) -> Request {
        self.envoy().get(path).header("x-user-id", user)
    }

    /// Redis's process.
    pub fn redis(&self) -> &Redis {
        self.redis.as_ref().expect("the plan has a Redis")
    }

    /// Runs rlctl on the store and expects it to succeed.
    pub fn rlctl(&self, arguments: &[&str]) -> String {
        rlctl(&self.programs, self.redis(), arguments)
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

/// Waits until an Envoy's answers name `limit` in RateLimit-Policy.
pub async fn follows(envoy: &Envoy, limit: &str) {
    let request = envoy.get(PROBE_PATH);
    let quoted = format!("\"{limit}\"");
    until("Envoy follows the limits", PATIENCE, async || {
        let reply = request.send().await.unwrap();
        let policy = reply.header("ratelimit-policy").unwrap_or_default();
        policy.contains(&quoted).then_some(())
    })
    .await
    .unwrap();
}

/// Runs rlctl and expects it to succeed.
fn rlctl(programs: &Programs, redis: &Redis, arguments: &[&str]) -> String {
    let mut command = Command::new(&programs.rlctl);
    let output = command
        .args(arguments)
        .env("RL_STORE", redis.url())
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
