//! Entries out of headers, whatever bytes a client put there.

use filter_config::Format;

/// The path of a request target.
pub(super) fn without_query(target: &[u8]) -> &[u8] {
    let end = target.iter().position(|byte| matches!(byte, b'?' | b'#'));
    end.and_then(|end| target.get(..end)).unwrap_or(target)
}

/// The host of an authority: lower case, without the port.
pub(super) fn host(authority: &[u8]) -> Vec<u8> {
    let bracket = authority
        .iter()
        .rposition(|byte| *byte == b']')
        .unwrap_or(0);
    let colon = authority.iter().rposition(|byte| *byte == b':');
    let end = colon.filter(|colon| *colon >= bracket);
    let host = end
        .and_then(|end| authority.get(..end))
        .unwrap_or(authority);
    host.to_ascii_lowercase()
}

/// The value of a cookie.
pub(super) fn cookie(header: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    header.split(|byte| *byte == b';').find_map(|pair| {
        let (key, value) = split_at_byte(pair.trim_ascii(), b'=')?;
        (key == name).then(|| value.to_vec())
    })
}

/// The first value of a query parameter, decoded, so that one value has one spelling.
pub(super) fn query(target: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    let (_, query) = split_at_byte(target, b'?')?;
    let query = query.split(|byte| *byte == b'#').next()?;
    query.split(|byte| *byte == b'&').find_map(|pair| {
        let (key, value) = split_at_byte(pair, b'=').unwrap_or((pair, b""));
        (decoded(key) == name).then(|| decoded(value))
    })
}

/// A property's value as text.
pub(super) fn property(bytes: Vec<u8>, format: Format) -> Option<Vec<u8>> {
    let number = <[u8; 8]>::try_from(bytes.as_slice());
    match (format, number) {
        (Format::Integer, number) => {
            Some(i64::from_le_bytes(number.ok()?).to_string().into_bytes())
        }
        // The eight bytes of a number are never all printable, except for a few beyond 10^29.
        (Format::Metadata, Ok(number)) if !is_printable(&bytes) => {
            Some(whole(u64::from_le_bytes(number))?.to_string().into_bytes())
        }
        (Format::Text | Format::Metadata, _) => Some(bytes),
    }
}

/// The whole number that a float of these bits is; `None` for any other, of which buckets would
/// differ by rounding. Taken apart by hand: printing floats weighs 11 KB.
fn whole(bits: u64) -> Option<i64> {
    const FRACTION_BITS: u64 = 52;
    let fraction = bits & ((1 << FRACTION_BITS) - 1);
    let exponent = (bits >> FRACTION_BITS) & 0x7ff;
    if bits << 1 == 0 {
        return Some(0);
    }
    let significand = fraction | 1 << FRACTION_BITS;
    // The value is significand * 2^(exponent - 1075).
    let magnitude = match exponent.checked_sub(1075) {
        Some(left) if left <= 10 => significand << left,
        Some(_) => return None,
        None => {
            let right = 1075 - exponent;
            let shifted = significand.checked_shr(u32::try_from(right).ok()?)?;
            if shifted.checked_shl(u32::try_from(right).ok()?)? != significand {
                return None;
            }
            shifted
        }
    };
    let magnitude = i64::try_from(magnitude).ok()?;
    Some(if bits >> 63 == 1 {
        -magnitude
    } else {
        magnitude
    })
}

fn is_printable(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| !text.contains(char::is_control))
}

fn split_at_byte(bytes: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|byte| *byte == separator)?;
    let (before, after) = bytes.split_at_checked(at)?;
    Some((before, after.get(1..)?))
}

/// Undoes percent-encoding and `+`. What is not an encoding stays as it is.
fn decoded(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        match (byte, after) {
            (b'%', [high, low, beyond @ ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => {
                    out.push(high << 4 | low);
                    rest = beyond;
                }
                _ => out.push(b'%'),
            },
            (b'+', _) => out.push(b' '),
            (byte, _) => out.push(*byte),
        }
    }
    out
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_path_ends_before_its_query() {
        assert_eq!(without_query(b"/a/b?c=d?e"), b"/a/b");
        assert_eq!(without_query(b"/a#b"), b"/a");
        assert_eq!(without_query(b"/\xff"), b"/\xff");
        assert_eq!(without_query(b""), b"");
    }

    #[test]
    fn a_host_has_no_port_and_no_capitals() {
        assert_eq!(host(b"Shop.Example:8080"), b"shop.example");
        assert_eq!(host(b"shop.example"), b"shop.example");
        assert_eq!(host(b"[2001:DB8::1]:8080"), b"[2001:db8::1]");
        assert_eq!(host(b"[::1]"), b"[::1]");
        assert_eq!(host(b"\xff:1"), b"\xff");
    }

    #[test]
    fn a_cookie_is_found_by_its_whole_name() {
        let header = b"xsid=1; sid=a=b;  theme=dark";
        assert_eq!(cookie(header, b"sid").unwrap(), b"a=b");
        assert_eq!(cookie(header, b"theme").unwrap(), b"dark");
        assert_eq!(cookie(header, b"id"), None);
    }

    #[test]
    fn a_parameter_has_one_spelling() {
        for target in ["/?key=a%20b", "/?x=1&key=a+b#f", "/?k%65y=%61 b&key=other"] {
            assert_eq!(
                query(target.as_bytes(), b"key").unwrap(),
                b"a b",
                "{target}"
            );
        }
        assert_eq!(query(b"/?key", b"key").unwrap(), b"");
        assert_eq!(query(b"/?key=%f", b"key").unwrap(), b"%f");
        assert_eq!(query(b"/?key=%ff", b"key").unwrap(), b"\xff");
        assert_eq!(query(b"/key=1", b"key"), None);
    }

    #[test]
    fn metadata_numbers_read_as_people_write_them() {
        let metadata = |bytes: &[u8]| property(bytes.to_vec(), Format::Metadata).unwrap();
        assert_eq!(metadata(&42_f64.to_le_bytes()), b"42");
        assert_eq!(metadata(&0_f64.to_le_bytes()), b"0");
        assert_eq!(metadata(&(-7_f64).to_le_bytes()), b"-7");
        assert_eq!(metadata(&(-0_f64).to_le_bytes()), b"0");
        assert_eq!(
            metadata(&1_763_000_000_000_f64.to_le_bytes()),
            b"1763000000000"
        );
        assert_eq!(
            metadata(&9_007_199_254_740_992_f64.to_le_bytes()),
            b"9007199254740992"
        );
        for odd in [1.5, 0.1, 1e300, 5e-324, f64::NAN, f64::INFINITY] {
            assert_eq!(
                property(odd.to_le_bytes().to_vec(), Format::Metadata),
                None,
                "{odd}"
            );
        }
        assert_eq!(metadata(b"12345678"), b"12345678");
        assert_eq!(metadata(b"gold"), b"gold");
        assert_eq!(
            property(7_i64.to_le_bytes().to_vec(), Format::Integer).unwrap(),
            b"7"
        );
        assert_eq!(property(b"odd".to_vec(), Format::Integer), None);
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_taken_apart(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = (without_query(&bytes), host(&bytes));
            let _ = (cookie(&bytes, b"a"), query(&bytes, b"a"));
            let _ = property(bytes, Format::Metadata);
        }
    }
}
