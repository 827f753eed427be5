//! gRPC's health service, for Envoy's and Kubernetes's gRPC health checks.

use protocol::{ApiError, ErrorCode};

use super::messages::{Health, HealthCheckResponse};

/// The path of a health check.
pub(in crate::api) const CHECK: &str = "/grpc.health.v1.Health/Check";

/// The services that are asked about: all, this one, and as envoyproxy/ratelimit calls it.
const SERVICES: [&str; 3] = [
    "",
    "envoy.service.ratelimit.v3.RateLimitService",
    "ratelimit",
];

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
