//! The service behind Envoy: counts requests and answers, at once unless a test says otherwise.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue, LOCATION};
use hyper::{Request, Response, StatusCode};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::serve::serve;

/// Requests so far.
#[derive(Debug, Default)]
struct Seen {
    requests: u64,
    body_bytes: u64,
    headers: HeaderMap,
    targets: HashMap<String, u64>,
    answers_with: HeaderMap,
    answer: Planned,
    redirects: HashMap<&'static str, &'static str>,
}

/// How requests are answered.
#[derive(Debug, Clone)]
struct Planned {
    after: Duration,
    status: StatusCode,
    body: Bytes,
}

impl Default for Planned {
    fn default() -> Self {
        Self {
            after: Duration::ZERO,
            status: StatusCode::OK,
            body: Bytes::from_static(b"hello\n"),
        }
    }
}

/// A running service; it ends when dropped.
#[derive(Debug)]
pub struct Upstream {
    address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    _tasks: JoinSet<()>,
}

impl Upstream {
    /// Starts it; port 0 takes a free one.
    pub async fn start(port: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .await
            .with_context(|| format!("the upstream cannot listen on port {port}"))?;
        let (address, seen) = (listener.local_addr()?, Arc::default());
        let mut tasks = JoinSet::new();
        let seeing = Arc::clone(&seen);
        tasks.spawn(serve(listener, move |request| {
            answer(request, Arc::clone(&seeing))
        }));
        Ok(Self {
            address,
            seen,
            _tasks: tasks,
        })
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Requests so far.
    pub fn requests(&self) -> u64 {
        lock(&self.seen).requests
    }

    /// Bytes of request bodies so far.
    pub fn body_bytes(&self) -> u64 {
        lock(&self.seen).body_bytes
    }

    /// The number of requests for a target, spelt exactly like this.
    pub fn requests_for(&self, target: &str) -> u64 {
        lock(&self.seen).targets.get(target).copied().unwrap_or(0)
    }

    /// Adds these headers to all further responses.
    pub fn answer_with(&self, headers: &[(&'static str, &'static str)]) {
        let pairs = headers.iter().map(|(name, value)| {
            let value = HeaderValue::from_static(value);
            (HeaderName::from_static(name), value)
        });
        lock(&self.seen).answers_with = pairs.collect();
    }

    /// Answers further requests with a status, so long after they arrived.
    pub fn answer_after(&self, after: Duration, status: u16) -> Result<()> {
        let status = StatusCode::from_u16(status)?;
        let mut seen = lock(&self.seen);
        seen.answer = Planned {
            after,
            status,
            ..seen.answer.clone()
        };
        Ok(())
    }

    /// Answers further requests with this body.
    pub fn answer_body(&self, body: impl Into<Bytes>) {
        lock(&self.seen).answer.body = body.into();
    }

    /// Redirects further requests for a target to another one.
    pub fn redirect(&self, from: &'static str, to: &'static str) {
        lock(&self.seen).redirects.insert(from, to);
    }

    /// The headers of the latest request.
    pub fn last_headers(&self) -> HeaderMap {
        lock(&self.seen).headers.clone()
    }
}

async fn answer(request: Request<Incoming>, seen: Arc<Mutex<Seen>>) -> Response<Full<Bytes>> {
    let headers = request.headers().clone();
    let target = request.uri().to_string();
    let mut body = request.into_body();
    let mut body_bytes = 0;
    while let Some(Ok(frame)) = body.frame().await {
        body_bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
    }
    let planned = {
        let mut seen = lock(&seen);
        seen.requests += 1;
        seen.body_bytes += body_bytes;
        seen.answer.clone()
    };
    if !planned.after.is_zero() {
        tokio::time::sleep(planned.after).await;
    }
    let mut seen = lock(&seen);
    let to = seen.redirects.get(target.as_str()).copied();
    let location = to.zip(headers.get(HOST)).map(|(to, host)| {
        let host = String::from_utf8_lossy(host.as_bytes());
        format!("http://{host}{to}")
    });
    seen.headers = headers;
    // The suites use few targets; the benchmarks, which send many requests, use one.
    *seen.targets.entry(target).or_default() += 1;
    let mut response = Response::new(Full::new(planned.body));
    *response.status_mut() = planned.status;
    response.headers_mut().extend(seen.answers_with.clone());
    if let Some(location) = location.and_then(|to| HeaderValue::try_from(to).ok()) {
        *response.status_mut() = StatusCode::FOUND;
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}
