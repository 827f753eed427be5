//! Well-formed answers with implausible content: the filter bounds every number, no request hangs, and
//! limits of `scope: proxy` hold.

use std::time::Instant;

use harness::{Client, FakeLimiter, Misbehaviour, Request, answer, free_port};
use policy::Revision;
use protocol::{
    Answer, Decision, Lease, LimitAnswer, LimitVerdict, RetryAfter, Slot, compact::BatchAnswer,
};
use tokio::task::JoinSet;

use crate::{
    invalid_answers::{CBOR, SIGNED, before},
    stage::{Stage, eventually, statuses},
};

pub const JSON: &str = "content-type: application/json";
const HUGE: u64 = 1 << 63;

/// Limits that the limiter decides; each fails closed, so a request that passes was decided.
pub const PLAIN: &str = "{name: plain, match: {path: /plain}, rate: 1000/1h, on_failure: deny}";
const QUEUE: &str = "{name: queue, match: {path: /queue}, algorithm: leaky_bucket, rate: 5/s, \
                     burst: 10, over_limit: queue, max_delay: 200ms, on_failure: deny}";
const LEASED: &str = "{name: leased, match: {path: /leased}, algorithm: fixed_window, \
                      rate: 200/1h, lease: {ttl: 1m}, on_failure: deny}";
/// A limit that the proxy decides.
const HERE: &str = "{name: here, per: [user], scope: proxy, rate: 20/1h}";

/// A limit's answer with the largest possible numbers.
pub fn extreme(limit: &str) -> LimitAnswer {
    let mut answer = LimitAnswer {
        generation: HUGE,
        limit: Some(u64::MAX),
        window_ms: u64::MAX,
        ..LimitAnswer::new(limit.parse().unwrap())
    };
    answer.verdict = LimitVerdict {
        decision: Decision {
            allowed: true,
            remaining: u64::MAX,
            retry_after: RetryAfter::Millis(u64::MAX),
            reset_after_ms: u64::MAX,
            delay_ms: u64::MAX,
        },
        charged: u64::MAX,
        lease: Some(Lease {
            units: HUGE,
            epoch: u64::MAX,
            ttl_ms: u64::MAX,
        }),
        slot: Some(Slot {
            start_ms: u64::MAX,
            parts: u64::MAX,
            since_ms: u64::MAX,
            turn: u64::MAX,
        }),
        ..LimitVerdict::default()
    };
    answer.verdict.penalty.left_ms = u64::MAX;
    answer
}

/// The same, changed.
fn with_decision(limit: &str, change: impl FnOnce(&mut Decision)) -> LimitAnswer {
    let mut answer = extreme(limit);
    change(&mut answer.verdict.decision);
    answer
}

/// The revision of limits that are in the filter's configuration.
pub fn in_force() -> Revision {
    Revision::default()
}

/// An answer to one check.
pub fn batch(revision: Revision, allowed: bool, limits: Vec<LimitAnswer>) -> Vec<u8> {
    let proxies = ["plain", "queue", "leased", "here", "nobody-s"];
    let batch = BatchAnswer {
        revision: revision.clone(),
        proxies: proxies.map(|name| (name.parse().unwrap(), HUGE)).into(),
        results: vec![Ok(Answer {
            parts: Vec::new(),
            revision,
            now_ms: u64::MAX,
            allowed,
            limits,
        })],
    };
    batch.encode()
}

pub fn signed(body: &[u8]) -> Vec<u8> {
    answer("200 OK", &[SIGNED, CBOR], body)
}

/// The answer to a poll: unchanged, with huge numbers of proxies.
fn unchanged() -> Vec<u8> {
    let proxies = format!("x-rl-proxies: *={HUGE}, plain={HUGE}, leased={HUGE}, here={HUGE}");
    answer("304 Not Modified", &[SIGNED, &proxies], b"")
}

