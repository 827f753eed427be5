//! The artefacts of a release, used as users would. These tests build nothing: `cargo xtask test
//! --only dist` builds the artefacts and provides the programs.
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
