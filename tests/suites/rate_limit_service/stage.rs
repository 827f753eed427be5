//! Redis, a limiter, a service, and an Envoy without our filter.

pub use harness::variable;

use std::{fs, process::Command, time::Duration};

use harness::{
    Client, Engine, Envoy, Limiter, LimiterPlan, Ports, Programs, Redis, Request, Upstream,
    free_port, until,
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The timeout of everything on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A Python program of this suite that uses gRPC.
pub fn python(name: &str) -> Command {
    let folder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/suites/rate_limit_service/grpcio"
    );
    let mut command = Command::new("python3");
    command
        .arg("-B")
        .arg(format!("{folder}/{name}"))
        .env("PYTHONPATH", variable("RL_TEST_GRPC"));
    command
}

/// The domain, as Envoy Gateway would name it.
pub const DOMAIN: &str = "shop/gateway/http";

pub struct Stage {
    pub envoy: Envoy,
    pub upstream: Upstream,
    pub limiter: Option<Limiter>,
    /// A listener that denies if the limiter does not answer.
    pub strict: u16,
    /// A listener of the network filter.
    pub network: u16,
    client: Client,
    _redis: Redis,
    _dir: TempDir,
}

impl Stage {
    pub async fn with(limits: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let programs = Programs::from_env().unwrap();
        let mut ports = Ports::free().unwrap();
        let redis = Redis::start(
            &Engine::Redis.program().unwrap(),
            free_port().unwrap(),
            dir.path(),
        )
        .await
        .unwrap();
        let limits = format!("domain: {DOMAIN}\nlimits:\n{limits}");
        // The tests are about decisions, so a busy machine gets more time.
        let patient = ["--store-timeout", "5s"];
        let plan = LimiterPlan::under(&limits, &redis.url(), dir.path(), &patient).unwrap();
        ports.limiters[0] = plan.port;
        let limiter = plan.start().await.unwrap();
        let upstream = Upstream::start(ports.upstream).await.unwrap();
        let (strict, network) = (ports.limiters[1], free_port().unwrap());
        let config = dir.path().join("envoy.json");
        fs::write(&config, config_of(&ports, strict, network).to_string()).unwrap();
        let envoy = Envoy::serve(&programs, &config, ports, 1, dir.path())
            .await
            .unwrap();
        Self {
            envoy,
            upstream,
            limiter: Some(limiter),
            strict,
            network,
            client: Client::new(),
            _redis: redis,
            _dir: dir,
        }
    }

    /// A request to the strict listener.
    pub fn strictly(&self, path: &str) -> Request {
        self.client
            .get(&format!("http://127.0.0.1:{}{path}", self.strict))
    }

    /// Stops the limiter, and waits until Envoy sees that.
    pub async fn stop_limiter(&mut self) -> LimiterPlan {
        let plan = self.limiter.take().unwrap().stop().await.unwrap();
        self.healthy_becomes(0).await;
        plan
    }

    /// Waits until Envoy counts this many healthy limiters, by gRPC's health check.
    pub async fn healthy_becomes(&self, count: u64) {
        until("the limiter's health", PATIENCE, async || {
            let healthy = self
                .envoy
                .stat("cluster.limiter.membership_healthy")
                .await
                .ok()?;
            (healthy == count).then_some(())
        })
        .await
        .unwrap();
    }
}

fn service(stat: &str, deny: bool) -> Value {
    json!({
        "domain": DOMAIN,
        "failure_mode_deny": deny,
        "timeout": "10s",
        "stat_prefix": stat,
        "rate_limit_service": {
            "transport_api_version": "V3",
            "grpc_service": {"envoy_grpc": {"cluster_name": "limiter"}}
        }
    })
}

fn typed(name: &str, kind: &str, mut config: Value) -> Value {
    config["@type"] = json!(format!("type.googleapis.com/{kind}"));
    json!({"name": name, "typed_config": config})
}

/// A route whose descriptors have `x-user`; each limit adds its fields.
fn route(path: &str, limits: &[Value]) -> Value {
    let limits = limits.iter().map(|more| {
        let header =
            json!({"request_headers": {"header_name": "x-user", "descriptor_key": "user"}});
        let path = json!({"generic_key": {"descriptor_key": "path", "descriptor_value": path}});
        let mut limit = json!({"actions": [path, header]});
        limit
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        limit
    });
    let limits: Vec<Value> = limits.collect();
    json!({
        "match": {"prefix": path},
        "route": {"cluster": "upstream"},
        "typed_per_filter_config": {"envoy.filters.http.ratelimit": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute",
            "rate_limits": limits
        }}
    })
}

fn http(port: u16, deny: bool) -> Value {
    let routes = [
        route("/limited", &[json!({})]),
        route("/shadow", &[json!({})]),
        // The request charges nothing, and its response is charged the cost that it says.
        route(
            "/tokens",
            &[
                json!({"hits_addend": {"number": 0}}),
                json!({"hits_addend": {"format": "%RESP(x-cost)%"}, "apply_on_stream_done": true}),
            ],
        ),
        json!({"match": {"prefix": "/"}, "route": {"cluster": "upstream"}}),
    ];
    let mut limit = service("http", deny);
    limit.as_object_mut().unwrap().remove("stat_prefix");
    limit["enable_x_ratelimit_headers"] = json!("DRAFT_VERSION_03");
    let filters = [
        typed(
            "envoy.filters.http.ratelimit",
            "envoy.extensions.filters.http.ratelimit.v3.RateLimit",
            limit,
        ),
        typed(
            "envoy.filters.http.router",
            "envoy.extensions.filters.http.router.v3.Router",
            json!({}),
        ),
    ];
    let manager = json!({
        "stat_prefix": "http",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
        "http_filters": filters
    });
    let kind = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    listener(
        port,
        &[typed(
            "envoy.filters.network.http_connection_manager",
            kind,
            manager,
        )],
    )
}

fn listener(port: u16, filters: &[Value]) -> Value {
    json!({
        "name": format!("listener-{port}"),
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [{"filters": filters}]
    })
}

fn network(port: u16) -> Value {
    let mut limit = service("tcp", false);
    limit["descriptors"] = json!([{"entries": [{"key": "listener", "value": "tcp"}]}]);
    let proxy = json!({"stat_prefix": "tcp", "cluster": "upstream"});
    listener(
        port,
        &[
            typed(
                "envoy.filters.network.ratelimit",
                "envoy.extensions.filters.network.ratelimit.v3.RateLimit",
                limit,
            ),
            typed(
                "envoy.filters.network.tcp_proxy",
                "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
                proxy,
            ),
        ],
    )
}

/// The configuration of an Envoy.
pub fn config_of(ports: &Ports, strict: u16, tcp: u16) -> Value {
    let mut config: Value = serde_json::from_str(include_str!("envoy.json")).unwrap();
    config["admin"]["address"]["socket_address"]["port_value"] = json!(ports.envoy_admin);
    let resources = &mut config["static_resources"];
    resources["listeners"] = json!([http(ports.envoy, false), http(strict, true), network(tcp)]);
    for (cluster, port) in [(0, ports.limiters[0]), (1, ports.upstream)] {
        let endpoint =
            "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address";
        resources["clusters"][cluster]
            .pointer_mut(endpoint)
            .unwrap()["port_value"] = json!(port);
    }
    config
}
