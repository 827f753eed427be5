//! The calling convention of `lua/check.lua`: source, arguments, reply.
//!
//! Only bytes and integers, so that any Redis client, or a Lua interpreter in
//! a test, can carry it.

mod decode;
mod encode;
mod source;

pub use decode::{MalformedReply, ScriptError, ScriptReply, decode};
pub use encode::{Clock, ScriptCall, ScriptCheck, ScriptLimit, encode};
pub use source::{CHECK, Script};
