//! From a document to meaning: a walk that goes on after a problem, so that
//! all of them are found at once.

mod lease;
mod limit;
mod matchers;
mod numbers;
mod overrides;
mod policy;
mod references;

pub(crate) use limit::{LIMIT_FIELDS, read_limit};
pub(crate) use matchers::read_matchers_alone;
pub use policy::read_limits;
pub(crate) use policy::{FORMAT, read_policy};
pub(crate) use references::{Placed, check_references};

#[cfg(test)]
mod schema_tests;
