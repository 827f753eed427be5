//! Reserves read from the request's body, through real Envoy: headers wait for the body, and no client
//! stalls, passes undecided, or delays others.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use harness::{Bytes, Host, RawReply};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    response_costs::{Limiter, wait_for},
    stage::{PATIENCE, Stage, compiled, limits},
};

const TOKENS: &str = "{name: tokens, match: {path: \"/llm/**\"}, rate: 1000000/1h, on_failure: deny, \
     cost: {from: {response_header: x-tokens}, if_absent: reserved, \
     reserve: {from: [{request_json: /max_completion_tokens}, {request_json: /max_tokens}], default: 1000}}}";

/// Envoy in front of a limiter that allows everything. `passed_on`: Envoy passes bodies of paused
/// requests to the filter, and `read`: the filter reads them.
async fn stage(limiter: &Limiter, passed_on: bool, read: bool) -> Stage {
    let at = limiter.port;
    let compiled = compiled("shop", &[TOKENS]);
    limits(&[])
        .filter(move |config| {
            config["limits"] = json!(compiled);
            config["limiter"]["timeout"] = json!("5s");
            config["hold"] = json!({"max": 2});
            if read {
                config["request_body"] = json!({"max": 65536});
            }
        })
        .config(move |config| {
            let config = config.limiter_at(at).unwrap();
            let config = config.http_filters(|filters| {
                filters[0]["typed_config"]["config"]["allow_on_headers_stop_iteration"] =
                    json!(passed_on);
            });
            let upgrades = |manager: &mut Value| {
                manager["upgrade_configs"] = json!([{"upgrade_type": "websocket"}]);
            };
            config.unwrap().manager_edit(upgrades).unwrap()
        })
        .may_use(at)
        .without_limiters()
        .workers(1)
        .start_unlimited()
        .await
}

const JSON: &str = "content-type: application/json";

fn post(headers: &[&str], body: &[u8]) -> Vec<u8> {
    let lines = headers.iter().map(|line| format!("{line}\r\n"));
    let head = format!(
        "POST /llm/x HTTP/1.1\r\nhost: any\r\n{}\r\n",
        lines.collect::<String>()
    );
    [head.as_bytes(), body].concat()
}

pub fn whole(headers: &[&str], body: &[u8]) -> Vec<u8> {
    let length = format!("content-length: {}", body.len());
    post(&[headers, &[&length]].concat(), body)
}

