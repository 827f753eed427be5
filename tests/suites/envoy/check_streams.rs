//! Checks on the worker's stream: decided as by callouts, also if limiters stop, die, hang, speak
//! HTTP/1.1, or are impostors.

use std::{
    net::Ipv4Addr,
    sync::{Arc, Mutex},
};

use h2::server::SendResponse;
use harness::{flood, free_port};
use hyper::{Request, Response, body::Bytes};
use protocol::{CHECK_STREAM, StreamAnswer, StreamCall};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use crate::{
    once::untrusted_answers::{batch, in_force},
    reconfiguration::Delivered,
    stage::{Plan, Stage, compiled, eventually, limits, statuses},
};

const PER_USER: &str = "{name: per-user, per: [user], algorithm: fixed_window, rate: 300/1d}";

fn streaming(items: &[&str]) -> Plan {
    limits(items).config(|config| config.check_streams().unwrap())
}

async fn stat(stage: &Stage, name: &str) -> u64 {
    stage
        .envoy()
        .stat(&format!("wasmcustom.{name}"))
        .await
        .unwrap_or(0)
}

/// Waits until a counter is above a number.
async fn above(stage: &Stage, name: &str, count: u64) {
    eventually(name, async || {
        (stat(stage, name).await > count).then_some(())
    })
    .await;
}

/// Sends requests of one user to both workers; returns how many pass.
async fn send(stage: &Stage, user: &str, requests: u64) -> u64 {
    let request = format!("GET / HTTP/1.1\r\nhost: a\r\nx-user-id: {user}\r\n\r\n");
    let request = move |_| request.clone().into_bytes();
    flood(stage.envoy().port(), 8, requests, request)
        .await
        .unwrap()
}

/// Sends requests until each worker has a stream and sends its calls on it.
async fn open(stage: &Stage) {
    let opened = stat(stage, "rl_stream.opened").await;
    let calls = stat(stage, "rl_stream.calls").await;
    eventually("calls go by streams", async || {
        send(stage, "another", 40).await;
        let opened = stat(stage, "rl_stream.opened").await >= opened.max(2);
        (opened && stat(stage, "rl_stream.calls").await > calls).then_some(())
    })
    .await;
}

#[tokio::test]
async fn checks_on_a_stream_admit_exactly_the_limit() {
    let stage = streaming(&[PER_USER]).await;
    open(&stage).await;
    let answered = stat(&stage, "rl_callouts.answered").await;
    let streamed = stat(&stage, "rl_stream.calls").await;
    assert_eq!(send(&stage, "alice", 1_000).await, 300);
    above(&stage, "rl_callouts.answered", answered + 20).await;
    // Each worker adds its counts of a second to one counter after the other, while these are read.
    eventually("calls go by streams", async || {
        let calls = stat(&stage, "rl_callouts.answered").await - answered;
        let streamed = stat(&stage, "rl_stream.calls").await - streamed;
        (streamed + 4 >= calls).then_some(())
    })
    .await;
    assert_eq!(
        stage.metric_of(0, "rl_check_streams").await + stage.metric_of(1, "rl_check_streams").await,
        2
    );
    assert_eq!(stat(&stage, "rl_callouts.failed").await, 0);
}

/// SIGTERM announces the end of a stream: calls on it are answered, and later ones go elsewhere.
#[tokio::test]
async fn a_limiter_that_ends_under_load_fails_no_call() {
    let mut stage = streaming(&["{name: all, rate: 1000000/s}"]).await;
    open(&stage).await;
    let port = stage.envoy().port();
    let request =
        |n: u64| format!("GET / HTTP/1.1\r\nhost: a\r\nx-user-id: {n}\r\n\r\n").into_bytes();
    for _ in 0..3 {
        let answered = stat(&stage, "rl_callouts.answered").await;
        let load = tokio::spawn(flood(port, 8, 2_000, request));
        above(&stage, "rl_callouts.answered", answered + 10).await;
        stage.stop_one_limiter().await;
        assert_eq!(load.await.unwrap().unwrap(), 2_000);
        stage.start_limiters().await;
        open(&stage).await;
    }
    assert_eq!(stat(&stage, "rl_callouts.failed").await, 0);
    assert_eq!(stat(&stage, "rl_check_errors").await, 0);
}

