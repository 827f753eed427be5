//! Converts values to text: text stays as it is, whole numbers are decimal, and lists and maps are JSON
//! with sorted keys, so that one value has one text.

use super::message::{Value, entries, items};

/// How deep lists and maps may lie within one another; what lies deeper is left out.
const MAX_DEPTH: usize = 64;

/// The text of a value; null is as absent.
pub(super) fn text(value: &Value<'_>) -> Option<Vec<u8>> {
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

#[cfg(test)]
mod tests {
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
