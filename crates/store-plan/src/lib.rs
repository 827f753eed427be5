//! Everything about the Redis layout that needs no I/O: the names of keys, the calls of scripts and
//! their replies, the records of limits, edits of them, and reports. The stores do the I/O.

pub mod edit;
pub mod record;
pub mod script;
pub mod telemetry;

mod change;
mod changes_since;
mod check_plan;
mod domain;
mod error;
mod key;
mod overrides;

pub use change::{Change, Edit, HistoryEntry, Signature};
pub use changes_since::{ChangesSince, EDITS_MAX, OverrideChange, edits_between};
pub use check_plan::{Bucket, BucketCosts, CheckPlan, Seal, reserves_or_settles};
pub use domain::{Head, HeadState, Overrides, Record, Stored};
pub use edit::{Operation, RecordedOverrides, RecordedSide, ResetOf, fits};
pub use error::{CheckPlanError, EditPlanError, InvalidRecord};
pub use key::{BucketKey, KeyValue, Keys, LimitKey, LimitKeyKind, PrefixError};
pub use overrides::{InvalidOverride, OverrideEdit, OverrideEdits};
pub use telemetry::PROXY_LIFE_MS;
