//! From a document to meaning: a walk that goes on after a problem, so that
//! all of them are found at once.

mod fields;
mod lease;
mod limit;
mod matchers;
mod numbers;
mod overrides;
mod policy;
mod references;
mod scalars;

pub use fields::{Field, Fields, Form, Path, Report, Take};
pub(crate) use limit::{LIMIT_FIELDS, read_limit};
pub(crate) use matchers::read_matchers_alone;
pub use policy::read_limits;
pub(crate) use policy::{FORMAT, read_policy};
pub(crate) use references::{Placed, check_references};
pub use scalars::Choice;

#[cfg(test)]
mod schema_tests;
