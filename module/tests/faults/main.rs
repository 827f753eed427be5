//! The module against a host that does what Envoy may do: requests end while their answers are under way,
//! configurations end with requests, hooks run within each other, workers run in threads, and each hook
//! panics once. Every request is decided, and the host finds no use of anything that has ended.

#![expect(
    unsafe_code,
    reason = "the host's functions and the hooks are foreign functions"
)]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::undocumented_unsafe_blocks,
    reason = "a test that cannot go on should stop with the reason"
)]

mod host;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread::ScopedJoinHandle,
    time::{Duration, Instant},
};

use filter_core::Host;
use host::{
    CONCURRENCY, Call, Config, ENDS_IN_COMMIT, FAILURES,
    Outcome::{Answered, Continued, Undecided},
    PANICS, REFUSES, Request, SCHEDULERS, STREAM, WORKERS,
};
use policy::{Compiled, Revision};
use protocol::{
    Answer, ApiError, Decision, ErrorCode, LimitAnswer, LimitVerdict, Reservation, RetryAfter,
    compact::{Batch, BatchAnswer},
};
use rl_filter::{Due, LATE_US, SharedMap, fault};

const CONFIGURATION: &str = r#"{
    "domain": "DOMAIN",
    "limiter": {"cluster": "limiter", "timeout": "TIMEOUT", "stream": STREAM},
    "descriptors": [
        {"key": "user", "header": "x-user-id"},
        {"key": "text", "metadata": ["jwt", "text"]}, {"key": "number", "metadata": ["jwt", "number"]},
        {"key": "bool", "metadata": ["jwt", "bool"]}, {"key": "list", "metadata": ["jwt", "list"]}
    ],
    "request_body": {"max": 100},
    "failure_mode": "MODE",
    "limits": "COMPILED"
}"#;

const LIMITS: &str = r#"{"domain": "DOMAIN", "limits": [
    {"name": "checked", "match": {"path": "/checked"}, "per": ["user"], "rate": "9/1h",
     "cost": {"reserve": 1, "from": [{"response_json": "/n"}, {"response_trailer": "t"}]}},
    {"name": "reserving", "match": {"path": "/reserving"}, "rate": "9/1h", "cost": {"from": {"response_json": "/n"},
     "reserve": {"from": {"request_json": "/m"}, "default": 1}}},
    {"name": "claims", "match": {"path": "/claims"}, "per": ["text", "number", "bool", "list"], "rate": "9/1h"},
    {"name": "queued", "match": {"path": "/queued"}, "rate": "20/s", "algorithm": "leaky_bucket", "burst": 9,
     "over_limit": "queue", "max_delay": "1s", "scope": "proxy"},
    {"name": "strict", "match": {"path": "/strict"}, "rate": "9/1h", "on_failure": "deny"},
    {"name": "local", "match": {"path": "/local"}, "per": ["user"], "rate": "1/1h", "scope": "proxy"}
]}"#;

/// A configuration, with the limits compiled as a limiter does it. Each has a domain of its own, for the
/// workers of a process share what they know of one.
fn configured(failure_mode: &str) -> Arc<Config> {
    // Longer than these tests leave the main thread waiting.
    configured_with(failure_mode, false, "1s")
}

fn configured_with(failure_mode: &str, streams: bool, timeout: &str) -> Arc<Config> {
    static DOMAINS: AtomicU64 = AtomicU64::new(0);
    let domain = format!("shop-{}", DOMAINS.fetch_add(1, SeqCst));
    let limits = LIMITS.replace("DOMAIN", &domain);
    let policy = limits_file::read("limits.json", limits.as_bytes()).unwrap();
    let compiled = limits_file::snapshot_text(&Compiled::new(policy), 0);
    let json = CONFIGURATION.replace("MODE", failure_mode);
    let json = json.replace("STREAM", if streams { "true" } else { "false" });
    let json = json.replace("TIMEOUT", timeout);
    let json = json.replace("DOMAIN", &domain);
    Config::new(&json.replace("COMPILED", &compiled)).unwrap()
}

