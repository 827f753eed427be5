//! What a proxy reads: requests, bodies, responses, answers of a limiter. A whole worker reads them, whose
//! limits need every source of entries and every kind of cost.

use filter_core::{
    Body, BodyNeed, Call, CallAnswer, Callback, Config, Metering, NoProperty, Now, Request,
    Response, ResponseHeaders, Step, StreamId, Worker, simulated::SharedData,
};
use policy::Compiled;
use protocol::{Decision, LimitAnswer, LimitVerdict, Reservation, compact::BatchAnswer};

const LIMITS: &str = r#"
domain: shop
limits:
  - {name: per-user, per: [user, session], if_missing: skip, rate: 1000/1s, on_failure: local}
  - {name: by-path, match: {path: "/v1/**", host: "*.example.com", method: "!GET"}, per: [key], rate: 5/1m}
  - {name: by-address, match: {remote_address: "cidr:10.0.0.0/8"}, per: [remote_address], rate: 5/1m}
  - {name: by-claim, match: {plan: "re:gold|silver-[0-9]+"}, per: [claim], if_missing: skip, rate: 7/1m}
  - name: tokens
    per: [user]
    if_missing: skip
    rate: 1000000/1m
    on_failure: local
    cost:
      from:
        - {response_json: /usage/total_tokens}
        - {sum: [{response_json: /usage/input}, {response_json: /usage/output, weight: 4}]}
        - {response_trailer: x-cost}
      reserve: {from: [{request_json: /max_tokens}], default: 100, cap: 10%}
      max: 32000
"#;

const CONFIG: &str = r#"{
    "domain": "shop", "limiter": {"cluster": "limiter", "timeout": "20ms", "stream": true},
    "request_body": {"max": 65536}, "failure_mode": "local",
    "descriptors": [
        {"key": "user", "header": "x-user"}, {"key": "session", "cookie": "sid", "hash": true},
        {"key": "key", "query": "key"}, {"key": "plan", "header": "x-plan"},
        {"key": "claim", "metadata": ["envoy.filters.http.jwt_authn", "payload", "sub"]}
    ]
}"#;

thread_local! {
    static CONFIGURED: Config = configured();
    static LIMITED: Compiled = {
        let snapshot = limits_file::snapshot_at(&compiled(), NOW.wall_ms);
        Compiled::from_snapshot(&snapshot).unwrap_or_else(|error| unreachable!("{error}"))
    };
}

/// What a limiter says has changed since a snapshot.
pub fn changes(bytes: &[u8]) {
    LIMITED.with(|limits| drop(limits.with_changes(bytes)));
}

fn compiled() -> Compiled {
    let policy = limits_file::read("limits.yaml", LIMITS.as_bytes());
    Compiled::new(policy.unwrap_or_else(|problems| unreachable!("{problems}")))
}

#[expect(clippy::unwrap_used, reason = "both are valid")]
fn configured() -> Config {
    let limits = limits_file::snapshot_text(&compiled(), NOW.wall_ms);
    let (before, after) = CONFIG.rsplit_once('}').unwrap();
    let config = format!("{before}, \"limits\": \"{limits}\"}}{after}");
    Config::from_json(config.as_bytes()).unwrap_or_else(|problems| unreachable!("{problems}"))
}

const NOW: Now = Now {
    mono_us: 1_000_000,
    wall_ms: 1_763_000_000_000,
};
const STREAM: StreamId = StreamId(7);

fn worker() -> Worker {
    let config = CONFIGURED.with(Clone::clone);
    Worker::new(config, Some("secret"), [7; 48])
}

/// Carries out all steps; returns the calls, and whether the request was decided.
fn steps(worker: &mut Worker, mut callback: Callback) -> (Vec<Call>, bool) {
    let (mut calls, mut decided) = (Vec::new(), false);
    while let Some(step) = worker.poll_step(&mut callback) {
        match step {
            Step::Call(call) => calls.push(*call),
            Step::Continue { .. } => decided = true,
            Step::Refuse { refusal, .. } => {
                decided = true;
                drop(refusal.reply(false));
            }
            _ => {}
        }
    }
    (calls, decided)
}

/// Lines of headers: a name, a colon, a value. What has no colon is a property.
struct Lines<'l>(&'l [u8]);

