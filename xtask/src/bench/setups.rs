//! The setups: one Envoy of one worker each, all of them up for the whole run and idle except the
//! one under load.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use harness::{Client, Envoy, EnvoyConfig, Limiter, Ports, Programs};
use serde_json::{Value, json};

use super::ready::{Servers, limits_are_known, start_envoy};
use super::script::ScriptCall;

/// Limits of the setups' paths: one that is never reached, one that always is, and a leased one.
pub const LIMITS: &str = "\
domain: shop
limits:
  - {name: roomy, match: {path: /strict}, per: [user], rate: 1000000/1s}
  - {name: spent, match: {path: /denied}, per: [user], rate: 1/1h}
  - {name: busy, match: {path: /leased}, rate: 1000000/1s, lease: {ttl: 100ms}}
";

/// The modules that decide nothing.
pub struct Noops {
    /// Entered once per request; does nothing.
    pub lean: PathBuf,
    /// Built with the SDK; reads and writes headers if configured to.
    pub sdk: PathBuf,
}

/// The reference of setups that Envoy answers itself: the leanest filter.
pub const NOOP: &str = "no-op filter";
/// The reference of setups that a service answers, like [`NOOP`].
pub const NOOP_BEFORE: &str = "no-op, upstream";

/// Every request is checked, by the check stream.
pub const STREAMED: &str = "checked by a stream";
/// As [`STREAMED`], before a service.
pub const STREAMED_BEFORE: &str = "by a stream, upstream";

/// One setup.
pub struct Setup {
    /// Its name in the report.
    pub name: &'static str,
    /// The URL of requests.
    pub url: String,
    /// The expected response.
    pub status: u16,
    /// Its reference.
    pub reference: &'static str,
    /// Whether a limiter must check each request; `None`: either.
    pub checked: Option<bool>,
    /// The index of its Envoy.
    pub envoy: usize,
}

/// Everything that runs.
pub struct Bench {
    setups: Vec<Setup>,
    envoys: Vec<Envoy>,
    servers: Servers,
}

impl Bench {
    /// Starts it all.
    pub async fn start(programs: Programs, noops: &Noops) -> Result<Self> {
        let ports = Ports::free()?;
        let servers = Servers::start(&programs, LIMITS, &ports.limiters).await?;
        let shipped = || EnvoyConfig::shipped(&programs.root);
        let ours = || {
            shipped()?
                .filter_code(&programs.filter)?
                .limiter_timeout("1s")
        };
        let streaming = || ours()?.check_streams();
        let lean = || shipped()?.filter_code(&noops.lean);
        let sdk = || shipped()?.filter_code(&noops.sdk);
        let headers = || sdk()?.filter_config(headers_alone);
        let start = async |config, upstream| {
            let ports = Ports { upstream, ..ports };
            start_envoy(&programs, config, ports, 1, servers.dir.path()).await
        };
        // It is also the service behind the others, so it must not be slower.
        let without = shipped()?.http_filters(answer_alone)?;
        let (without, service) = start(without, ports.upstream).await?;
        let mut envoys = vec![without];
        for config in [
            lean()?.http_filters(answer_at_once)?,
            sdk()?.http_filters(answer_at_once)?,
            headers()?.http_filters(answer_at_once)?,
            ours()?.http_filters(answer_at_once)?,
            streaming()?.http_filters(answer_at_once)?,
            lean()?,
            sdk()?,
            headers()?,
            ours()?,
            streaming()?,
        ] {
            envoys.push(start(config, service).await?.0);
        }
        let setups = setups(&envoys)?;
        // One setup with our filter per Envoy.
        for setup in setups.iter().filter(|setup| setup.checked == Some(true)) {
            let ours = envoys.get(setup.envoy).context("no such Envoy")?;
            limits_are_known(ours, "/strict").await?;
        }
        Ok(Self {
            setups,
            envoys,
            servers,
        })
    }

    /// A limiter and its Redis, for direct load.
    pub fn limiter(&self) -> Result<(&Limiter, u16)> {
        Ok((self.servers.limiter()?, self.servers.redis.port()))
    }

    /// The time of Redis for each check of a script call with so many, in nanoseconds (`INFO commandstats`).
    pub async fn script_ns(&self, call: &ScriptCall, checks: u64) -> Result<u64> {
        const ROUNDS: u64 = 2500;
        let (us, calls) = (
            self.servers.of_scripts("usec"),
            self.servers.of_scripts("calls"),
        );
        let before = (us.await?, calls.await?);
        call.repeat(ROUNDS).await?;
        let (us, calls) = (
            self.servers.of_scripts("usec"),
            self.servers.of_scripts("calls"),
        );
        let (us, calls) = (us.await? - before.0, calls.await? - before.1);
        Ok(us.saturating_mul(1000) / calls.saturating_mul(checks).max(1))
    }

