//! `rlctl controller` against a real Kubernetes API server, with limiters and real Envoys whose Pods are objects.
//! `cargo xtask test --only kubernetes` provides all of them.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails loudly"
)]

mod stage;

mod enforced;
mod figures;
mod filters;
mod life;
mod roles;
