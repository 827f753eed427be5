//! Findings, by the part that has the problem.

pub mod fleet;
pub mod limits;
pub mod server;
