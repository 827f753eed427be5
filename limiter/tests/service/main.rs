//! The service, started in this process on free ports.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on should stop"
)]

mod admin;
mod answers;
mod bounds;
mod check_streams;
mod cluster;
mod comparing;
mod costs;
mod decisions;
mod edits;
mod fleet;
mod grpc;
mod health;
mod hostile_clients;
mod leases;
mod long_polls;
mod outages;
mod penalties;
mod penalties_counted;
mod queues;
mod rate_limit;
mod rate_limit_model;
mod rls_config;
mod shutdown;
mod slots;
mod store_losses;
mod store_states;
mod support;
mod telemetry;
mod transport;
mod waiting_checks;
mod xds;
