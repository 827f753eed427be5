//! Text from a limiter is escaped in Envoy's log.

use harness::{Misbehaviour, answer, until};

use crate::{
    invalid_answers::{SIGNED, send},
    once::untrusted_answers::{JSON, PLAIN, batch, extreme, in_force, signed, with},
    stage::{PATIENCE, Stage, statuses},
};

/// Control and format characters: bell, NUL, escape, bidirectional, zero-width, C1.
const RAW: [char; 7] = [
    '\u{7}', '\0', '\u{1b}', '\u{202e}', '\u{2066}', '\u{200b}', '\u{9b}',
];

/// Waits until Envoy's log has this text, and checks that it is escaped.
async fn assert_logs_escaped(stage: &Stage, what: &str) {
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
async fn an_error_message_is_one_escaped_line_of_the_log() {
    let message = serde_json::json!({"error": {"code": "internal", "message": hostile()}});
    let error = message.to_string().into_bytes();
    let bodies = [
        send("500 Internal Server Error", &[SIGNED, JSON], &error),
        send("200 OK", &[JSON], hostile().as_bytes()),
    ];
    for does in bodies {
        let (stage, _fake) = with(&[PLAIN], does).await;
        assert_eq!(statuses(&stage.get("/plain", "alice"), 1).await, [503]);
        assert_logs_escaped(&stage, "said-so").await;
    }
}

#[tokio::test]
async fn an_unusable_snapshot_is_one_escaped_line_of_the_log() {
    // The domain, which is no name, is in the error.
    let domain = hostile();
    let mut snapshot = b"\x86\x01\x79".to_vec();
    snapshot.extend(u16::try_from(domain.len()).unwrap().to_be_bytes());
    snapshot.extend(domain.as_bytes());
    let polls = answer("200 OK", &[SIGNED, JSON, "etag: \"1\""], &snapshot);
    let checks = vec![signed(&batch(in_force(), true, vec![extreme("plain")]))];
    let (stage, _fake) = with(&[PLAIN], Misbehaviour::SendEach { polls, checks }).await;
    assert_logs_escaped(&stage, "a snapshot cannot be used").await;
    assert_eq!(statuses(&stage.get("/plain", "alice"), 1).await, [200]);
}
