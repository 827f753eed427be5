//! `--compare-with`: sends each call also to another rate limit service, counts differing decisions
//! and logs some of them.
//!
//! The other service never delays or changes an answer: calls wait in a bounded queue and are
//! dropped when it is full.

use std::{
    fmt::Write as _,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use hyper::http::uri::PathAndQuery;
use policy::Name;
use prost::Message;
use tokio::{
    sync::{Semaphore, mpsc},
    time::{Instant, timeout},
};
use tonic::{
    client::Grpc,
    transport::{Channel, ClientTlsConfig, Endpoint, Error},
};
use tonic_prost::ProstCodec;

use super::{
    SHOULD_RATE_LIMIT,
    messages::{Code, RateLimitRequest, RateLimitResponse},
};
use crate::metrics::Metrics;

/// Bound: calls that wait to be compared with `--compare-with`. Beyond it, not compared, and
/// counted.
const WAITING: usize = 1024;
/// Bound: calls to `--compare-with` at once. Beyond it, the others wait.
const UNDER_WAY: usize = 32;

/// Larger calls are not compared: the queue holds at most 1,024 times this.
const MAX_CALL: usize = 16 * 1024;

/// How long the other service may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// The pause between two lines of the log, and the most bytes of descriptors in one.
const LINE_EVERY: Duration = Duration::from_secs(1);
const MAX_LINE: usize = 1024;

/// A call, and what this limiter answered.
struct Call {
    /// The domain, if this limiter has it.
    domain: Option<Name>,
    request: RateLimitRequest,
    ours: RateLimitResponse,
}

/// The other service, to which calls are sent.
pub(crate) struct Comparison {
    queue: mpsc::Sender<Call>,
    metrics: Arc<Metrics>,
}

impl Comparison {
    /// Starts to compare with a service at `http://HOST:PORT` or `https://HOST:PORT`; must be called
    /// within a Tokio runtime.
    ///
    /// # Errors
    /// Where that is no such address.
    pub(crate) fn start(url: &str, metrics: Arc<Metrics>) -> Result<Self, Error> {
        let mut endpoint = Endpoint::from_shared(url.to_owned())?;
        if url.starts_with("https://") {
            endpoint = endpoint.tls_config(ClientTlsConfig::new().with_native_roots())?;
        }
        let (queue, calls) = mpsc::channel(WAITING);
        let worker = Worker {
            channel: endpoint.connect_timeout(ANSWER_WITHIN).connect_lazy(),
            metrics: Arc::clone(&metrics),
            next_line: Mutex::new(Instant::now()),
        };
        tokio::spawn(Arc::new(worker).work(calls));
        Ok(Self { queue, metrics })
    }

    /// Queues an answer for comparison, with its domain if that exists here.
    pub(super) fn send(
        &self,
        domain: Option<Name>,
        request: &RateLimitRequest,
        ours: &RateLimitResponse,
    ) {
        let place = (request.encoded_len() <= MAX_CALL)
            .then(|| self.queue.try_reserve().ok())
            .flatten();
        let Some(place) = place else {
            return count(&self.metrics, domain.as_ref(), "dropped");
        };
        place.send(Call {
            domain,
            request: request.clone(),
            ours: ours.clone(),
        });
    }
}

/// Sends the calls to the other service.
struct Worker {
    channel: Channel,
    metrics: Arc<Metrics>,
    /// When the next log line is allowed.
    next_line: Mutex<Instant>,
}

impl Worker {
    async fn work(self: Arc<Self>, mut calls: mpsc::Receiver<Call>) {
        let places = Arc::new(Semaphore::new(UNDER_WAY));
        while let Some(call) = calls.recv().await {
            // It is never closed.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                return;
            };
            let worker = Arc::clone(&self);
            tokio::spawn(async move {
                let _place = place;
                worker.compare(call).await;
            });
        }
    }

    async fn compare(&self, call: Call) {
        let answered = timeout(ANSWER_WITHIN, self.ask(call.request.clone())).await;
        let outcome = match answered {
            Ok(Ok(theirs)) => {
                let outcome = outcome(&call.ours, &theirs);
                if outcome != "same" {
                    self.log(&call, &theirs);
                }
                outcome
            }
            Ok(Err(_)) | Err(_) => "failed",
        };
        count(&self.metrics, call.domain.as_ref(), outcome);
    }

    async fn ask(&self, request: RateLimitRequest) -> Result<RateLimitResponse, tonic::Status> {
        let mut client = Grpc::new(self.channel.clone());
        let ready = client.ready().await;
        ready.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
        let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
        let path = PathAndQuery::from_static(SHOULD_RATE_LIMIT);
        let answer = client.unary(tonic::Request::new(request), path, codec);
        Ok(answer.await?.into_inner())
    }

    fn log(&self, call: &Call, theirs: &RateLimitResponse) {
        let now = Instant::now();
        {
            let mut next = self
                .next_line
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if now < *next {
                return;
            }
            *next = now + LINE_EVERY;
        }
        tracing::warn!(
            domain = call.request.domain,
            hits_addend = call.request.hits_addend,
            descriptors = described(&call.request),
            ours = %codes(&call.ours),
            theirs = %codes(theirs),
            "--compare-with: decided differently"
        );
    }
}

/// Counts a call; those of unknown domains together.
fn count(metrics: &Metrics, domain: Option<&Name>, outcome: &'static str) {
    let domain = domain.map_or("".into(), Into::into);
    metrics.compared.get([domain, outcome.into()]).inc();
}

/// The difference as a client sees it.
fn outcome(ours: &RateLimitResponse, theirs: &RateLimitResponse) -> &'static str {
    let over = |answer: &RateLimitResponse| answer.overall_code == i32::from(Code::OverLimit);
    match (over(ours), over(theirs)) {
        (true, false) => "only_here",
        (false, true) => "only_there",
        _ => "same",
    }
}

/// The codes of an answer's descriptors.
fn codes(answer: &RateLimitResponse) -> String {
    let codes = answer.statuses.iter().map(|status| {
        let over = status.code == i32::from(Code::OverLimit);
        if over { "over" } else { "ok" }
    });
    codes.take(16).collect::<Vec<_>>().join(" ")
}

fn described(request: &RateLimitRequest) -> String {
    let mut text = String::new();
    for descriptor in &request.descriptors {
        for (at, entry) in descriptor.entries.iter().enumerate() {
            let between = if at == 0 { "" } else { "," };
            // Writing to a String cannot fail.
            let _ = write!(text, "{between}{}={}", entry.key, entry.value);
        }
        if let Some(units) = &descriptor.hits_addend {
            let sign = if descriptor.is_negative_hits { "-" } else { "" };
            let _ = write!(text, " ({sign}{})", units.value);
        }
        text.push_str("; ");
        if text.len() > MAX_LINE {
            let end = (0..=MAX_LINE).rev().find(|at| text.is_char_boundary(*at));
            text.truncate(end.unwrap_or(0));
            return text + "…";
        }
    }
    text.truncate(text.len().saturating_sub(2));
    text
}
