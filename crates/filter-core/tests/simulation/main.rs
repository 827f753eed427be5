//! The filter in a simulated world: every seed is another run, and the same one every time.

#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a simulation may fail loudly; only unit tests are exempt by themselves"
)]

mod books;
mod break_even;
mod debts;
mod demand;
mod holding;
mod leases;
mod limiter;
mod outage;
mod promises;
mod queues;
mod reports;
mod rules;
mod turns;
mod weather;
mod world;
