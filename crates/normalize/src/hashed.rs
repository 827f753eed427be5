//! Values that distinguish buckets without leaving the proxy (`hash: true` in a filter's configuration).

use sha2::{Digest, Sha256};

/// Bytes of the hash that are kept: enough that no two values share a bucket.
const KEPT: usize = 16;

/// The first half of the value's SHA-256 in hex, as `sha256sum | cut -c1-32` prints it. It has no key,
/// so that every proxy computes the same hash, and an operator can too.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_first_half_of_what_sha256sum_prints() {
        assert_eq!(hashed(b"abc"), b"ba7816bf8f01cfea414140de5dae2223");
        assert_eq!(hashed(b""), b"e3b0c44298fc1c149afbf4c8996fb924");
        let long = vec![b'x'; 100_000];
        assert!(is_hash(&hashed(&long)));
        assert!(!is_hash(b"BA7816BF8F01CFEA414140DE5DAE2223"));
        assert!(!is_hash(b"ba7816bf"));
    }
}
