//! A proxy in front of a limiter that can hold checks, so that a test controls how many are pending
//! and when each is answered.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::{free_port, serve::serve};

/// More permits than any test needs.
const OPEN: usize = 1 << 20;

/// The proxy. Clones share it; it ends with the last.
#[derive(Debug, Clone)]
pub struct Gate {
    port: u16,
    shared: Arc<Shared>,
    listening: Arc<Mutex<JoinSet<()>>>,
}

#[derive(Debug)]
struct Shared {
    behind: Mutex<u16>,
    checks: Mutex<Vec<Bytes>>,
    permits: Semaphore,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Gate {
    /// Starts it open, on a free port, without a limiter.
    pub async fn start() -> Result<Self> {
        let gate = Self {
            port: free_port()?,
            shared: Arc::new(Shared {
                behind: Mutex::default(),
                checks: Mutex::default(),
                permits: Semaphore::new(OPEN),
                client: Client::builder(TokioExecutor::new()).build_http(),
            }),
            listening: Arc::default(),
        };
        gate.listen().await?;
        Ok(gate)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sets the port that calls are forwarded to.
    pub fn forward_to(&self, port: u16) {
        *lock(&self.shared.behind) = port;
    }

    /// Closes every connection, and refuses new ones.
    pub async fn shut(&self) {
        let mut tasks = std::mem::take(&mut *lock(&self.listening));
        tasks.shutdown().await;
    }

    /// Accepts connections again.
    pub async fn listen(&self) -> Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port)).await?;
        let shared = Arc::clone(&self.shared);
        lock(&self.listening).spawn(serve(listener, move |request| {
            pass(request, Arc::clone(&shared))
        }));
        Ok(())
    }

    /// Holds further checks.
    pub fn hold(&self) {
        self.shared.permits.forget_permits(usize::MAX);
    }

    /// Forwards all held and further checks.
    pub fn open(&self) {
        self.shared.permits.add_permits(OPEN);
    }

    /// The bodies of all checks so far.
    pub fn checks(&self) -> Vec<Bytes> {
        lock(&self.shared.checks).clone()
    }
}

async fn pass(request: Request<Incoming>, shared: Arc<Shared>) -> Response<Full<Bytes>> {
    forward(request, &shared).await.unwrap_or_else(|_| {
        let mut response = Response::new(Full::default());
        *response.status_mut() = StatusCode::BAD_GATEWAY;
        response
    })
}

async fn forward(request: Request<Incoming>, shared: &Shared) -> Result<Response<Full<Bytes>>> {
    let (mut head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    if head.uri.path() == "/v1/check" {
        lock(&shared.checks).push(body.clone());
        shared.permits.acquire().await?.forget();
    }
    let behind = *lock(&shared.behind);
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    head.uri = format!("http://127.0.0.1:{behind}{path}").parse()?;
    let forwarded = Request::from_parts(head, Full::new(body));
    let (head, body) = shared.client.request(forwarded).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    Ok(Response::from_parts(head, Full::new(body)))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
