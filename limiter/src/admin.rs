//! The admin port: liveness, readiness, metrics, and the page for operators.

mod page;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use hyper::{Method, Request, Response, StatusCode, body::Incoming, header::HeaderValue};
use policy::Name;
use serde::Serialize;
use store::{Store, StoreError};
use tokio::{sync::Mutex, time::Instant};

use crate::{
    aside::{Pace, compute},
    domains::{Domain, Domains, FILLING, Fault, Poll},
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
    pub(crate) metrics_page: Arc<Mutex<MetricsPage>>,
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
            "/metrics" => serve::answer(StatusCode::OK, OPEN_METRICS, self.metrics_page().await),
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

// --- Whether this limiter should receive requests, and why not

/// What `/readyz` answers.
#[derive(Debug, Serialize)]
struct Report {
    ready: bool,
    message: String,
    store: StoreReport,
    domains: Vec<DomainReport>,
    limits_file_error: Option<String>,
    xds_error: Option<String>,
    last_policy_error: Option<PolicyError>,
}

#[derive(Debug, Serialize)]
struct StoreReport {
    address: String,
    up: bool,
    answered_ms_ago: Option<u64>,
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct DomainReport {
    domain: String,
    revision: Option<u64>,
    digest: Option<String>,
    limits: Option<usize>,
    in_force_ms: Option<u64>,
    fault: Option<String>,
}

#[derive(Debug, Serialize)]
struct PolicyError {
    domain: String,
    message: String,
    since_ms_ago: u64,
}

/// The page of metrics that was written last, for all who asked before it was begun.
pub(crate) struct MetricsPage {
    begun: Instant,
    text: Bytes,
    pace: Pace,
}

impl MetricsPage {
    pub(crate) fn new() -> Self {
        Self {
            begun: Instant::now(),
            text: Bytes::new(),
            pace: Pace::with_least(Duration::ZERO),
        }
    }
}

impl Admin {
    /// A page of metrics that was begun after this call. Of ten thousand limits it takes tens of
    /// milliseconds: not on a thread that serves.
    async fn metrics_page(self: Arc<Self>) -> Bytes {
        let asked = Instant::now();
        let mut last = Arc::clone(&self.metrics_page).lock_owned().await;
        if !last.text.is_empty() && last.begun >= asked {
            return last.text.clone();
        }
        let write = async move {
            last.pace.turn().await;
            last.begun = Instant::now();
            let up = self.trouble(&self.domains.poll()).is_none();
            let metrics = Arc::clone(&self.metrics);
            let bytes = last.text.len();
            let text = compute(move || metrics.page(up, bytes)).await;
            last.text = text.unwrap_or_default().into();
            let begun = last.begun;
            last.pace.ended(begun);
            last.text.clone()
        };
        // A client that leaves while it waits is gone; one that leaves now does not end this: the next
        // one's would begin without the pause.
        tokio::spawn(write).await.unwrap_or_default()
    }

    /// Why checks get no decision, if so: the last poll's error, failed connections for checks, or
    /// the last checks.
    fn trouble(&self, poll: &Poll) -> Option<String> {
        match &poll.error {
            Some(error) => Some(error.to_string()),
            None if self.metrics.calls.any() => {
                let reported = self.store.fault().map(|why| why.to_string());
                reported.or_else(|| self.metrics.calls.trouble(Instant::now()))
            }
            None => None,
        }
    }

    fn filling(&self) -> String {
        match self.files.error() {
            Some(error) => format!("{FILLING}: {error}"),
            None => FILLING.to_owned(),
        }
    }

    /// Whether a check finds connections and scripts in the store, or ever did.
    fn is_warm(&self) -> bool {
        if !self.warm.load(Ordering::Relaxed) && self.store.is_warm() {
            self.warm.store(true, Ordering::Relaxed);
        }
        self.warm.load(Ordering::Relaxed)
    }

    /// Whether this limiter should receive requests, and why; `strict`: not while checks get no
    /// decision.
    fn readiness(&self, strict: bool) -> Report {
        let poll = self.domains.poll();
        let domains = self.domains.all();
        let fault = newest_fault(&domains);
        let trouble = self.trouble(&poll);
        let verdict = if self.lifecycle.is_leaving() {
            Err("shutting down".to_owned())
        } else {
            let loaded = match verdict(&poll, &domains, fault.as_ref()) {
                Ok(_) if self.domains.is_filling() => Err(self.filling()),
                verdict => verdict,
            };
            loaded.and_then(|message| match &trouble {
                _ if !self.is_warm() => Err(connecting(self.store.fault().as_ref())),
                Some(why) if strict => Err(format!("checks get no decision: {why}")),
                Some(why) => Ok(format!("{message}, but checks get no decision: {why}")),
                None => Ok(message),
            })
        };
        Report {
            ready: verdict.is_ok(),
            message: verdict.unwrap_or_else(|message| message),
            store: StoreReport {
                address: self.store.address(),
                up: trouble.is_none(),
                answered_ms_ago: poll.answered.map(age_ms),
                error: trouble,
            },
            domains: domains.iter().map(describe).collect(),
            limits_file_error: self.files.error(),
            xds_error: self.xds.as_ref().and_then(|xds| xds.error()),
            last_policy_error: fault.map(|(domain, fault)| PolicyError {
                domain: domain.to_string(),
                message: fault.message.clone(),
                since_ms_ago: age_ms(fault.since),
            }),
        }
    }
}

fn connecting(why: Option<&StoreError>) -> String {
    match why {
        Some(why) => format!("connecting to the store for checks: {why}"),
        None => "connecting to the store for checks".to_owned(),
    }
}

/// Ready once the limits have loaded, or are known to be absent.
fn verdict(
    poll: &Poll,
    domains: &BTreeMap<Name, Domain>,
    fault: Option<&(&Name, &Fault)>,
) -> Result<String, String> {
    if poll.answered.is_none() {
        return Err(match &poll.error {
            Some(error) => format!("waiting for the store: {error}"),
            None => "loading the limits".to_owned(),
        });
    }
    let loaded = domains.values().any(|domain| domain.active.is_some());
    match fault {
        Some((domain, fault)) if loaded => Ok(format!(
            "ready, with a fault in {domain}: {}",
            fault.message
        )),
        Some((domain, fault)) => Err(format!("no usable limits: {domain}: {}", fault.message)),
        None if loaded => Ok("ready".to_owned()),
        None if !domains.is_empty() => Err("the store did not return the limits yet".to_owned()),
        None => Ok("ready; the store holds no limits yet".to_owned()),
    }
}

fn newest_fault(domains: &BTreeMap<Name, Domain>) -> Option<(&Name, &Fault)> {
    domains
        .iter()
        .filter_map(|(name, domain)| Some((name, domain.fault.as_ref()?)))
        .max_by_key(|(_, fault)| fault.since)
}

fn describe((name, domain): (&Name, &Domain)) -> DomainReport {
    let active = domain.active.as_ref();
    let revision = active.map(|active| active.compiled.revision());
    DomainReport {
        domain: name.to_string(),
        revision: revision.map(|revision| revision.number),
        digest: revision.map(|revision| format!("{:016x}", revision.digest)),
        limits: active.map(|active| active.compiled.limits().len()),
        in_force_ms: active.map(|active| age_ms(active.since)),
        fault: domain.fault.as_ref().map(|fault| fault.message.clone()),
    }
}

fn age_ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