fn chunked(headers: &[&str], chunks: &[&[u8]]) -> Vec<u8> {
    let chunk =
        |bytes: &&[u8]| [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    let body: Vec<Vec<u8>> = chunks.iter().map(chunk).collect();
    let body = [body.concat().as_slice(), b"0\r\n\r\n"].concat();
    post(&[headers, &["transfer-encoding: chunked"]].concat(), &body)
}

async fn sent(stage: &Stage, request: &[u8]) -> RawReply {
    let reply = stage.raw().send(request).await.unwrap();
    reply.unwrap()
}

pub async fn connect(stage: &Stage) -> TcpStream {
    let at = (Ipv4Addr::LOCALHOST, stage.envoy().port());
    TcpStream::connect(at).await.unwrap()
}

async fn read_until(stream: &mut TcpStream, text: &str) {
    let mut bytes = Vec::new();
    let read = async {
        while !String::from_utf8_lossy(&bytes).contains(text) {
            assert!(stream.read_buf(&mut bytes).await.unwrap() > 0, "{bytes:?}");
        }
    };
    tokio::time::timeout(PATIENCE, read).await.unwrap();
}

const BODY: &[u8] = br#"{"messages":[{"content":"\"max_tokens\":1"}],"max_tokens":321}"#;

#[tokio::test]
async fn a_body_determines_the_reserve_or_the_default_applies() {
    let limiter = Limiter::start().await;
    let stage = stage(&limiter, true, true).await;
    let each: Vec<&[u8]> = BODY.chunks(1).collect();
    let both = br#"{"max_tokens":5,"max_completion_tokens":77}"#;
    let long = json!({"messages": "x".repeat(70_000), "max_tokens": 7}).to_string();
    let long = long.as_bytes();
    let in_parts: Vec<&[u8]> = long.chunks(10_000).collect();
    let large = json!({"messages": "x".repeat(60_000), "max_tokens": 8}).to_string();
    let gzip = [JSON, "content-encoding: gzip"];
    for (what, request, reserved, len) in [
        ("whole", whole(&[JSON], BODY), 321, BODY.len()),
        ("in chunks", chunked(&[JSON], &each), 321, BODY.len()),
        ("the first of two", whole(&[JSON], both), 77, both.len()),
        ("large", whole(&[JSON], large.as_bytes()), 8, large.len()),
        ("absent", whole(&[JSON], b"{}"), 1000, 2),
        ("cut short", whole(&[JSON], &BODY[..61]), 1000, 61),
        ("compressed", whole(&gzip, BODY), 1000, BODY.len()),
        (
            "not JSON",
            whole(&["content-type: text/plain"], BODY),
            1000,
            BODY.len(),
        ),
        ("too long", whole(&[JSON], long), 1000, long.len()),
        (
            "too long in chunks",
            chunked(&[JSON], &in_parts),
            1000,
            long.len(),
        ),
        ("without a body", whole(&[JSON], b""), 1000, 0),
    ] {
        let before = stage.upstream.body_bytes();
        let reply = sent(&stage, &request).await;
        assert_eq!(reply.status, 200, "{what}");
        assert_eq!(limiter.settled().await, reserved, "{what}");
        let passed = stage.upstream.body_bytes() - before;
        assert_eq!(passed, u64::try_from(len).unwrap(), "{what}");
    }
}

#[tokio::test]
async fn a_client_that_expects_to_be_told_to_continue_sends_its_body() {
    let limiter = Limiter::start().await;
    let stage = stage(&limiter, true, true).await;
    let mut stream = connect(&stage).await;
    let length = format!("content-length: {}", BODY.len());
    let head = post(&[JSON, &length, "expect: 100-continue"], b"");
    stream.write_all(&head).await.unwrap();
    read_until(&mut stream, "100 Continue").await;
    stream.write_all(BODY).await.unwrap();
    read_until(&mut stream, "hello").await;
    assert_eq!(limiter.settled().await, 321);
}

/// Waits until Envoy has so many requests.
async fn active(stage: &Stage, requests: u64) {
    let active = async || {
        let active = stage
            .envoy()
            .stat("http.ingress.downstream_rq_active")
            .await;
        (active.ok()? == requests).then_some(())
    };
    wait_for("so many requests", active).await;
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for_long() {
    let limiter = Limiter::start().await;
    let stage = stage(&limiter, true, true).await;
    let mut slow = connect(&stage).await;
    let (first, rest) = BODY.split_at(20);
    let length = format!("content-length: {}", BODY.len());
    slow.write_all(&post(&[JSON, &length], first))
        .await
        .unwrap();
    // Other requests are decided meanwhile.
    assert_eq!(sent(&stage, &whole(&[JSON], BODY)).await.status, 200);
    assert_eq!(limiter.settled().await, 321);
    let mut gone = connect(&stage).await;
    gone.write_all(&post(&[JSON, &length], first))
        .await
        .unwrap();
    active(&stage, 2).await;
    drop(gone);
    active(&stage, 1).await;
    let asked = async || (limiter.asked() > 1).then_some(());
    wait_for("one is decided without its body", asked).await;
    assert_eq!(limiter.asked(), 2, "one is there, and one is gone");
    slow.write_all(rest).await.unwrap();
    read_until(&mut slow, "hello").await;
    assert_eq!(limiter.settled().await, 1000);
}

/// Envoy answers it, although this filter has not decided it.
#[tokio::test]
async fn a_malformed_body_makes_room_for_the_next() {
    let limiter = Limiter::start().await;
    let stage = stage(&limiter, true, true).await;
    let malformed = post(&[JSON, "transfer-encoding: chunked"], b"ZZ\r\n");
    for _ in 0..5 {
        assert_eq!(sent(&stage, &malformed).await.status, 400);
    }
    assert_eq!(sent(&stage, &whole(&[JSON], BODY)).await.status, 200);
    assert_eq!(limiter.settled().await, 321);
    assert_eq!(limiter.asked(), 1);
}

#[tokio::test]
async fn uploads_pass_however_large_while_they_are_decided() {
    let limiter = Limiter::start().await;
    let stage = stage(&limiter, true, true).await;
    let piece = vec![b'x'; 100_000];
    let pieces: Vec<&[u8]> = vec![&piece; 80];
    for headers in [[JSON], ["content-type: text/plain"]] {
        let before = stage.upstream.body_bytes();
        let reply = sent(&stage, &chunked(&headers, &pieces)).await;
        assert_eq!(reply.status, 200);
        assert_eq!(stage.upstream.body_bytes() - before, 8_000_000);
        assert_eq!(limiter.settled().await, 1000);
    }
}

#[tokio::test]
async fn requests_without_a_body_to_read_do_not_wait() {
    let limiter = Limiter::start().await;
    let stage = stage(&limiter, true, true).await;
    // The bodies of these do not come before the responses.
    for headers in [
        &["connection: upgrade", "upgrade: websocket", JSON][..],
        &[
            "content-type: application/grpc",
            "transfer-encoding: chunked",
        ],
    ] {
        let mut stream = connect(&stage).await;
        let (started, before) = (Instant::now(), limiter.asked());
        stream.write_all(&post(headers, b"")).await.unwrap();
        wait_for("a check", async || (limiter.asked() > before).then_some(())).await;
        assert!(
            started.elapsed() < Duration::from_millis(800),
            "{headers:?}"
        );
        drop(stream);
        limiter.settled().await;
    }
}

#[tokio::test]
async fn the_default_is_reserved_if_the_filter_gets_or_reads_no_body() {
    for (passed_on, read) in [(false, true), (true, false), (false, false)] {
        if Host::is_module() && read {
            continue; // Envoy passes bodies on to a module whatever its configuration says.
        }
        let limiter = Limiter::start().await;
        let stage = stage(&limiter, passed_on, read).await;
        assert_eq!(sent(&stage, &whole(&[JSON], BODY)).await.status, 200);
        assert_eq!(limiter.settled().await, 1000, "{passed_on} {read}");
        assert_eq!(stage.upstream.body_bytes(), 62);
    }
}

/// Neither body nor trailers end the wait for a decision.
#[tokio::test]
async fn bodies_and_trailers_do_not_pass_before_the_decision() {
    let spent = "{name: spent, match: {path: \"/llm/**\"}, rate: 1/1h, \
         cost: {from: {response_header: x-tokens}, if_absent: reserved, \
         reserve: {from: {request_json: /max_tokens}, default: 1}}}";
    let stage = limits(&[spent])
        .filter(|config| config["request_body"] = json!({"max": 65536}))
        .config(|config| {
            let config = config.http_filters(|filters| {
                filters[0]["typed_config"]["config"]["allow_on_headers_stop_iteration"] =
                    json!(true);
            });
            config.unwrap()
        })
        .await;
    assert_eq!(
        sent(&stage, &whole(&[JSON], b"{\"max_tokens\":1}"))
            .await
            .status,
        200
    );
    for headers in [&[JSON][..], &["content-type: text/plain"]] {
        for request in [whole(headers, BODY), chunked(headers, &[BODY, BODY])] {
            assert_eq!(sent(&stage, &request).await.status, 429);
        }
        for with_trailers in [false, true] {
            let status = over_http2(&stage, headers[0], with_trailers).await;
            assert_eq!(status, 429, "{headers:?} {with_trailers}");
        }
    }
    assert_eq!(stage.upstream.requests_for("/llm/x"), 1);
}

/// Posts the body, with or without trailers; returns the status.
async fn over_http2(stage: &Stage, content_type: &str, with_trailers: bool) -> u16 {
    let (mut client, connection) = h2::client::handshake(connect(stage).await).await.unwrap();
    let driven = tokio::spawn(connection);
    let value = content_type.split_once(": ").unwrap().1;
    let request = hyper::Request::post("http://any/llm/x").header("content-type", value);
    let (answer, mut body) = client
        .send_request(request.body(()).unwrap(), false)
        .unwrap();
    body.send_data(Bytes::from_static(BODY), !with_trailers)
        .unwrap();
    if with_trailers {
        let mut trailers = hyper::HeaderMap::new();
        trailers.insert("x-end", "1".parse().unwrap());
        body.send_trailers(trailers).unwrap();
    }
    let status = answer.await.unwrap().status().as_u16();
    driven.abort();
    status
}

/// `rlctl doctor` reports that such requests wait in vain, after three at one worker.
#[tokio::test]
async fn doctor_sees_that_envoy_passes_no_bodies_on() {
    if Host::is_module() {
        return; // Envoy passes bodies on to a module whatever its configuration says.
    }
    let item = TOKENS.replace("on_failure: deny, ", "");
    let plan = limits(&[&item]).filter(|config| config["request_body"] = json!({"max": 65536}));
    let stage = plan.workers(1).await;
    let in_vain = || {
        stage
            .doctor()
            .to_string()
            .contains("allow_on_headers_stop_iteration")
    };
    for _ in 0..3 {
        assert!(!in_vain());
        assert_eq!(sent(&stage, &whole(&[JSON], BODY)).await.status, 200);
    }
    wait_for("doctor sees it", async || in_vain().then_some(())).await;
}
