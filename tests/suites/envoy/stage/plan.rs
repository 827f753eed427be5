//! A plan: the default setup and a test's differences from it.

mod start;

use harness::{Engine, EnvoyConfig, Gate};
use policy::Compiled;
use serde_json::{Value, json};

/// Workers of every Envoy: two, the least number that can disagree.
const WORKERS: u32 = 2;

/// A limit that no test counts on: requests for this path show whether Envoy has the limits.
const PROBE_PATH: &str = "/probe";
const PROBE: &str = "  - {name: probe, match: {path: /probe}, rate: 1000000/s}\n";

/// The store of the buckets.
pub enum Keeps {
    /// One server.
    Server(Engine),
    /// A Redis Cluster of three nodes.
    Cluster,
    /// A primary, a replica, and a sentinel.
    Sentinel,
    /// One limiter's memory.
    Memory,
    /// Nothing: there are no limiters either.
    Nothing,
}

/// The setup to start.
pub struct Plan {
    limits: String,
    keeps: Keeps,
    envoys: usize,
    workers: u32,
    patient: bool,
    limiter_arguments: Vec<&'static str>,
    gate: Option<Gate>,
    config: Box<dyn Fn(EnvoyConfig) -> EnvoyConfig>,
}

/// Redis, two limiters, a service and one Envoy with these limits: the items of the list `limits`
/// in YAML, one a line.
pub fn limits(items: &[&str]) -> Plan {
    let items: Vec<String> = items.iter().map(|item| format!("  - {item}\n")).collect();
    Plan {
        limits: format!("domain: shop\nlimits:\n{PROBE}{}", items.concat()),
        keeps: Keeps::Server(Engine::Redis),
        envoys: 1,
        workers: WORKERS,
        patient: true,
        limiter_arguments: Vec::new(),
        gate: None,
        config: Box::new(|config| config),
    }
}

/// Only a service and one Envoy. The limits are in the filter's configuration, and only those with
/// buckets in the proxy are decided.
pub fn alone(items: &[&str]) -> Plan {
    let compiled = compiled("shop", items);
    let plan = limits(&[]).filter(move |config| {
        config["limiter"]["cluster"] = json!("no-such-cluster");
        config["limits"] = json!(compiled);
    });
    plan.without_limiters()
}

/// Limits as the filter's configuration has them.
pub fn compiled(domain: &str, items: &[&str]) -> String {
    let file = format!("domain: {domain}\nlimits: [{}]\n", items.join(", "));
    let policy = limits_file::read("limits", file.as_bytes()).unwrap();
    limits_file::snapshot_text(&Compiled::new(policy), 0)
}

impl Plan {
    /// Uses another server than Redis 7.
    pub fn engine(mut self, engine: Engine) -> Self {
        self.keeps = Keeps::Server(engine);
        self
    }

    /// A Redis Cluster of three nodes.
    pub fn on_a_cluster(mut self) -> Self {
        self.keeps = Keeps::Cluster;
        self
    }

    /// A primary whose replica a sentinel promotes when the primary fails.
    pub fn behind_a_sentinel(mut self) -> Self {
        self.keeps = Keeps::Sentinel;
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

    /// The timeouts of the shipped files: 20 ms for the limiter, 10 ms for its store. Tests of
    /// exact counts have longer ones, so that their counts do not depend on how busy the machine
    /// is.
    pub fn shipped_timeouts(mut self) -> Self {
        self.patient = false;
        self
    }

    /// Adds arguments for the limiters.
    pub fn limiter_with(mut self, arguments: &[&'static str]) -> Self {
        self.limiter_arguments.extend(arguments);
        self
    }

    /// Edits the filter's configuration.
    pub fn filter(self, edit: impl Fn(&mut Value) + 'static) -> Self {
        self.config(move |config| config.filter_config(&edit).unwrap())
    }

    /// Adds clients' credentials to descriptors: the cookie `sid` as `session`, the query parameter
    /// `key` as `api-key`.
    pub fn with_credentials(self) -> Self {
        self.filter(|config| {
            let more = json!([
                {"key": "session", "cookie": "sid"},
                {"key": "api-key", "query": "key"},
            ]);
            let all = config["descriptors"].as_array_mut().unwrap();
            all.extend(more.as_array().unwrap().clone());
        })
    }

    /// Edits Envoy's configuration, after all earlier edits.
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

    /// Allows a port that is not a documented one in the configuration.
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

    /// Sets the id of each Envoy's node.
    pub fn node(mut self, id: &'static str) -> Self {
        let node = serde_json::json!({"id": id, "cluster": "edge"});
        self.config = Box::new(move |config| config.edit(|tree| tree["node"] = node.clone()));
        self
    }

    /// Makes Envoy log the details of each response.
    pub fn access_log(self) -> Self {
        self.config(|config| config.access_log().unwrap())
    }
}
