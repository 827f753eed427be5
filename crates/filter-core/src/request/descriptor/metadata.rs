//! Dynamic metadata: values that other filters set for a request, such as the claims of its token.
//!
//! The host returns a value as bytes without its type, which may be text, a number or a list, and a
//! client may choose text that looks like a number. Where the bytes are ambiguous, the filter reads the
//! whole metadata, a protobuf message that contains the types.

use super::{NoProperty, Request};

/// The property with all metadata, and the prefix of values that filters set.
const WHOLE: &[u8] = b"metadata";
const FILTERS: &[u8] = b"metadata\0filter_metadata\0";

/// The value at a path, as text; `None` if it is absent or null.
pub(super) fn value(path: &[u8], request: &impl Request) -> Option<Vec<u8>> {
    let bytes = match request.property(path) {
        Ok(bytes) if is_text(&bytes) => return Some(bytes),
        Ok(bytes) => bytes,
        Err(NoProperty::Unreadable) => Vec::new(),
        Err(NoProperty::Absent) => return None,
    };
    let whole = request.property(WHOLE).unwrap_or_default();
    distinguish(bytes, &whole, path)
}

/// A value whose type is unclear counts as its bytes.
#[cold]
#[inline(never)]
fn distinguish(bytes: Vec<u8>, whole: &[u8], path: &[u8]) -> Option<Vec<u8>> {
    let path = path.strip_prefix(FILTERS);
    match path.and_then(|path| Value::of_metadata(whole, path)) {
        Some(value) => text(&value),
        None => Some(bytes),
    }
}

/// Whether bytes are certainly text: a number has eight bytes, a boolean is a byte below the blank, and
/// a list or a map begins with its length, which contains a zero byte.
fn is_text(bytes: &[u8]) -> bool {
    bytes.len() != 8 && !bytes.iter().any(|byte| *byte < b' ')
}

// --- Converts values to text: text stays as it is, whole numbers are decimal, and lists and maps are JSON
// with sorted keys, so that one value has one text.

/// Bound: levels of lists and maps in a claim. Beyond it, what lies deeper is left out.
const MAX_DEPTH: usize = 64;

/// The text of a value; null is as absent.
fn text(value: &Value<'_>) -> Option<Vec<u8>> {
    match value {
        Value::Null => None,
        Value::Text(text) => Some(text.to_vec()),
        _ => {
            let mut out = Vec::new();
            write(&mut out, value, 0);
            Some(out)
        }
    }
}

fn write(out: &mut Vec<u8>, value: &Value<'_>, depth: usize) {
    match value {
        Value::Text(text) => write_text(out, text),
        Value::Number(bits) => write_number(out, *bits),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::List(list) if depth < MAX_DEPTH => {
            out.push(b'[');
            for (at, item) in items(list).enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write(out, &Value::read(item), depth + 1);
            }
            out.push(b']');
        }
        Value::Map(map) if depth < MAX_DEPTH => {
            // A claim has few entries, and another sort would add 3 KB to the module.
            let mut sorted: Vec<(&[u8], &[u8])> = Vec::new();
            for entry in entries(map) {
                let at = sorted.partition_point(|other| *other < entry);
                sorted.insert(at, entry);
            }
            out.push(b'{');
            for (at, (key, value)) in sorted.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write_text(out, key);
                out.push(b':');
                write(out, &Value::read(value), depth + 1);
            }
            out.push(b'}');
        }
        Value::Null | Value::List(_) | Value::Map(_) => out.extend_from_slice(b"null"),
    }
}

fn write_text(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    for byte in text {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', *byte]),
            0..=0x1f => {
                out.extend_from_slice(b"\\u");
                write_digits(out, u64::from(*byte), 4);
            }
            _ => out.push(*byte),
        }
    }
    out.push(b'"');
}