/// The answer to a call; `None`: none comes. Users `denied…` are denied, and nobody answers for `lost…`.
fn answer_to(call: &Call) -> Option<(&'static str, Vec<u8>)> {
    if call.path != "/v1/check" {
        return Some(("204", Vec::new()));
    }
    let batch = Batch::decode(&call.body).unwrap();
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
            limits: vec![checked(allowed)],
        }));
    }
    let answer = BatchAnswer {
        revision,
        proxies: Vec::new(),
        results,
    };
    Some(("200", answer.encode()))
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
        reservation: allowed.then(Reservation::default),
        ..LimitAnswer::new("checked".parse().unwrap())
    }
}

/// Delivers what is due on the main thread, and answers the calls.
fn main_thread(config: &Arc<Config>) {
    host::deliver_on_main();
    while let Some(call) = host::next_call() {
        let answer = answer_to(&call);
        let answer = answer
            .as_ref()
            .map(|(status, body)| (*status, body.as_slice()));
        config.answer(&call, answer);
    }
}

/// Runs until all are decided. The worker is of this thread.
fn decide(config: &Arc<Config>, requests: &[Arc<Request>]) {
    let patience = host::patience();
    while requests
        .iter()
        .any(|request| request.outcome() == Undecided)
    {
        main_thread(config);
        host::deliver(0);
        host::wait();
        patience();
    }
}

fn begin(config: &Arc<Config>, path: &str, user: &str) -> Arc<Request> {
    Request::begin(config, 0, path, user, false)
}

fn end(config: Arc<Config>, requests: &[Arc<Request>]) {
    for request in requests {
        request.end();
    }
    config.end();
    host::no_scheduler_is_left();
}

#[test]
fn each_request_gets_its_decision() {
    let _alone = host::alone();
    let config = configured("local");
    let cases = [
        ("/checked", "allowed", Continued),
        ("/checked", "denied", Answered(429)),
        ("/strict", "lost", Answered(503)),
        ("/local", "any", Continued),
        ("/local", "any", Answered(429)),
        ("/unlimited", "any", Continued),
    ];
    let mut requests = Vec::new();
    for (path, user, wanted) in cases {
        let request = begin(&config, path, user);
        decide(&config, std::slice::from_ref(&request));
        assert_eq!(request.outcome(), wanted, "{path} {user}");
        if wanted == Continued {
            request.respond();
        }
        requests.push(request);
    }
    assert_eq!(PANICS.load(SeqCst), 0);
    end(config, &requests);
}

#[test]
fn requests_that_end_while_their_answers_are_under_way_delay_no_other() {
    let _alone = host::alone();
    let config = configured("local");
    let requests: Vec<_> = (0..20)
        .map(|n| begin(&config, "/checked", &format!("user-{n}")))
        .collect();
    // The first carries the event for the end of the turn, and the last that for the answers.
    requests[0].end();
    host::deliver(0);
    host::deliver_on_main();
    requests[1].end();
    main_thread(&config);
    requests[19].end();
    decide(&config, &requests[2..19]);
    for request in &requests[2..19] {
        assert_eq!(request.outcome(), Continued);
    }
    for gone in [0, 1, 19] {
        assert_eq!(requests[gone].outcome(), Undecided);
    }
    end(config, &requests);
}

#[test]
fn a_request_may_end_within_the_hook_that_decides_it() {
    let _alone = host::alone();
    let config = configured("local");
    let users = ["allowed", "denied", "allowed-2", "denied-2"];
    let requests = users.map(|user| Request::begin(&config, 0, "/checked", user, true));
    decide(&config, &requests);
    let wanted = [Continued, Answered(429), Continued, Answered(429)];
    assert_eq!(requests.each_ref().map(|request| request.outcome()), wanted);
    // Within the hook for its headers.
    let repeated = Request::begin(&config, 0, "/checked", "denied", true);
    assert_eq!(repeated.outcome(), Answered(429));
    end(config, &[]);
}

#[test]
fn a_configuration_may_end_with_requests_and_calls_and_before_its_events() {
    let _alone = host::alone();
    for _ in 0..20 {
        let config = configured("local");
        let requests: Vec<_> = (0..5)
            .map(|n| begin(&config, "/checked", &format!("user-{n}")))
            .collect();
        host::deliver(0);
        host::deliver_on_main();
        let its = Arc::clone(&config);
        // Envoy may do so on a worker.
        std::thread::spawn(move || its.end()).join().unwrap();
        host::deliver(0);
        host::deliver_on_main();
        for request in &requests {
            assert_eq!(request.outcome(), Undecided);
            request.end();
        }
        drop(config);
        while host::next_call().is_some() {}
    }
    host::no_scheduler_is_left();
}

