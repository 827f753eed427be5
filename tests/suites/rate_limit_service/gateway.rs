//! Envoy Gateway's deployment with a limiter instead of its rate limit service: started by the same
//! command and environment, configured by a management server, called by Envoy over TLS.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use harness::{Client, Engine, Envoy, Ports, Process, Programs, Redis, Upstream, free_port, until};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    certificates::certificates,
    stage::{DOMAIN, PATIENCE, config_of, python, variable},
};

/// The running programs and their ports.
struct Gateway {
    management: Option<Process>,
    xds_port: u16,
    health_port: u16,
    metrics_port: u16,
    limiter: Option<Process>,
    envoy: Envoy,
    _upstream: Upstream,
    redis: Redis,
    grpc_port: u16,
    dir: TempDir,
}

/// A rule as Envoy Gateway translates it: a route, and below it a header of any value.
fn configured(dir: &Path, version: &str, requests: u32) {
    let user =
        json!({"key": "user", "rate_limit": {"unit": "YEAR", "requests_per_unit": requests}});
    let route = json!({"key": "path", "value": "/limited", "descriptors": [user]});
    write(
        dir,
        version,
        &json!([{"name": DOMAIN, "domain": DOMAIN, "descriptors": [route]}]),
    );
}

fn write(dir: &Path, version: &str, configs: &Value) {
    let text = json!({"version": version, "configs": configs}).to_string();
    fs::write(dir.join("configs.json"), text).unwrap();
}

fn management(port: u16, dir: &Path) -> Process {
    let mut command = python("management.py");
    command.arg(port.to_string()).arg(dir);
    Process::start("management", &mut command, dir).unwrap()
}

/// The limiter, as Envoy Gateway starts its rate limit service.
fn ratelimit(redis: u16, [xds, grpc, health, metrics]: [u16; 4], dir: &Path) -> Process {
    let program = dir.join("ratelimit");
    symlink(variable("RL_TEST_BIN").join("limiter"), &program).unwrap();
    let file = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let (ca, cert, key) = (file("ca.pem"), file("cert.pem"), file("key.pem"));
    let mut command = Command::new(program);
    command.envs([
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("LOG_LEVEL", "info"),
        ("USE_STATSD", "false"),
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", &format!("localhost:{xds}")),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &cert),
        ("GRPC_SERVER_TLS_KEY", &key),
        ("GRPC_SERVER_TLS_CA_CERT", &ca),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &cert),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &key),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &ca),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", &format!("127.0.0.1:{redis}")),
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", &format!(":{metrics}")),
        ("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/conf.yaml"),
        // The test's own settings: ports, and a long timeout for a busy machine.
        ("GRPC_PORT", &grpc.to_string()),
        ("PORT", &health.to_string()),
        ("RL_STORE_TIMEOUT", "5s"),
    ]);
    Process::start("ratelimit", &mut command, dir).unwrap()
}

/// Envoy, which presents its certificate to the limiter and verifies the limiter's.
async fn envoy(ports: Ports, dir: &Path) -> Envoy {
    let mut config = config_of(&ports, free_port().unwrap(), free_port().unwrap());
    let file = |name: &str| json!({"filename": dir.join(name)});
    let common = json!({
        "tls_certificates": [{"certificate_chain": file("cert.pem"), "private_key": file("key.pem")}],
        "validation_context": {"trusted_ca": file("ca.pem")}
    });
    config["static_resources"]["clusters"][0]["transport_socket"] = json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "common_tls_context": common
        }
    });
    let path = dir.join("envoy.json");
    fs::write(&path, config.to_string()).unwrap();
    let programs = Programs::from_env().unwrap();
    Envoy::serve(&programs, &path, ports, 1, dir).await.unwrap()
}

impl Gateway {
    async fn start() -> Self {
        let dir = TempDir::new().unwrap();
        certificates(dir.path());
        configured(dir.path(), "1", 2);
        let program = Engine::Redis.program().unwrap();
        let redis = Redis::start(&program, free_port().unwrap(), dir.path());
        let redis = redis.await.unwrap();
        let ports = Ports::free().unwrap();
        let [xds_port, health_port, metrics_port] = [(); 3].map(|()| free_port().unwrap());
        let grpc = ports.limiters[0];
        let limiter = ratelimit(
            redis.port(),
            [xds_port, grpc, health_port, metrics_port],
            dir.path(),
        );
        let upstream = Upstream::start(ports.upstream).await.unwrap();
        let envoy = envoy(ports, dir.path()).await;
        Self {
            management: Some(management(xds_port, dir.path())),
            xds_port,
            health_port,
            metrics_port,
            limiter: Some(limiter),
            envoy,
            _upstream: upstream,
            redis,
            grpc_port: grpc,
            dir,
        }
    }

    /// Stops the limiter, calls `meanwhile`, and starts it again.
    async fn restart_limiter(&mut self, meanwhile: impl FnOnce(&Self)) {
        self.limiter.take().unwrap().stop().await.unwrap();
        meanwhile(self);
        fs::remove_file(self.dir.path().join("ratelimit")).unwrap();
        let ports = [
            self.xds_port,
            self.grpc_port,
            self.health_port,
            self.metrics_port,
        ];
        self.limiter = Some(ratelimit(self.redis.port(), ports, self.dir.path()));
    }

