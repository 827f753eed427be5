//! Records of limits in Redis.

mod delta;
mod fields;
mod overrides;
mod read;
mod settle;
mod write;
