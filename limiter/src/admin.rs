//! The admin port: liveness, readiness, metrics, and the page for operators.

mod page;
mod readiness;

use std::sync::{Arc, atomic::AtomicBool};

use bytes::Bytes;
use hyper::{Method, Request, Response, StatusCode, body::Incoming, header::HeaderValue};
use store::Store;

use crate::{
    domains::Domains,
    limits_files::LimitsFiles,
    metrics::Metrics,
    serve::{self, Handler, Lifecycle, Peer},
    xds::Xds,
};

pub(crate) use page::{Data, Page};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const NOTHING: &str =
    "there are /healthz, /readyz and /metrics here; --page-token-file adds a page\n";

/// What the admin port reports on.
pub(crate) struct Admin {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) domains: Arc<Domains>,
    pub(crate) files: Arc<LimitsFiles>,
    pub(crate) xds: Option<Arc<Xds>>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    /// Whether the store was ever ready for checks.
    pub(crate) warm: AtomicBool,
    /// The page, if it is wanted.
    pub(crate) page: Option<Page>,
}

impl Handler for Admin {
    async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: Arc<Peer>,
    ) -> Response<Bytes> {
        let known = matches!(
            request.uri().path(),
            "/healthz" | "/readyz" | "/metrics" | "/healthcheck"
        );
        if !known {
            return match &self.page {
                Some(page) => Box::pin(page.handle(request, &peer)).await,
                None => serve::text(StatusCode::NOT_FOUND, NOTHING),
            };
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut refused = serve::text(StatusCode::METHOD_NOT_ALLOWED, "GET only\n");
            refused
                .headers_mut()
                .insert("allow", HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        match request.uri().path() {
            "/healthz" => serve::text(StatusCode::OK, "alive\n"),
            "/metrics" => serve::answer(
                StatusCode::OK,
                OPEN_METRICS,
                self.metrics
                    .page(self.trouble(&self.domains.poll()).is_none()),
            ),
            // `/readyz`, or `/healthcheck`, the path of envoyproxy/ratelimit.
            _ => {
                let strict = serve::query(request.uri()).any(|(name, _)| name == "strict");
                let report = self.readiness(strict);
                let status = if report.ready {
                    StatusCode::OK
                } else {
                    StatusCode::SERVICE_UNAVAILABLE
                };
                let mut body = serde_json::to_string_pretty(&report).unwrap_or_default();
                body.push('\n');
                serve::answer(status, serve::JSON, body)
            }
        }
    }
}