    fn limiter_log(&self) -> String {
        self.limiter.as_ref().map_or_else(String::new, Process::log)
    }

    fn configure(&self, version: &str, requests: u32) {
        configured(self.dir.path(), version, requests);
    }

    /// Waits until the management server printed this.
    async fn printed(&self, words: &str) {
        let management = self.management.as_ref().unwrap();
        let what = format!("{words:?} of the management server");
        let shown = until(&what, PATIENCE, async || {
            management.log().contains(words).then_some(())
        });
        if let Err(error) = shown.await {
            panic!("{error}\n{}\n{}", management.log(), self.limiter_log());
        }
    }

    async fn status(&self, user: &str) -> u16 {
        let get = self.envoy.get("/limited").header("x-user", user);
        get.send().await.unwrap().status.as_u16()
    }

    /// Waits until a new user may send this many requests.
    async fn limit_becomes(&self, requests: usize) {
        let mut user = 0;
        let what = format!("a limit of {requests}");
        let limit = until(&what, PATIENCE, async || {
            user += 1;
            let user = format!("{requests}-{user}");
            let mut passed = 0;
            while passed <= requests && self.status(&user).await == 200 {
                passed += 1;
            }
            (passed == requests).then_some(())
        });
        if let Err(error) = limit.await {
            panic!("{error}\n{}", self.limiter_log());
        }
    }

    async fn nothing_is_limited(&self) {
        until("no limit", PATIENCE, async || {
            let mut passed = 0;
            while passed < 5 && self.status("x").await == 200 {
                passed += 1;
            }
            (passed == 5).then_some(())
        })
        .await
        .unwrap();
    }

    async fn admin(&self, port: u16, path: &str) -> (u16, String) {
        let reply = Client::new().get(&format!("http://127.0.0.1:{port}{path}"));
        let reply = reply.send().await.unwrap();
        (reply.status.as_u16(), reply.text())
    }

    /// Waits until the health page has an error with these words, or none, and is still healthy.
    async fn error_becomes(&self, words: Option<&str>) {
        let what = format!("the error is {words:?}");
        let reported = until(&what, PATIENCE, async || {
            let (status, text) = self.admin(self.health_port, "/healthcheck").await;
            let report: Value = serde_json::from_str(&text).ok()?;
            let error = report["xds_error"].as_str();
            let right = match words {
                Some(words) => error?.contains(words),
                None => error.is_none(),
            };
            (right && status == 200).then_some(())
        });
        if let Err(error) = reported.await {
            panic!("{error}\n{}", self.limiter_log());
        }
    }
}

#[tokio::test]
async fn envoy_gateways_rate_limit_service_is_a_limiter() {
    let mut gateway = Gateway::start().await;
    gateway.printed("SUBSCRIBED envoy-ratelimit ''").await;
    gateway.printed("ACK n1 1").await;
    gateway.limit_becomes(2).await;
    gateway.error_becomes(None).await;
    let (status, metrics) = gateway.admin(gateway.metrics_port, "/metrics").await;
    assert_eq!(status, 200);
    assert!(metrics.contains("rl_checks_total"), "{metrics}");

    gateway.configure("2", 3);
    gateway.printed("ACK n2 2").await;
    gateway.limit_becomes(3).await;

    // An invalid configuration is rejected with the reason, and changes nothing.
    let wrong = json!([{"name": "wrong", "domain": DOMAIN, "descriptors": [{"value": "x"}]}]);
    write(gateway.dir.path(), "3", &wrong);
    gateway.printed("NACK n3 ").await;
    gateway
        .error_becomes(Some("a descriptor needs a `key`"))
        .await;
    gateway.limit_becomes(3).await;
    let large = json!([{"name": "large", "domain": DOMAIN, "padding_mib": 20}]);
    write(gateway.dir.path(), "4", &large);
    gateway
        .error_becomes(Some("message length too large"))
        .await;
    gateway.limit_becomes(3).await;
    gateway.configure("5", 4);
    gateway.printed("ACK n5 5").await;
    gateway.error_becomes(None).await;

    // A restarted server counts versions from the beginning.
    gateway.management.take().unwrap().stop().await.unwrap();
    gateway.error_becomes(Some("management server")).await;
    gateway.limit_becomes(4).await;
    gateway.configure("5", 1);
    gateway.management = Some(management(gateway.xds_port, gateway.dir.path()));
    gateway.printed("ACK n5 5").await;
    gateway.limit_becomes(1).await;

    // A domain that the server no longer has gets no limits.
    write(gateway.dir.path(), "6", &json!([]));
    gateway.printed("ACK n6 6").await;
    gateway.nothing_is_limited().await;

    // Neither does one that the server dropped while the limiter was down.
    gateway.configure("7", 2);
    gateway.limit_becomes(2).await;
    gateway
        .restart_limiter(|gateway| write(gateway.dir.path(), "8", &json!([])))
        .await;
    gateway.printed("ACK n8 8").await;
    gateway.nothing_is_limited().await;
}
