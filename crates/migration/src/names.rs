//! Makes names and patterns from arbitrary texts.

use std::collections::{HashMap, HashSet};

use documents::Name;
use patterns::Pattern;

/// The hexadecimal digits that distinguish texts whose names would otherwise be equal.
const MARK: usize = 8;

/// A name for a text: the text itself if it is a valid name, else its valid part and a hash of the
/// whole, so that the name of one text does not depend on other texts.
pub(crate) fn name_of(text: &str) -> String {
    if text.parse::<Name>().is_ok() {
        return text.to_owned();
    }
    let mut shown = String::with_capacity(Name::MAX_LEN);
    for c in text.chars() {
        let c = c.to_ascii_lowercase();
        let fits = c.is_ascii_alphanumeric() || matches!(c, '.' | '_');
        let c = if fits { c } else { '-' };
        let leading = shown.is_empty() && !c.is_ascii_alphanumeric();
        let repeated = c == '-' && shown.ends_with('-');
        if !(leading || repeated) {
            shown.push(c);
        }
    }
    shown.truncate(Name::MAX_LEN - MARK - 1);
    let shown = shown.trim_end_matches(['-', '.', '_']);
    let mark = policy::digest(text.as_bytes()) & 0xffff_ffff;
    if shown.is_empty() {
        format!("limit-{mark:08x}")
    } else {
        format!("{shown}-{mark:08x}")
    }
}

/// Hands out each name once.
#[derive(Default)]
pub(crate) struct Unique {
    given: HashSet<String>,
    /// How often each text was named.
    texts: HashMap<String, u32>,
}

impl Unique {
    /// The name of a text; a repeated text gets a number as well.
    pub(crate) fn name(&mut self, text: &str) -> String {
        let times = self.texts.entry(text.to_owned()).or_insert(0);
        loop {
            *times = times.saturating_add(1);
            let name = match *times {
                1 => name_of(text),
                nth => name_of(&format!("{text}.{nth}")),
            };
            if self.given.insert(name.clone()) {
                return name;
            }
        }
    }
}

/// The pattern that matches exactly this text.
pub(crate) fn literal(text: &str) -> String {
    let plain = Pattern::parse(text);
    if plain.is_ok_and(|pattern| pattern.exact() == Some(text.as_bytes()) && !pattern.any_case()) {
        text.to_owned()
    } else {
        format!("exact:{text}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_show_what_they_can() {
        assert_eq!(name_of("message_type_marketing"), "message_type_marketing");
        insta::assert_snapshot!(name_of("httproute/default/Backend"), @"httproute-default-backend-69c5f1c2");
        assert!(name_of("ü").starts_with("limit-"));
        assert_ne!(name_of("Foo"), name_of("FOO"));
        let mut unique = Unique::default();
        assert_eq!(unique.name("a"), "a");
        assert_eq!(unique.name("a"), "a.2");
    }

    proptest! {
        #[test]
        fn any_text_has_a_name(text in ".{0,100}") {
            let name = name_of(&text);
            prop_assert!(name.parse::<Name>().is_ok(), "{}", name);
        }
    }
}
