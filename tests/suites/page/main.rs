//! The limiter's page in headless Chromium, tested as a user sees it. `cargo xtask test --only
//! page` provides the browser.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails loudly"
)]

mod stage;

mod hostile_names;
mod looks;
mod outage;
mod pictures;
mod reading;
mod sign_in;
