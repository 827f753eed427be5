//! `docs/openapi.yaml` and `docs/clients` against a real limiter. `cargo xtask test --only api` provides
//! the programs.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails loudly"
)]

mod service;

mod bad_input;
mod clients;
mod responses;
