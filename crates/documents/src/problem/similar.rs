//! What a misspelt word was meant to be.

/// The candidate that `text` was probably meant to be.
pub fn similar<'c>(text: &str, candidates: &[&'c str]) -> Option<&'c str> {
    // Longer words may differ more; and no name is longer than 64.
    let allowed = match text.len() {
        0..=64 => text.len().div_ceil(3),
        _ => return None,
    };
    let mut nearest = None;
    for candidate in candidates {
        let found = (distance(text, candidate), *candidate);
        if found.0 <= allowed && nearest.is_none_or(|nearest| found < nearest) {
            nearest = Some(found);
        }
    }
    nearest.map(|(_, candidate)| candidate)
}

/// The Levenshtein distance of two words in bytes; letters may be of either case, and `-` is as good as `_`.
pub fn distance(a: &str, b: &str) -> usize {
    let plain = |byte: u8| match byte {
        b'-' => b'_',
        byte => byte.to_ascii_lowercase(),
    };
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, byte_a) in a.bytes().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        let mut next = vec![left];
        for (byte_b, &above) in b.bytes().zip(row.iter().skip(1)) {
            let substituted = diagonal + usize::from(plain(byte_a) != plain(byte_b));
            left = substituted.min(above + 1).min(left + 1);
            diagonal = above;
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_finds_the_word_that_was_meant() {
        let fields = ["rate", "burst", "over_limit", "on_failure"];
        assert_eq!(similar("brust", &fields), Some("burst"));
        assert_eq!(similar("overlimit", &fields), Some("over_limit"));
        assert_eq!(similar("over-limit", &fields), Some("over_limit"));
        assert_eq!(similar("colour", &fields), None);
    }
}
