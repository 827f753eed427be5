//! gRPC's health service, for Envoy's and Kubernetes's gRPC health checks.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use protocol::{ApiError, ErrorCode};
use tokio::time::timeout;

use super::messages::{Health, HealthCheckResponse};

/// The path of a health check.
pub(in crate::api) const CHECK: &str = "/grpc.health.v1.Health/Check";

/// The services that are asked about: all, this one, and as envoyproxy/ratelimit calls it.
const SERVICES: [&str; 3] = [
    "",
    "envoy.service.ratelimit.v3.RateLimitService",
    "ratelimit",
];

/// The body of a health check, in bytes, and how long it may take.
const BODY_MAX: usize = 1024;
const BODY_WITHIN: Duration = Duration::from_secs(1);

/// Reads a body. Whoever sends it may have shown no token, so it takes none of the room that the
/// bodies of admitted clients share.
pub(super) async fn receive(body: Incoming) -> Result<Bytes, ApiError> {
    let received = timeout(BODY_WITHIN, Limited::new(body, BODY_MAX).collect()).await;
    match received {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(_)) | Err(_) => Err(ApiError::new(
            ErrorCode::InvalidRequest,
            format!("a health check is a body of at most {BODY_MAX} bytes, sent at once"),
        )),
    }
}

/// Whether a service is one of this limiter's.
pub(super) fn known(service: &str) -> Result<(), ApiError> {
    if SERVICES.contains(&service) {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorCode::UnknownDomain,
        "this limiter has no such service",
    ))
}

/// The answer.
pub(super) fn status(serving: bool) -> HealthCheckResponse {
    let status = if serving {
        Health::Serving
    } else {
        Health::NotServing
    };
    HealthCheckResponse {
        status: status.into(),
    }
}
