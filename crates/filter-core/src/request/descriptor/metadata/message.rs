//! Parses Envoy's metadata in protobuf encoding: `envoy.config.core.v3.Metadata`, which has a
//! `google.protobuf.Struct` for each filter.

/// A `google.protobuf.Value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value<'b> {
    Null,
    /// The bits of a float.
    Number(u64),
    Text(&'b [u8]),
    Bool(bool),
    /// A message `Struct`: see [`entries`].
    Map(&'b [u8]),
    /// A message `ListValue`: see [`items`].
    List(&'b [u8]),
}

impl<'b> Value<'b> {
    /// The value at a path, whose parts are separated by zero bytes; the first part is the filter's
    /// name.
    pub(super) fn of_metadata(metadata: &'b [u8], path: &[u8]) -> Option<Self> {
        let mut parts = path.split(|byte| *byte == 0);
        let mut value = Self::Map(entry(metadata, parts.next()?)?);
        for part in parts {
            let Self::Map(map) = value else {
                return None;
            };
            value = Self::read(entry(map, part)?);
        }
        Some(value)
    }

    /// Reads a message `Value`. One without a kind is null.
    pub(super) fn read(message: &'b [u8]) -> Self {
        match Fields(message).last() {
            Some((2, Field::Number(bits))) => Self::Number(bits),
            Some((3, Field::Bytes(text))) => Self::Text(text),
            Some((4, Field::Number(bit))) => Self::Bool(bit != 0),
            Some((5, Field::Bytes(map))) => Self::Map(map),
            Some((6, Field::Bytes(list))) => Self::List(list),
            _ => Self::Null,
        }
    }
}

/// The value of a key of a map.
#[inline(never)]
fn entry<'b>(map: &'b [u8], key: &[u8]) -> Option<&'b [u8]> {
    entries(map)
        .find(|(known, _)| *known == key)
        .map(|(_, value)| value)
}

/// The keys and values of a message whose first field is a map.
pub(super) fn entries(message: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    items(message).map(|entry| {
        let (mut key, mut value): (&[u8], &[u8]) = (&[], &[]);
        for (number, field) in Fields(entry) {
            match (number, field) {
                (1, Field::Bytes(bytes)) => key = bytes,
                (2, Field::Bytes(bytes)) => value = bytes,
                _ => {}
            }
        }
        (key, value)
    })
}

/// The messages in the first field of a message, which is repeated.
pub(super) fn items(message: &[u8]) -> impl Iterator<Item = &[u8]> {
    Fields(message).filter_map(|field| match field {
        (1, Field::Bytes(item)) => Some(item),
        _ => None,
    })
}

/// The fields of a message with their numbers, up to the first that cannot be read.
struct Fields<'b>(&'b [u8]);

enum Field<'b> {
    Number(u64),
    Bytes(&'b [u8]),
}

impl<'b> Iterator for Fields<'b> {
    type Item = (u64, Field<'b>);

    #[inline(never)]
    fn next(&mut self) -> Option<Self::Item> {
        let tag = self.varint()?;
        let field = match tag & 7 {
            0 => Field::Number(self.varint()?),
            1 => Field::Number(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            2 => {
                let len = self.varint()?;
                Field::Bytes(self.take(usize::try_from(len).ok()?)?)
            }
            5 => Field::Bytes(self.take(4)?),
            _ => return None,
        };
        Some((tag >> 3, field))
    }
}

impl<'b> Fields<'b> {
    fn take(&mut self, len: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.take(1)? else { return None };
            number |= u64::from(byte & 0x7f) << shift;
            if *byte < 0x80 {
                return Some(number);
            }
        }
        None
    }
}