/// Envoy's scheduler holds the configuration while it schedules: on the main thread, and on that of the ticks.
#[test]
fn a_configuration_may_end_within_the_call_that_schedules_its_event() {
    let _alone = host::alone();
    let patience = host::patience();
    let streamed = configured_with("local", true, "1s");
    let requests = stream_opens(&streamed);
    for request in &requests {
        request.end();
    }
    host::deliver_on_main();
    ENDS_IN_COMMIT.store(true, SeqCst);
    streamed.receive(STREAM.load(SeqCst), &COMPRESSED);
    assert!(!streamed.is_alive());
    let ticking = configured("local");
    host::deliver_on_main();
    ENDS_IN_COMMIT.store(true, SeqCst);
    while ENDS_IN_COMMIT.load(SeqCst) {
        host::wait();
        patience();
    }
    // Envoy must not go on to end its calls on that thread: it never does, and another thread ticks.
    std::thread::sleep(Duration::from_millis(20));
    assert!(ticking.is_alive());
    SCHEDULERS.fetch_sub(1, SeqCst);
    let next = configured("local");
    let request = begin(&next, "/checked", "allowed");
    decide(&next, std::slice::from_ref(&request));
    assert_eq!(request.outcome(), Continued);
    end(next, &[request]);
}

#[test]
fn eight_workers_decide_at_once() {
    let _alone = host::alone();
    CONCURRENCY.store(u32::try_from(WORKERS).unwrap(), SeqCst);
    let config = configured("local");
    let patience = host::patience();
    std::thread::scope(|scope| {
        let config = &config;
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                scope.spawn(move || {
                    let patience = host::patience();
                    let mut kept = Vec::new();
                    for n in 0..50 {
                        let user = if n % 3 == 0 { "denied" } else { "allowed" };
                        let user = format!("{user}-{worker}-{n}");
                        let request = Request::begin(config, worker, "/checked", &user, n % 2 == 0);
                        if n % 7 == 0 {
                            // Its client leaves.
                            request.end();
                        }
                        while n % 7 != 0 && request.outcome() == Undecided {
                            host::deliver(worker);
                            std::thread::yield_now();
                            patience();
                        }
                        let denied = n % 3 == 0;
                        match request.outcome() {
                            Continued => assert!(!denied),
                            Answered(status) => assert!(denied && status == 429),
                            Undecided => assert_eq!(n % 7, 0),
                        }
                        request.end();
                        kept.push(request);
                    }
                })
            })
            .collect();
        while !workers.iter().all(ScopedJoinHandle::is_finished) {
            main_thread(config);
            host::wait();
            patience();
        }
        for worker in workers {
            worker.join().unwrap();
        }
    });
    assert_eq!(PANICS.load(SeqCst), 0);
    end(config, &[]);
}

/// A message that ends its stream.
const COMPRESSED: [u8; 6] = [1, 0, 0, 0, 1, 0];

/// Requests that make a configuration open a stream.
fn stream_opens(config: &Arc<Config>) -> [Arc<Request>; 2] {
    // A limiter that has answered gets a stream.
    let first = begin(config, "/checked", "allowed");
    decide(config, std::slice::from_ref(&first));
    let second = begin(config, "/checked", "allowed");
    let patience = host::patience();
    while STREAM.load(SeqCst) == 0 {
        main_thread(config);
        host::deliver(0);
        host::wait();
        patience();
    }
    [first, second]
}

