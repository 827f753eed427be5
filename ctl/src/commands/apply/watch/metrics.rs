//! The counters of `--watch`, its health and its readiness.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    time::{Duration, Instant},
};

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use policy::{Name, Revision};
use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};

use crate::error::{Error, Exit};

/// A turn takes a second, and a few timeouts at most; without one for this long, `--watch` hangs.
const HANGS_AFTER: Duration = Duration::from_mins(2);

/// Everything that `--watch` reports.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    drift: Family<DomainLabels, Gauge>,
    revision: Family<DomainLabels, Gauge>,
    edits: Family<DomainLabels, Counter>,
    failures: Family<CauseLabels, Counter>,
    in_force: Gauge,
    success: Gauge<u64, AtomicU64>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Why the files are not in force; `None` if they are.
    why: Option<String>,
    turned: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DomainLabels {
    domain: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CauseLabels {
    cause: &'static str,
}

/// Why something failed, as a label: what to check first.
const CAUSES: [&str; 4] = ["files", "store", "permissions", "conflict"];

fn cause(exit: Exit) -> &'static str {
    match exit {
        Exit::Auth | Exit::Refused => "permissions",
        Exit::Conflict => "conflict",
        Exit::No | Exit::Usage => "files",
        _ => "store",
    }
}

impl Metrics {
    pub(super) fn new() -> Self {
        let mut registry = Registry::default();
        let (drift, revision, edits) = (Family::default(), Family::default(), Family::default());
        let failures: Family<CauseLabels, Counter> = Family::default();
        let (in_force, success) = (Gauge::default(), Gauge::default());
        for cause in CAUSES {
            drop(failures.get_or_create(&CauseLabels { cause }));
        }
        registry.register(
            "rl_apply_drift",
            "Limits that differ from the files, and pauses that they do not mention",
            drift.clone(),
        );
        registry.register(
            "rl_apply_revision",
            "The revision that was compared with the files last",
            revision.clone(),
        );
        registry.register("rl_apply_edits", "Edits that were made", edits.clone());
        registry.register(
            "rl_apply_failures",
            "Attempts to read or apply the files that failed, by what to look at",
            failures.clone(),
        );
        registry.register(
            "rl_apply_in_force",
            "1 if the files as they are now were valid and are applied",
            in_force.clone(),
        );
        registry.register(
            "rl_apply_last_success_timestamp_seconds",
            "When the files were found to be applied last",
            success.clone(),
        );
        Self {
            registry,
            drift,
            revision,
            edits,
            failures,
            in_force,
            success,
            state: Mutex::new(State {
                why: Some("the files are not applied yet".to_owned()),
                turned: Instant::now(),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a turn; `why` the files are not in force, if they are not.
    pub(super) fn turned(&self, why: Option<String>) {
        self.in_force.set(i64::from(why.is_none()));
        if why.is_none() {
            self.success.set(crate::now_ms() / 1000);
        }
        *self.state() = State {
            why,
            turned: Instant::now(),
        };
    }

    pub(super) fn failed(&self, exit: Exit) {
        let cause = cause(exit);
        self.failures.get_or_create(&CauseLabels { cause }).inc();
    }

    pub(super) fn edited(&self, domain: &Name) {
        self.edits.get_or_create(&labels(domain)).inc();
    }

    /// Sets the result of comparing a domain.
    pub(super) fn compared(&self, domain: &Name, revision: Option<&Revision>, drift: usize) {
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let drift = u64::try_from(drift).unwrap_or(u64::MAX);
        self.drift.get_or_create(&labels(domain)).set(number(drift));
        let revision = revision.map_or(0, |revision| revision.number);
        self.revision
            .get_or_create(&labels(domain))
            .set(number(revision));
    }

    /// Removes a domain that no file has any more.
    pub(super) fn forget(&self, domain: &Name) {
        self.drift.remove(&labels(domain));
        self.revision.remove(&labels(domain));
    }

    /// The page of `/metrics`, in OpenMetrics.
    pub(super) fn page(&self) -> String {
        let mut page = String::new();
        // Writing to a string does not fail.
        let _ = text::encode(&mut page, &self.registry);
        page
    }

    /// Why `/readyz` is not ready.
    pub(super) fn not_ready(&self) -> Option<String> {
        self.state().why.clone()
    }

    /// Whether turns go on.
    pub(super) fn is_alive(&self) -> bool {
        self.state().turned.elapsed() < HANGS_AFTER
    }
}

fn labels(domain: &Name) -> DomainLabels {
    DomainLabels {
        domain: domain.to_string(),
    }
}

// --- `--metrics-listen`: three pages for Prometheus and the kubelet.

/// Bound: connections to `rlctl apply --watch`. Beyond it, further ones wait.
const CONNECTIONS_MAX: usize = 256;
/// Time for a request's head.
const HEAD_TIME: Duration = Duration::from_secs(2);
/// Time for a whole connection, so that a slow client does not keep its place.
const CONNECTION_TIME: Duration = Duration::from_secs(15);
/// Pause after a failed accept, for instance for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// Listens at an address, and serves from then on.
pub(super) async fn serve(at: SocketAddr, metrics: Arc<Metrics>) -> Result<SocketAddr, Error> {
    let cannot = |error: std::io::Error| {
        Error::new(Exit::Usage, format!("cannot listen at {at}: {error}"))
            .hint("--metrics-listen names a free port, as in 127.0.0.1:8094")
    };
    let listener = TcpListener::bind(at).await.map_err(cannot)?;
    let at = listener.local_addr().map_err(cannot)?;
    tokio::spawn(accept(listener, metrics));
    Ok(at)
}

async fn accept(listener: TcpListener, metrics: Arc<Metrics>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    while let Ok(place) = Arc::clone(&room).acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let metrics = Arc::clone(&metrics);
        tokio::spawn(async move {
            let _place = place;
            // Errors and timeouts of a client concern only that client.
            let _ = timeout(CONNECTION_TIME, connection(stream, metrics)).await;
        });
    }
}

async fn connection(stream: TcpStream, metrics: Arc<Metrics>) -> Result<(), hyper::Error> {
    let answer = service_fn(|request: Request<Incoming>| {
        let response = answer(&request, &metrics);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .keep_alive(false);
    http.serve_connection(TokioIo::new(stream), answer).await
}

fn answer(request: &Request<Incoming>, metrics: &Metrics) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    if !matches!(path, "/metrics" | "/healthz" | "/readyz") {
        let known = "there are /metrics, /healthz and /readyz here\n".to_owned();
        return page(StatusCode::NOT_FOUND, TEXT, known);
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return page(
            StatusCode::METHOD_NOT_ALLOWED,
            TEXT,
            "GET only\n".to_owned(),
        );
    }
    match path {
        "/metrics" => page(StatusCode::OK, OPEN_METRICS, metrics.page()),
        "/healthz" if metrics.is_alive() => page(StatusCode::OK, TEXT, "alive\n".to_owned()),
        "/healthz" => page(
            StatusCode::SERVICE_UNAVAILABLE,
            TEXT,
            "the files were not compared for two minutes\n".to_owned(),
        ),
        _ => match metrics.not_ready() {
            None => page(StatusCode::OK, TEXT, "the files are in force\n".to_owned()),
            Some(why) => page(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n")),
        },
    }
}

fn page(status: StatusCode, kind: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
