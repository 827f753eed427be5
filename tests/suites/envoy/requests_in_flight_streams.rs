//! Streams hold the slots of requests in flight until they end: upgraded connections, events, gRPC streams.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use harness::serve_each;
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::JoinSet,
};

use crate::{
    grpc::{before, connection, peers::Echo},
    requests_in_flight::{for_a_ttl, used},
    stage::{Plan, Stage, limits, statuses},
};

const TWO: &str = "{name: in-flight, match: {path: \"/held/**\"}, per: [user], algorithm: concurrency, limit: 2, slot_ttl: 1s}";

/// A service that upgrades to WebSocket or sends events, until it is told to end its connections.
struct Service {
    port: u16,
    end: Arc<Notify>,
    _tasks: JoinSet<()>,
}

impl Service {
    async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let end = Arc::new(Notify::new());
        let ends = Arc::clone(&end);
        Self {
            port,
            end,
            _tasks: serve_each(listener, move |stream| serve(stream, Arc::clone(&ends))),
        }
    }

    /// Ends all streams from the service's side.
    fn end_all(&self) {
        self.end.notify_waiters();
    }
}

/// Reads a head; returns its lines.
async fn head(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    Some(head)
}

async fn serve(stream: TcpStream, end: Arc<Notify>) {
    let mut stream = BufReader::new(stream);
    while let Some(head) = head(&mut stream).await {
        if !head.contains("/held/") {
            let ok = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(ok).await.unwrap();
            continue;
        }
        let upgrade = head.contains("upgrade: websocket");
        let answer: &[u8] = if upgrade {
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
        } else {
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        };
        stream.write_all(answer).await.unwrap();
        tokio::select! {
            () = talk(&mut stream, upgrade) => return,
            () = end.notified() => {}
        }
        if upgrade {
            return;
        }
        // The connection stays open, like other upstream connections.
        let _ = stream.write_all(b"0\r\n\r\n").await;
    }
}

/// Echoes bytes, or sends events, until the client disconnects.
async fn talk(stream: &mut BufReader<TcpStream>, echo: bool) {
    let mut bytes = [0; 64];
    loop {
        let sent = if echo {
            match stream.read(&mut bytes).await {
                Ok(0) | Err(_) => return,
                Ok(len) => stream.write_all(&bytes[..len]).await,
            }
        } else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            stream.write_all(b"9\r\ndata: 1\n\n\r\n").await
        };
        if sent.is_err() {
            return;
        }
    }
}

/// Envoy in front of this service, with upgrades allowed.
fn before_service(service: &Service) -> Plan {
    let port = service.port;
    limits(&[TWO]).may_use(port).config(move |config| {
        let config = config.edit(|tree| {
            let upstream = &mut tree["static_resources"]["clusters"][1];
            assert_eq!(upstream["name"], "upstream");
            let endpoint = "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address";
            upstream.pointer_mut(endpoint).unwrap()["socket_address"]["port_value"] = json!(port);
        });
        let allow = |manager: &mut serde_json::Value| {
            manager["upgrade_configs"] = json!([{"upgrade_type": "websocket"}]);
        };
        config.manager_edit(allow).unwrap()
    })
}

/// A client's connection with one open stream.
struct Client(BufReader<TcpStream>);

