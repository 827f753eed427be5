//! What is limited: descriptors, patterns and limits.
//!
//! A limits file or a stored record is read into raw fields, then validated as
//! a whole, so that every problem is reported at once with its place. What
//! comes out cannot be wrong any more: [`Policy`] and its [`Limit`]s.

mod descriptor;
mod limit;
mod name;

pub use descriptor::Descriptor;
pub use limit::{
    IfMissing, Limit, Matcher, OnFailure, OverLimit, Override, OverrideQuota, Pattern, Policy,
    Quota, Revision, Scope,
};
pub use name::{Name, NameError};
