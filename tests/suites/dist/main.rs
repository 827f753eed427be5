//! The artefacts of a release, used as their users use them: nothing here builds anything.
//! `cargo xtask test --only dist` builds them and provides the programs.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails loudly"
)]

mod archives;
mod artifacts;
mod container;
mod filter;
mod images;
mod install;
mod registry;
mod workflows;
