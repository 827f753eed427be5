//! Calls straight to a limiter over cleartext HTTP/2, as Envoy sends them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::Limiter;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use protocol::CHECK_CBOR;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::limiter::batch;
use super::load::USER_COUNT;

/// One call.
pub struct Call {
    /// Its path.
    pub path: &'static str,
    /// What its body is.
    pub content_type: &'static str,
    /// Its body.
    pub body: Vec<u8>,
}

/// A connection to a limiter.
#[derive(Clone)]
pub struct H2c {
    sender: SendRequest<Full<Bytes>>,
    url: String,
}

/// The results of one run.
#[derive(Debug, Clone, Copy)]
pub struct Calls {
    /// Calls per second.
    pub per_second: u64,
    /// Half of the answers came within this many microseconds.
    pub p50_us: u64,
    /// CPU time of the limiter per call, in nanoseconds.
    pub cpu_ns: u64,
}

impl H2c {
    /// Connects.
    pub async fn connect(limiter: &Limiter) -> Result<Self> {
        let url = limiter.url();
        let address = url.strip_prefix("http://").context("a URL of a limiter")?;
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self { sender, url })
    }

    /// Calls for a while, so many at once, with one check each, and measures the limiter.
    pub async fn measure(&self, limiter: &Limiter, at_once: u64, lasts: Duration) -> Result<Calls> {
        let (before, started) = (limiter.process().cpu_us()?, Instant::now());
        let until = started + lasts;
        let mut took_us = self
            .each(at_once, move |caller, made| {
                let goes_on = Instant::now() < until;
                goes_on.then(|| checks_of(caller, made, 1)).transpose()
            })
            .await?;
        let lasted = u64::try_from(started.elapsed().as_micros())?.max(1);
        let cpu_us = limiter.process().cpu_us()? - before;
        let calls = u64::try_from(took_us.len())?.max(1);
        took_us.sort_unstable();
        Ok(Calls {
            per_second: calls.saturating_mul(1_000_000) / lasted,
            p50_us: took_us.get(took_us.len() / 2).copied().unwrap_or(0),
            cpu_ns: cpu_us.saturating_mul(1000) / calls,
        })
    }

    /// Makes so many calls, so many at once, with so many checks each.
    pub async fn make(&self, calls: u64, at_once: u64, checks: u64) -> Result<()> {
        let each = calls / at_once;
        let call = move |caller, made| {
            let goes_on = made < each;
            goes_on.then(|| checks_of(caller, made, checks)).transpose()
        };
        self.each(at_once, call).await.map(drop)
    }

    /// Makes calls, so many at once: `call` is given which of those at once makes it, and how many that
    /// one has made; its `None` ends it. Returns how many microseconds each took.
    pub async fn each(
        &self,
        at_once: u64,
        call: impl Fn(u64, u64) -> Result<Option<Call>> + Clone + Send + 'static,
    ) -> Result<Vec<u64>> {
        let mut callers = JoinSet::new();
        for caller in 0..at_once {
            let (mut to, call) = (self.clone(), call.clone());
            callers.spawn(async move {
                let mut took_us = Vec::new();
                for made in 0.. {
                    let Some(call) = call(caller, made)? else {
                        break;
                    };
                    took_us.push(to.call(call).await?);
                }
                Ok::<_, anyhow::Error>(took_us)
            });
        }
        let mut all = Vec::new();
        while let Some(took_us) = callers.join_next().await {
            all.append(&mut took_us??);
        }
        Ok(all)
    }

    async fn call(&mut self, call: Call) -> Result<u64> {
        let request = Request::post(format!("{}{}", self.url, call.path))
            .header("content-type", call.content_type)
            .header("te", "trailers")
            .body(Full::from(call.body))?;
        let started = Instant::now();
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let status = response.status();
        let answer = response.into_body().collect().await?;
        let took_us = u64::try_from(started.elapsed().as_micros())?;
        ensure!(status == StatusCode::OK, "a call is answered {status}");
        let trailer = answer.trailers().and_then(|all| all.get("grpc-status"));
        ensure!(
            trailer.is_none_or(|status| status == "0"),
            "a call ends with status {trailer:?}"
        );
        // An error of gRPC has no message, whose head is five bytes.
        ensure!(answer.to_bytes().len() > 5, "a call is answered nothing");
        Ok(took_us)
    }
}

/// A call with so many checks, of users that a caller takes in turn.
fn checks_of(caller: u64, made: u64, checks: u64) -> Result<Call> {
    let user = (caller * 31 + made * checks) % USER_COUNT;
    Ok(Call {
        path: "/v1/check",
        content_type: CHECK_CBOR,
        body: batch(user, checks)?.encode(),
    })
}
