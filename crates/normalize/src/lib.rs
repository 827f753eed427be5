//! Normal forms of what a request can spell in many ways: its path, host, method and the parameters of its
//! query; and the hash that stands for a value in normal form.
//!
//! Services accept many spellings of one resource; whichever a client chooses must count against
//! the same limits. So filters and limiters bring values to a normal form before they match them or
//! name a bucket. `docs/limits.md` lists what is folded and what is not. Everything here takes any
//! bytes, in time and memory proportional to their number, and leaves a normal form as it is. It is
//! a separate crate because nearly every request has a path: unlike `policy`, it is not optimized
//! for size alone.

#[cfg(all(test, target_arch = "wasm32"))]
#[macro_use]
extern crate wasm_test;

mod path;

use sha2::{Digest, Sha256};

pub use path::path;

/// The host of an authority: in lower case, without user, port or trailing dots.
pub fn host(authority: &[u8]) -> Vec<u8> {
    let user = authority.iter().rposition(|byte| *byte == b'@');
    let host = user.and_then(|at| authority.get(at + 1..));
    let host = host.unwrap_or(authority);
    let bracket = host.iter().rposition(|byte| *byte == b']').unwrap_or(0);
    // The first one: of `shop.example:1:2` some services take what is before it.
    let colon = host.iter().skip(bracket).position(|byte| *byte == b':');
    let port = colon.and_then(|colon| host.get(..bracket + colon));
    let mut host = port.unwrap_or(host);
    while let Some(shorter) = host.strip_suffix(b".") {
        host = shorter;
    }
    host.to_ascii_lowercase()
}

/// A method: in upper case.
pub fn method(method: &[u8]) -> Vec<u8> {
    method.to_ascii_uppercase()
}

/// Bytes of the hash that are kept: enough that no two values share a bucket.
const KEPT: usize = 16;

/// The first half of the value's SHA-256 in hex, as `sha256sum | cut -c1-32` prints it. It has no key,
/// so that every proxy computes the same hash, and an operator can too. It distinguishes buckets without
/// the value leaving the proxy (`hash: true` in a filter's configuration).
pub fn hashed(value: &[u8]) -> Vec<u8> {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    let digest = Sha256::digest(value);
    let digit = |half: u8| DIGITS.get(usize::from(half)).copied().unwrap_or(b'0');
    let bytes = digest.iter().take(KEPT);
    bytes
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}

/// Whether a value has the form of a hash.
pub fn is_hash(value: &[u8]) -> bool {
    let digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    value.len() == 2 * KEPT && value.iter().all(digit)
}

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

/// The decoded values of a name in the query of a request target, parsed as leniently as any service does.
///
/// `&` and `;` separate parameters. Names are decoded, and compared without case and surrounding blanks.
pub fn parameters<'t>(target: &'t [u8], name: &'t str) -> impl Iterator<Item = Vec<u8>> + 't {
    let target = target.split(|byte| *byte == b'#').next();
    let query = target.and_then(|target| {
        let start = target.iter().position(|byte| *byte == b'?')?;
        target.get(start + 1..)
    });
    let pairs = query
        .unwrap_or_default()
        .split(|byte| matches!(byte, b'&' | b';'));
    pairs.filter_map(move |pair| {
        let equals = pair.iter().position(|byte| *byte == b'=');
        let (key, value) = pair.split_at_checked(equals.unwrap_or(pair.len()))?;
        is_parameter_name(key, name).then(|| decoded_parameter(value.get(1..).unwrap_or_default()))
    })
}

fn is_parameter_name(key: &[u8], name: &str) -> bool {
    key.eq_ignore_ascii_case(name.as_bytes())
        || key.iter().any(|byte| matches!(byte, b'%' | b'+' | ..=b' '))
            && (decoded_parameter(key).trim_ascii()).eq_ignore_ascii_case(name.as_bytes())
}

/// Undoes percent-encoding and `+`. What is not an encoding stays as it is.
fn decoded_parameter(text: &[u8]) -> Vec<u8> {
    let mut spaced = text.to_vec();
    for byte in &mut spaced {
        if *byte == b'+' {
            *byte = b' ';
        }
    }
    percent_decode(&spaced)
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
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_host_has_one_spelling() {
        for (authority, expected) in [
            ("Shop.Example:8080", "shop.example"),
            ("shop.example", "shop.example"),
            ("shop.example.", "shop.example"),
            ("shop.example..:80", "shop.example"),
            ("shop.example:1:2", "shop.example"),
            ("shop.example.:1:", "shop.example"),
            ("me:secret@shop.example:80", "shop.example"),
            ("[2001:DB8::1]:8080", "[2001:db8::1]"),
            ("[::1]", "[::1]"),
            ("", ""),
        ] {
            assert_eq!(host(authority.as_bytes()), expected.as_bytes());
        }
        assert_eq!(host(b"\xff:1"), b"\xff");
    }

    #[test]
    fn a_method_has_one_spelling() {
        assert_eq!(method(b"post"), b"POST");
        assert_eq!(method(b"PoST\xff"), b"POST\xff");
    }

    proptest! {
        #[test]
        fn any_bytes_have_a_host(bytes in proptest::collection::vec(any::<u8>(), 0..32)) {
            let _ = (host(&bytes), method(&bytes));
        }

        /// A limiter normalizes what a proxy did already.
        #[test]
        fn a_host_in_normal_form_is_its_own(authority in r"[aA.:@\[\]1]{0,12}") {
            let once = host(authority.as_bytes());
            prop_assert_eq!(host(&once), once);
        }
    }

    #[test]
    fn the_hash_is_the_first_half_of_what_sha256sum_prints() {
        assert_eq!(hashed(b"abc"), b"ba7816bf8f01cfea414140de5dae2223");
        assert_eq!(hashed(b""), b"e3b0c44298fc1c149afbf4c8996fb924");
        let long = vec![b'x'; 100_000];
        assert!(is_hash(&hashed(&long)));
        assert!(!is_hash(b"BA7816BF8F01CFEA414140DE5DAE2223"));
        assert!(!is_hash(b"ba7816bf"));
    }

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
