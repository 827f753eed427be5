//! Makes each host call of the filter return each status that Envoy can send: nothing panics, and every
//! request is decided.
//!
//! Runs natively, in a process that defines the host functions; a panic in a callback aborts it.

#![expect(
    unsafe_code,
    reason = "host functions and callbacks are foreign functions"
)]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on should stop with the reason"
)]

mod crowds;
mod host;
mod pauses;
mod streams;

use filter as _;
use host::status::{
    BAD_ARGUMENT, CAS_MISMATCH, EMPTY, INTERNAL_FAILURE, NOT_FOUND, SERIALIZATION_FAILURE,
};
use host::{Call, Pairs, ROOT};
use policy::{Compiled, Revision};
use protocol::{
    Answer, Decision, LimitAnswer, LimitVerdict, Reservation, RetryAfter,
    compact::{Batch, BatchAnswer},
};

unsafe extern "C" {
    fn proxy_on_context_create(context: u32, parent: u32);
    fn proxy_on_configure(root: u32, size: usize) -> u32;
    fn proxy_on_tick(root: u32);
    fn proxy_on_queue_ready(root: u32, queue: u32);
    fn proxy_on_request_headers(stream: u32, headers: usize, end: u32) -> u32;
    fn proxy_on_response_headers(stream: u32, headers: usize, end: u32) -> u32;
    fn proxy_on_response_body(stream: u32, size: usize, end: u32) -> u32;
    fn proxy_on_response_trailers(stream: u32, trailers: usize) -> u32;
    fn proxy_on_http_call_response(root: u32, token: u32, headers: usize, body: usize, _: usize);
    fn proxy_on_delete(context: u32);
}

const CONFIGURATION: &str = r#"{
    "domain": "shop",
    "limiter": {"cluster": "limiter", "timeout": "100ms", "token_env": "TOKEN",
        "stream": true},
    "descriptors": [
        {"key": "user", "header": "x-user-id"},
        {"key": "claim", "property": ["metadata", "claim"]}
    ],
    "request_body": {"max": 100},
    "hold": {"max": 5000},
    "memory": {"buckets": 65536},
    "limits": "COMPILED"
}"#;

const LIMITS: &str = r#"{"domain": "shop", "limits": [
    {"name": "checked", "match": {"path": "/checked"}, "per": ["user"], "rate": "9/1h"},
    {"name": "metered", "match": {"path": "/checked"}, "per": ["user"], "rate": "9/1h", "cost": {"reserve": 1,
     "from": [{"response_json": "/n"}, {"response_trailer": "t"}, {"metadata": ["a", "b"]}]}},
    {"name": "reserving", "match": {"path": "/reserving"}, "rate": "9/1h", "cost": {"from": {"response_json": "/n"},
     "reserve": {"from": {"request_json": "/m"}, "default": 1}}},
    {"name": "strict", "match": {"path": "/strict"}, "rate": "9/1h", "on_failure": "deny"},
    {"name": "local", "match": {"path": "/local"}, "rate": "1/1h", "scope": "proxy"},
    {"name": "queue", "match": {"path": "/queue"}, "algorithm": "leaky_bucket", "rate": "500/s", "burst": 3000,
     "over_limit": "queue", "max_delay": "10s", "scope": "proxy"},
    {"name": "claims", "match": {"path": "/claim"}, "per": ["claim"], "rate": "1/1h",
     "scope": "proxy"}
]}"#;

/// The configuration, with the limits compiled as a limiter does it.
fn configuration() -> String {
    let policy = limits_file::read("limits.json", LIMITS.as_bytes()).unwrap();
    CONFIGURATION.replace(
        "COMPILED",
        &limits_file::snapshot_text(&Compiled::new(policy), 0),
    )
}

/// The host calls, each of which may return any status.
const CALLS: [&str; 30] = [
    "proxy_define_metric",
    "proxy_dequeue_shared_queue",
    "proxy_enqueue_shared_queue",
    "proxy_get_buffer_bytes",
    "proxy_get_header_map_pairs",
    "proxy_get_header_map_value",
    "proxy_get_property",
    "proxy_get_shared_data",
    "proxy_grpc_cancel",
    "proxy_grpc_close",
    "proxy_grpc_send",
    "proxy_grpc_stream",
    "proxy_http_call",
    "proxy_increment_metric",
    "proxy_log",
    "proxy_record_metric",
    "proxy_register_shared_queue",
    "proxy_remove_header_map_value",
    "proxy_replace_header_map_value",
    "proxy_add_header_map_value",
    "proxy_send_local_response",
    "proxy_set_effective_context",
    "proxy_set_property",
    "proxy_set_shared_data",
    "proxy_set_tick_period_milliseconds",
    "proxy_continue_stream",
    "clock_time_get",
    "random_get",
    "environ_sizes_get",
    "environ_get",
];
const STATUSES: [u32; 13] = [
    NOT_FOUND,
    BAD_ARGUMENT,
    SERIALIZATION_FAILURE,
    4,
    5,
    6,
    EMPTY,
    CAS_MISMATCH,
    9,
    INTERNAL_FAILURE,
    11,
    12,
    u32::MAX,
];

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Continued,
    Answered(u32),
    Undecided,
}
use Outcome::{Answered, Continued, Undecided};