/// A server that sends these answers to checks, in turn.
fn sending(checks: Vec<Vec<u8>>) -> Misbehaviour {
    let polls = unchanged();
    Misbehaviour::SendEach { polls, checks }
}

pub async fn with(items: &'static [&'static str], does: Misbehaviour) -> (Stage, FakeLimiter) {
    let port = free_port().unwrap();
    let fake = FakeLimiter::start(port, does).await.unwrap();
    (before(port, "1s", items).await, fake)
}

/// Counts the requests that pass before one gets another status, which must be this one.
async fn pass_before(request: &Request, status: u16) -> usize {
    for passed in 0..10_000 {
        let reply = request.send().await.unwrap();
        if reply.status != 200 {
            assert_eq!(reply.status, status);
            return passed;
        }
    }
    panic!("no end of them");
}

/// The client times out after 20 seconds and Envoy after 30, so an unbounded delay fails the test.
#[tokio::test]
async fn a_delay_is_no_longer_than_its_limit_says() {
    let checks = vec![signed(&batch(
        in_force(),
        true,
        vec![extreme("plain"), extreme("queue")],
    ))];
    let (stage, fake) = with(&[PLAIN, QUEUE], sending(checks)).await;

    assert_eq!(statuses(&stage.get("/plain", "alice"), 5).await, [200; 5]);
    let queued = stage.get("/queue", "alice").send().await.unwrap();
    assert_eq!(queued.status, 200);
    assert!(queued.took.as_millis() >= 200, "{:?}", queued.took);
    assert!(fake.checks() >= 6);
}

#[tokio::test]
async fn unknown_limits_neither_hold_nor_deny() {
    let denied = with_decision("nobody-s", |of| of.allowed = false);
    let checks = [extreme("nobody-s"), denied]
        .map(|of| signed(&batch(in_force(), true, vec![of, extreme("plain")])));
    let (stage, fake) = with(&[PLAIN], sending(checks.into())).await;

    for _ in 0..6 {
        let reply = stage.get("/plain", "alice").send().await.unwrap();
        assert_eq!(reply.status, 200);
        for (name, value) in &reply.headers {
            let value = String::from_utf8_lossy(value.as_bytes());
            assert!(!value.contains("nobody"), "{name}: {value}");
        }
    }
    assert_eq!(fake.checks(), 6);
}

/// Every number in the headers is one that a limit can have.
#[tokio::test]
async fn response_headers_hold_plausible_numbers_only() {
    for allowed in [true, false] {
        let said = with_decision("plain", |of| of.allowed = allowed);
        let checks = vec![signed(&batch(in_force(), allowed, vec![said]))];
        let (stage, _fake) = with(&[PLAIN], sending(checks)).await;

        let reply = stage.get("/plain", "alice").send().await.unwrap();
        assert_eq!(reply.status, if allowed { 200 } else { 429 });
        let shown = reply.headers.iter().filter(|(name, _)| {
            let name = name.as_str();
            name.contains("ratelimit") || name == "retry-after"
        });
        let mut seen = 0;
        for (name, value) in shown {
            let value = value.to_str().unwrap();
            for number in value.split(|c: char| !c.is_ascii_digit()) {
                seen += u64::from(!number.is_empty());
                let number = number.parse::<u64>().unwrap_or(0);
                assert!(number <= 1 << 53, "{name}: {value}");
            }
        }
        assert!(seen >= 5, "{:?}", reply.headers);
    }
}

/// CBOR can encode negative numbers.
#[tokio::test]
async fn a_negative_number_makes_an_answer_invalid() {
    const MARK: u64 = 0x00de_adbe_ef00_feed;
    let marked = [
        with_decision("plain", |of| of.remaining = MARK),
        with_decision("plain", |of| of.delay_ms = MARK),
        LimitAnswer {
            generation: MARK,
            ..extreme("plain")
        },
    ];
    let checks = marked.map(|said| {
        let mut body = batch(in_force(), true, vec![said]);
        let mark = [&[0x1b][..], &MARK.to_be_bytes()].concat();
        let at = body.windows(9).position(|bytes| bytes == mark).unwrap();
        body[at] = 0x3b;
        signed(&body)
    });
    for check in checks {
        let (stage, fake) = with(&[PLAIN], sending(vec![check])).await;
        assert_eq!(statuses(&stage.get("/plain", "alice"), 1).await, [503]);
        assert_eq!(fake.checks(), 1);
    }
}

