//! The peers of Envoy: a limiter that allows and reserves everything, and a service whose responses
//! a test defines byte for byte.

use std::{
    collections::HashMap,
    net::Ipv4Addr,
    sync::{Arc, Mutex},
    time::Duration,
};

use h2::server::handshake;
use harness::{Bytes, answer, serve_each};
use hyper::{HeaderMap, Response};
use policy::Revision;
use protocol::{
    Answer, Reservation,
    compact::{Batch, BatchAnswer},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::{
    invalid_answers::{CBOR, SIGNED},
    once::untrusted_answers::extreme,
};

/// A step of a service's response.
#[derive(Clone, Debug)]
pub enum Act {
    Send(Vec<u8>),
    Wait(Duration),
    Close,
}

/// The head and the start of the body of a response.
pub fn sent(status: &str, headers: &[&str], body: &[u8]) -> Act {
    let lines = headers.iter().map(|line| format!("{line}\r\n"));
    let head = format!("HTTP/1.1 {status}\r\n{}\r\n", lines.collect::<String>());
    Act::Send([head.as_bytes(), body].concat())
}

/// A whole response.
pub fn plain(status: &str, headers: &[&str], body: &[u8]) -> Act {
    let length = format!("content-length: {}", body.len());
    sent(status, &[headers, &[&length]].concat(), body)
}

/// A response in chunks, each sent separately; the last act ends it.
pub fn chunked(headers: &[&str], chunks: &[Vec<u8>]) -> Vec<Act> {
    let mut acts = vec![sent(
        "200 OK",
        &[headers, &["transfer-encoding: chunked"]].concat(),
        b"",
    )];
    for chunk in chunks {
        let head = format!("{:x}\r\n", chunk.len());
        acts.push(Act::Send([head.as_bytes(), chunk, b"\r\n"].concat()));
    }
    acts.push(Act::Send(b"0\r\n\r\n".to_vec()));
    acts
}

/// The service behind Envoy; it ends when dropped.
pub struct Service {
    pub port: u16,
    _tasks: JoinSet<()>,
}

impl Service {
    /// Answers each path with its acts.
    pub async fn start(paths: Vec<(&'static str, Vec<Act>)>) -> Self {
        let paths: HashMap<&str, Vec<Act>> = paths.into_iter().collect();
        Self::answering(move |head| paths[head.split(' ').nth(1).unwrap()].clone()).await
    }

    /// Answers each request by its head. (Envoy sends names of headers in lower case.)
    pub async fn answering(acts: impl Fn(&str) -> Vec<Act> + Send + Sync + 'static) -> Self {
        let acts: Arc<Acts> = Arc::new(acts);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let each = move |stream: TcpStream| {
            stream.set_nodelay(true).unwrap();
            act(stream, Arc::clone(&acts))
        };
        Self {
            port,
            _tasks: serve_each(listener, each),
        }
    }

    /// Answers every HTTP/2 request with a body and a trailer.
    pub async fn with_trailers(port: u16, name: &'static str, value: &'static str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .await
            .unwrap();
        let each = move |stream| async move {
            let mut connection = handshake(stream).await.unwrap();
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                let mut body = respond.send_response(Response::new(()), false).unwrap();
                body.send_data(Bytes::from("body"), false).unwrap();
                let mut trailers = HeaderMap::new();
                trailers.insert(name, value.parse().unwrap());
                body.send_trailers(trailers).unwrap();
            }
        };
        Self {
            port,
            _tasks: serve_each(listener, each),
        }
    }
}

/// What a service does for a request with some head.
type Acts = dyn Fn(&str) -> Vec<Act> + Send + Sync;

/// Answers the requests of one connection.
async fn act(mut stream: TcpStream, acts: Arc<Acts>) {
    let mut bytes = Vec::new();
    loop {
        let Some(end) = end_of_head(&bytes) else {
            match stream.read_buf(&mut bytes).await {
                Ok(0) | Err(_) => return,
                Ok(_) => continue,
            }
        };
        let head = String::from_utf8(bytes.drain(..end).collect()).unwrap();
        for act in acts(&head) {
            match act {
                Act::Send(bytes) if stream.write_all(&bytes).await.is_err() => return,
                Act::Send(_) => {}
                Act::Wait(time) => tokio::time::sleep(time).await,
                Act::Close => return,
            }
        }
    }
}

fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let at = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    Some(at + 4)
}

