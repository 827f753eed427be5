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
mod cluster;
mod decisions;
mod edits;
mod ending;
mod fleet;
mod holding;
mod leases;
mod outages;
mod queues;
mod store_losses;
mod store_states;
mod strangers;
mod support;
mod telemetry;
mod transport;
mod waiting;
