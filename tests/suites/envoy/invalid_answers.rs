//! Invalid answers at the limiter's address count as failures and never as decisions.

use std::time::Duration;

use harness::{FakeLimiter, Misbehaviour, answer, free_port};
use policy::Revision;
use protocol::{Answer, compact::BatchAnswer};
use serde_json::json;

use crate::stage::{Stage, compiled, eventually, limits, statuses};

/// The header of every limiter's response.
pub const SIGNED: &str = "x-rl-api: 1";
pub const CBOR: &str = "content-type: application/vnd.rl.check+cbor";

/// A limit that fails closed: a request that passes was decided.
const CLOSED: &str = "{name: closed, rate: 1000/1h, on_failure: deny}";

/// Envoy with these limits, and this port for its limiter.
pub async fn before(fake: u16, timeout: &'static str, items: &'static [&'static str]) -> Stage {
    let compiled = compiled("shop", items);
    limits(&[])
        .filter(move |config| {
            config["limits"] = json!(compiled);
            config["limiter"]["timeout"] = json!(timeout);
        })
        .config(move |config| config.limiter_at(fake).unwrap())
        .may_use(fake)
        .without_limiters()
        .start_unlimited()
        .await
}

/// An invalid answer, named by its defect.
type Answers = Vec<(&'static str, Misbehaviour)>;

pub fn send(status: &str, headers: &[&str], body: &[u8]) -> Misbehaviour {
    Misbehaviour::Send(answer(status, headers, body))
}

/// A valid answer that allows this many checks.
fn allowing(checks: usize) -> Vec<u8> {
    let revision = Revision {
        number: 1,
        digest: 1,
    };
    let allowed = Answer {
        parts: Vec::new(),
        revision: revision.clone(),
        now_ms: 1,
        allowed: true,
        limits: Vec::new(),
    };
    let batch = BatchAnswer {
        revision,
        proxies: Vec::new(),
        results: vec![Ok(allowed); checks],
    };
    batch.encode()
}

/// Answers without a limiter's header, or without a decision.
fn unsigned() -> Answers {
    let allowed = br#"{"allowed":true,"matched":1,"limits":[]}"#;
    let unknown = br#"{"error":{"code":"unknown_domain","message":""}}"#;
    vec![
        (
            "a page",
            send("200 OK", &["content-type: text/html"], b"<html>"),
        ),
        ("unsigned", send("200 OK", &[CBOR], allowed)),
        (
            "another version",
            send("200 OK", &["x-rl-api: 2", CBOR], allowed),
        ),
        ("unsigned error", send("404 Not Found", &[], unknown)),
        (
            "a redirect",
            send("302 Found", &[SIGNED, "location: /"], b""),
        ),
        (
            "an error",
            send("500 Internal Server Error", &[SIGNED], b"{}"),
        ),
        ("no content", send("204 No Content", &[SIGNED], b"")),
    ]
}

/// Answers with a limiter's header and an invalid body.
fn unreadable() -> Answers {
    let json = "content-type: application/json";
    let endless = b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff";
    vec![
        (
            "JSON",
            send("200 OK", &[SIGNED, json], br#"{"allowed":true}"#),
        ),
        ("of no check", send("200 OK", &[SIGNED, CBOR], &allowing(0))),
        (
            "of another's check too",
            send("200 OK", &[SIGNED, CBOR], &allowing(2)),
        ),
        ("nothing", send("200 OK", &[SIGNED, CBOR], b"")),
        ("garbage", send("200 OK", &[SIGNED, CBOR], &[0xff; 64])),
        (
            "very deep",
            send("200 OK", &[SIGNED, CBOR], &[0x81; 100_000]),
        ),
        ("a long list", send("200 OK", &[SIGNED, CBOR], endless)),
        (
            "two megabytes",
            send("200 OK", &[SIGNED, CBOR], &[0; 2 << 20]),
        ),
    ]
}

/// Connections without a complete answer.
fn broken() -> Answers {
    let mut truncated = answer("200 OK", &[SIGNED, CBOR], &[0x80; 500]);
    truncated.truncate(truncated.len() - 400);
    let drip = answer("200 OK", &[SIGNED, CBOR], &[0; 64]);
    vec![
        ("cut short", Misbehaviour::Send(truncated)),
        (
            "no HTTP",
            Misbehaviour::Send(b"\x00\xffnonsense\r\n\r\n".to_vec()),
        ),
        (
            "half a head",
            Misbehaviour::Send(b"HTTP/1.1 200 OK\r\nx-rl-a".to_vec()),
        ),
        ("closed", Misbehaviour::Close),
        ("silence", Misbehaviour::Hang),
        ("slow", Misbehaviour::Drip(drip, Duration::from_millis(20))),
    ]
}

#[tokio::test]
async fn unsigned_answers_decide_nothing() {
    decide_nothing(unsigned()).await;
}

#[tokio::test]
async fn unreadable_answers_decide_nothing() {
    decide_nothing(unreadable()).await;
}

#[tokio::test]
async fn incomplete_answers_decide_nothing() {
    decide_nothing(broken()).await;
}

/// The control: a valid answer decides.
#[tokio::test]
async fn a_limiters_answer_decides() {
    let port = free_port().unwrap();
    let does = send("200 OK", &[SIGNED, CBOR], &allowing(1));
    let _fake = FakeLimiter::start(port, does).await.unwrap();
    let stage = before(port, "200ms", &[CLOSED]).await;

    assert_eq!(statuses(&stage.get("/", "alice"), 3).await, [200; 3]);
}

async fn decide_nothing(answers: Answers) {
    let port = free_port().unwrap();
    let fake = FakeLimiter::start(port, Misbehaviour::Close).await.unwrap();
    let stage = before(port, "200ms", &[CLOSED]).await;
    let alice = stage.get("/", "alice");
    for (name, does) in answers {
        fake.change(does);
        // Waits for the circuit breaker's next probe.
        let asked = fake.checks();
        eventually(name, async || {
            let reply = alice.send().await.unwrap();
            assert_eq!(reply.status, 503, "{name}");
            assert_eq!(reply.header("retry-after"), Some("1"), "{name}");
            (fake.checks() > asked).then_some(())
        })
        .await;
    }
    let answered = stage.envoy().stat("wasmcustom.rl_callouts.answered").await;
    assert_eq!(answered.unwrap(), 0);
}

/// Only a probe waits for a hanging limiter.
#[tokio::test]
async fn while_the_breaker_is_open_only_one_request_probes() {
    let port = free_port().unwrap();
    let fake = FakeLimiter::start(port, Misbehaviour::Hang).await.unwrap();
    let open = &["{name: open, rate: 1/1h, on_failure: allow}"];
    let stage = before(port, "500ms", open).await;
    let gauge = "wasmcustom.rl_breaker_open";
    let alice = stage.get("/", "alice");
    eventually("the breaker is open", async || {
        assert_eq!(alice.send().await.unwrap().status, 200);
        (stage.envoy().stat(gauge).await.unwrap() == 1).then_some(())
    })
    .await;

    let asked = fake.checks();
    let mut waited = 0;
    for _ in 0..400 {
        let reply = alice.send().await.unwrap();
        assert_eq!(reply.status, 200);
        waited += u64::from(reply.took >= Duration::from_millis(400));
    }

    // Each request that waited was a probe.
    let probes = fake.checks() - asked;
    assert!(waited <= probes, "{waited} waited for {probes} calls");
    assert!(probes <= 10, "{probes} of 400 requests asked");
}

#[tokio::test]
async fn a_limiter_that_lost_its_limits_is_not_a_limiter_without_limits() {
    let port = free_port().unwrap();
    let gone = answer(
        "503 Service Unavailable",
        &[SIGNED],
        br#"{"error":{"code":"policy_unavailable","message":"no"}}"#,
    );
    let fake = FakeLimiter::start(port, Misbehaviour::Send(gone))
        .await
        .unwrap();
    let stage = before(port, "200ms", &[CLOSED]).await;

    assert_eq!(statuses(&stage.get("/", "alice"), 5).await, [503; 5]);
    assert!(fake.checks() >= 1);
}
