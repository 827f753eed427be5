//! OpenTelemetry spans, exported over OTLP/HTTP from a thread of the SDK. Its queue is bounded and
//! drops spans when it is full: no check waits for a collector.

use std::{env, sync::OnceLock, time::Duration};

use hyper::HeaderMap;
use opentelemetry::{
    Context, KeyValue,
    propagation::{Extractor, TextMapPropagator},
    trace::{FutureExt, SpanKind, Status, TraceContextExt, Tracer, TracerProvider},
};
use opentelemetry_otlp::{ExporterBuildError, Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{SdkTracer, SdkTracerProvider},
};
use policy::Name;
use protocol::ApiError;
use store::CheckError;

use crate::batch::{Decisions, Outcome, Undecided};

/// If none of these is set there is no collector, and no spans are made.
const ENDPOINTS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
];
/// The encoding; protobuf if neither is set.
const PROTOCOLS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
];
/// How long a collector that hangs may delay the end of the process.
const FLUSH_MAX: Duration = Duration::from_secs(2);

static TRACER: OnceLock<SdkTracer> = OnceLock::new();

/// Why spans cannot be sent: for instance, an invalid endpoint.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// As the exporter says it.
    #[error("traces cannot be sent as OTEL_EXPORTER_OTLP_* say: {0}")]
    Exporter(#[from] ExporterBuildError),
    /// TLS is not built in.
    #[error("{0}: traces go over plain http; have a collector beside the limiter send them on")]
    Tls(&'static str),
}

/// The exporter of spans, until it ends.
#[derive(Debug)]
pub struct Traces(Option<SdkTracerProvider>);

impl Traces {
    /// Exports spans as the `OTEL_*` variables say; makes none without an endpoint.
    ///
    /// # Errors
    /// If the endpoint is no URL, or an `https` one.
    pub fn start() -> Result<Self, TraceError> {
        let given = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
        if !ENDPOINTS.iter().any(|name| given(name)) {
            return Ok(Self(None));
        }
        let tls = |name: &&str| env::var(name).is_ok_and(|url| url.starts_with("https:"));
        if let Some(name) = ENDPOINTS.into_iter().find(tls) {
            return Err(TraceError::Tls(name));
        }
        let mut exporter = SpanExporter::builder().with_http();
        if !PROTOCOLS.iter().any(|name| given(name)) {
            exporter = exporter.with_protocol(Protocol::HttpBinary);
        }
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter.build()?)
            .with_resource(resource())
            .build();
        // If started twice in a process, spans go to the first exporter.
        let _ = TRACER.set(provider.tracer("limiter"));
        Ok(Self(Some(provider)))
    }

    /// Sends what is left. Blocks, for two seconds at most.
    pub fn end(self) {
        let Some(provider) = self.0 else { return };
        if let Err(error) = provider.shutdown_with_timeout(FLUSH_MAX) {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}

/// `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`, or a default name.
fn resource() -> Resource {
    let configured = env::var_os("OTEL_SERVICE_NAME").is_some()
        || env::var("OTEL_RESOURCE_ATTRIBUTES").is_ok_and(|all| all.contains("service.name="));
    let resource = Resource::builder();
    if configured {
        return resource.build();
    }
    resource.with_service_name("limiter").build()
}

/// A span over the work of a request to `/v1/check`, below the span that its headers name.
pub(crate) async fn of_check<T>(
    headers: &HeaderMap,
    work: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    let Some(tracer) = TRACER.get() else {
        return work.await;
    };
    let caller =
        TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers));
    let span = tracer
        .span_builder("check")
        .with_kind(SpanKind::Server)
        .start_with_context(tracer, &caller);
    let context = caller.with_span(span);
    let done = work.with_context(context.clone()).await;
    if let Err(error) = &done {
        failed(&context, error.code.word(), &error.message);
    }
    context.span().end();
    done
}

/// A span over a store call, the wait for a lane included, below the current one.
pub(crate) async fn of_store(
    work: impl Future<Output = Result<Outcome, Undecided>>,
) -> Result<Outcome, Undecided> {
    let Some(tracer) = TRACER.get() else {
        return work.await;
    };
    let above = Context::current();
    let span = tracer
        .span_builder("store")
        .with_kind(SpanKind::Client)
        .start_with_context(tracer, &above);
    let context = above.with_span(span);
    let done = work.with_context(context.clone()).await;
    match &done {
        Ok(outcome) => {
            let of_store = |decision| match decision {
                &Err(CheckError::Store(ref error) | CheckError::PartiallyCharged(ref error)) => {
                    Some(error)
                }
                _ => None,
            };
            if let Some(error) = outcome.decisions.iter().find_map(of_store) {
                failed(&context, "store", &error.to_string());
            }
        }
        Err(Undecided::Overloaded) => failed(&context, "overloaded", "the queue is full"),
        Err(Undecided::NotSent | Undecided::TimedOut) => {
            failed(&context, "timeout", "no answer in time");
        }
    }
    context.span().end();
    done
}

/// Sets the attributes of a request on the current span.
pub(crate) fn set_request(domain: &Name, checks: usize) {
    let context = Context::current();
    let span = context.span();
    if span.is_recording() {
        span.set_attribute(KeyValue::new("limiter.domain", domain.as_str().to_owned()));
        span.set_attribute(KeyValue::new("limiter.checks", count(checks)));
    }
}

/// Sets the results of its checks on the current span.
pub(crate) fn decided(decisions: &Decisions) {
    let context = Context::current();
    let span = context.span();
    if !span.is_recording() {
        return;
    }
    let allowed = decisions.iter().flatten().filter(|a| a.allowed).count();
    let failed = decisions.iter().filter(|d| d.is_err()).count();
    let denied = decisions.len() - allowed - failed;
    span.set_attribute(KeyValue::new("limiter.allowed", count(allowed)));
    span.set_attribute(KeyValue::new("limiter.denied", count(denied)));
    span.set_attribute(KeyValue::new("limiter.failed", count(failed)));
}

fn failed(context: &Context, kind: &'static str, why: &str) {
    let span = context.span();
    span.set_attribute(KeyValue::new("error.type", kind));
    span.set_status(Status::error(why.to_owned()));
}

fn count(of: usize) -> i64 {
    i64::try_from(of).unwrap_or(i64::MAX)
}

/// The headers of a request, as the propagator reads them.
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0
            .keys()
            .map(hyper::header::HeaderName::as_str)
            .collect()
    }
}
