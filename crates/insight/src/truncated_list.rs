//! Lists of names, cut at a maximum.

use std::fmt::{Display, Write as _};

/// The first names, and the number of the others: `a, b and 7 more`.
pub fn truncated_list<S: Display>(names: impl IntoIterator<Item = S>, max: usize) -> String {
    let mut names = names.into_iter();
    let mut text = String::new();
    for name in names.by_ref().take(max) {
        if !text.is_empty() {
            text.push_str(", ");
        }
        let _ = write!(text, "{name}");
    }
    match names.count() {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_named_is_counted() {
        assert_eq!(truncated_list(["a", "b"], 2), "a, b");
        assert_eq!(truncated_list(["a", "b", "c", "d"], 2), "a, b and 2 more");
        assert_eq!(truncated_list::<&str>([], 2), "");
    }
}
