//! The encoding for people and programs.

mod reply;
mod request;
mod slots;

pub use reply::{Reason, Reply, batch_reply, check_reply};
pub use request::{Request, parse};
pub use slots::{parse_slots, renewed_reply};
