//! `--metrics-listen` of commands that work in turns: three pages for Prometheus and the kubelet.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
use policy::Name;
use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};

use crate::{
    error::{Error, Exit},
    printer::Printer,
};

/// A turn takes a second, and some timeouts at most; without one for this long, the command hangs.
const HANGS_AFTER: Duration = Duration::from_mins(2);

/// The label of a domain.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct DomainLabels {
    domain: String,
}

impl DomainLabels {
    /// Of this domain.
    pub fn of(domain: &Name) -> Self {
        Self {
            domain: domain.to_string(),
        }
    }
}

/// The label of a cause.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CauseLabels {
    cause: &'static str,
}

/// Failures by their cause.
#[derive(Clone, Debug)]
pub struct Failures(Family<CauseLabels, Counter>);

impl Failures {
    /// Registers the counters of these causes, which are there before the first failure.
    pub fn register(
        registry: &mut Registry,
        name: &str,
        help: &str,
        causes: &[&'static str],
    ) -> Self {
        let family = Family::<CauseLabels, Counter>::default();
        for &cause in causes {
            drop(family.get_or_create(&CauseLabels { cause }));
        }
        registry.register(name, help, family.clone());
        Self(family)
    }

    /// Counts one.
    pub fn count(&self, cause: &'static str) {
        self.0.get_or_create(&CauseLabels { cause }).inc();
    }
}

/// What the pages say.
#[derive(Debug)]
pub struct Pages {
    registry: Registry,
    /// What each turn compares with the store, in the plural.
    compared: &'static str,
    /// What `/readyz` says after a turn without an error.
    ready: &'static str,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Why it is not ready; `None` if it is.
    why: Option<String>,
    turned: Instant,
}

impl Pages {
    /// Before the first turn; `why` it is not ready until then.
    pub fn new(
        registry: Registry,
        compared: &'static str,
        ready: &'static str,
        why: &str,
    ) -> Arc<Self> {
        let state = Mutex::new(State {
            why: Some(why.to_owned()),
            turned: Instant::now(),
        });
        Arc::new(Self {
            registry,
            compared,
            ready,
            state,
        })
    }

    /// Ends a turn; `why` it is not ready, if it is not.
    pub fn turned(&self, why: Option<String>) {
        *self.state() = State {
            why,
            turned: Instant::now(),
        };
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `/metrics`, in OpenMetrics.
    fn metrics(&self) -> String {
        let mut page = String::new();
        // Writing to a string does not fail.
        let _ = text::encode(&mut page, &self.registry);
        page
    }

    /// `/healthz`: why a restart would help, if it would.
    fn health(&self) -> Result<&'static str, String> {
        if self.state().turned.elapsed() < HANGS_AFTER {
            Ok("alive")
        } else {
            Err(format!(
                "the {} were not compared for two minutes",
                self.compared
            ))
        }
    }

    /// `/readyz`: why it is not ready, if it is not.
    fn readiness(&self) -> Result<&'static str, String> {
        self.state().why.clone().map_or(Ok(self.ready), Err)
    }
}

/// Bound: connections to `--metrics-listen` of rlctl. Beyond it, further ones wait.
const CONNECTIONS_MAX: usize = 256;
/// Time for a request's head.
const HEAD_TIME: Duration = Duration::from_secs(2);
/// Time for a whole connection, so that a slow client does not keep its place.
const CONNECTION_TIME: Duration = Duration::from_secs(15);
/// Pause after a failed accept, for instance for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// The value of `--metrics-listen`.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "an address and a port: 127.0.0.1:8094, or 0.0.0.0:8094 for all addresses of this machine"
            .to_owned()
    })
}

/// Listens at the address, if there is one, and serves from then on.
pub async fn serve(
    at: Option<SocketAddr>,
    pages: &Arc<Pages>,
    printer: &Printer,
) -> Result<(), Error> {
    let Some(at) = at else { return Ok(()) };
    let cannot = |error: std::io::Error| {
        Error::new(Exit::Usage, format!("cannot listen at {at}: {error}"))
            .hint("--metrics-listen names a free port, as in 127.0.0.1:8094")
    };
    let listener = TcpListener::bind(at).await.map_err(cannot)?;
    let at = listener.local_addr().map_err(cannot)?;
    printer.note(format_args!("metrics at http://{at}/metrics"));
    tokio::spawn(accept(listener, Arc::clone(pages)));
    Ok(())
}

async fn accept(listener: TcpListener, pages: Arc<Pages>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    while let Ok(place) = Arc::clone(&room).acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let pages = Arc::clone(&pages);
        tokio::spawn(async move {
            let _place = place;
            // Errors and timeouts of a client concern only that client.
            let _ = timeout(CONNECTION_TIME, connection(stream, pages)).await;
        });
    }
}

async fn connection(stream: TcpStream, pages: Arc<Pages>) -> Result<(), hyper::Error> {
    let answer = service_fn(|request: Request<Incoming>| {
        let response = answer(&request, &pages);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .keep_alive(false);
    http.serve_connection(TokioIo::new(stream), answer).await
}

fn answer(request: &Request<Incoming>, pages: &Pages) -> Response<Full<Bytes>> {
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
        "/metrics" => page(StatusCode::OK, OPEN_METRICS, pages.metrics()),
        "/healthz" => answered(pages.health()),
        _ => answered(pages.readiness()),
    }
}

fn answered(state: Result<&'static str, String>) -> Response<Full<Bytes>> {
    match state {
        Ok(text) => page(StatusCode::OK, TEXT, format!("{text}\n")),
        Err(why) => page(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n")),
    }
}

fn page(status: StatusCode, kind: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
