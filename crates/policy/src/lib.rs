//! What is limited: the model that filters and limiters share. A [`Policy`] has [`Limit`]s, which [`Compiled`]
//! tests requests against and sends to filters as a snapshot. `limits-file` reads and writes them.

#[cfg(all(test, target_arch = "wasm32"))]
#[macro_use]
extern crate wasm_test;

mod compiled;
mod descriptor;
mod descriptor_limit;
mod exemption;
mod hash;
mod limit;
mod pricing;
mod snapshot;
mod wire;

// The types of a policy's numbers.
pub use algorithms::{Algorithm, Penalty, PenaltyStatus, Rate, SlotAct, SlotId};

// What a policy is read from and consists of; most users of a policy need nothing else of these crates.
pub use documents::{
    Duration, Entry, Name, NameError, Node, Place, Problem, Problems, UnitError, Value,
    format_timestamp, is_printable, node_to_value, parse_duration, parse_timestamp, printable,
    printable_styled, similar, value_to_node,
};
pub use patterns::{Pattern, PatternError};

// How proxies write values.
pub use address::Address;
pub use normalize::{hashed, is_hash};

pub use compiled::{Compiled, Edits, Match, Mode, OverrideChange};
pub use descriptor::{
    Alterations, BUILT_IN, CHECK_STREAM_REFUSED, DEFAULT_PREFIXES, Descriptor, Entries,
    REMOTE_ADDRESS, REQUEST_BODY, REQUEST_BODY_PASSES, WHOLE_ADDRESS, normal_value,
};
pub use descriptor_limit::{
    ChargeMode, DESCRIPTOR, DescriptorError, DescriptorLimit, DescriptorPattern, EntryPattern,
    MAX_DESCRIPTOR_KEY, REQUEST_LIMIT, SentDescriptor, push_entry,
};
pub use exemption::{Exemption, Pause};
pub use hash::{Names, PROXY_MARKS, Positions, bucket_hash, digest, proxy_mark, values_hash};
pub use limit::{
    AmountText, BucketEdit, BucketEdits, ChoiceOf, DEFAULT_MAX_DELAY_MS, DEFAULT_SHARE, IfMissing,
    Limit, MULTIPLE_VALUES, Matcher, OVERRIDES_MAX, OnFailure, OverLimit, Override, OverrideQuota,
    Policy, RateText, Revision, Scope, ShareText, parse_rate, parse_share,
};
pub use pricing::{
    IfAbsent, MAX_COST, MAX_POINTERS, MAX_TOKENS, Pointer, Pricing, RequestPlace, RequestPrice,
    RequestValue, Reserve, ResponsePrice, ResponseValue, Row, Source, Term, whole_number,
};
pub use snapshot::{Opaque, Snapshot, SnapshotError, snapshot_bytes};
pub use wire::{Wire, write_list};
