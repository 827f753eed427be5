//! What is limited: descriptors and limits.
//!
//! A limits file, a stored record or a snapshot is a document ([`Node`]), read as a whole, so that
//! every problem is reported at once with its place ([`Problems`]). The result is valid by
//! construction: a [`Policy`] and its [`Limit`]s, which [`Compiled`] tests requests against.

#[cfg(all(test, target_arch = "wasm32"))]
#[macro_use]
extern crate wasm_test;

mod compiled;
mod descriptor;
mod descriptor_limit;
pub mod edit;
mod exemption;
mod hash;
mod limit;
mod pricing;
pub mod read;
mod snapshot;
mod warnings;
mod write;

// The types of a policy's numbers.
pub use algorithms::{Penalty, PenaltyStatus, Rate, SlotAct, SlotId};

// What a policy is read from and consists of; most users of a policy need nothing else of these crates.
pub use documents::{
    Duration, Entry, Name, NameError, Node, Place, Problem, Problems, UnitError, Value,
    format_timestamp, is_printable, node_to_value, parse_duration, parse_timestamp, printable,
    printable_styled, value_to_node,
};
pub use patterns::{Pattern, PatternError};

// How proxies write values.
pub use address::Address;
pub use normalize::{hashed, is_hash};

pub use compiled::{Compiled, Match, Mode, Resolved};
pub use descriptor::{Descriptor, Entries, REMOTE_ADDRESS, WHOLE_ADDRESS, normal_value};
pub use descriptor_limit::{
    ChargeMode, DESCRIPTOR, DescriptorError, DescriptorLimit, DescriptorPattern, EntryPattern,
    MAX_DESCRIPTOR_KEY, REQUEST_LIMIT, SentDescriptor, push_entry,
};
pub use exemption::{Exemption, Pause};
pub use hash::{Names, PROXY_MARKS, Positions, bucket_hash, digest, proxy_mark};
pub use limit::{
    AmountText, IfMissing, Limit, MULTIPLE_VALUES, Matcher, OnFailure, OverLimit, Override,
    OverrideQuota, Policy, Quota, RateText, Revision, Scope, parse_rate,
};
pub use pricing::{
    IfAbsent, MAX_COST, MAX_TOKENS, Pointer, Pricing, RequestPlace, RequestPrice, RequestValue,
    Reserve, ResponsePrice, ResponseValue, Row, Source, Term, whole_number,
};
pub use read::OVERRIDES_MAX;
pub use snapshot::{Opaque, SnapshotError};
pub use warnings::{
    Alterations, BUILT_IN, DEFAULT_PREFIXES, Dear, REQUEST_BODY, REQUEST_BODY_PASSES, Supply,
    Surroundings,
};
