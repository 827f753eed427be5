//! End to end: requests through real Envoy, with the built filter, limiters and
//! Redis. `cargo xtask test --only e2e` brings all of them.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails loudly"
)]

mod stage;

mod batches;
mod configuration;
mod configurations;
mod dead_replica;
mod deny_cache;
mod directions;
mod edits;
mod grpc;
mod held_polls;
mod hostile_bytes;
mod hostile_floods;
mod hostile_input;
mod hostile_requests;
mod in_the_proxy;
mod kill_switch;
mod leases;
mod leases_on_a_cluster;
mod leases_over_a_failover;
mod leaving;
mod limiting;
mod lying_limiter;
mod not_a_limiter;
mod outages;
mod over_limit;
mod oversized;
mod reconfiguration;
mod reconfiguration_in_flight;
mod redirects;
mod returning;
mod several_limits;
mod spellings;
mod stores;
mod telemetry;
