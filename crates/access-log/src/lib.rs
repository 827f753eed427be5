//! Requests read from access logs, in the order in which they started.
//!
//! A log is bytes: this crate opens no file and reads no clock. [`Layout`] says where a line has what; [`Logs`]
//! decompresses several logs, splits them into lines, reads each line, and sorts the requests by their start,
//! because proxies write a line when a request ends.

mod input;
mod json;
mod layout;
mod order;
mod text;
mod time;

use std::io;

use policy::{Descriptor, Name};

pub use input::LINE_MAX;
pub use layout::{Field, Format, Layout, LayoutError, Unreadable, Where};
pub use order::{Broken, Counts, Cut, FoundEntry, Log, Logs, REORDER_MAX};
pub use time::END_MS;

/// A request of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// When it started, in milliseconds since the epoch.
    pub at_ms: u64,
    /// How long it took, in milliseconds; `None`: the line does not say.
    pub took_ms: Option<u64>,
    /// How its service answered it.
    pub service: Service,
    /// The entries that the limits need, in their normal form.
    pub descriptor: Descriptor,
    /// Whether its method is HEAD: then its response has no body.
    pub is_head: bool,
    /// Whether its method is CONNECT: then what follows is no response.
    pub is_connect: bool,
    /// The status of its response, 0 if there was none; `None`: the line does not say.
    pub status: Option<u16>,
    /// Bytes of its response's body.
    pub bytes_sent: Option<u64>,
    /// The numbers at the places of [`Layout::costs`], in their order; empty if there are no such places.
    pub costs: Vec<Option<u64>>,
}

/// How a service answered a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Service {
    /// The line does not say.
    #[default]
    Unknown,
    /// It did not: the line has a place for the time that it took, and none there.
    Silent,
    /// It took so many milliseconds until its answer began.
    Took(u64),
}

impl Request {
    /// The memory that it takes, in bytes, about.
    pub fn bytes(&self) -> usize {
        let entries = self.descriptor.iter();
        let entries = entries.map(|(_, value)| size_of::<(Name, Vec<u8>)>() + value.len());
        size_of::<Self>() + size_of_val(self.costs.as_slice()) + entries.sum::<usize>()
    }
}

/// Why logs cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A log cannot be opened, or its first bytes cannot be read.
    #[error("cannot read {log}: {error}")]
    Io {
        /// The log.
        log: String,
        /// Why.
        error: io::Error,
    },
    /// No line among the first has a known format.
    #[error(
        "{log} has no format that is known: none of its first {lines} lines begins like an access log's"
    )]
    Format {
        /// The log.
        log: String,
        /// How many lines were looked at.
        lines: u64,
    },
    /// A log has a format in which it has not what the layout says.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A line never ends.
    #[error("{log}: line {line} is longer than {} MiB: this is no log", input::SKIPPED_MAX >> 20)]
    NoLines {
        /// The log.
        log: String,
        /// The line.
        line: u64,
    },
    /// There are more logs than can be sorted together.
    #[error("{0} logs are more than the {max} that can be read together", max = order::LOGS_MAX)]
    TooMany(usize),
}
