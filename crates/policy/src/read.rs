//! From a document to meaning: a walk that goes on after a problem, so that
//! all of them are found at once.

mod fields;
mod limit;
mod numbers;
mod overrides;
mod policy;
mod references;
mod scalars;

pub use fields::{Field, Fields, Form, Path, Report, Take};
pub(crate) use limit::read_limit;
pub(crate) use policy::{FORMAT, read_policy};
pub use scalars::Choice;
