//! The calling conventions of `lua/check.lua` and `lua/take_back.lua`: source, arguments, reply; and
//! which calls decide a check whose buckets are in several slots of a Cluster.
//!
//! Only bytes and integers, so that any Redis client, or a Lua interpreter in
//! a test, can carry it.

mod credit;
mod decode;
mod encode;
mod source;
mod spread;
mod take_back;
mod weight;

pub use redis_link::Script;

pub use credit::{Credit, Credited, decode_credited, encode_credit};
pub use decode::{MalformedReply, ScriptError, ScriptReply, decode};
pub use encode::{Clock, ScriptCall, ScriptCheck, ScriptLimit, encode};
pub use source::{CHECK, CREDIT, TAKE_BACK};
pub use spread::{Ask, Decided, Spread};
pub use take_back::{Charge, TakenBack, decode_taken_back, encode_charges};
pub(crate) use weight::CALL_MAX;
pub use weight::weight;
