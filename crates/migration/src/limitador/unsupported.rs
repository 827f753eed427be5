//! Why an expression has no counterpart.

use documents::Name;

/// The most entries in the `match` of one limit.
pub(super) const MAX_ENTRIES: usize = 32;

/// Why an expression has no counterpart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unsupported {
    Expression,
    Unquoted(String),
    Position,
    Key(String),
    Twice(Name),
    TooMany,
}

impl std::fmt::Display for Unsupported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Expression => f.write_str(
                "only comparisons of an entry with texts, joined by `&&`, can be converted: ==, \
                 !=, in, startsWith, endsWith and contains",
            ),
            Self::Unquoted(text) => write!(
                f,
                "`{text}` without quotes is an entry for Limitador, not a text; put it in quotes"
            ),
            Self::Position => f.write_str(
                "a limit applies to each descriptor by itself, so only `descriptors[0]` has a \
                 counterpart",
            ),
            Self::Key(key) => write!(
                f,
                "`{key}` cannot be an entry: {}; rename it in Envoy's rate limit actions",
                documents::NameError
            ),
            Self::TooMany => write!(f, "conditions on more than {MAX_ENTRIES} entries"),
            Self::Twice(key) => write!(f, "two conditions for the value of `{key}`"),
        }
    }
}
