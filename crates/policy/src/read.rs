//! Reads a document into a policy. The walk goes on after a problem, so that it finds all of them
//! at once.

mod descriptor;
mod lease;
mod limit;
mod matchers;
mod numbers;
mod overrides;
mod penalty;
mod policy;
mod pricing;
mod references;
mod slots;
mod together;

pub(crate) use limit::{LIMIT_FIELDS, read_limit};
pub(crate) use matchers::read_matchers;
pub use overrides::OVERRIDES_MAX;
pub use policy::read_limits;
pub(crate) use policy::{FORMAT, read_policy};
pub(crate) use references::{Placed, check_references};
pub(crate) use slots::DEFAULT_TTL_MS;

// They read files, and wasm32 has none.
#[cfg(test)]
#[cfg(not(target_arch = "wasm32"))]
mod schema_tests;
