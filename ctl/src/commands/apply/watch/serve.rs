//! `--metrics-listen`: three pages for Prometheus and the kubelet.

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

use super::metrics::Metrics;
use crate::{error::Error, exit::Exit};

/// The most connections at a time; others wait to be accepted.
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
