//! The calling conventions of `lua/check.lua` and `lua/refund.lua`: source, arguments, reply; and
//! which calls decide a check whose buckets are in several slots of a Cluster.
//!
//! They use only bytes and integers, so that any Redis client, or a Lua interpreter in a test, can
//! make the calls.

mod call;
mod check;
mod credit;
mod cross_slot;
mod decode;
mod encode;
mod packed;
mod refund;
pub mod source;
mod weight;

pub use call::{Clock, ScriptCall};
pub use check::{ScriptCheck, ScriptCosts, ScriptLimit, ScriptPenalty};
pub use credit::{Credit, Credited, decode_credited, encode_credit};
pub use cross_slot::{CrossSlotCheck, Decided, SlotCheck};
pub use decode::{MalformedReply, ScriptError, ScriptReply, decode};
pub use encode::encode;
pub use refund::{Charge, Refunded, decode_refunds, encode_refunds};
pub use weight::{CALL_MAX, in_batches, weight};
