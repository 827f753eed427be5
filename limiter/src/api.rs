//! The data port: checks and policy snapshots.

mod body;
mod check;
mod check_stream;
mod decide;
mod grpc;
mod rate_limit;
mod refusal;
mod snapshot;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{ALLOW, HeaderName, HeaderValue, ORIGIN},
    http::request::Parts,
};
use policy::Name;
use protocol::{API_HEADER, API_VERSION, ApiError, CHECK_STREAM, ErrorCode, REVISION_HEADER};
use tokio::time::Instant;

use crate::{
    Settings,
    batch::Batcher,
    domains::{Active, Domains, Lookup},
    fleet::Fleet,
    metrics::Metrics,
    serve::{self, AuthState, Handler, Lifecycle, Peer},
    telemetry::Telemetry,
    tokens::Tokens,
    trace,
};

use body::{Bodies, Inflight, InflightPermit};

pub(crate) use rate_limit::{Comparison, Watched};

const API: HeaderName = HeaderName::from_static(API_HEADER);
const REVISION: HeaderName = HeaderName::from_static(REVISION_HEADER);

/// What answers on the data port.
pub(crate) struct Api {
    pub(crate) batcher: Batcher,
    pub(crate) domains: Arc<Domains>,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) tokens: Option<Arc<Tokens>>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) watched: Watched,
    pub(crate) comparison: Option<Comparison>,
    pub(crate) bounds: Bounds,
}

/// Bounds on the work of the data port.
pub(crate) struct Bounds {
    /// Requests worked on.
    inflight: Arc<Inflight>,
    /// Checks that wait for permits.
    waiting: Arc<Inflight>,
    /// Long polls: as many as connections are allowed, since each proxy has its own.
    held: Arc<Inflight>,
    /// Check streams that are open.
    streams: Arc<Inflight>,
    /// Bodies, and what they are decoded to.
    bodies: Bodies,
    /// Long polls end at multiples of an interval since this instant.
    since: Instant,
    max_wait: Duration,
    max_poll_wait: Duration,
    store_timeout: Duration,
}

impl Bounds {
    pub(crate) fn new(settings: &Settings, metrics: &Metrics) -> Self {
        Self {
            inflight: Inflight::new(settings.max_inflight, metrics.inflight_requests.clone()),
            waiting: Inflight::new(settings.max_waiters, metrics.waiting_checks.clone()),
            held: Inflight::new(settings.max_connections, metrics.held_polls.clone()),
            streams: Inflight::new(settings.max_connections, metrics.check_streams.clone()),
            bodies: Bodies::new(settings.max_body, metrics.body_bytes.clone()),
            since: Instant::now(),
            max_wait: settings.max_wait,
            max_poll_wait: settings.max_poll_wait,
            store_timeout: settings.store_timeout,
        }
    }

    /// A permit to work on one more request.
    fn enter(&self) -> Result<InflightPermit, ApiError> {
        self.inflight.enter().ok_or_else(refusal::overloaded)
    }
}

type Answered = Result<Response<Bytes>, ApiError>;

impl Handler for Api {
    fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: Arc<Peer>,
    ) -> impl Future<Output = Response<Bytes>> + Send + 'static {
        let (head, body) = request.into_parts();
        // Before the future runs: many requests may arrive before the first one is polled.
        let auth = self.auth_state(&head);
        peer.authenticated_as(auth);
        self.answer(head, body, peer, auth)
    }
}

impl Api {
    async fn answer(
        self: Arc<Self>,
        head: Parts,
        body: Incoming,
        peer: Arc<Peer>,
        auth: AuthState,
    ) -> Response<Bytes> {
        // gRPC knows no other method, and its errors would have HTTP's status 200.
        let grpc = head.method == Method::POST && grpc::is_grpc(&head.headers);
        let answered = self.route(&head, body, peer, auth).await;
        let mut response = answered.unwrap_or_else(|error| {
            self.metrics.refused.get([error.code.word().into()]).inc();
            if grpc {
                grpc::error(&error)
            } else {
                refusal::response(&error)
            }
        });
        if response.status() == StatusCode::METHOD_NOT_ALLOWED
            && let Some(methods) = methods(head.uri.path())
        {
            let methods = HeaderValue::from_static(methods);
            response.headers_mut().insert(ALLOW, methods);
        }
        let version = HeaderValue::from_static(API_VERSION);
        response.headers_mut().insert(API, version);
        response
    }