/// Envoy keeps a pointer to a stream that its limiter ended. It must survive many of these, a change
/// of the filter's configuration, and its own shutdown.
#[tokio::test]
async fn killing_limiters_fails_their_calls_but_never_crashes_envoy() {
    let plan = streaming(&["{name: all, rate: 1000000/s}"]).shipped_timeouts();
    let mut delivered = Delivered::from_plan(plan).await;
    let port = delivered.port;
    let request =
        |n: u64| format!("GET / HTTP/1.1\r\nhost: a\r\nx-user-id: {n}\r\n\r\n").into_bytes();
    for round in 0..4 {
        eventually("streams are open", async || {
            flood(port, 4, 100, request).await.ok()?;
            (stat(&delivered.stage, "rl_stream.opened").await > round).then_some(())
        })
        .await;
        let calls = stat(&delivered.stage, "rl_stream.calls").await;
        let load = tokio::spawn(flood(port, 8, 2_000, request));
        above(&delivered.stage, "rl_stream.calls", calls + 10).await;
        delivered.stage.kill_one_limiter().await;
        assert_eq!(load.await.unwrap().unwrap(), 2_000);
        delivered.stage.start_limiters().await;
        let edit = |config: &mut Value| config["deny"] = json!({"message": format!("{round}")});
        delivered.change("update_success", edit).await;
    }
    assert!(stat(&delivered.stage, "rl_stream.failed").await > 0);
    delivered.stage.stop_limiters().await;
    assert_eq!(flood(port, 8, 100, request).await.unwrap(), 100);
    delivered
        .change("update_success", |config| {
            config["deny"] = json!({"message": "last"});
        })
        .await;
    assert_eq!(flood(port, 8, 100, request).await.unwrap(), 100);
}

#[tokio::test]
async fn a_limiter_that_hangs_costs_a_request_no_more_than_its_timeout() {
    let mut stage = streaming(&["{name: all, rate: 1000000/s}"])
        .shipped_timeouts()
        .await;
    open(&stage).await;
    for n in 0..2 {
        stage.limiter(n).process().pause().unwrap();
    }
    let replies = statuses(&stage.get("/", "alice"), 20).await;
    assert_eq!(replies, [200; 20]);
    above(&stage, "rl_stream.failed", 0).await;
    for n in 0..2 {
        stage.limiter(n).process().resume().unwrap();
    }
    let opened = stat(&stage, "rl_stream.opened").await;
    eventually("streams are open again", async || {
        send(&stage, "another", 40).await;
        (stat(&stage, "rl_stream.opened").await > opened).then_some(())
    })
    .await;
    stage.stop_limiters().await;
}

#[tokio::test]
async fn a_cluster_without_http2_gets_callouts() {
    let stage = limits(&[PER_USER])
        .filter(|config| config["limiter"]["stream"] = json!(true))
        .await;
    assert_eq!(send(&stage, "alice", 400).await, 300);
    above(&stage, "rl_stream.failed", 0).await;
    assert_eq!(stat(&stage, "rl_stream.opened").await, 0);
    assert_eq!(stat(&stage, "rl_callouts.failed").await, 0);
    let log = stage.envoy().process().log();
    let about = log.lines().find(|line| line.contains("the stream to"));
    let said = "the stream to limiter failed, checks are callouts meanwhile: `\"stream\": true` \
                needs a limiter over HTTP/2: set `explicit_http_config: {http2_protocol_options: {}}` for a cluster";
    assert!(about.unwrap().contains(said), "{about:?}");
    eventually("doctor says it", async || {
        let report = stage.doctor();
        let mut findings = report["findings"].as_array().unwrap().iter();
        findings
            .any(|finding| finding["check"] == "stream")
            .then_some(())
    })
    .await;
}

/// How an impostor reacts to the call of this id.
type Reaction = fn(u32) -> Vec<u8>;

/// Its reaction, which the test changes while streams are open.
type Current = Arc<Mutex<Reaction>>;

fn message(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0][..], &length, message].concat()
}

fn allowed(id: u32) -> Vec<u8> {
    answered(id, 200, &batch(in_force(), true, Vec::new()))
}

