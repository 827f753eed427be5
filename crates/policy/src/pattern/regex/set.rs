//! Sets of characters: `[a-z]`, `\d`, `.`.

/// What a name stands for.
pub(super) type Test = fn(&char) -> bool;

/// A set of characters.
#[derive(Clone, Debug, Default)]
pub(super) struct Set {
    pub items: Vec<Item>,
    /// Holds what is not among the items.
    pub negated: bool,
    /// Whether the case of ASCII letters makes no difference.
    pub any_case: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Item {
    Range(char, char),
    Named(Test),
    NotNamed(Test),
}

impl Set {
    pub(super) fn holds(&self, c: char) -> bool {
        let has = |c: char| self.items.iter().any(|item| item.holds(c));
        let found = has(c) || self.any_case && (has(lower(c)) || has(c.to_ascii_uppercase()));
        found != self.negated
    }

    /// How many tests that takes at most.
    pub(super) fn tests(&self) -> usize {
        let spellings = if self.any_case { 3 } else { 1 };
        self.items.len().saturating_mul(spellings)
    }
}

impl Item {
    pub(super) fn one(c: char) -> Self {
        Self::Range(c, c)
    }

    fn holds(self, c: char) -> bool {
        match self {
            Self::Range(first, last) => (first..=last).contains(&c),
            Self::Named(test) => test(&c),
            Self::NotNamed(test) => !test(&c),
        }
    }
}

pub(super) fn lower(c: char) -> char {
    c.to_ascii_lowercase()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "a `Test`")]
pub(super) fn is_word(c: &char) -> bool {
    c.is_ascii_alphanumeric() || *c == '_'
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "a `Test`")]
pub(super) fn is_space(c: &char) -> bool {
    matches!(c, '\t'..='\r' | ' ')
}

/// The set `[:name:]`.
pub(super) fn named(name: &str) -> Option<Test> {
    Some(match name {
        "alnum" => char::is_ascii_alphanumeric,
        "alpha" => char::is_ascii_alphabetic,
        "ascii" => char::is_ascii,
        "blank" => |c| matches!(c, '\t' | ' '),
        "cntrl" => char::is_ascii_control,
        "digit" => char::is_ascii_digit,
        "graph" => char::is_ascii_graphic,
        "lower" => char::is_ascii_lowercase,
        "print" => |c| matches!(c, ' '..='~'),
        "punct" => char::is_ascii_punctuation,
        "space" => is_space,
        "upper" => char::is_ascii_uppercase,
        "word" => is_word,
        "xdigit" => char::is_ascii_hexdigit,
        _ => return None,
    })
}
