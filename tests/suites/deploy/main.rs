//! What `deploy/` ships is what a platform engineer loads: every file is read by
//! the program it is for, or by the schema of its API, and what can run here runs.
//! `cargo xtask test --only deploy` brings what is needed.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails loudly"
)]

mod checks;
mod running;

mod containers;
mod envoy;
mod istio;
mod kubernetes;
mod monitoring;
mod systemd;
mod valkey;