    /// CPU time that a setup's Envoy, the limiters and Redis have used, in microseconds.
    pub fn used_us(&self, setup: &Setup) -> Result<[u64; 3]> {
        let envoy = self.envoys.get(setup.envoy).context("no such Envoy")?;
        let mut limiters = 0;
        for limiter in &self.servers.limiters {
            limiters += limiter.process().cpu_us()?;
        }
        let redis = self.servers.redis.process().cpu_us()?;
        Ok([envoy.process().cpu_us()?, limiters, redis])
    }

    /// Checks that the limiters have decided.
    pub async fn checks(&self) -> Result<u64> {
        let mut checks = 0;
        for limiter in &self.servers.limiters {
            let url = format!("{}/metrics", limiter.admin_url());
            let page = Client::new().get(&url).send().await?.text();
            let counters = page
                .lines()
                .filter(|line| line.starts_with("rl_checks_total{"));
            for counter in counters {
                let count = counter.rsplit(' ').next().unwrap_or_default();
                checks += count.parse::<u64>().context("rl_checks_total")?;
            }
        }
        Ok(checks)
    }

    /// The setups, in order.
    pub fn setups(&self) -> &[Setup] {
        &self.setups
    }
}

/// The setups, in the order of the report.
fn setups(envoys: &[Envoy]) -> Result<Vec<Setup>> {
    let [
        without,
        noop,
        sdk,
        headers,
        ours,
        streaming,
        noop_before,
        sdk_before,
        headers_before,
        ours_before,
        streaming_before,
    ] = envoys
    else {
        bail!("eleven Envoys were to be started")
    };
    Ok(vec![
        plain("no filter", (0, without), NOOP),
        plain(NOOP, (1, noop), NOOP),
        plain("no-op by the SDK", (2, sdk), NOOP),
        plain("headers alone", (3, headers), NOOP),
        checked("every request checked", (4, ours), NOOP),
        checked(STREAMED, (5, streaming), NOOP),
        denied("denied from the cache", (4, ours), NOOP),
        leased("leased", (4, ours), NOOP),
        plain(NOOP_BEFORE, (6, noop_before), NOOP_BEFORE),
        plain("SDK's no-op, upstream", (7, sdk_before), NOOP_BEFORE),
        plain("headers alone, upstream", (8, headers_before), NOOP_BEFORE),
        checked("checked, upstream", (9, ours_before), NOOP_BEFORE),
        checked(STREAMED_BEFORE, (10, streaming_before), NOOP_BEFORE),
        denied("denied, upstream", (9, ours_before), NOOP_BEFORE),
        leased("leased, upstream", (9, ours_before), NOOP_BEFORE),
    ])
}

fn plain(name: &'static str, at: (usize, &Envoy), reference: &'static str) -> Setup {
    let (number, envoy) = at;
    Setup {
        name,
        url: envoy.url("/strict"),
        status: 200,
        reference,
        checked: None,
        envoy: number,
    }
}

fn checked(name: &'static str, at: (usize, &Envoy), reference: &'static str) -> Setup {
    Setup {
        checked: Some(true),
        ..plain(name, at, reference)
    }
}

fn denied(name: &'static str, at: (usize, &Envoy), reference: &'static str) -> Setup {
    Setup {
        url: at.1.url("/denied"),
        status: 429,
        checked: Some(false),
        ..plain(name, at, reference)
    }
}

fn leased(name: &'static str, at: (usize, &Envoy), reference: &'static str) -> Setup {
    Setup {
        url: at.1.url("/leased"),
        checked: Some(false),
        ..plain(name, at, reference)
    }
}

/// Adds a filter that answers in place of the service, after the first filter.
pub(super) fn answer_at_once(filters: &mut Vec<Value>) {
    filters.insert(1, answer());
}

/// As [`answer_at_once`], without the first filter.
pub(super) fn answer_alone(filters: &mut Vec<Value>) {
    answer_at_once(filters);
    filters.remove(0);
}

/// Has the no-op filter read and write the headers that ours does.
pub(super) fn headers_alone(config: &mut Value) {
    *config = json!("headers");
}

fn answer() -> Value {
    json!({
        "name": "answer",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault",
            "abort": {"http_status": 200, "percentage": {"numerator": 100}}
        }
    })
}
