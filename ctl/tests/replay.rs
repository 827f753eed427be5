//! The decisions of a replay are those of the scripts that limiters run, line by line.

mod support;

use access_log::Request;
use anyhow::{Context, Result, ensure};
use ctl::replay::Side;
use harness::Engine;
use policy::{Name, Policy};
use protocol::Answer;
use store::{Engine as Reference, Options};
use support::Server;

const LIMITS: &str = "
domain: shop
limits:
  - {name: per-user, match: {path: '/api/**'}, per: [user], rate: 5/1s, burst: 8,
     overrides: [{values: {user: u1}, rate: 1/1s}]}
  - {name: steady, per: [user, path], algorithm: gcra, rate: 3/1s}
  - {name: sliding, per: [path], algorithm: sliding_window, rate: 30/1m}
  - {name: log, per: [user], algorithm: sliding_window_log, rate: 40/1m, enforce: 50%}
  - {name: daily, per: [user], rate: 100/day, time_zone: Europe/Berlin}
  - {name: penalized, match: {path: /login}, per: [user], rate: 2/1s,
     penalty: {after: 3, within: 10s, for: 5s}}
  - {name: line, match: {path: /export}, algorithm: leaky_bucket, rate: 2/s, burst: 3,
     over_limit: queue, max_delay: 1s}
  - {name: soft, match: {path: /soft}, per: [user], rate: 1/1s, over_limit: degrade}
";

/// The same numbers in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = { self.0 }
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % bound
    }
}

fn requests(count: u64) -> Result<Vec<Request>> {
    let mut numbers = Numbers(7);
    // An hour before a day ends in Berlin.
    let mut at_ms = 1_795_646_000_000;
    let paths = ["/api/a", "/api/b", "/login", "/export", "/soft"];
    let (user, path): (Name, Name) = ("user".parse()?, "path".parse()?);
    let mut requests = Vec::new();
    for _ in 0..count {
        // In bursts, with pauses of up to three seconds, and one of some minutes now and then.
        at_ms += match numbers.below(20) {
            0 => numbers.below(3000),
            1 if numbers.below(20) == 0 => numbers.below(200_000),
            _ => numbers.below(40),
        };
        let at = usize::try_from(numbers.below(5))?;
        let of = paths.get(at).context("a path")?;
        let by = format!("u{}", numbers.below(6));
        let entries = [
            (path.clone(), of.as_bytes().to_vec()),
            (user.clone(), by.into_bytes()),
        ];
        requests.push(Request {
            at_ms,
            took_ms: Some(numbers.below(300)),
            descriptor: entries.into_iter().collect(),
            ..Request::default()
        });
    }
    Ok(requests)
}

/// What a limiter says about each limit.
fn said(answer: &Answer) -> Vec<String> {
    let limits = answer.limits.iter().map(|limit| {
        format!(
            "{} {:?} {} charged {} left {} retry {:?} reset {} delay {}",
            limit.name,
            limit.bucket,
            limit.allowed,
            limit.charged,
            limit.remaining,
            limit.retry_after_ms,
            limit.reset_after_ms,
            limit.delay_ms
        )
    });
    std::iter::once(format!("allowed: {}", answer.allowed))
        .chain(limits)
        .collect()
}

#[test]
#[ignore = "needs a server"]
fn a_replay_decides_as_the_scripts_do_line_by_line() -> Result<()> {
    let policy: Policy = limits_file::read("limits", LIMITS.as_bytes())?;
    let requests = requests(4000)?;
    for engine in [Engine::Valkey, Engine::Redis] {
        let server = Server::start(engine, &[])?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let store = store::open(&server.url().parse()?, Options::default())?;
            let mut scripts = Reference::on_server(policy.clone(), store, 1);
            let mut side = Side::new(policy.clone(), &[]);
            let (mut denied, mut delayed) = (0, 0);
            for (n, request) in requests.iter().enumerate() {
                let check = scripts.request(request.descriptor.clone());
                let expected = scripts.decide(request.at_ms, &check).await?;
                let delay = expected
                    .answer
                    .limits
                    .iter()
                    .map(|limit| limit.delay_ms)
                    .max();
                let delay = delay.unwrap_or(0);
                denied += u64::from(!expected.answer.allowed);
                delayed += u64::from(delay > 0);
                let decided = side.decide(request).await?;
                assert_eq!(said(&decided.answer), said(&expected.answer), "request {n}");
                let start_ms = request.at_ms + delay;
                let end_ms = start_ms + request.took_ms.unwrap_or(0);
                scripts.end_at((start_ms, end_ms), check, expected, Vec::new());
            }
            scripts.forget().await?;
            ensure!(
                (500..3500).contains(&denied) && delayed > 20,
                "{denied} {delayed}"
            );
            anyhow::Ok(())
        })?;
    }
    Ok(())
}
