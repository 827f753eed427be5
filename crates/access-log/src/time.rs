//! Times and durations, as logs write them.

/// Requests start before 9999-01-01T00:00Z: the calendar of limits knows no later years.
pub const END_MS: u64 = 253_370_764_800_000;

/// A time in milliseconds since the epoch: RFC 3339, `25/Nov/2026:23:47:17 +0000`, or a number of seconds,
/// milliseconds, microseconds or nanoseconds since 1970, told apart by their size.
pub(crate) fn time_ms(text: &[u8]) -> Option<u64> {
    match text {
        [_, _, _, _, b'-', ..] => policy::parse_timestamp(std::str::from_utf8(text).ok()?),
        [_, _, b'/', ..] => of_common_log(text),
        _ => of_epoch(text),
    }
}

const MONTHS: [&[u8]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

fn of_common_log(text: &[u8]) -> Option<u64> {
    let [
        d0,
        d1,
        b'/',
        m0,
        m1,
        m2,
        b'/',
        y0,
        y1,
        y2,
        y3,
        b':',
        rest @ ..,
    ] = text
    else {
        return None;
    };
    let ([h0, h1, b':', n0, n1, b':', s0, s1, b' ', sign, zone @ ..], [z0, z1, z2, z3]) =
        rest.split_last_chunk::<4>()?
    else {
        return None;
    };
    let month = MONTHS.iter().position(|name| *name == [*m0, *m1, *m2])? + 1;
    let month = u8::try_from(month).ok()?;
    let (m0, m1) = (b'0' + month / 10, b'0' + month % 10);
    let written = [
        *y0, *y1, *y2, *y3, b'-', m0, m1, b'-', *d0, *d1, b'T', *h0, *h1, b':', *n0, *n1, b':',
        *s0, *s1, *sign, *z0, *z1, b':', *z2, *z3,
    ];
    let written = zone.is_empty().then_some(written)?;
    policy::parse_timestamp(std::str::from_utf8(&written).ok()?)
}

fn of_epoch(text: &[u8]) -> Option<u64> {
    let (whole, _) = decimal(text)?;
    match whole {
        0..100_000_000_000 => thousandths(text),
        100_000_000_000..100_000_000_000_000 => Some(whole),
        100_000_000_000_000..100_000_000_000_000_000 => Some(whole / 1000),
        _ => Some(whole / 1_000_000),
    }
}

/// A decimal number with at most three of its places, times 1000.
pub(crate) fn thousandths(text: &[u8]) -> Option<u64> {
    let (whole, places) = decimal(text)?;
    let places = places.iter().chain(b"000").take(3);
    let part = places.fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    whole.checked_mul(1000)?.checked_add(part)
}

/// A number without its places after the point; of a number below 0, `None`.
pub(crate) fn whole(text: &[u8]) -> Option<u64> {
    decimal(text).map(|(whole, _)| whole)
}

/// A duration in milliseconds: a number in the unit of its field, or with units of its own.
pub(crate) fn took_ms(text: &[u8], number: fn(&[u8]) -> Option<u64>) -> Option<u64> {
    number(text).or_else(|| with_units(text))
}

/// `1m32.05s` or `929.675µs`, as programs in Go write durations.
fn with_units(text: &[u8]) -> Option<u64> {
    let mut rest = Some(text).filter(|text| !text.is_empty())?;
    let mut sum_ns = 0_u64;
    while !rest.is_empty() {
        let is_unit = |byte: &u8| !byte.is_ascii_digit() && *byte != b'.';
        let (number, behind) = rest.split_at_checked(rest.iter().position(is_unit)?)?;
        let end = { behind.iter() }.position(u8::is_ascii_digit);
        let (unit, next) = behind.split_at_checked(end.unwrap_or(behind.len()))?;
        let mut place_ns = match unit {
            b"h" => 3_600_000_000_000,
            b"m" => 60_000_000_000,
            b"s" => 1_000_000_000,
            b"ms" => 1_000_000,
            // The two letters that Unicode has for it.
            b"us" | b"\xc2\xb5s" | b"\xce\xbcs" => 1000,
            b"ns" => 1,
            _ => return None,
        };
        let (whole, places) = decimal(number)?;
        sum_ns = sum_ns.checked_add(whole.checked_mul(place_ns)?)?;
        for digit in places {
            place_ns /= 10;
            sum_ns = sum_ns.checked_add(place_ns * u64::from(digit - b'0'))?;
        }
        rest = next;
    }
    Some(sum_ns / 1_000_000)
}

/// The digits before the point as a number, and those behind it.
fn decimal(text: &[u8]) -> Option<(u64, &[u8])> {
    let point = text.iter().position(|byte| *byte == b'.');
    let (digits, places) = match point {
        Some(at) => (text.get(..at)?, text.get(at + 1..)?),
        None => (text, &b""[..]),
    };
    let all = digits.iter().chain(places);
    if digits.is_empty() || !{ all }.all(u8::is_ascii_digit) {
        return None;
    }
    let digit = |sum: u64, digit: &u8| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
    Some((digits.iter().try_fold(0, digit)?, places))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_logs_write_them() {
        for (text, ms) in [
            ("2026-11-25T23:47:17.250Z", 1_795_650_437_250),
            ("2026-11-26T00:47:17.250+01:00", 1_795_650_437_250),
            ("25/Nov/2026:23:47:17 +0000", 1_795_650_437_000),
            ("26/Nov/2026:00:47:17 +0100", 1_795_650_437_000),
            ("1795650437", 1_795_650_437_000),
            ("1795650437.25", 1_795_650_437_250),
            ("1795650437250", 1_795_650_437_250),
            ("1795650437250999", 1_795_650_437_250),
            ("1795650437250999999", 1_795_650_437_250),
        ] {
            assert_eq!(time_ms(text.as_bytes()), Some(ms), "{text}");
        }
    }

    #[test]
    fn durations_have_the_unit_of_their_field_or_their_own() {
        for (text, of_ms, of_s) in [
            ("3", Some(3), Some(3000)),
            ("0.0129", Some(0), Some(12)),
            ("6.31ms", Some(6), Some(6)),
            ("1m32.05s", Some(92_050), Some(92_050)),
            ("1h0m0.5s", Some(3_600_500), Some(3_600_500)),
            ("929.675\u{b5}s", Some(0), Some(0)),
            ("1500\u{3bc}s", Some(1), Some(1)),
            ("2000000ns", Some(2), Some(2)),
            ("0s", Some(0), Some(0)),
            ("1.5h0.05", None, None),
            ("5x", None, None),
            ("ms", None, None),
            ("-5ms", None, None),
            ("1.2.3s", None, None),
            ("99999999999999h", None, None),
            ("", None, None),
        ] {
            assert_eq!(took_ms(text.as_bytes(), whole), of_ms, "{text}");
            assert_eq!(took_ms(text.as_bytes(), thousandths), of_s, "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in [
            "",
            "-",
            "now",
            "-5",
            "1e9",
            "1.2.3",
            "25/Foo/2026:23:47:17 +0000",
            "25/Nov/2026:23:47:17",
            "25/Nov/2026:23:47:17 +0000x",
            "2026-11-25T23:47:17",
            "32/Nov/2026:23:47:17 +0000",
            "99999999999999999999999",
            ".5",
        ] {
            assert_eq!(time_ms(text.as_bytes()), None, "{text}");
        }
        assert_eq!(thousandths(b"0.0129"), Some(12));
        assert_eq!(thousandths(b"3"), Some(3000));
        assert_eq!(thousandths(b"18446744073709551615"), None);
    }
}