/// The requests of a run: their paths and users. No limiter answers for `lost`.
const REQUESTS: [(&str, &str); 9] = [
    ("/checked", "allowed"),
    ("/checked", "denied"),
    ("/checked", "lost"),
    ("/strict", "lost"),
    ("/local", "any"),
    ("/local", "any"),
    ("/claim", "any"),
    ("/claim", "any"),
    ("/unlimited", "any"),
];

/// When a fault begins.
#[derive(Clone, Copy, Debug)]
enum From {
    Start,
    Configured,
}

/// The outcomes of all requests, or `None` where the filter refuses its configuration.
fn run(fault: Option<(&'static str, u32)>, from: From) -> Option<Vec<Outcome>> {
    // The state of the filter and of the host is thread-local.
    let run = std::thread::spawn(move || {
        host::with(|host| host.fault = fault.filter(|_| matches!(from, From::Start)));
        if !start() {
            return None;
        }
        host::with(|host| host.fault = fault);
        tick();
        let requests = (2..).zip(REQUESTS);
        let outcomes = requests.map(|(stream, (path, user))| request(stream, path, user));
        let outcomes = outcomes.collect();
        callback(ROOT, || unsafe { proxy_on_delete(ROOT) });
        Some(outcomes)
    });
    run.join().unwrap()
}

/// Loads the filter; returns whether it accepts its configuration.
fn start() -> bool {
    let configuration = configuration();
    let length = configuration.len();
    host::with(|host| {
        host.configuration = configuration.into();
        host.now_ns = 1_000_000_000;
    });
    callback(0, || unsafe { proxy_on_context_create(ROOT, 0) });
    callback(ROOT, || unsafe { proxy_on_configure(ROOT, length) != 0 })
}

/// Enters the filter, as Envoy does.
fn callback<T>(context: u32, enter: impl FnOnce() -> T) -> T {
    host::with(|host| (host.current, host.effective) = (context, 0));
    let result = enter();
    begin_responses();
    result
}

/// What the filter resumed or answered goes on when the callback ends, also if that callback is about
/// one of these responses. So they begin within each other.
fn begin_responses() {
    while let Some(stream) = host::with(|host| host.responses.pop_front()) {
        host::with(|host| {
            host.depth += 1;
            host.deepest = host.deepest.max(host.depth);
            (host.current, host.effective) = (stream, 0);
        });
        unsafe { proxy_on_response_headers(stream, 0, 1) };
        begin_responses();
        host::with(|host| host.depth -= 1);
    }
}

fn tick() {
    host::with(|host| host.now_ns += 50_000_000);
    callback(ROOT, || unsafe { proxy_on_tick(ROOT) });
    end_turn();
}

/// Delivers the queued callbacks, then the answers to the filter's calls.
fn end_turn() {
    while host::with(|host| host.reports.checked_sub(1).map(|left| host.reports = left)).is_some() {
        callback(ROOT, || unsafe { proxy_on_queue_ready(ROOT, 1) });
    }
    host::with(|host| host.queued = 0);
    while let Some(call) = host::with(|host| host.calls.pop_front()) {
        assert_eq!(call.context, ROOT, "a call ends with its context");
        let answer = answer_to(&call);
        let (headers, body) = answer.as_ref().map_or((0, 0), |(h, b)| (h.len(), b.len()));
        host::with(|host| host.answer = answer);
        callback(ROOT, || unsafe {
            proxy_on_http_call_response(ROOT, call.token, headers, body, 0);
        });
        host::with(|host| host.answer = None);
    }
    streams::deliver();
}

/// Begins a request; returns what Envoy must do with it. `end`: it has no body.
fn begin(stream: u32, path: &str, user: &str, end: bool) -> u32 {
    let headers = [
        (":method", "GET"),
        (":path", path),
        (":authority", "shop.example"),
        ("x-user-id", user),
        ("content-type", "application/json"),
        ("x-ratelimit-degraded", "a client's own"),
    ];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.into()));
    let count = headers.len();
    host::with(|host| host.requests.insert(stream, headers.into()));
    callback(stream, || unsafe { proxy_on_context_create(stream, ROOT) });
    callback(stream, || unsafe {
        proxy_on_request_headers(stream, count, end.into())
    })
}

