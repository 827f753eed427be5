//! Everything about the Redis layout that needs no I/O: the names of keys, the calls of scripts and
//! their replies, the records of limits, edits of them, and reports. The stores do the I/O
//! and read the clocks: here time is an argument.

pub mod edit;
pub mod record;
pub mod script;
pub mod telemetry;

mod check;
mod keys;

pub use check::{CheckPlan, CheckPlanError, Seal, reserves_or_settles};
pub use edit::{
    EditPlanError, Operation, RecordedOverrides, RecordedSide, ResetOf, fits, reordered,
};
pub use keys::{BucketKey, KeyValue, Keys, LimitKey, LimitKeyKind, Origin, PrefixError};
pub use record::{
    Change, Edit, Head, HeadState, HistoryEntry, InvalidOverride, InvalidRecord, OverrideEdit,
    OverrideEdits, Overrides, Record, Signature, Stored,
};
