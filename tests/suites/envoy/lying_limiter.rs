//! What answers at the limiter's address speaks a limiter's words, and lies: what it says is cut to
//! what the limits allow, no request hangs for it, and limits that it has no part in hold.

use std::time::Instant;

use harness::{Client, FakeLimiter, Misbehaviour, Request, answer, free_port, until};
use policy::Revision;
use protocol::{Answer, Lease, LimitAnswer, Mode, Slot, compact::BatchAnswer};
use tokio::task::JoinSet;

use crate::{
    not_a_limiter::{CBOR, SIGNED, before, say},
    stage::{PATIENCE, Stage, statuses},
};

const JSON: &str = "content-type: application/json";
const HUGE: u64 = 1 << 63;

/// What the limiter has a part in; each fails closed, so that what passes was decided.
const PLAIN: &str = "{name: plain, match: {path: /plain}, rate: 1000/1h, on_failure: deny}";
const QUEUE: &str = "{name: queue, match: {path: /queue}, algorithm: leaky_bucket, rate: 5/s, \
                     burst: 10, over_limit: queue, max_delay: 200ms, on_failure: deny}";
const LEASED: &str = "{name: leased, match: {path: /leased}, algorithm: fixed_window, \
                      rate: 200/1h, lease: {ttl: 1m}, on_failure: deny}";
/// And what it has none in.
const HERE: &str = "{name: here, per: [user], scope: proxy, rate: 20/1h}";

/// An answer to a check that says of a limit whatever is the most.
fn boast(limit: &str) -> LimitAnswer {
    LimitAnswer {
        name: limit.parse().unwrap(),
        generation: HUGE,
        bucket: Vec::new(),
        mode: Mode::Enforce,
        allowed: true,
        charged: u64::MAX,
        limit: Some(u64::MAX),
        window_ms: u64::MAX,
        remaining: u64::MAX,
        retry_after_ms: Some(u64::MAX),
        reset_after_ms: u64::MAX,
        delay_ms: u64::MAX,
        hidden: false,
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
    }
}

/// The revision of limits that are in the filter's configuration.
fn in_force() -> Revision {
    Revision::default()
}

/// An answer to one check.
fn batch(revision: Revision, allowed: bool, limits: Vec<LimitAnswer>) -> Vec<u8> {
    let proxies = ["plain", "queue", "leased", "here", "nobody-s"];
    let batch = BatchAnswer {
        revision: revision.clone(),
        proxies: proxies.map(|name| (name.parse().unwrap(), HUGE)).into(),
        results: vec![Ok(Answer {
            revision,
            now_ms: u64::MAX,
            allowed,
            limits,
        })],
    };
    batch.encode()
}

fn signed(body: &[u8]) -> Vec<u8> {
    answer("200 OK", &[SIGNED, CBOR], body)
}

/// To a poll: nothing new, but for the number of proxies.
fn unchanged() -> Vec<u8> {
    let proxies = format!("x-rl-proxies: *={HUGE}, plain={HUGE}, leased={HUGE}, here={HUGE}");
    answer("304 Not Modified", &[SIGNED, &proxies], b"")
}

/// One that answers checks so, in turn.
fn lies(checks: Vec<Vec<u8>>) -> Misbehaviour {
    let polls = unchanged();
    Misbehaviour::Lie { polls, checks }
}

async fn with(items: &'static [&'static str], does: Misbehaviour) -> (Stage, FakeLimiter) {
    let port = free_port().unwrap();
    let fake = FakeLimiter::start(port, does).await.unwrap();
    (before(port, "1s", items).await, fake)
}

/// How many requests pass, one after the other, before one does not, which is answered with this.
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