/// Writes whole numbers below 2^64 in decimal, and all others as their bits, because rounding would
/// merge buckets. (Printing floats would add 11 KB to the module.)
fn write_number(out: &mut Vec<u8>, bits: u64) {
    const INFINITE: u64 = 0x7ff << 52;
    if let Some(magnitude) = whole(bits) {
        if bits >> 63 == 1 && magnitude > 0 {
            out.push(b'-');
        }
        out.extend_from_slice(itoa::Buffer::new().format(magnitude).as_bytes());
    } else if bits << 1 > INFINITE << 1 {
        out.extend_from_slice(b"NaN");
    } else {
        out.extend_from_slice(b"0x");
        write_digits(out, bits, 16);
    }
}

/// The last hexadecimal digits of a number.
fn write_digits(out: &mut Vec<u8>, number: u64, count: u32) {
    for at in (0..count).rev() {
        let digit = u32::try_from(number >> (4 * at) & 0xf).unwrap_or(0);
        let digit = char::from_digit(digit, 16).unwrap_or('0');
        out.extend(u8::try_from(digit));
    }
}

/// The magnitude of the whole number that a float of these bits is; `None` for any other float.
fn whole(bits: u64) -> Option<u64> {
    const FRACTION_BITS: u32 = 52;
    if bits << 1 == 0 {
        return Some(0);
    }
    let fraction = bits & ((1 << FRACTION_BITS) - 1);
    let exponent = u32::try_from(bits >> FRACTION_BITS & 0x7ff).ok()?;
    let significand = fraction | 1 << FRACTION_BITS;
    // The value is significand * 2^(exponent - 1075).
    match exponent.checked_sub(1075) {
        Some(left) if left <= 11 => Some(significand << left),
        Some(_) => None,
        None => {
            let right = 1075 - exponent;
            let shifted = significand.checked_shr(right)?;
            (shifted << right == significand).then_some(shifted)
        }
    }
}

// --- Parses Envoy's metadata in protobuf encoding: `envoy.config.core.v3.Metadata`, which has a
// `google.protobuf.Struct` for each filter.

/// A `google.protobuf.Value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value<'b> {
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
    fn of_metadata(metadata: &'b [u8], path: &[u8]) -> Option<Self> {
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
fn entries(message: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
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
fn items(message: &[u8]) -> impl Iterator<Item = &[u8]> {
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

#[cfg(test)]
mod tests;

#[cfg(test)]
mod json_tests {
    use super::*;

    fn number(value: f64) -> String {
        let text = text(&Value::Number(value.to_bits())).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn whole_numbers_are_written_in_decimal() {
        for (value, expected) in [
            (42.0, "42"),
            (0.0, "0"),
            (-0.0, "0"),
            (-7.0, "-7"),
            (1.0, "1"),
            (1_763_000_000_000.0, "1763000000000"),
            (9_007_199_254_740_992.0, "9007199254740992"),
            (9_223_372_036_854_775_808.0, "9223372036854775808"),
            (-9_223_372_036_854_775_808.0, "-9223372036854775808"),
            (18_446_744_073_709_549_568.0, "18446744073709549568"),
        ] {
            assert_eq!(number(value), expected);
        }
    }

    #[test]
    fn other_numbers_are_written_as_distinct_bit_patterns() {
        for (value, expected) in [
            (1.5, "0x3ff8000000000000"),
            (-0.5, "0xbfe0000000000000"),
            (5e-324, "0x0000000000000001"),
            (1e300, "0x7e37e43c8800759c"),
            (18_446_744_073_709_551_616.0, "0x43f0000000000000"),
            (f64::INFINITY, "0x7ff0000000000000"),
            (f64::NEG_INFINITY, "0xfff0000000000000"),
            (f64::NAN, "NaN"),
            (-f64::NAN, "NaN"),
        ] {
            assert_eq!(number(value), expected);
        }
        let odd = Value::Number(u64::MAX);
        assert_eq!(text(&odd).unwrap(), b"NaN");
    }
}