impl Client {
    async fn open(stage: &Stage, headers: &str, status: &str) -> Self {
        let port = stage.envoy().port();
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await;
        let mut stream = BufReader::new(stream.unwrap());
        let request =
            format!("GET /held/x HTTP/1.1\r\nhost: any\r\nx-user-id: alice\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let head = head(&mut stream).await.unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
        Self(stream)
    }

    async fn web_socket(stage: &Stage, status: &str) -> Self {
        let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                       sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        Self::open(stage, upgrade, status).await
    }

    async fn events(stage: &Stage, status: &str) -> Self {
        Self::open(stage, "accept: text/event-stream\r\n", status).await
    }

    async fn echoed(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
        let mut bytes = vec![0; text.len()];
        self.0.read_exact(&mut bytes).await.unwrap();
        assert_eq!(bytes, text.as_bytes());
    }

    /// Waits until the server has ended the stream.
    async fn ended(mut self, last: &[u8]) {
        let mut rest = Vec::new();
        while !rest.ends_with(last) || last.is_empty() {
            let mut bytes = [0; 256];
            match self.0.read(&mut bytes).await {
                Ok(0) | Err(_) => return assert!(last.is_empty(), "cut short"),
                Ok(len) => rest.extend_from_slice(&bytes[..len]),
            }
        }
    }
}

async fn both_are_held_for_long(stage: &Stage) {
    used(stage, "alice", 2).await;
    for _ in 0..2 {
        for_a_ttl(stage, "/held/x", 2).await;
    }
    assert_eq!(statuses(&stage.get("/held/y", "alice"), 2).await, [429; 2]);
    assert_eq!(stage.limiter_counter("rl_slots_lapsed_total").await, 0);
}

#[tokio::test]
async fn a_web_socket_holds_its_slot_until_either_side_closes_it() {
    let service = Service::start().await;
    let stage = before_service(&service).await;
    let mut first = Client::web_socket(&stage, "101").await;
    let mut second = Client::web_socket(&stage, "101").await;
    first.echoed("hello").await;
    both_are_held_for_long(&stage).await;
    drop(Client::web_socket(&stage, "429").await);
    second.echoed("it goes on").await;
    // Ended by its client.
    drop(first);
    let took = used(&stage, "alice", 1).await;
    eprintln!("freed {took:?} after the client closed");
    let third = Client::web_socket(&stage, "101").await;
    used(&stage, "alice", 2).await;
    // Ended by the service.
    service.end_all();
    second.ended(b"").await;
    third.ended(b"").await;
    let took = used(&stage, "alice", 0).await;
    eprintln!("freed {took:?} after the service closed");
}

#[tokio::test]
async fn events_hold_their_slot_until_either_side_ends_them() {
    let service = Service::start().await;
    let stage = before_service(&service).await;
    let first = Client::events(&stage, "200").await;
    let second = Client::events(&stage, "200").await;
    both_are_held_for_long(&stage).await;
    drop(first);
    let took = used(&stage, "alice", 1).await;
    eprintln!("freed {took:?} after the client left");
    service.end_all();
    second.ended(b"0\r\n\r\n").await;
    let took = used(&stage, "alice", 0).await;
    eprintln!("freed {took:?} after the last event");
}

#[tokio::test]
async fn a_grpc_stream_holds_its_slot_until_its_trailers_or_its_reset() {
    let echo = Echo::start().await;
    let limit = "{name: in-flight, match: {path: \"/shop.Orders/**\"}, per: [user], algorithm: concurrency, limit: 2, slot_ttl: 1s}";
    let stage = before(&echo, &[limit]).await;
    let client = connection(&stage).await;
    let mut first = client
        .begin("/shop.Orders/Watch", "alice")
        .await
        .begun()
        .await;
    first.echoed("first").await;
    let mut second = client.begin("/shop.Orders/Watch", "alice").await;
    second.say("second", false);
    used(&stage, "alice", 2).await;
    for _ in 0..2 {
        for_a_ttl(&stage, "/shop.Orders/Watch", 2).await;
    }
    let denied = client.unary("/shop.Orders/List", "alice").await;
    assert_eq!((denied.grpc_status(), denied.trailers_only), ("8", true));
    first.echoed("it goes on").await;
    let answer = first.end().await;
    assert_eq!((answer.grpc_status(), answer.trailers_only), ("0", false));
    let took = used(&stage, "alice", 1).await;
    eprintln!("freed {took:?} after the trailers");
    second.reset();
    let took = used(&stage, "alice", 0).await;
    eprintln!("freed {took:?} after the reset");
}
