//! Connections to Redis or Valkey: to one server, to the primary that Sentinel names, or to the
//! masters of a Cluster.
//!
//! [`Servers`] sends [`Request`]s, each with a [`Deadline`], and gives one [`Outcome`] for each. A
//! command that may have run is never sent again; only one that certainly did not run is: after a
//! redirect, or where the server does not have its script. The crate does not depend on what the
//! commands are for.

mod cluster;
mod connection;
mod dial;
mod error;
mod outage_log;
mod reply;
mod request;
mod route;
mod script;
mod sentinel;
mod servers;
mod slot;
mod subscription;
mod task;
mod url;
pub mod value;

pub use redis::{Cmd, ToRedisArgs, Value, cmd};

pub use cluster::{Cluster, Masters};
pub use connection::Deadline;
pub use error::{Error, Refusal};
pub use request::{Outcome, Request, is_refused};
pub use script::Script;
pub use servers::{ClientCertificate, Lane, Node, Servers, Settings};
pub use slot::slot;
pub use subscription::Subscription;
pub use url::{SCHEMES, Server, UrlError};