/// A stream fails once, whatever follows in the same chunk, and is reset.
#[test]
fn what_follows_a_message_that_ends_a_stream_is_not_read() {
    let _alone = host::alone();
    let config = configured_with("local", true, "1s");
    let requests = stream_opens(&config);
    let stream = STREAM.load(SeqCst);
    config.receive(stream, &COMPRESSED.repeat(100));
    config.receive(stream, &COMPRESSED);
    let patience = host::patience();
    while STREAM.load(SeqCst) == stream {
        main_thread(&config);
        patience();
    }
    assert_eq!(FAILURES.load(SeqCst), 1);
    let [first, second] = requests;
    let requests = [first, second, begin(&config, "/checked", "allowed")];
    decide(&config, &requests);
    for request in &requests {
        assert_eq!(request.outcome(), Continued);
    }
    end(config, &requests);
}

/// Whether its call is made or not.
#[test]
fn while_the_main_thread_is_busy_requests_wait_no_longer_than_the_timeout() {
    let _alone = host::alone();
    for (mode, path, wanted) in [
        ("local", "/checked", Continued),
        ("deny", "/strict", Answered(503)),
    ] {
        for (called, panics) in [(false, 0), (true, 0), (false, 1)] {
            PANICS.store(0, SeqCst);
            let config = configured_with(mode, false, "50ms");
            let mut requests = vec![begin(&config, path, "denied")];
            let started = Instant::now();
            host::deliver(0);
            let call = called.then(|| {
                host::deliver_on_main();
                next_check().unwrap()
            });
            if panics > 0 {
                fault::inject("overdue");
            }
            let patience = host::patience();
            while requests[0].outcome() == Undecided {
                host::deliver(0);
                std::thread::sleep(Duration::from_millis(1));
                patience();
            }
            assert_eq!(requests[0].outcome(), wanted, "{mode} {called}");
            let took = started.elapsed();
            assert!(took >= Duration::from_millis(50), "{took:?}");
            // The late answer is for nobody, and nobody asks for one.
            if let Some(call) = call {
                config.answer(&call, answer_to(&call).as_ref().map(|(s, b)| (*s, &b[..])));
            }
            host::deliver_on_main();
            assert!(next_check().is_none());
            requests.push(begin(&config, "/checked", "allowed"));
            decide(&config, &requests[1..]);
            assert_eq!(requests[1].outcome(), Continued);
            assert_eq!(PANICS.load(SeqCst), panics);
            end(config, &requests);
        }
    }
}

/// In a queue, for a body that does not come, and for the tick that retries a call.
#[test]
fn while_the_main_thread_is_busy_requests_wait_no_longer_without_a_call() {
    let _alone = host::alone();
    let failure = ApiError::new(ErrorCode::StoreUntouched, "none").to_json();
    // Calls that a limiter refuses, while another one answers.
    for (before, path, refused, least_ms) in [
        ("/queued", "/queued", 0, 50),
        ("/unlimited", "/reserving", 0, 1000),
        ("/checked", "/checked", 2, 200),
    ] {
        let config = configured_with("local", false, "200ms");
        let first = begin(&config, before, "first");
        decide(&config, std::slice::from_ref(&first));
        let (request, started) = (begin(&config, path, "any"), Instant::now());
        let patience = host::patience();
        for _ in 0..refused {
            host::deliver(0);
            host::deliver_on_main();
            let call = next_check().unwrap();
            config.answer(&call, Some(("503", failure.as_bytes())));
        }
        while request.outcome() == Undecided {
            host::deliver(0);
            std::thread::sleep(Duration::from_millis(1));
            patience();
        }
        assert_eq!(request.outcome(), Continued, "{path}");
        let took = started.elapsed();
        assert!(took >= Duration::from_millis(least_ms), "{path} {took:?}");
        end(config, &[first, request]);
    }
}

/// Which was left to the main thread, when the only request that could have had the event ended.
#[test]
fn while_the_main_thread_is_busy_the_next_request_ends_the_turn() {
    let _alone = host::alone();
    let config = configured_with("local", false, "50ms");
    let gone = begin(&config, "/checked", "gone");
    gone.end();
    let request = begin(&config, "/checked", "any");
    let patience = host::patience();
    while request.outcome() == Undecided {
        host::deliver(0);
        std::thread::sleep(Duration::from_millis(1));
        patience();
    }
    assert_eq!(request.outcome(), Continued);
    end(config, &[request]);
}

/// The next call with checks; others are not answered.
fn next_check() -> Option<Call> {
    std::iter::from_fn(host::next_call).find(|call| call.path == "/v1/check")
}