/// A client waits 20 seconds and Envoy 30 for what is held: a year would fail either way.
#[tokio::test]
async fn a_delay_is_no_longer_than_its_limit_says() {
    let checks = vec![signed(&batch(
        in_force(),
        true,
        vec![boast("plain"), boast("queue")],
    ))];
    let (stage, fake) = with(&[PLAIN, QUEUE], lies(checks)).await;

    assert_eq!(statuses(&stage.get("/plain", "alice"), 5).await, [200; 5]);
    let queued = stage.get("/queue", "alice").send().await.unwrap();
    assert_eq!(queued.status, 200);
    assert!(queued.took.as_millis() >= 200, "{:?}", queued.took);
    assert!(fake.checks() >= 6);
}

#[tokio::test]
async fn limits_that_nobody_has_neither_hold_nor_deny() {
    let denied = LimitAnswer {
        allowed: false,
        ..boast("nobody-s")
    };
    let checks = [boast("nobody-s"), denied]
        .map(|of| signed(&batch(in_force(), true, vec![of, boast("plain")])));
    let (stage, fake) = with(&[PLAIN], lies(checks.into())).await;

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

/// The digits of each header are of a number that a limit can have.
#[tokio::test]
async fn no_client_sees_a_number_that_no_limit_has() {
    for allowed in [true, false] {
        let said = LimitAnswer {
            allowed,
            ..boast("plain")
        };
        let checks = vec![signed(&batch(in_force(), allowed, vec![said]))];
        let (stage, _fake) = with(&[PLAIN], lies(checks)).await;

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

/// CBOR has numbers below zero, and the filter none.
#[tokio::test]
async fn a_number_below_zero_is_no_answer() {
    const MARK: u64 = 0x00de_adbe_ef00_feed;
    let marked = [
        LimitAnswer {
            remaining: MARK,
            ..boast("plain")
        },
        LimitAnswer {
            delay_ms: MARK,
            ..boast("plain")
        },
        LimitAnswer {
            generation: MARK,
            ..boast("plain")
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
        let (stage, fake) = with(&[PLAIN], lies(vec![check])).await;
        assert_eq!(statuses(&stage.get("/plain", "alice"), 1).await, [503]);
        assert_eq!(fake.checks(), 1);
    }
}

/// What it grants beyond what was asked for is not used, nor after the limit's own ttl; what it
/// says of generations and proxies makes no more of it.
#[tokio::test]
async fn a_grant_is_no_more_than_was_asked_for() {
    let now = LimitAnswer {
        generation: 0,
        ..boast("leased")
    };
    for said in [now, boast("leased")] {
        let checks = vec![signed(&batch(in_force(), true, vec![said]))];
        let (stage, fake) = with(&[LEASED], lies(checks)).await;
        let request = stage.get("/leased", "alice");
        assert_eq!(statuses(&request, 50).await, [200; 50]);
        fake.change(Misbehaviour::Close);

        let passed = pass_before(&request, 503).await;

        assert!(passed <= 200, "{passed} passed by units of a limit of 200");
        assert!(fake.checks() > 0);
    }
}

/// Whatever it allows, and however many proxies it says there are.
#[tokio::test]
async fn limits_that_it_has_no_part_in_hold() {
    let checks = vec![signed(&batch(
        in_force(),
        true,
        vec![boast("plain"), boast("here")],
    ))];
    let (stage, fake) = with(&[PLAIN, HERE], lies(checks)).await;
    until("it was polled", PATIENCE, async || {
        (fake.polls() > 1).then_some(())
    })
    .await
    .unwrap();

    assert_eq!(pass_before(&stage.get("/plain", "alice"), 429).await, 20);
    assert_eq!(pass_before(&stage.get("/other", "bob"), 429).await, 20);
}

/// Has clients ask at once what has the filter poll, and counts polls.
async fn assert_polls_are_few(stage: &Stage, fake: &FakeLimiter, clients: usize, each: usize) {
    let started = Instant::now();
    let before = [fake.checks(), fake.polls()];
    let mut tasks = JoinSet::new();
    for _ in 0..clients {
        // Of many connections, so that every worker is told.
        let request = Client::new().get(&stage.envoy().url("/plain"));
        tasks.spawn(async move { statuses(&request, each).await });
    }
    let answers = tasks.join_all().await.concat();
    assert!(answers.iter().all(|status| *status == 200), "{answers:?}");

    let [checks, polls] = [fake.checks() - before[0], fake.polls() - before[1]];
    // One in fifty milliseconds; and one more of each worker and the main thread.
    let most = u64::try_from(started.elapsed().as_millis()).unwrap() / 50 + 3;
    assert!(polls <= most, "{polls} polls, not {most}");
    assert!(checks > 3 * most, "{checks} checks show nothing");
}

/// A check that tells of an edit is followed by a poll soon, but not each of hundreds.
#[tokio::test]
async fn revisions_that_change_with_every_answer_do_not_each_bring_a_poll() {
    let checks = (1..=1000).map(|number| {
        let revision = Revision {
            number: HUGE - number,
            digest: number,
        };
        signed(&batch(revision, true, vec![boast("plain")]))
    });
    let (stage, fake) = with(&[PLAIN], lies(checks.collect())).await;
    assert_polls_are_few(&stage, &fake, 1, 1000).await;
}

/// And where answers come in while a poll is on its way, too.
#[tokio::test]
async fn answers_that_know_no_domain_do_not_each_bring_a_poll() {
    const OPEN: &str = "{name: open, rate: 1000000/1h, on_failure: allow}";
    let body = br#"{"error":{"code":"unknown_domain","message":""}}"#;
    let gone = answer("404 Not Found", &[SIGNED, JSON], body);
    let (stage, fake) = with(&[OPEN], lies(vec![gone])).await;
    assert_polls_are_few(&stage, &fake, 16, 100).await;
}

/// Ends a line, ends a string, colours a terminal, turns text around, hides itself.
const RAW: [char; 7] = [
    '\u{7}', '\0', '\u{1b}', '\u{202e}', '\u{2066}', '\u{200b}', '\u{9b}',
];

/// Waits until Envoy's log says this, and none of it is there as it was said.
async fn assert_logs_plainly(stage: &Stage, what: &str) {
    let log = until("it is logged", PATIENCE, async || {
        let log = stage.envoy().process().log();
        log.contains(what).then_some(log)
    });
    let log = log.await.unwrap();
    for c in RAW {
        assert!(!log.contains(c), "{} in {log}", c.escape_unicode());
    }
    assert!(!log.lines().any(|line| line.starts_with("forged")), "{log}");
}

fn hostile() -> String {
    let raw: String = RAW.iter().collect();
    format!("said-so {raw}\r\nforged\nforged")
}

#[tokio::test]
async fn what_it_says_in_words_is_one_plain_line_of_the_log() {
    let message = serde_json::json!({"error": {"code": "internal", "message": hostile()}});
    let error = message.to_string().into_bytes();
    let bodies = [
        say("500 Internal Server Error", &[SIGNED, JSON], &error),
        say("200 OK", &[JSON], hostile().as_bytes()),
    ];
    for does in bodies {
        let (stage, _fake) = with(&[PLAIN], does).await;
        assert_eq!(statuses(&stage.get("/plain", "alice"), 1).await, [503]);
        assert_logs_plainly(&stage, "said-so").await;
    }
}

/// A snapshot is words of a limiter too.
#[tokio::test]
async fn a_snapshot_that_cannot_be_used_is_one_plain_line_of_the_log() {
    let snapshot = serde_json::json!({"format": 0, "domain": hostile(), hostile(): hostile()});
    let polls = answer(
        "200 OK",
        &[SIGNED, JSON, "etag: \"1\""],
        snapshot.to_string().as_bytes(),
    );
    let checks = vec![signed(&batch(in_force(), true, vec![boast("plain")]))];
    let (stage, _fake) = with(&[PLAIN], Misbehaviour::Lie { polls, checks }).await;
    assert_logs_plainly(&stage, "a snapshot cannot be used").await;
    assert_eq!(statuses(&stage.get("/plain", "alice"), 1).await, [200]);
}
