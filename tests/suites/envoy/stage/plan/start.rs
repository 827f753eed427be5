//! Starting what a plan says, and waiting until Envoy follows the limits.

use std::path::Path;

use harness::{
    Client, Cluster, Envoy, EnvoyConfig, LimiterPlan, Ports, Programs, Redis, ReplicatedCluster,
    Sentinel, Upstream, free_port, until,
};

use super::{Keeps, PROBE_PATH, Plan};
use crate::stage::{PATIENCE, Stage, rlctl};

/// A store that runs, and its URL.
#[derive(Default)]
struct Store {
    url: String,
    redis: Option<Redis>,
    cluster: Option<Cluster>,
    replicated: Option<ReplicatedCluster>,
    sentinel: Option<Sentinel>,
}

impl Plan {
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
        if !matches!(self.keeps, Keeps::Memory | Keeps::Nothing) {
            rlctl(&programs, &store.url, &["load-scripts"]);
            let apply = ["apply", "-f", file.to_str().unwrap()];
            rlctl(&programs, &store.url, &apply);
        }
        let replicas = match self.keeps {
            Keeps::Nothing => &[],
            Keeps::Memory => &ports.limiters[..1],
            _ => &ports.limiters[..],
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
        let envoys = self.start_envoys(&programs, ports, dir.path()).await;
        Stage {
            programs,
            upstream,
            store: store.url,
            redis: store.redis,
            cluster: store.cluster,
            replicated: store.replicated,
            sentinel: store.sentinel,
            stopped_redis: None,
            limiters,
            stopped: Vec::new(),
            envoys,
            _dir: dir,
        }
    }

    async fn start_envoys(&self, programs: &Programs, ports: Ports, dir: &Path) -> Vec<Envoy> {
        let mut envoys = Vec::new();
        for _ in 0..self.envoys {
            let own = Ports {
                envoy: free_port().unwrap(),
                envoy_admin: free_port().unwrap(),
                ..ports
            };
            let config = self.envoy_config(programs);
            let envoy = Envoy::start(programs, config, own, self.workers, dir);
            envoys.push(envoy.await.unwrap());
        }
        envoys
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
            Keeps::ReplicatedCluster => {
                let cluster = ReplicatedCluster::start(&programs.redis, dir).await;
                let cluster = cluster.unwrap();
                Store {
                    url: cluster.url(),
                    replicated: Some(cluster),
                    ..Store::default()
                }
            }
            Keeps::Sentinel => {
                let sentinel = Sentinel::start(&programs.redis, dir).await.unwrap();
                Store {
                    url: sentinel.url(),
                    sentinel: Some(sentinel),
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