/// Runs a request from beginning to end.
fn request(stream: u32, path: &str, user: &str) -> Outcome {
    let paused = begin(stream, path, user, true) != 0;
    let mut outcome = if paused {
        outcome_of(stream)
    } else {
        Continued
    };
    end_turn();
    for _ in 0..20 {
        if outcome != Undecided {
            break;
        }
        tick();
        outcome = outcome_of(stream);
    }
    if outcome == Continued {
        callback(stream, || unsafe {
            proxy_on_response_headers(stream, 0, 0)
        });
        for (size, end) in [(0, false), (5, false), (100_000, stream.is_multiple_of(2))] {
            callback(stream, || unsafe {
                proxy_on_response_body(stream, size, end.into())
            });
        }
        callback(stream, || unsafe { proxy_on_response_trailers(stream, 1) });
        end_turn();
    }
    host::with(|host| host.requests.remove(&stream));
    callback(stream, || unsafe { proxy_on_delete(stream) });
    outcome
}

fn outcome_of(stream: u32) -> Outcome {
    host::with(|host| {
        let answered = host.answered.iter().find(|(of, _)| *of == stream);
        match answered {
            Some((_, status)) => Answered(*status),
            None if host.resumed.contains(&stream) => Continued,
            None => Undecided,
        }
    })
}

/// The limiter's answer; `None`: there is none.
fn answer_to(call: &Call) -> Option<(Pairs, Vec<u8>)> {
    let headers = |status: &str| {
        let pairs = [(":status", status), ("x-rl-api", "1")];
        pairs
            .map(|(name, value)| (name.to_owned(), value.into()))
            .into()
    };
    if call.path != "/v1/check" {
        return Some((headers("204"), Vec::new()));
    }
    Some((headers("200"), decided(&call.body)?))
}

/// The answer to a batch; `None`: there is none.
fn decided(batch: &[u8]) -> Option<Vec<u8>> {
    let batch = Batch::decode(batch).unwrap();
    let revision = Revision {
        number: 1,
        digest: 1,
    };
    let mut results = Vec::new();
    for check in batch.checks {
        let check = check.into_check(&batch.keys);
        let allowed = match check.descriptor.get("user") {
            Some(user) if user.starts_with(b"lost") => return None,
            user => !user.is_some_and(|user| user.starts_with(b"denied")),
        };
        results.push(Ok(Answer {
            parts: Vec::new(),
            revision: revision.clone(),
            now_ms: 1,
            allowed,
            limits: vec![checked(allowed), metered(allowed)],
        }));
    }
    let answer = BatchAnswer {
        revision,
        proxies: Vec::new(),
        results,
    };
    Some(answer.encode())
}

fn metered(allowed: bool) -> LimitAnswer {
    LimitAnswer {
        name: "metered".parse().unwrap(),
        reservation: allowed.then(Reservation::default),
        ..checked(allowed)
    }
}

fn checked(allowed: bool) -> LimitAnswer {
    LimitAnswer {
        limit: Some(9),
        window_ms: 3_600_000,
        verdict: LimitVerdict {
            decision: Decision {
                allowed,
                remaining: 8,
                retry_after: RetryAfter::from_millis(Some(if allowed { 0 } else { 1000 })),
                reset_after_ms: 1000,
                delay_ms: 0,
            },
            charged: u64::from(allowed),
            ..LimitVerdict::default()
        },
        ..LimitAnswer::new("checked".parse().unwrap())
    }
}

#[test]
fn without_faults_each_request_gets_its_decision() {
    let outcomes = run(None, From::Start).unwrap();
    let wanted = [
        Continued,
        Answered(429),
        // The limiter does not answer: `on_failure` decides.
        Continued,
        Answered(503),
        Continued,
        Answered(429),
        Continued,
        Answered(429),
        Continued,
    ];
    assert_eq!(outcomes, wanted);
}

#[test]
fn every_request_is_decided_whatever_status_a_host_call_returns() {
    for function in CALLS {
        for status in STATUSES {
            for from in [From::Start, From::Configured] {
                let outcomes = run(Some((function, status)), from);
                let outcomes = outcomes.unwrap_or_default();
                println!("{function} answers {status} from {from:?}: {outcomes:?}");
                // A stream that cannot be made the effective context no longer exists.
                if function != "proxy_set_effective_context" {
                    assert!(!outcomes.contains(&Undecided));
                }
            }
        }
    }
}

#[test]
fn only_failures_of_needed_host_calls_reject_a_configuration() {
    let refuses =
        |function: &&'static str| run(Some((*function, NOT_FOUND)), From::Start).is_none();
    let refusing: Vec<&str> = CALLS.into_iter().filter(refuses).collect();
    assert_eq!(refusing, ["proxy_get_buffer_bytes", "random_get"]);
}
