//! `--metrics-listen` of commands that go on: three pages for Prometheus and the kubelet.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};

use crate::error::{Error, Exit};

/// What the pages say.
pub trait Pages: Send + Sync + 'static {
    /// `/metrics`, in OpenMetrics.
    fn metrics(&self) -> String;
    /// `/healthz`: why a restart would help, if it would.
    fn health(&self) -> Result<&'static str, String>;
    /// `/readyz`: why it is not ready, if it is not.
    fn readiness(&self) -> Result<&'static str, String>;
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

/// Listens at an address, and serves from then on.
pub async fn serve(at: SocketAddr, pages: Arc<impl Pages>) -> Result<SocketAddr, Error> {
    let cannot = |error: std::io::Error| {
        Error::new(Exit::Usage, format!("cannot listen at {at}: {error}"))
            .hint("--metrics-listen names a free port, as in 127.0.0.1:8094")
    };
    let listener = TcpListener::bind(at).await.map_err(cannot)?;
    let at = listener.local_addr().map_err(cannot)?;
    tokio::spawn(accept(listener, pages));
    Ok(at)
}

async fn accept(listener: TcpListener, pages: Arc<impl Pages>) {
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

async fn connection(stream: TcpStream, pages: Arc<impl Pages>) -> Result<(), hyper::Error> {
    let answer = service_fn(|request: Request<Incoming>| {
        let response = answer(&request, &*pages);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .keep_alive(false);
    http.serve_connection(TokioIo::new(stream), answer).await
}

fn answer(request: &Request<Incoming>, pages: &impl Pages) -> Response<Full<Bytes>> {
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