/// Units granted beyond the request, or beyond the limit's own ttl, are not used, whatever generation
/// and number of proxies the answer has.
#[tokio::test]
async fn a_grant_is_no_more_than_was_requested() {
    let now = LimitAnswer {
        generation: 0,
        ..extreme("leased")
    };
    for said in [now, extreme("leased")] {
        let checks = vec![signed(&batch(in_force(), true, vec![said]))];
        let (stage, fake) = with(&[LEASED], sending(checks)).await;
        let request = stage.get("/leased", "alice");
        assert_eq!(statuses(&request, 50).await, [200; 50]);
        fake.change(Misbehaviour::Close);

        let passed = pass_before(&request, 503).await;

        assert!(passed <= 200, "{passed} passed by units of a limit of 200");
        assert!(fake.checks() > 0);
    }
}

/// For any number of units that the answer allows, and any number of proxies that it reports.
#[tokio::test]
async fn limits_of_scope_proxy_hold() {
    let checks = vec![signed(&batch(
        in_force(),
        true,
        vec![extreme("plain"), extreme("here")],
    ))];
    let (stage, fake) = with(&[PLAIN, HERE], sending(checks)).await;
    eventually("it was polled", async || (fake.polls() > 1).then_some(())).await;

    assert_eq!(pass_before(&stage.get("/plain", "alice"), 429).await, 20);
    assert_eq!(pass_before(&stage.get("/other", "bob"), 429).await, 20);
}

/// Sends requests whose answers cause polls, and checks that polls are rate limited.
async fn assert_polls_are_few(stage: &Stage, fake: &FakeLimiter, clients: usize, each: usize) {
    let started = Instant::now();
    let before = [fake.checks(), fake.polls()];
    let mut tasks = JoinSet::new();
    for _ in 0..clients {
        // Many connections, so that every worker gets such an answer.
        let request = Client::new().get(&stage.envoy().url("/plain"));
        tasks.spawn(async move { statuses(&request, each).await });
    }
    let answers = tasks.join_all().await.concat();
    assert!(answers.iter().all(|status| *status == 200), "{answers:?}");

    let [checks, polls] = [fake.checks() - before[0], fake.polls() - before[1]];
    // One per fifty milliseconds, plus one of each worker and the main thread.
    let most = u64::try_from(started.elapsed().as_millis()).unwrap() / 50 + 3;
    assert!(polls <= most, "{polls} polls, not {most}");
    assert!(checks > 3 * most, "{checks} checks show nothing");
}

/// An answer with a new revision causes an early poll, but not each of hundreds does.
#[tokio::test]
async fn changing_revisions_do_not_each_cause_a_poll() {
    let checks = (1..=1000).map(|number| {
        let revision = Revision {
            number: HUGE - number,
            digest: number,
        };
        signed(&batch(revision, true, vec![extreme("plain")]))
    });
    let (stage, fake) = with(&[PLAIN], sending(checks.collect())).await;
    assert_polls_are_few(&stage, &fake, 1, 1000).await;
}

/// The same while a poll is in flight.
#[tokio::test]
async fn unknown_domain_answers_do_not_each_cause_a_poll() {
    const OPEN: &str = "{name: open, rate: 1000000/1h, on_failure: allow}";
    let body = br#"{"error":{"code":"unknown_domain","message":""}}"#;
    let gone = answer("404 Not Found", &[SIGNED, JSON], body);
    let (stage, fake) = with(&[OPEN], sending(vec![gone])).await;
    assert_polls_are_few(&stage, &fake, 16, 100).await;
}
