//! Scenarios: limits, edits and requests at given times, run through an engine.
//!
//! [`read`] turns a document into [`Scenario`]s, or says everything that is
//! wrong with it; [`run`] decides every step with the scenario's own clock and
//! gives a [`Report`], whose differences from what was expected decide the exit
//! code. [`Phase`]s of [`Traffic`] make steps where none are written
//! down.

mod engine;
mod phase;
mod report;
mod run;
mod scenario;
#[cfg(test)]
mod tests;
mod traffic;

pub use engine::{Engine, Local, Reserving, Subject};
pub use phase::{Phase, steps};
pub use report::{Answer, Difference, Report, Run};
pub use run::run;
pub use scenario::{Expected, Request, Scenario, Settle, Step, read};
pub use traffic::{Traffic, TrafficError};
