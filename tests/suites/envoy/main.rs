//! End to end: requests through real Envoy, with the built filter, limiters and Redis.
//! `cargo xtask test --only e2e` provides all of them.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails loudly"
)]

mod stage;

mod adaptive;
mod check_streams;
mod configuration_errors;
mod configuration_fields;
mod cookbook;
mod crowds;
mod directions;
mod grpc;
mod hostile_bytes;
mod hostile_claims;
mod hostile_floods;
mod hostile_requests;
mod invalid_answers;
mod limiting;
mod log_injection;
mod once;
mod outages;
mod over_limit;
mod proxy_scope;
mod queue_disconnects;
mod reconfiguration;
mod reconfiguration_in_flight;
mod recovery;
mod redirects;
mod request_bodies;
mod requests_in_flight;
mod requests_in_flight_streams;
mod response_costs;
mod telemetry;
mod unsaid_costs;