    /// What a request shows.
    fn auth_state(&self, head: &Parts) -> AuthState {
        let health = match head.uri.path() {
            "/v1/health" => head.method == Method::GET,
            rate_limit::HEALTH_CHECK | rate_limit::HEALTH_WATCH => head.method == Method::POST,
            _ => false,
        };
        if health {
            return AuthState::HealthChecker;
        }
        match &self.tokens {
            Some(tokens) if !tokens.admit(&head.headers) => AuthState::Unauthenticated,
            _ => AuthState::Authenticated,
        }
    }

    async fn route(
        self: &Arc<Self>,
        head: &Parts,
        body: Incoming,
        peer: Arc<Peer>,
        auth: AuthState,
    ) -> Answered {
        match auth {
            // Health checkers send no token, and the answer reveals nothing to them.
            AuthState::HealthChecker if head.method == Method::GET => return self.health(),
            AuthState::HealthChecker if head.uri.path() == rate_limit::HEALTH_WATCH => {
                return Box::pin(self.health_watch(body, peer)).await;
            }
            AuthState::HealthChecker => return Box::pin(self.health_check(body)).await,
            AuthState::Authenticated => {}
            AuthState::Unauthenticated => {
                return Err(ApiError::new(
                    ErrorCode::Unauthorized,
                    "this limiter wants `authorization: Bearer TOKEN` with one of its tokens",
                ));
            }
        }
        if head.headers.contains_key(ORIGIN) {
            let message = "this limiter answers programs and proxies, not web pages";
            return Err(refusal::invalid("origin", message));
        }
        match (head.uri.path(), &head.method) {
            ("/v1/check", &Method::POST) => {
                // Boxed, so that a request that is refused does not take the memory of a check.
                let check = Box::pin(self.check(head, body, peer));
                trace::of_check(&head.headers, check).await
            }
            (CHECK_STREAM, &Method::POST) => self.check_stream(head, body, &peer),
            ("/v1/policy", &Method::GET | &Method::HEAD) => {
                // A body must not take memory while the poll is held.
                drop(body);
                Box::pin(self.snapshot(head, peer.address)).await
            }
            ("/v1/release", &Method::POST) => Box::pin(self.slots(body, peer, false)).await,
            ("/v1/renew", &Method::POST) => Box::pin(self.slots(body, peer, true)).await,
            ("/v1/settle", &Method::POST) => Box::pin(self.settle(body, peer)).await,
            ("/v1/report", &Method::POST) => Box::pin(self.report(body, peer)).await,
            (rate_limit::SHOULD_RATE_LIMIT, &Method::POST) => {
                let check = Box::pin(self.should_rate_limit(body, peer));
                trace::of_check(&head.headers, check).await
            }
            ("/json", &Method::POST) => {
                let check = Box::pin(self.should_rate_limit_json(head, body, peer));
                trace::of_check(&head.headers, check).await
            }
            (path, _) => Err(match methods(path) {
                Some(methods) => ApiError::new(
                    ErrorCode::MethodNotAllowed,
                    // HEAD goes without saying where there is GET.
                    format!(
                        "this path takes {} only",
                        methods.trim_end_matches(", HEAD")
                    ),
                ),
                None => ApiError::new(
                    ErrorCode::NotFound,
                    "there are POST /v1/check, /v1/settle, /v1/release and /v1/renew, GET /v1/policy, POST /json and Envoy's rate limit service here",
                ),
            }),
        }
    }

    /// Whether proxies should send checks here: not before limits are loaded, nor during shutdown.
    fn health(&self) -> Answered {
        let loading = self.domains.poll().answered.is_none() || self.domains.is_filling();
        if loading || self.lifecycle.is_leaving() {
            let message = "limits are being loaded, or this limiter is ending";
            return Err(ApiError::new(ErrorCode::PolicyUnavailable, message));
        }
        Ok(serve::text(StatusCode::OK, "ok\n"))
    }

    /// What is in force in a domain.
    fn active(&self, domain: &Name) -> Result<Arc<Active>, ApiError> {
        match self.domains.find(domain.as_str()) {
            Lookup::Active(active) => Ok(active),
            Lookup::Unknown => Err(ApiError {
                field: Some("domain".to_owned()),
                ..ApiError::new(
                    ErrorCode::UnknownDomain,
                    format!("there are no limits for the domain {domain}"),
                )
            }),
            Lookup::NotLoaded(why) => Err(ApiError::new(ErrorCode::PolicyUnavailable, why)),
        }
    }
}

/// The methods of a path, as `allow` lists them.
fn methods(path: &str) -> Option<&'static str> {
    Some(match path {
        "/v1/check" | "/v1/release" | "/v1/renew" | "/v1/settle" | "/v1/report" | "/json"
        | CHECK_STREAM => "POST",
        "/v1/policy" => "GET, HEAD",
        "/v1/health" => "GET",
        _ => return None,
    })
}
