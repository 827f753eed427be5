//! The decisions of a replay are those of the scripts that limiters run, line by line; and what recorded logs of
//! real services show: `tests/vectors/logs/README.md` says how they were made.

use std::{
    collections::BTreeSet,
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::support::{Server, rlctl};
use access_log::{Field, Format, Layout, Log, Logs, Request};
use anyhow::{Context, Result, ensure};
use ctl::replay::{Side, millionths};
use harness::{Engine, Random};
use policy::{Name, Policy};
use protocol::{Answer, Check};
use serde_json::Value;
use store::{Engine as Reference, Options};

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

fn requests(count: u64) -> Result<Vec<Request>> {
    let mut random = Random(7);
    // An hour before a day ends in Berlin.
    let mut at_ms = 1_795_646_000_000;
    let paths = ["/api/a", "/api/b", "/login", "/export", "/soft"];
    let (user, path): (Name, Name) = ("user".parse()?, "path".parse()?);
    let mut requests = Vec::new();
    for _ in 0..count {
        // In bursts, with pauses of up to three seconds, and one of some minutes now and then.
        at_ms += match random.below(20) {
            0 => random.below(3000),
            1 if random.below(20) == 0 => random.below(200_000),
            _ => random.below(40),
        };
        let at = usize::try_from(random.below(5))?;
        let of = paths.get(at).context("a path")?;
        let by = random.below(6);
        // Some without a user.
        let entries = [
            Some((path.clone(), of.as_bytes().to_vec())),
            (by > 0).then(|| (user.clone(), format!("u{by}").into_bytes())),
        ];
        requests.push(Request {
            at_ms,
            took_ms: Some(random.below(300)),
            descriptor: entries.into_iter().flatten().collect(),
            ..Request::default()
        });
    }
    Ok(requests)
}

/// What a limiter says about each limit.
fn said(answer: &Answer) -> Vec<String> {
    let limits = answer.limits.iter().map(|limit| {
        let (charged, decision) = (limit.verdict.charged, limit.verdict.decision);
        let (name, bucket) = (&limit.name, &limit.bucket);
        format!("{name} {bucket:?} charged {charged}: {decision:?}")
    });
    std::iter::once(format!("allowed: {}", answer.allowed))
        .chain(limits)
        .collect()
}

/// Decides requests by the engine of a replay and, at the same times, by the scripts on a server; returns how many
/// are denied and how many delayed.
async fn compare(server: &Server, policy: &Policy, requests: &[Request]) -> Result<(u64, u64)> {
    let store = store::open(&server.url().parse()?, Options::default())?;
    let mut scripts = Reference::on_server(policy.clone(), store, 1);
    let mut side = Side::new(policy.clone(), &[]);
    let (mut denied, mut delayed) = (0, 0);
    for (n, request) in requests.iter().enumerate() {
        let check = scripts.request(request.descriptor.clone());
        let expected = scripts.decide(request.at_ms, &check).await?;
        let delays = expected.answer.limits.iter();
        let delays = delays.map(|limit| limit.verdict.decision.delay_ms);
        let delay = delays.max().unwrap_or(0);
        denied += u64::from(!expected.answer.allowed);
        delayed += u64::from(delay > 0);
        let decided = side.decide(&mut request.clone()).await?;
        assert_eq!(said(&decided.answer), said(&expected.answer), "request {n}");
        let start_ms = request.at_ms + delay;
        scripts.end_at((start_ms, request.took_ms), check, expected, Vec::new());
    }
    scripts.forget().await?;
    Ok((denied, delayed))
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    Ok(builder.enable_all().build()?)
}

#[test]
#[ignore = "needs a server"]
fn a_replay_decides_as_the_scripts_do_line_by_line() -> Result<()> {
    let policy: Policy = limits_file::read("limits", LIMITS.as_bytes())?;
    let requests = requests(1500)?;
    for engine in [Engine::Valkey, Engine::Redis] {
        let server = Server::start(engine, &[])?;
        let (denied, delayed) = runtime()?.block_on(compare(&server, &policy, &requests))?;
        ensure!(
            (200..1300).contains(&denied) && delayed > 8,
            "{denied} {delayed}"
        );
    }
    Ok(())
}

// --- Recorded logs.

/// A log of `tests/vectors/logs`.
struct Recording {
    name: &'static str,
    format: Format,
    /// Where its lines have what, as rlctl takes it.
    flags: &'static [&'static str],
}

