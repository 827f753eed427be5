//! Connections to Redis or Valkey: to one server, to the primary that Sentinel names, or to the
//! masters of a Cluster.
//!
//! [`Servers`] sends [`Request`]s, each call with a [`Deadline`], and returns one [`Outcome`] per
//! request. It never repeats a command that may have run. It repeats one only if it certainly did
//! not run: after a redirect, or if the server does not have its script. The crate is independent
//! of the purpose of the commands.

mod bounded;
mod cluster;
mod connection;
mod dial;
mod error;
mod request;
mod sentinel;
mod servers;
mod subscription;
mod task;
mod url;
pub mod value;

pub use redis::{Cmd, ToRedisArgs, Value};

pub use cluster::{Cluster, Masters};
pub use connection::Deadline;
pub use dial::{Network, PemError, PemFile, Stream, read_at_most, read_file};
pub use error::{Error, Refusal};
pub use request::{Outcome, Request, Script, cmd, is_refused, slot};
pub use servers::{ClientCertificate, Lane, Node, Servers, Settings};
pub use subscription::Subscription;
pub use url::{SCHEMES, Server, UrlError};
