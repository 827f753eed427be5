//! Bytes looked for eight at a time: the target has no vector instructions.

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// A bit in each byte of a word that is `byte`; above the first, some others may have one.
fn equal(word: u64, byte: u8) -> u64 {
    let zero = word ^ (ONES * u64::from(byte));
    zero.wrapping_sub(ONES) & !zero & HIGHS
}

/// Where the first of two bytes is.
pub(super) fn either(bytes: &[u8], one: u8, other: u8) -> Option<usize> {
    find(
        bytes,
        |word| equal(word, one) | equal(word, other),
        |byte| byte == one || byte == other,
    )
}

/// The first byte that `is` right. `may` is not 0 for eight of which one may be.
fn find(bytes: &[u8], may: impl Fn(u64) -> u64, is: impl Fn(u8) -> bool) -> Option<usize> {
    let (words, rest) = bytes.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        if may(u64::from_le_bytes(*word)) != 0
            && let Some(within) = word.iter().position(|byte| is(*byte))
        {
            return Some(at * 8 + within);
        }
    }
    let within = rest.iter().position(|byte| is(*byte))?;
    Some(words.len() * 8 + within)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_found_is_the_first(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let at = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            prop_assert_eq!(either(&bytes, b'\n', b'\r'), at);
        }
    }
}