impl Lines<'_> {
    fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0.split(|byte| *byte == b'\n').map(|line| {
            // Names of HTTP/2 begin with one.
            let after = line.iter().skip(1).position(|byte| *byte == b':');
            match after.and_then(|at| Some((line.get(..=at)?, line.get(at + 2..)?))) {
                Some((name, value)) => (name, value),
                None => (&b""[..], line),
            }
        })
    }
}

impl Request for Lines<'_> {
    fn headers<'r>(&'r self, name: &str) -> impl Iterator<Item = &'r [u8]> {
        let name = name.to_owned();
        let own = self.fields();
        own.filter(move |(found, _)| *found == name.as_bytes())
            .map(|(_, value)| value)
    }

    fn property(&self, _: &[u8]) -> Result<Vec<u8>, NoProperty> {
        let mut own = self.fields().filter(|(name, _)| name.is_empty());
        own.next()
            .map_or(Err(NoProperty::Absent), |(_, value)| Ok(value.to_vec()))
    }

    fn has_body(&self) -> bool {
        self.header("content-type").is_some()
    }
}

/// A request of any headers is decided, and once.
pub fn request(bytes: &[u8]) {
    let (mut worker, host) = (worker(), SharedData::default());
    let request = Lines(bytes);
    worker.on_request(&host, &|| NOW, STREAM, &request);
    let (_, at_once) = steps(&mut worker, Callback::of_request(STREAM));
    let later = Now {
        mono_us: NOW.mono_us + 10_000_000,
        wall_ms: NOW.wall_ms + 10_000,
    };
    worker.on_request_read(&host, NOW, STREAM, &request);
    worker.on_turn_end(&host, NOW);
    let (calls, decided) = steps(&mut worker, Callback::of_root());
    for call in calls {
        worker.on_call_answer(&host, later, call.id, None);
    }
    let (_, lastly) = steps(&mut worker, Callback::of_root());
    let times = [at_once, decided, lastly].into_iter().filter(|it| *it);
    assert!(times.count() <= 1, "decided more than once");
    worker.on_gone(|| NOW, STREAM);
}

/// The chunks of a body: the first byte says how long they are.
fn chunks(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (size, body) = bytes.split_first().unwrap_or((&1, &[]));
    body.chunks(usize::from(*size).max(1))
}

struct Chunk<'c>(&'c [u8]);

impl Chunk<'_> {
    fn part(&self, from: usize, len: usize) -> Option<Vec<u8>> {
        let end = from.saturating_add(len).min(self.0.len());
        self.0.get(from..end).map(<[u8]>::to_vec)
    }
}

impl Body for Chunk<'_> {
    fn bytes(&self, from: usize, len: usize) -> Option<Vec<u8>> {
        self.part(from, len)
    }
}

impl Response for Chunk<'_> {
    fn body(&self, from: usize, len: usize) -> Option<Vec<u8>> {
        self.part(from, len)
    }

    fn trailer(&self, _: &str) -> Option<Vec<u8>> {
        Some(self.0.to_vec())
    }

    fn property(&self, _: &[u8]) -> Option<Vec<u8>> {
        Some(self.0.to_vec())
    }
}

const POST: &[u8] = b":method:POST\n:path:/v1/chat\nx-user:alice\ncontent-type:application/json";

/// The body of a request that reserves what it says.
pub fn request_body(bytes: &[u8]) {
    let (mut worker, host) = (worker(), SharedData::default());
    worker.on_request(&host, &|| NOW, STREAM, &Lines(POST));
    assert_eq!(worker.body_need(STREAM), BodyNeed::Reads);
    for chunk in chunks(bytes) {
        worker.on_request_body(STREAM, chunk.len(), false, &Chunk(chunk));
    }
    worker.on_request_read(&host, NOW, STREAM, &Lines(POST));
    worker.on_turn_end(&host, NOW);
    steps(&mut worker, Callback::of_root());
    worker.on_gone(|| NOW, STREAM);
}

struct Headers(bool);

impl ResponseHeaders for Headers {
    fn get(&self, name: &str) -> Option<Vec<u8>> {
        let value = match name {
            ":status" => "200",
            "content-type" if self.0 => "text/event-stream",
            "content-type" => "application/json",
            _ => return None,
        };
        Some(value.into())
    }

