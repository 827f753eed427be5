//! The encoding for people and programs.

mod reply;
mod request;

pub use reply::{Reason, Reply, batch_reply, check_reply};
pub use request::{Request, parse};
