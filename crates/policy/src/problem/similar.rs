//! What a misspelt word was meant to be.

/// The candidate that `text` was probably meant to be.
pub(crate) fn similar<'c>(
    text: &str,
    candidates: impl IntoIterator<Item = &'c str>,
) -> Option<&'c str> {
    // Longer words forgive more; and no name is longer than this.
    let allowed = match text.len() {
        0..=64 => text.len().div_ceil(3),
        _ => return None,
    };
    let lower = text.to_ascii_lowercase().replace('-', "_");
    candidates
        .into_iter()
        .map(|candidate| (distance(&lower, &candidate.replace('-', "_")), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Levenshtein distance in bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, byte_a) in a.bytes().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        let mut next = vec![left];
        for (byte_b, &above) in b.bytes().zip(row.iter().skip(1)) {
            let substituted = diagonal + usize::from(byte_a != byte_b);
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
        assert_eq!(similar("brust", fields), Some("burst"));
        assert_eq!(similar("overlimit", fields), Some("over_limit"));
        assert_eq!(similar("over-limit", fields), Some("over_limit"));
        assert_eq!(similar("colour", fields), None);
    }
}
