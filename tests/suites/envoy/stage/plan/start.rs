//! Starts a plan, and waits until Envoy has the limits.

use std::{path::Path, pin::Pin};

use harness::{Client, Envoy, EnvoyConfig, LimiterPlan, Ports, Programs, Upstream, free_port};

use super::{Keeps, PROBE_PATH, Plan};
use crate::stage::{Stage, eventually, rlctl, store::Store};

impl IntoFuture for Plan {
    type Output = Stage;
    type IntoFuture = Pin<Box<dyn Future<Output = Stage>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.start())
    }
}

impl Plan {
    /// Starts everything; returns once Envoy has the limits.
    async fn start(self) -> Stage {
        let alone = matches!(self.keeps, Keeps::Nothing);
        let stage = self.start_unlimited().await;
        for envoy in stage.envoys.iter().filter(|_| !alone) {
            follows(envoy).await;
        }
        stage
    }

    /// Starts everything, without waiting until Envoy has the limits.
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
            // The one limiter gets both addresses, so that every call reaches it.
            ports.limiters[1] = ports.limiters[0];
        }
        let store = Store::start(&self.keeps, &programs, dir.path()).await;
        let store_url = store.url();
        if !matches!(store, Store::Memory) {
            rlctl(&programs, &store_url, &["load-scripts"]);
            let apply = ["apply", "-f", file.to_str().unwrap()];
            rlctl(&programs, &store_url, &apply);
        }
        let mut limiters = Vec::new();
        for &port in self.limiters_of(&ports) {
            let ports = [port, free_port().unwrap()];
            let mut plan = LimiterPlan::new(&programs, &store_url, ports, dir.path());
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
            store,
            store_url,
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

    /// The ports of the limiters.
    fn limiters_of<'p>(&self, ports: &'p Ports) -> &'p [u16] {
        match self.keeps {
            Keeps::Nothing => &[],
            Keeps::Memory => &ports.limiters[..1],
            _ => &ports.limiters,
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
        arguments.extend(&self.limiter_arguments);
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
}

/// Waits until every worker of an Envoy has the limits: Envoy spreads connections over its workers,
/// so a dozen new ones reach all of them.
async fn follows(envoy: &Envoy) {
    eventually("Envoy follows the limits", async || {
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
    .await;
}
