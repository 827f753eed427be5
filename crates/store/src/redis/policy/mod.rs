//! Records of limits in Redis.

mod delta;
mod fields;
mod read;
mod write;

pub(super) use delta::Recent;
