//! A limiter, a service, and an Envoy with one of the shipped files.

use std::path::Path;
use std::process::Command;

use harness::{
    Client, Envoy, EnvoyConfig, Limiter, LimiterPlan, Ports, Process, Programs, Redis, Request,
    Upstream, free_port,
};
use tempfile::TempDir;

/// The limits for every file: five requests for each user.
pub const LIMITS: &str = "domain: shop
limits:
  - {name: per-user, per: [user], if_missing: skip, rate: 5/1h}
";

/// More limits, with metrics of their own: costs, penalties, requests in flight.
pub const OTHER_LIMITS: &str = "  - {name: tokens, match: {path: /tokens}, rate: 1000/1h, cost: {from: {response_json: /tokens}, reserve: 10, max: 100}}
  - {name: guesses, match: {path: /guess}, rate: 1/1h, penalty: {after: 1, within: 1m, for: 1m}}
  - {name: in-flight, match: {path: /flight}, algorithm: concurrency, limit: 5}
";

/// A running system.
pub struct Running {
    pub limiter: Limiter,
    pub upstream: Upstream,
    pub envoy: Envoy,
    _dir: TempDir,
}

impl Running {
    /// Starts a limiter with [`LIMITS`] and more arguments, a service, and Envoy on `config`, with
    /// free ports instead of the addresses that the file names.
    pub async fn start(config: EnvoyConfig, at: At<'_>, limiter: &[&str]) -> Self {
        Self::under(LIMITS, config, at, limiter).await
    }

    /// The same with other limits.
    pub async fn under(limits: &str, config: EnvoyConfig, at: At<'_>, limiter: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let limiter = limiter_under(limits, limiter, dir.path()).await;
        Self::before(limiter, config, at, dir).await
    }

    /// The same with another module as the filter.
    pub async fn with_module(module: &[u8], config: EnvoyConfig, at: At<'_>) -> Self {
        let mut programs = Programs::from_env().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let limiter = limiter_under(LIMITS, &[], dir.path()).await;
        programs.filter = dir.path().join("filter.wasm");
        std::fs::write(&programs.filter, module).unwrap();
        Self::serve(&programs, limiter, config, at, dir).await
    }

    /// A service, and Envoy, before a limiter that runs in `dir`.
    pub async fn before(limiter: Limiter, config: EnvoyConfig, at: At<'_>, dir: TempDir) -> Self {
        let programs = Programs::from_env().unwrap();
        Self::serve(&programs, limiter, config, at, dir).await
    }

    async fn serve(
        programs: &Programs,
        limiter: Limiter,
        config: EnvoyConfig,
        at: At<'_>,
        dir: TempDir,
    ) -> Self {
        let upstream = Upstream::start(0).await.unwrap();
        let limiter_port = port_of(&limiter.url());
        let ports = Ports {
            upstream: upstream.port(),
            ..Ports::free().unwrap()
        };
        let other = free_port().unwrap();
        let config = config
            .filter_code_everywhere(&programs.filter)
            .sockets(|name| {
                Some(match name {
                    _ if name == at.client => ports.envoy,
                    _ if name == at.admin => ports.envoy_admin,
                    _ if at.limiters.contains(&name) => limiter_port,
                    _ if name == at.service => ports.upstream,
                    _ if at.others.contains(&name) => other,
                    _ => return None,
                })
            });
        let path = dir.path().join("envoy.json");
        config.unwrap().write(&path).unwrap();
        let envoy = Envoy::serve(programs, &path, ports, 2, dir.path())
            .await
            .unwrap();
        Self {
            limiter,
            upstream,
            envoy,
            _dir: dir,
        }
    }

    /// A GET as a user.
    pub fn get(&self, user: &str) -> Request {
        self.envoy.get("/api/x").header("x-user-id", user)
    }
}

/// `rlctl apply --watch` on [`LIMITS`], and its store.
pub struct WatchedFiles {
    /// The port of its metrics.
    pub port: u16,
    _rlctl: Process,
    _store: Redis,
    _dir: TempDir,
}

impl WatchedFiles {
    /// Starts both, and waits until the limits are in force.
    pub async fn start() -> Self {
        let programs = Programs::from_env().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let store = Redis::start(&programs.redis, free_port().unwrap(), dir.path());
        let store = store.await.unwrap();
        let limits = dir.path().join("limits.yaml");
        std::fs::write(&limits, LIMITS).unwrap();
        let port = free_port().unwrap();
        let mut rlctl = Command::new(&programs.rlctl);
        rlctl
            .args(["apply", "--watch", "--redis", &store.url(), "--file"])
            .arg(&limits)
            .arg(format!("--metrics-listen=127.0.0.1:{port}"));
        let mut rlctl = Process::start("rlctl", &mut rlctl, dir.path()).unwrap();
        let ready = Client::new().get(&format!("http://127.0.0.1:{port}/readyz"));
        rlctl
            .ready(async || (ready.send().await.ok()?.status == 200).then_some(()))
            .await
            .unwrap();
        Self {
            port,
            _rlctl: rlctl,
            _store: store,
            _dir: dir,
        }
    }
}

/// The addresses that a file names.
#[derive(Clone, Copy, Default)]
pub struct At<'a> {
    pub client: &'a str,
    pub admin: &'a str,
    pub limiters: &'a [&'a str],
    pub service: &'a str,
    pub others: &'a [&'a str],
}

/// The addresses in `deploy/envoy/gateway.yaml`.
pub const GATEWAY: At<'_> = At {
    client: "0.0.0.0:8080",
    admin: "127.0.0.1:9901",
    limiters: &["limiter:8090"],
    service: "service:8080",
    others: &[],
};

/// A limiter without Redis, with [`LIMITS`].
pub async fn limiter_with(more: &[&str], dir: &Path) -> Limiter {
    limiter_under(LIMITS, more, dir).await
}

async fn limiter_under(limits: &str, more: &[&str], dir: &Path) -> Limiter {
    let plan = LimiterPlan::under(limits, "memory", dir, more);
    plan.unwrap().start().await.unwrap()
}

/// The port at the end of a URL.
pub fn port_of(url: &str) -> u16 {
    url.rsplit(':').next().unwrap().parse().unwrap()
}

/// The statuses of `n` requests, sent one after the other.
pub async fn statuses(request: &Request, n: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..n {
        statuses.push(request.send().await.unwrap().status.as_u16());
    }
    statuses
}
