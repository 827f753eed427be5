//! The encoding for the filter: CBOR arrays; a table per batch for keys and limit names; values as
//! bytes.
//!
//! New fields are only ever added at the end of an array; a reader skips unknown ones. Everything read
//! is bounded ([`crate::MAX_CHECKS`], [`crate::MAX_ENTRIES`], [`crate::MAX_VALUE`]) and no input can
//! cause a panic.

mod answer;
mod limit_request;
mod report;
mod request;

pub use answer::BatchAnswer;
pub use cbor::DecodeError;
pub use report::{DeniedBucket, Report, RequestCounts, Tally};
pub use request::{Batch, BatchCheck};

use cbor::{Reader, Writer};
use policy::{Name, Names, Revision};

/// Names in one table, at most: one for every limit of a domain.
const MAX_NAMES: usize = 10_000;

/// What messages consist of, beside plain items.
trait WriteWords {
    fn name(&mut self, name: &Name);
    fn revision(&mut self, revision: &Revision);
}

/// What messages consist of, beside plain items.
trait ReadWords {
    fn name(&mut self) -> Result<Name, DecodeError>;
    fn revision(&mut self) -> Result<Revision, DecodeError>;
    fn index(&mut self) -> Result<usize, DecodeError>;
    /// A name by its index in a table.
    fn indexed(&mut self, table: &[Name]) -> Result<Name, DecodeError>;
}

impl WriteWords for Writer {
    fn name(&mut self, name: &Name) {
        self.text(name.as_str());
    }

    fn revision(&mut self, revision: &Revision) {
        self.array(2);
        self.unsigned(revision.number);
        self.unsigned(revision.digest);
    }
}

impl ReadWords for Reader<'_> {
    fn name(&mut self) -> Result<Name, DecodeError> {
        let text = self.text()?;
        text.parse()
            .map_err(|_| DecodeError::Name(beginning(text).to_owned()))
    }

    fn revision(&mut self) -> Result<Revision, DecodeError> {
        self.fields(2, |reader| {
            Ok(Revision {
                number: reader.unsigned()?,
                digest: reader.unsigned()?,
            })
        })
    }

    fn index(&mut self) -> Result<usize, DecodeError> {
        usize::try_from(self.unsigned()?).map_err(|_| DecodeError::Index)
    }

    fn indexed(&mut self, table: &[Name]) -> Result<Name, DecodeError> {
        let index = self.index()?;
        table.get(index).cloned().ok_or(DecodeError::Index)
    }
}

/// The beginning of a text, enough for a message.
fn beginning(text: &str) -> &str {
    text.get(..text.floor_char_boundary(80)).unwrap_or(text)
}

/// A table of names and their indexes.
#[derive(Default)]
struct Table<'n>(Names<'n>);

impl<'n> Table<'n> {
    fn add(&mut self, name: &'n Name) {
        self.0.add(name.as_str());
    }

    fn write(&self, writer: &mut Writer) {
        writer.list(self.0.list().iter(), |writer, name| writer.text(name));
    }

    /// Writes the index of a name that was added.
    fn write_index(&self, writer: &mut Writer, name: &Name) {
        let index = self.0.position(name.as_str());
        let index = index.and_then(|index| u64::try_from(index).ok());
        writer.unsigned(index.unwrap_or(u64::MAX));
    }
}

#[cfg(test)]
mod tests;
