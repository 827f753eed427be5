//! The scripts: what they guarantee, and that they decide as the algorithms in Rust do. In an interpreter, and on
//! servers. All are one program, because each program of tests is linked of its own.

#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on should stop with the reason"
)]

mod bytes_per_key;
mod calendar_windows;
mod cross_slot;
mod damaged_records;
mod reservations_in_lua;
mod script_check;
mod script_out_of_memory;
mod slots_in_lua;
mod support;
mod twins;
mod vectors;
