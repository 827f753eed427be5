//! The encoding for the filter: CBOR arrays, keys and limit names once per
//! batch in a table, values as bytes.
//!
//! Fields are only ever added at the end of an array; a reader skips what it
//! does not know. Everything read is bounded ([`crate::MAX_CHECKS`],
//! [`crate::MAX_ENTRIES`], [`crate::MAX_VALUE`]) and nothing read can panic.

mod answer;
mod request;

pub use answer::BatchAnswer;
pub use request::{Batch, BatchCheck};

/// Why bytes are not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not CBOR, cut short, or of other types than they have to be.
    #[error("malformed: {0}")]
    Malformed(String),
    /// A name that is none.
    #[error("not a name: {0:?}")]
    Name(String),
    /// An index beyond its table, or a list longer than the table it goes with.
    #[error("an index beyond its table")]
    Index,
    /// More than is allowed of something.
    #[error("too many or too long: {0}")]
    Bounds(&'static str),
}

impl From<minicbor::decode::Error> for DecodeError {
    fn from(error: minicbor::decode::Error) -> Self {
        Self::Malformed(error.to_string())
    }
}

fn encode(message: &impl minicbor::Encode<()>) -> Vec<u8> {
    // Writing to a vector cannot fail.
    minicbor::to_vec(message).unwrap_or_default()
}

fn name(text: &str) -> Result<policy::Name, DecodeError> {
    text.parse()
        .map_err(|_| DecodeError::Name(text.chars().take(80).collect()))
}

/// A revision on the wire.
#[derive(Clone, Copy, minicbor::Encode, minicbor::Decode)]
#[cbor(array)]
struct WireRevision {
    #[n(0)]
    number: u64,
    #[n(1)]
    digest: u64,
}

impl From<&policy::Revision> for WireRevision {
    fn from(revision: &policy::Revision) -> Self {
        Self {
            number: revision.number,
            digest: revision.digest,
        }
    }
}

impl From<WireRevision> for policy::Revision {
    fn from(wire: WireRevision) -> Self {
        Self {
            number: wire.number,
            digest: wire.digest,
        }
    }
}

/// Names that were given an index.
#[derive(Default)]
struct Table<'n> {
    names: Vec<&'n str>,
    index: std::collections::HashMap<&'n str, u32>,
}

impl<'n> Table<'n> {
    fn index(&mut self, name: &'n policy::Name) -> u32 {
        let next = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        *self.index.entry(name.as_str()).or_insert_with(|| {
            self.names.push(name.as_str());
            next
        })
    }
}

fn look_up<T: Clone>(table: &[T], index: u32) -> Result<T, DecodeError> {
    let index = usize::try_from(index).map_err(|_| DecodeError::Index)?;
    table.get(index).cloned().ok_or(DecodeError::Index)
}

#[cfg(test)]
mod tests;
