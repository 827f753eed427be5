//! The calling convention of `lua/check.lua`: source, arguments, reply.
//!
//! Only bytes and integers, so that any Redis client, or a Lua interpreter in
//! a test, can carry it.

mod credit;
mod decode;
mod encode;
mod source;

pub use credit::{Credit, Credited, decode_credited, encode_credit};
pub use decode::{MalformedReply, ScriptError, ScriptReply, decode};
pub use encode::{Clock, ScriptCall, ScriptCheck, ScriptLimit, encode};
pub use source::{CHECK, CREDIT, Script};
