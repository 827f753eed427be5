//! Every file of `deploy/` is checked by the program that uses it, or by its API's schema, and run
//! where possible. `cargo xtask test --only deploy` provides the programs.
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
mod envoy_gateway;
mod gitops;
mod helm;
mod istio;
mod kubernetes;
mod kustomize;
mod monitoring;
mod operator;
mod pods;
mod prometheus;
mod readme;
mod systemd;
mod valkey;