fn answered(id: u32, status: u16, body: &[u8]) -> Vec<u8> {
    message(&StreamAnswer { id, status, body }.encode())
}

/// An HTTP/2 server whose streams react like this; other calls get 404.
async fn impostor(port: u16, reaction: Current) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .unwrap();
    while let Ok((socket, _)) = listener.accept().await {
        tokio::spawn(answer_all(socket, reaction.clone()));
    }
}

async fn answer_all(socket: TcpStream, reaction: Current) {
    let Ok(mut connection) = h2::server::handshake(socket).await else {
        return;
    };
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(answer(request, respond, reaction.clone()));
    }
}

/// Ends with the client's stream, or when a reaction breaks the stream.
async fn answer(
    request: Request<h2::RecvStream>,
    mut respond: SendResponse<Bytes>,
    reaction: Current,
) -> Option<()> {
    if request.uri().path() == "/v1/check" {
        let answer = Response::builder().header("x-rl-api", "1").body(()).ok()?;
        let mut body = respond.send_response(answer, false).ok()?;
        let decided = batch(in_force(), true, Vec::new());
        return body.send_data(decided.into(), true).ok();
    }
    if request.uri().path() != CHECK_STREAM {
        let missing = Response::builder().status(404).body(()).ok()?;
        respond.send_response(missing, true).ok()?;
        return None;
    }
    let opened = Response::builder()
        .header("content-type", "application/grpc")
        .body(())
        .ok()?;
    let mut answers = respond.send_response(opened, false).ok()?;
    answers
        .send_data(message(&StreamAnswer::OPEN.encode()).into(), false)
        .ok()?;
    let mut calls = request.into_body();
    while let Some(Ok(data)) = calls.data().await {
        let _ = calls.flow_control().release_capacity(data.len());
        let Some(call) = data.get(5..).and_then(StreamCall::decode) else {
            continue;
        };
        let react = *reaction.lock().unwrap();
        answers.send_data(react(call.id).into(), false).ok()?;
    }
    None
}

/// With every reaction, requests are decided and Envoy survives.
#[tokio::test]
async fn no_message_of_an_impostor_harms_an_envoy() {
    let reactions: [Reaction; 8] = [
        // Messages in the same read as one that makes the filter give up the stream.
        |id| [message(b"?"), allowed(id), allowed(id), message(b"")].concat(),
        |id| [allowed(id.wrapping_add(1)), allowed(id)].concat(),
        |id| [allowed(id), allowed(id)].concat(),
        |_| {
            [
                message(&StreamAnswer::OPEN.encode()),
                message(&StreamAnswer::ENDING.encode()),
            ]
            .concat()
        },
        // Larger than Envoy reads, and without an end.
        |_| [&[0, 0xff, 0xff, 0xff, 0xff][..], &vec![7; 60_000]].concat(),
        |id| answered(id, 200, &vec![0xff; 50_000]),
        |id| answered(id, u16::MAX, b"{}"),
        |_| vec![9, 0, 0, 0, 1, 0],
    ];
    let port = free_port().unwrap();
    let stage = streaming(&[])
        .without_limiters()
        .may_use(port)
        .filter(|config| {
            let limit = "{name: all, rate: 9/s, on_failure: allow}";
            config["limits"] = json!(compiled("shop", &[limit]));
            config["limiter"]["timeout"] = json!("200ms");
        })
        .config(move |config| config.limiter_at(port).unwrap())
        .start_unlimited()
        .await;
    let current: Current = Arc::new(Mutex::new(allowed));
    tokio::spawn(impostor(port, current.clone()));
    for (n, reaction) in reactions.into_iter().enumerate() {
        // A call that is answered in time resets how long the next stream has to wait.
        for (reaction, more) in [(allowed as Reaction, 8), (reaction, 1)] {
            *current.lock().unwrap() = reaction;
            let calls = stat(&stage, "rl_stream.calls").await;
            eventually("the stream was tried", async || {
                assert_eq!(send(&stage, "any", 60).await, 60, "{n}");
                (stat(&stage, "rl_stream.calls").await >= calls + more).then_some(())
            })
            .await;
        }
    }
}