const ENVOY: Recording = Recording {
    name: "envoy.jsonl.gz",
    format: Format::Json,
    flags: &["--entry", "user=/headers/x-user-id"],
};
const NGINX: Recording = Recording {
    name: "nginx.log.gz",
    format: Format::Combined,
    flags: &["--entry", "user=remote_user"],
};
const SERVICE: Recording = Recording {
    name: "service.jsonl.gz",
    format: Format::Json,
    flags: &[
        "--field",
        "method=/verb",
        "--field",
        "path=/url",
        "--entry",
        "user=/claims/user",
    ],
};
/// The same requests as those of `ENVOY` and `NGINX`; the first without users.
const ENVOY_TEXT: Recording = Recording {
    name: "envoy.log.gz",
    format: Format::Envoy,
    flags: &[],
};
const NGINX_JSON: Recording = Recording {
    name: "nginx.jsonl.gz",
    format: Format::Json,
    flags: &[],
};

impl Recording {
    fn path(&self) -> PathBuf {
        let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors");
        vectors.join("logs").join(self.name)
    }

    /// The requests, in the order of their starts. Each line is one, of the format that the recording has.
    fn read(&self) -> Result<Vec<Request>> {
        let mut layout = Layout {
            needed: vec!["path".parse()?, "user".parse()?],
            ..Layout::default()
        };
        for pair in self.flags.chunks(2) {
            let (key, place) = { pair.get(1) }
                .and_then(|pair| pair.split_once('='))
                .context("a pair")?;
            let place = place.parse().map_err(anyhow::Error::msg)?;
            if pair.first() == Some(&"--entry") {
                layout.entries.push((key.parse()?, place));
            } else {
                let field: Field = key.parse().map_err(anyhow::Error::msg)?;
                layout.fields.push((field, place));
            }
        }
        let path = self.path();
        let log = Log::new(self.name, move || Ok(Box::new(File::open(&path)?)));
        let mut logs = Logs::new(vec![log], layout, Arc::default())?;
        let mut requests = Vec::new();
        while let Some(request) = logs.next_request()? {
            requests.push(request);
        }
        let counts = logs.counts();
        assert_eq!(counts.formats, [self.format], "{}", self.name);
        assert_eq!((counts.broken, counts.late), (0, 0), "{}", self.name);
        Ok(requests)
    }
}