/// It may be large, and each worker needs it.
#[test]
fn a_snapshot_is_read_once_for_all_workers() {
    let snapshot = |domain: &str| {
        let limits = LIMITS.replace("DOMAIN", domain);
        let policy = limits_file::read("limits.json", limits.as_bytes()).unwrap();
        limits_file::snapshot_at(&Compiled::new(policy), 0)
    };
    let (bytes, others) = (snapshot("read-once"), snapshot("another"));
    let read = |bytes: &[u8]| SharedMap.read_snapshot(bytes).unwrap();
    let (first, other) = (read(&bytes), read(&others));
    let same = |a: &Compiled, b: &Compiled| Arc::ptr_eq(&a.limits()[0], &b.limits()[0]);
    assert!(same(&first, &read(&bytes)) && same(&other, &read(&others)));
    assert_eq!(other.domain().as_str(), "another");
    assert!(SharedMap.read_snapshot(&bytes[1..]).is_err());
    // Beyond the bound it is read again.
    for n in 0..16 {
        read(&snapshot(&format!("more-{n}")));
    }
    assert!(!same(&first, &read(&bytes)));
}

#[test]
fn without_calls_requests_are_decided_by_their_limits() {
    let _alone = host::alone();
    REFUSES.store(true, SeqCst);
    let config = configured("local");
    let requests =
        [("/checked", "a"), ("/strict", "a")].map(|(path, user)| begin(&config, path, user));
    decide(&config, &requests);
    assert_eq!(
        requests.each_ref().map(|request| request.outcome()),
        [Continued, Answered(503)]
    );
    end(config, &requests);
}

/// Values of metadata have the texts that they have in wasm, whatever their types.
#[test]
fn metadata_of_any_type_is_text() {
    let _alone = host::alone();
    let config = configured("local");
    let request = begin(&config, "/claims", "any");
    let patience = host::patience();
    let check = loop {
        host::deliver(0);
        host::deliver_on_main();
        let call = host::next_call();
        if let Some(call) = call.filter(|call| call.path == "/v1/check") {
            let mut batch = Batch::decode(&call.body).unwrap();
            break batch.checks.pop().unwrap().into_check(&batch.keys);
        }
        host::wait();
        patience();
    };
    let value = |key| String::from_utf8(check.descriptor.get(key).unwrap().to_vec()).unwrap();
    assert_eq!(value("text"), "12345678");
    assert_eq!(value("number"), "100");
    assert_eq!(value("bool"), "true");
    let list = value("list");
    assert!(list.starts_with("[\"a text of more"), "{list}");
    assert!(list.ends_with(" long\",5,true]"), "{list}");
    end(config, &[request]);
}

/// The points where a panic is injected.
const POINTS: [&str; 14] = [
    "request",
    "answer",
    "event",
    "tick",
    "turn_end",
    "steps",
    "worker_event",
    "worker_steps",
    "edits",
    "step",
    "response",
    "response_body",
    "response_trailers",
    "gone",
];

/// Everything that a request passes through.
fn run_a_request(config: &Arc<Config>, user: &str) -> host::Outcome {
    let request = begin(config, "/checked", user);
    decide(config, std::slice::from_ref(&request));
    let outcome = request.outcome();
    if outcome == Continued {
        request.respond();
    }
    request.end();
    outcome
}

#[test]
fn a_panic_in_any_hook_costs_one_state_and_leaves_no_request_undecided() {
    let _alone = host::alone();
    for mode in ["local", "deny"] {
        for point in POINTS {
            PANICS.store(0, SeqCst);
            let config = configured(mode);
            assert_eq!(run_a_request(&config, "before"), Continued, "{point}");
            // One more waits meanwhile, and is decided too.
            let waiting = begin(&config, "/checked", "waiting");
            fault::inject(point);
            let patience = host::patience();
            let mut outcomes = Vec::new();
            while fault::is_due() {
                outcomes.push(run_a_request(&config, "during"));
                patience();
            }
            decide(&config, std::slice::from_ref(&waiting));
            outcomes.push(waiting.outcome());
            for outcome in outcomes {
                let by_mode = mode == "deny" && outcome == Answered(503);
                assert!(
                    outcome == Continued || by_mode,
                    "{point} {mode}: {outcome:?}"
                );
            }
            while PANICS.load(SeqCst) == 0 {
                main_thread(&config);
                host::wait();
                patience();
            }
            assert_eq!(PANICS.load(SeqCst), 1, "{point}");
            assert_eq!(run_a_request(&config, "after"), Continued, "{point}");
            end(config, &[waiting]);
        }
    }
}

