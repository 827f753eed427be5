//! `cargo xtask bench --rls`: the limiter as Envoy's rate limit service, exact on Redis.
//!
//! Envoy's own rate limit filter is compared with no filter, and calls of the service with `POST /v1/check`
//! of one check each, over HTTP/2 both. Each load has its reference directly before or after it.

mod calls;

use std::fmt::Write as _;

use anyhow::Result;
use harness::{Envoy, EnvoyConfig, Ports, Programs, free_port};

use super::load::{Load, Sample};
use super::pairs::alternate;
use super::ready::Servers;
use super::report::median;
use super::setups::{Setup, answer_alone, answer_at_once};

const LIMITS: &str = "\
domain: shop
limits:
  - {name: users, descriptor: [user], algorithm: fixed_window, rate: 1000000/1s}
  - {name: checked, match: {path: /check}, per: [user], algorithm: fixed_window, rate: 1000000/1s}
";
const FILTER: &str = "Envoy's rate limit filter";
const WITHOUT: &str = "no filter";
/// Of 100 requests without the filter, what a fixed-window gRPC service on Redis keeps up with, times
/// 1.2: where Envoy answers itself, and before a service.
const GOALS: [u64; 2] = [14, 28];
/// Of 100 checks by `POST /v1/check`, how many calls of the service there are to be.
const GOAL_OF_CALLS: u64 = 80;

/// Everything that runs.
struct Stage {
    /// With the filter and without it; where Envoy answers itself, and before a service.
    pairs: [[Envoy; 2]; 2],
    _service: Envoy,
    servers: Servers,
}

/// Runs the rounds; returns the comparison.
pub async fn run(programs: Programs, load: &Load, rounds: u64) -> Result<String> {
    let stage = Stage::start(&programs).await?;
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:<44} {:>8} {:>9} {:>9} {:>6} {:>6}",
        "", "per s", "p50", "p99", "share", "goal"
    );
    let answers = ["Envoy answers itself", "a service behind Envoy"];
    for ((pair, answers), goal) in stage.pairs.iter().zip(answers).zip(GOALS) {
        let setups =
            [(FILTER, &pair[0]), (WITHOUT, &pair[1])].map(|(name, envoy)| setup(name, envoy));
        let [ours, reference] = &setups;
        let (own, other) = (
            async || load.run(ours).await,
            async || load.run(reference).await,
        );
        let pairs = alternate(rounds, own, other).await?;
        write_pairs(
            &mut text,
            [&format!("{FILTER}, {answers}"), WITHOUT],
            &pairs,
            goal,
        );
    }
    let limiter = stage.servers.limiter()?;
    let calls = |call| calls::load(limiter, load.seconds(), call);
    let own = async || calls(calls::service).await;
    let pairs = alternate(rounds, own, async || calls(calls::check).await).await?;
    write_pairs(
        &mut text,
        ["ShouldRateLimit", "POST /v1/check"],
        &pairs,
        GOAL_OF_CALLS,
    );
    Ok(text)
}

/// The medians of both sides, and of the share in each round.
fn write_pairs(text: &mut String, names: [&str; 2], pairs: &[(Sample, Sample)], goal: u64) {
    let of = |figure: &dyn Fn(&(Sample, Sample)) -> u64| median(pairs.iter().map(figure).collect());
    let share = of(&|(own, reference)| own.per_second * 1000 / reference.per_second.max(1));
    let share = format!("{}.{:03}", share / 1000, share % 1000);
    for (nth, name) in names.into_iter().enumerate() {
        let side = |pair: &(Sample, Sample)| if nth == 0 { pair.0 } else { pair.1 };
        let [rate, p50, p99] = [
            of(&|pair| side(pair).per_second),
            of(&|pair| side(pair).p50_us),
            of(&|pair| side(pair).p99_us),
        ];
        let beside = if nth == 0 {
            format!("{share:>6} {:>6}", format!("0.{goal}"))
        } else {
            String::new()
        };
        let _ = writeln!(
            text,
            "{name:<44} {rate:>8} {p50:>6} us {p99:>6} us {beside}"
        );
    }
}

fn setup(name: &'static str, envoy: &Envoy) -> Setup {
    Setup {
        name,
        url: envoy.url("/"),
        status: 200,
        reference: WITHOUT,
        checked: None,
        envoy: 0,
    }
}

impl Stage {
    async fn start(programs: &Programs) -> Result<Self> {
        let ports = Ports::free()?;
        let [port, _] = ports.limiters;
        let servers = Servers::start(programs, LIMITS, &[port]).await?;
        let dir = servers.dir.path();
        let service = envoy(programs, ports, dir, answer_alone).await?;
        let before = Ports {
            upstream: service.port(),
            ..ports
        };
        let itself = [
            envoy(programs, ports, dir, answer_at_once).await?,
            envoy(programs, ports, dir, answer_alone).await?,
        ];
        let before = [
            envoy(programs, before, dir, |_| ()).await?,
            envoy(programs, before, dir, |filters| {
                drop(filters.remove(0));
            })
            .await?,
        ];
        Ok(Self {
            pairs: [itself, before],
            _service: service,
            servers,
        })
    }
}

/// Starts deploy/envoy/rate-limit-service.yaml with other filters, and the patience of a benchmark.
async fn envoy(
    programs: &Programs,
    ports: Ports,
    dir: &std::path::Path,
    filters: impl FnOnce(&mut Vec<serde_json::Value>),
) -> Result<Envoy> {
    let ports = Ports {
        envoy: free_port()?,
        envoy_admin: free_port()?,
        ..ports
    };
    let config = EnvoyConfig::rate_limit_service(&programs.root, &ports)?.http_filters(filters)?;
    let path = dir.join(format!("envoy-{}.json", ports.envoy));
    config.write(&path)?;
    Envoy::serve(programs, &path, ports, 1, dir).await
}
