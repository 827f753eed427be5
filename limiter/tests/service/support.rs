//! Test support.

mod fixtures;
mod scripted;
mod servers;
mod service;

pub use fixtures::{PER_USER, compact, name, proxy_id, publish, write};
pub use scripted::Scripted;
pub use servers::Server;
pub use service::{Service, quick, tuned};

/// Long enough for a busy machine; nothing is expected to take it.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);
