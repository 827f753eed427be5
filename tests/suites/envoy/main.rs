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
mod calendar_windows;
mod check_streams;
mod configuration_errors;
mod configuration_fields;
mod cookbook;
mod crowds;
mod deny_cache;
mod directions;
mod edits;
mod exemptions;
mod grpc;
mod hostile_bytes;
mod hostile_claims;
mod hostile_floods;
mod hostile_requests;
mod invalid_answers;
mod kill_switch;
mod leases;
mod leases_over_a_failover;
mod limiting;
mod log_injection;
mod long_polls;
mod nginx_delays;
mod outages;
mod over_limit;
mod oversized;
mod penalties;
mod proxy_scope;
mod queue_disconnects;
mod reconfiguration;
mod reconfiguration_in_flight;
mod recovery;
mod redirects;
mod replica_failure;
mod request_bodies;
mod requests_in_flight;
mod requests_in_flight_over_a_failover;
mod requests_in_flight_streams;
mod response_costs;
mod settled_costs;
mod spellings;
mod stores;
mod telemetry;
mod traffic_logs;
mod unsaid_costs;
mod untrusted_answers;