/// Sends a GET and reads the response until it contains a text.
pub async fn read_until(port: u16, path: &str, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
        .await
        .unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nhost: any\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    let read = async {
        while !String::from_utf8_lossy(&bytes).contains(text) {
            assert!(
                stream.read_buf(&mut bytes).await.unwrap() > 0,
                "{path} ended"
            );
        }
    };
    tokio::time::timeout(crate::stage::PATIENCE, read)
        .await
        .unwrap();
    stream
}

/// A limiter that allows everything and reserves the requested units.
pub struct Limiter {
    pub port: u16,
    state: Arc<Mutex<State>>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct State {
    reserved: HashMap<u64, u64>,
    numbers: u64,
    settled: Vec<u64>,
}

impl Limiter {
    pub async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::<Mutex<State>>::default();
        let shared = Arc::clone(&state);
        Self {
            port,
            state,
            _tasks: serve_each(listener, move |stream| decide(stream, Arc::clone(&shared))),
        }
    }

    /// The cost of the only reservation, once it is settled.
    pub async fn settled(&self) -> u64 {
        super::wait_for("the request is settled", async || {
            let mut state = self.state.lock().unwrap();
            let settled = state.settled.pop()?;
            assert!(state.settled.is_empty() && state.reserved.is_empty());
            Some(settled)
        })
        .await
    }

    /// The number of reservations so far.
    pub fn asked(&self) -> u64 {
        self.state.lock().unwrap().numbers
    }

    /// Whether [`Limiter::settled`] has returned every settlement.
    pub fn is_settled(&self) -> bool {
        self.state.lock().unwrap().settled.is_empty()
    }
}

/// Answers one call.
async fn decide(mut stream: TcpStream, state: Arc<Mutex<State>>) {
    let mut bytes = Vec::new();
    let (head, body) = loop {
        if let Some(end) = end_of_head(&bytes) {
            let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
            let length = head.split("content-length: ").nth(1).map_or(0, |rest| {
                rest.split("\r\n").next().unwrap().parse::<usize>().unwrap()
            });
            if bytes.len() >= end + length {
                break (head, bytes.split_off(end));
            }
        }
        match stream.read_buf(&mut bytes).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    };
    let reply = if head.starts_with("post /v1/check") {
        let reply = state.lock().unwrap().answer(&Batch::decode(&body).unwrap());
        answer("200 OK", &[SIGNED, CBOR], &reply)
    } else {
        answer("304 Not Modified", &[SIGNED], b"")
    };
    let _ = stream.write_all(&reply).await;
    let _ = stream.shutdown().await;
}

impl State {
    fn answer(&mut self, batch: &Batch) -> Vec<u8> {
        let results = batch.checks.iter().map(|check| {
            for settled in check.limits.iter().flat_map(|of| &of.settle) {
                let units = self.reserved.remove(&settled.reservation.number).unwrap();
                assert_eq!(units, settled.reservation.units);
                self.settled.push(settled.units);
            }
            let costs = check
                .limits
                .iter()
                .filter_map(|of| Some((&of.limit, of.cost?)));
            let limits = costs.map(|(limit, cost)| {
                assert!(cost.reserve);
                self.numbers += 1;
                self.reserved.insert(self.numbers, cost.units);
                let mut answer = extreme(limit.as_str());
                answer.verdict.charged = cost.units;
                (answer.verdict.slot, answer.verdict.lease) = (None, None);
                answer.reservation = Some(Reservation {
                    secret: check.slot.unwrap().secret,
                    number: self.numbers,
                    units: cost.units,
                    seal: 0,
                });
                answer
            });
            Ok(Answer {
                parts: Vec::new(),
                revision: Revision::default(),
                now_ms: 1,
                allowed: true,
                limits: limits.collect(),
            })
        });
        let batch = BatchAnswer {
            results: results.collect(),
            revision: Revision::default(),
            proxies: Vec::new(),
        };
        batch.encode()
    }
}
