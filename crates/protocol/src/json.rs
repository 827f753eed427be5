//! The encoding for people and programs.

mod reply;
mod request;
mod settle;
mod slots;

pub use reply::{Reason, Reply, batch_reply, check_reply};
pub use request::{Request, parse};
pub use settle::{parse_settle, token};
pub use slots::{parse_slots, renewed_reply};
