//! What is limited: descriptors, patterns and limits.
//!
//! A limits file, a stored record or a snapshot is a document ([`Node`]), read
//! as a whole, so that every problem is reported at once with its place
//! ([`Problems`]). What comes out cannot be wrong any more: a [`Policy`] and its
//! [`Limit`]s, which [`Compiled`] tests requests against.

mod compiled;
mod descriptor;
mod document;
pub mod edit;
mod hash;
mod limit;
mod name;
mod pattern;
mod pause;
mod printable;
mod problem;
mod quota;
pub mod read;
mod snapshot;
mod source;
mod timestamp;
mod units;
mod value_text;
mod warnings;
mod write;

pub use compiled::{Compiled, Match, Resolved};
pub use descriptor::{Descriptor, Entries, normal_value};
pub use document::{Entry, JsonError, Node, Place, Value};

pub use hash::{Names, PROXY_MARKS, Positions, bucket_hash, digest, proxy_mark};
pub use limit::{
    IfMissing, Limit, Matcher, OnFailure, OverLimit, Override, OverrideQuota, Policy, Revision,
    SEVERAL, Scope,
};
pub use name::{Name, NameError};
pub use pattern::{Pattern, PatternError};
pub use pause::Pause;
pub use printable::{is_printable, printable, printable_styled};
pub use problem::{Problem, Problems};
pub use quota::Quota;
pub use snapshot::Opaque;
pub use timestamp::{format_timestamp, parse_timestamp};
pub use units::{Duration, RateText, UnitError, parse_duration, parse_rate};
pub use value_text::{node_to_value, value_to_node};
pub use warnings::{BUILT_IN, Dear, Supply, Surroundings};
