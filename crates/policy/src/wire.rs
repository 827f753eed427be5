//! What snapshots and the messages of `protocol` consist of: types with one form in both.

use algorithms::{Adaptive, CostSettlement, Lease, Reservation, Settlement, Slot, SlotId};
use cbor::{DecodeError, Reader, Writer};
use documents::Name;

use crate::{Pause, Revision};

/// A type with one form.
pub trait Wire: Sized {
    /// Appends it.
    fn write(&self, writer: &mut Writer);
    /// Reads what [`Self::write`] wrote.
    ///
    /// # Errors
    /// It is something else.
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

/// Structs that are arrays of their fields, in this order. Further fields of later versions are skipped.
#[macro_export]
macro_rules! arrays {
    ($($type:ident { $($field:ident),+ })+) => {$(
        impl $crate::Wire for $type {
            fn write(&self, writer: &mut Writer) {
                writer.array([$(stringify!($field)),+].len());
                $($crate::Wire::write(&self.$field, writer);)+
            }

            fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                reader.fields([$(stringify!($field)),+].len(), |reader| {
                    Ok(Self { $($field: $crate::Wire::read(reader)?),+ })
                })
            }
        }
    )+};
}

arrays! {
    Adaptive { min, max, latency_ms, share }
    CostSettlement { reservation, units }
    Lease { units, epoch, ttl_ms }
    Pause { until_ms }
    Reservation { secret, number, units, seal }
    Revision { number, digest }
    Settlement { epoch, spent, returned }
    Slot { start_ms, parts, since_ms, turn }
    SlotId { stamp, secret }
}

impl Wire for u64 {
    fn write(&self, writer: &mut Writer) {
        writer.unsigned(*self);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.unsigned()
    }
}

impl Wire for bool {
    fn write(&self, writer: &mut Writer) {
        writer.boolean(*self);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.boolean()
    }
}

impl Wire for String {
    fn write(&self, writer: &mut Writer) {
        writer.text(self);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.text().map(str::to_owned)
    }
}

impl Wire for Name {
    fn write(&self, writer: &mut Writer) {
        writer.text(self.as_str());
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let text = reader.text()?;
        text.parse().map_err(|_| {
            // Enough for a message.
            let beginning = text.get(..text.floor_char_boundary(80)).unwrap_or(text);
            DecodeError::Name(beginning.to_owned())
        })
    }
}

impl<T: Wire> Wire for Option<T> {
    fn write(&self, writer: &mut Writer) {
        writer.optional(self.as_ref(), |writer, value| value.write(writer));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.optional(T::read)
    }
}

/// Writes an array; its reader bounds it.
pub fn write_list<T: Wire>(writer: &mut Writer, items: &[T]) {
    writer.list(items.iter(), |writer, item| item.write(writer));
}
