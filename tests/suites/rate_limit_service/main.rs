//! Envoy's own rate limit filters, with a limiter as their service. `cargo xtask test --only e2e`
//! provides the servers.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails loudly"
)]

mod certificates;
mod filters;
mod gateway;
mod grpcio;
mod stage;