/// A body decides its request, arrives in vain, or never does.
#[test]
fn a_request_that_waits_for_its_body_is_decided() {
    let _alone = host::alone();
    for point in [
        None,
        Some("request_body"),
        Some("request_read"),
        Some("body_late"),
    ] {
        let config = configured("local");
        let requests = [0, 1].map(|_| begin(&config, "/reserving", "allowed"));
        assert!(
            requests
                .iter()
                .all(|request| request.outcome() == Undecided)
        );
        if let Some(point) = point {
            fault::inject(point);
        }
        requests[0].send(br#"{"m": 1}"#);
        decide(&config, &requests);
        for request in &requests {
            assert_eq!(request.outcome(), Continued, "{point:?}");
        }
        assert!(!fault::is_due(), "{point:?}");
        end(config, &requests);
    }
}

/// A request that ends is forgotten, also where the state machine panicked.
#[test]
fn a_panic_at_the_end_of_a_request_leaves_nothing_of_it() {
    let _alone = host::alone();
    let config = configured("local");
    let schedulers = SCHEDULERS.load(SeqCst);
    let request = begin(&config, "/checked", "lost");
    assert_eq!(request.outcome(), Undecided);
    fault::inject("gone");
    request.end();
    assert!(!fault::is_due());
    assert_eq!(SCHEDULERS.load(SeqCst), schedulers);
    let next = begin(&config, "/checked", "allowed");
    decide(&config, std::slice::from_ref(&next));
    assert_eq!(next.outcome(), Continued);
    end(config, &[next]);
}

#[test]
fn a_panic_does_not_pause_a_request_that_passed() {
    let _alone = host::alone();
    let config = configured("local");
    let request = begin(&config, "/reserving", "allowed");
    // Its body is late.
    decide(&config, std::slice::from_ref(&request));
    assert_eq!(request.outcome(), Continued);
    fault::inject("request_body");
    assert!(request.send(br#"{"m": 1}"#), "it is paused");
    assert!(!fault::is_due());
    end(config, &[request]);
}

/// Outside of the state machine too, a panic ends in a decision.
#[test]
fn a_panic_in_an_answer_is_decided_by_failure_mode() {
    let _alone = host::alone();
    for (mode, wanted) in [("local", Continued), ("deny", Answered(503))] {
        let config = configured(mode);
        let mut requests = Vec::new();
        // The answer comes from the limiter, and then at once.
        let users = [
            ("denied", ""),
            ("denied", ""),
            ("denied.grpc", "14"),
            ("denied.web", ""),
        ];
        for (user, grpc_status) in users {
            fault::inject("reply");
            let request = begin(&config, "/checked", user);
            decide(&config, std::slice::from_ref(&request));
            assert!(!fault::is_due());
            assert_eq!(request.outcome(), wanted);
            if wanted != Continued {
                assert_eq!(*request.grpc_status.lock().unwrap(), grpc_status, "{user}");
            }
            requests.push(request);
        }
        end(config, &requests);
    }
}

#[test]
fn a_panic_while_a_configuration_is_made_refuses_it() {
    let _alone = host::alone();
    fault::inject("configured");
    assert!(Config::new(CONFIGURATION).is_none());
    assert!(!fault::is_due());
}

/// A main thread that was busy reads the answers that came meanwhile before it takes them for missing.
#[test]
fn a_tick_that_is_late_is_put_off_once() {
    let due = Due::default();
    assert!(due.is_past(1_000_000));
    due.set(100_000);
    assert!(!due.is_past(99_999));
    assert!(due.is_past(100_000 + LATE_US));
    assert!(!due.is_past(200_000));
    assert!(!due.is_past(200_999));
    assert!(due.is_past(300_000));
    // Each that is late, not the first alone.
    due.set(310_000);
    assert!(!due.is_past(400_000));
}
