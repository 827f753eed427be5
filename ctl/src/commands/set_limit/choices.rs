//! The words that fields accept. They are repeated here for `--help`, for completion and for "did
//! you mean"; a test compares them with those of limits.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

pub const IF_MISSING: &[&str] = &["share", "skip", "deny"];
pub const OVER_LIMIT: &[&str] = &["reject", "queue", "degrade"];
pub const ON_FAILURE: &[&str] = &["local", "allow", "deny"];
pub const SCOPE: &[&str] = &["global", "proxy"];
pub const WEEK_START: &[&str] = &["monday", "sunday"];
pub const ALIGN: &[&str] = &["epoch", "first_request"];
pub const ALGORITHM: &[&str] = &[
    "token_bucket",
    "gcra",
    "leaky_bucket",
    "fixed_window",
    "sliding_window",
    "sliding_window_log",
    "sliding_window_buckets",
    "concurrency",
];
pub const UNSETTABLE: &[&str] = &[
    "description",
    "match",
    "per",
    "if_missing",
    "algorithm",
    "limit",
    "slot_ttl",
    "burst",
    "cost",
    "over_limit",
    "max_delay",
    "penalty",
    "enforce",
    "on_failure",
    "scope",
    "precheck",
    "lease",
    "hidden",
    "replaces",
    "partition",
    "fleet_size",
    "sub_windows",
    "strict",
    "align",
    "time_zone",
    "week_start",
];

/// One of these words; `-` may replace `_`.
pub fn choice(words: &'static [&'static str]) -> impl TypedValueParser<Value = String> {
    let values = words
        .iter()
        .map(|word| PossibleValue::new(*word).alias(word.replace('_', "-")));
    PossibleValuesParser::new(values).map(|word| word.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use policy::{Limit, Node};

    use super::*;

    #[test]
    fn every_word_is_one_that_limits_know() {
        let lists = [
            ("if_missing", IF_MISSING),
            ("over_limit", OVER_LIMIT),
            ("on_failure", ON_FAILURE),
            ("scope", SCOPE),
            ("align", ALIGN),
            ("week_start", WEEK_START),
            ("algorithm", ALGORITHM),
        ];
        for (field, words) in lists {
            for word in words {
                assert!(
                    !complaints(field, word).contains("expected"),
                    "{field}: {word}"
                );
            }
            assert!(
                complaints(field, "nonsense").contains("expected"),
                "{field}"
            );
        }
    }

    #[test]
    fn every_field_is_one_that_limits_have() {
        for field in UNSETTABLE {
            assert!(!complaints(field, "?").contains("unknown field"), "{field}");
        }
        assert!(complaints("nonsense", "?").contains("unknown field"));
    }

    /// The errors of a limit with this field.
    fn complaints(field: &str, word: &str) -> String {
        let mut limit = Node::map([("name", Node::text("a")), ("rate", Node::text("1/s"))]);
        limit.set(field, Node::text(word));
        Limit::from_node(&limit)
            .err()
            .map(|problems| problems.to_string())
            .unwrap_or_default()
    }
}
