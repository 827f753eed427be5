//! Findings, by what has the problem.

pub mod fleet;
pub mod limits;
pub mod server;