/// What the limiters behind the recorded Envoy had in force.
const OF_ENVOY: &str = "
domain: shop
limits:
  - {name: per-user, match: {path: /api/**}, per: [user], if_missing: skip, rate: 12/1m, burst: 20}
  - {name: per-path, per: [path, user], if_missing: skip, rate: 60/day}
";

/// Envoy's own answers were those of a real limiter, which decided each request some time between its start and its
/// end. Where a bucket refills meanwhile, the other of these times may be the limiter's.
#[test]
fn each_line_of_a_recorded_envoy_is_decided_as_its_limiter_decided_it() -> Result<()> {
    let policy: Policy = limits_file::read("limits", OF_ENVOY.as_bytes())?;
    let requests = ENVOY.read()?;
    let mut engine = Reference::new(policy, 1000);
    let (mut denied, mut at_end) = (0, 0);
    runtime()?.block_on(async {
        for (n, request) in requests.iter().enumerate() {
            let passed = request.status != Some(429);
            let check = engine.request(request.descriptor.clone());
            let peek = Check {
                peek: true,
                ..check.clone()
            };
            let at_start = engine.decide(request.at_ms, &peek).await?.answer.allowed;
            let mut at_ms = request.at_ms;
            if at_start != passed {
                at_ms += request.took_ms.context("a duration")?;
                at_end += 1;
            }
            let decided = engine.decide(at_ms, &check).await?.answer.allowed;
            assert_eq!(decided, passed, "request {n}: {request:?}");
            denied += u32::from(!passed);
        }
        anyhow::Ok(())
    })?;
    ensure!(denied > 100 && at_end < 5, "{denied} {at_end}");
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn recorded_logs_are_decided_as_the_scripts_do_line_by_line() -> Result<()> {
    let policy: Policy = limits_file::read("limits", LIMITS.as_bytes())?;
    let server = Server::start(Engine::Valkey, &[])?;
    for recording in [ENVOY, NGINX, SERVICE] {
        let decided = runtime()?.block_on(compare(&server, &policy, &recording.read()?));
        let (denied, _) = decided.context(recording.name)?;
        ensure!(denied > 50, "{}: {denied}", recording.name);
    }
    Ok(())
}

#[test]
fn formats_of_the_same_log_have_the_same_requests() -> Result<()> {
    let json = ENVOY.read()?;
    let text = ENVOY_TEXT.read()?;
    let of = |request: &Request| {
        let path = request.descriptor.get("path").map(<[u8]>::to_vec);
        (request.at_ms, request.took_ms, request.status, path)
    };
    let sorted = |requests: &[Request]| {
        let mut all: Vec<_> = requests.iter().map(of).collect();
        all.sort_unstable();
        all
    };
    ensure!(json.len() > 3000);
    assert_eq!(sorted(&json), sorted(&text));
    let combined = NGINX.read()?;
    let json = NGINX_JSON.read()?;
    assert_eq!(combined.len(), json.len());
    // One has whole seconds, in which a request ended; the other its start.
    let ends = |requests: &[Request]| -> Vec<u64> {
        let end = |request: &Request| (request.at_ms + request.took_ms.unwrap_or(0)) / 1000;
        let mut ends: Vec<u64> = requests.iter().map(end).collect();
        ends.sort_unstable();
        ends
    };
    assert_eq!(ends(&combined), ends(&json));
    Ok(())
}

/// What a limit did in half of a log.
#[derive(Default)]
struct Half {
    requests: u64,
    denied: u64,
    users: BTreeSet<Vec<u8>>,
    /// Those that were denied anything.
    denied_users: BTreeSet<Vec<u8>>,
}

/// A limit is found on the first half of a log. The second half, which had no part in that, is decided by the limit
/// itself.
#[test]
fn a_suggested_limit_keeps_its_target_on_the_other_half_of_recorded_logs() -> Result<()> {
    let runtime = runtime()?;
    for (recording, of, target, target_ppm) in [
        (ENVOY, "requests", "1%", 10_000),
        (NGINX, "buckets", "5%", 50_000),
        (SERVICE, "requests", "1%", 10_000),
    ] {
        let path = recording.path();
        let path = path.to_str().context("a path")?;
        let words = [
            "suggest", path, "--per", "user", "--deny", target, "--of", of,
        ];
        let words = [&words[..], &["--enforced", "-o", "json"], recording.flags].concat();
        let output = rlctl(&words).output()?;
        let said = String::from_utf8(output.stderr)?;
        let found: Value = serde_json::from_slice(&output.stdout).context(said)?;
        let limits = serde_json::json!({"domain": "shop", "limits": found["limits"]}).to_string();
        let policy: Policy = limits_file::read("limits", limits.as_bytes())?;
        ensure!(!policy.limits.is_empty(), "{}: {found}", recording.name);
        let cut_ms = found["cut_ms"].as_u64().context("a time")?;
        let requests = recording.read()?;
        let mut side = Side::new(policy, &[]);
        let mut halves: [Half; 2] = Default::default();
        for request in &requests {
            let decision = runtime.block_on(side.decide(&mut request.clone()))?;
            let user = request.descriptor.get("user").context("a user")?.to_vec();
            let half = &mut halves[usize::from(request.at_ms >= cut_ms)];
            half.requests += 1;
            half.users.insert(user.clone());
            if !decision.answer.allowed {
                half.denied += 1;
                half.denied_users.insert(user);
            }
        }
        let shares = halves.map(|half| match of {
            "requests" => millionths(half.denied, half.requests),
            _ => millionths(half.denied_users.len() as u64, half.users.len() as u64),
        });
        ensure!(
            shares.iter().all(|share| *share <= target_ppm),
            "{}: {shares:?}",
            recording.name
        );
        // What it says of the rest is what the limit does.
        assert_eq!(
            found["proposed_denied_ppm"], shares[1],
            "{}",
            recording.name
        );
    }
    Ok(())
}
