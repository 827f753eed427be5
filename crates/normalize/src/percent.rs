//! Percent-encoding.

/// The next byte of percent-encoded text, and what follows it. A `%` without two hexadecimal
/// digits behind it stands for itself.
pub(crate) fn next_byte(text: &[u8]) -> Option<(u8, &[u8])> {
    let (byte, rest) = text.split_first()?;
    if *byte == b'%'
        && let [high, low, beyond @ ..] = rest
        && let (Some(high), Some(low)) = (hex(*high), hex(*low))
    {
        return Some((high << 4 | low, beyond));
    }
    Some((*byte, rest))
}

/// Undoes percent-encoding, once.
pub fn percent_decode(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = next_byte(rest) {
        out.push(byte);
        rest = after;
    }
    out
}

/// The value of a hexadecimal digit.
pub fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_encoding_stays() {
        for (text, expected) in [
            ("a%20b", &b"a b"[..]),
            ("%41%2b%2B", b"A++"),
            ("%ff", b"\xff"),
            ("%", b"%"),
            ("%4", b"%4"),
            ("%zz%4g%%41", b"%zz%4g%A"),
            ("%2541", b"%41"),
        ] {
            assert_eq!(percent_decode(text.as_bytes()), expected, "{text}");
        }
    }
}
