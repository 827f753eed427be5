//! `*` and `?`, nothing else.

/// Whether the whole of `text` matches `pattern`. Time grows with the product of their lengths.
pub fn matches(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    // reach[i]: the pattern so far can end after i characters of the text.
    let mut reach = vec![false; text.len() + 1];
    if let Some(start) = reach.first_mut() {
        *start = true;
    }
    for symbol in pattern {
        let mut next = Vec::with_capacity(reach.len());
        let mut before = false;
        for (at, here) in reach.iter().enumerate() {
            let ends = match symbol {
                '*' => *here || next.last() == Some(&true),
                '?' => before,
                c => before && at.checked_sub(1).and_then(|at| text.get(at)) == Some(&c),
            };
            next.push(ends);
            before = *here;
        }
        reach = next;
    }
    reach.last() == Some(&true)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("*", "", true),
            ("user=al*", "user=alice", true),
            ("al*", "user=alice", false),
            ("*al*ce", "user=alice", true),
            ("al?ce", "alice", true),
            ("al?ce", "alce", false),
            ("é*", "été", true),
            ("**", "x", true),
            ("a", "", false),
            ("a*b", "ac", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_do_not_take_for_ever() {
        assert!(!matches(&"*a".repeat(200), &"b".repeat(2000)));
    }
}