    fn set(&mut self, _: &'static str, _: &str) {}

    fn add(&mut self, _: &'static str, _: &str) {}
}

/// A limiter's answer that reserves what the request may cost.
fn admitted(config: &Config) -> Vec<u8> {
    let revision = { config.limits.as_ref() }.map(|limits| limits.revision().clone());
    let revision = revision.unwrap_or_default();
    let limit = LimitAnswer {
        limit: Some(1_000_000),
        window_ms: 60_000,
        verdict: LimitVerdict {
            decision: Decision {
                remaining: 999_900,
                reset_after_ms: 6,
                ..Decision::default()
            },
            charged: 100,
            ..LimitVerdict::default()
        },
        reservation: Some(Reservation {
            secret: 1,
            number: 1,
            units: 100,
            seal: 1,
        }),
        ..LimitAnswer::new(crate::name("tokens"))
    };
    let answer = protocol::Answer {
        revision: revision.clone(),
        now_ms: NOW.wall_ms,
        allowed: true,
        limits: vec![limit],
        parts: Vec::new(),
    };
    let answer = BatchAnswer {
        revision,
        proxies: Vec::new(),
        results: vec![Ok(answer)],
    };
    [b"\n".to_vec(), answer.encode()].concat()
}

/// A response that says what the request costs: JSON, and server-sent events.
pub fn response(bytes: &[u8]) {
    for events in [false, true] {
        let (mut worker, host) = (worker(), SharedData::default());
        worker.on_request(&host, &|| NOW, STREAM, &Lines(POST));
        worker.on_request_read(&host, NOW, STREAM, &Lines(POST));
        worker.on_turn_end(&host, NOW);
        let (calls, _) = steps(&mut worker, Callback::of_root());
        for call in calls {
            let answer = admitted(worker.config());
            worker.on_call_answer(&host, NOW, call.id, Some(&Answer(&answer)));
        }
        steps(&mut worker, Callback::of_root());
        let mut reads = worker.on_response(|| NOW, STREAM, &mut Headers(events), false);
        assert_eq!(reads, Metering::Reads);
        for chunk in chunks(bytes) {
            if reads == Metering::None {
                break;
            }
            reads = worker.on_response_body(STREAM, chunk.len(), false, &Chunk(chunk));
        }
        worker.on_response_trailers(STREAM, &Chunk(bytes));
        worker.on_gone(|| NOW, STREAM);
        worker.on_turn_end(&host, NOW);
        steps(&mut worker, Callback::of_root());
    }
}

/// The first line is a status and a name of a header, the second its value, the rest the body.
struct Answer<'a>(&'a [u8]);

impl CallAnswer for Answer<'_> {
    fn header(&self, name: &str) -> Option<&[u8]> {
        match name {
            ":status" => Some(b"200"),
            "content-type" => Some(b"application/cbor"),
            protocol::API_HEADER => Some(protocol::API_VERSION.as_bytes()),
            _ => self.0.split(|byte| *byte == b'\n').next(),
        }
    }

    fn body(&self, max_len: usize) -> Option<Vec<u8>> {
        let at = self.0.iter().position(|byte| *byte == b'\n');
        let body = self.0.get(at.map_or(0, |at| at + 1)..)?;
        (body.len() <= max_len).then(|| body.to_vec())
    }
}

/// The answer of a limiter that is not ours to trust, to a poll and to a batch, and as a message of a stream.
pub fn call_answer(bytes: &[u8]) {
    let (mut worker, host) = (worker(), SharedData::default());
    worker.on_stream_message(&host, NOW, bytes);
    worker.on_request(
        &host,
        &|| NOW,
        STREAM,
        &Lines(b":method:POST\n:path:/v1/x?key=k\nx-user:alice"),
    );
    worker.on_turn_end(&host, NOW);
    for _ in 0..3 {
        let (calls, _) = steps(&mut worker, Callback::of_root());
        for call in calls {
            worker.on_call_answer(&host, NOW, call.id, Some(&Answer(bytes)));
        }
    }
    worker.on_gone(|| NOW, STREAM);
}
