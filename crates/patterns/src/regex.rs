//! Regular expressions, which a whole value has to match.

use regex_lite::{Error, RegexBuilder};

/// The largest compiled expression, in bytes.
///
/// `regex-lite` visits each state of an expression at most once per character, so this limit and
/// [`Regex::MAX_INPUT`] bound the time of a match. The slowest expressions that fit
/// (`(?:[a-cx-z]*){742}`, `(?:.*){742}`) take 0.2 s for a value of 8 KiB on a 2 GHz server core;
/// everyday ones take 1 to 10 µs for a path. States are smaller on wasm32, so the filter
/// compiles whatever `rlctl` and the limiter accepted.
const MAX_COMPILED: usize = 64 * 1024;

/// The deepest nesting of groups.
const MAX_DEPTH: u32 = 50;

/// The most capturing groups. `regex-lite` keeps two offsets for each of them in each state,
/// although only matching is needed: with this many, at most 1 MiB for an expression and thread.
const MAX_GROUPS: usize = 16;

/// A compiled expression.
#[derive(Clone, Debug)]
pub(crate) struct Regex(regex_lite::Regex);

impl Regex {
    /// The longest value that is searched, in bytes.
    pub(crate) const MAX_INPUT: usize = 8192;

    /// Compiles an expression, or says what is wrong with it.
    pub(crate) fn parse(expression: &str) -> Result<Self, String> {
        // Alone first: `a)(b` would be balanced inside the group below.
        let alone = compile(expression, MAX_DEPTH).map_err(|error| message(&error))?;
        if alone.captures_len() > MAX_GROUPS + 1 {
            return Err(format!(
                "more than {MAX_GROUPS} capturing groups; write (?:…) for a group"
            ));
        }
        let whole = compile(&format!(r"\A(?:{expression})\z"), MAX_DEPTH + 1)
            // With `(?x)`, a comment at the end of the expression would hide what follows on its line.
            .or_else(|_| compile(&format!("\\A(?:{expression}\n)\\z"), MAX_DEPTH + 1));
        whole.map(Self).map_err(|error| message(&error))
    }

    /// Whether the whole value matches. Takes time in proportion to its length.
    pub(crate) fn matches(&self, value: &str) -> bool {
        self.0.is_match(value)
    }
}

fn compile(expression: &str, depth: u32) -> Result<regex_lite::Regex, Error> {
    RegexBuilder::new(expression)
        .size_limit(MAX_COMPILED)
        .nest_limit(depth)
        .build()
}

fn message(error: &Error) -> String {
    match error.to_string() {
        text if text.contains("size limit") => {
            "too large once compiled; repeat less, or use shorter classes".to_owned()
        }
        text => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_value_has_to_match() {
        for (expression, yes, no) in [
            ("a|b", "b", "ab"),
            ("a|ab", "ab", "abb"),
            ("(?i)get", "GET", "GETS"),
            ("(?x) a # a comment", "a", "a "),
            ("(?x) a \\#", "a#", "a"),
            ("(?m)^a$", "a", "a\nb"),
            ("", "", "a"),
            ("..", "é漢", "é"),
        ] {
            let regex = Regex::parse(expression).unwrap();
            assert!(regex.matches(yes), "{expression}");
            assert!(!regex.matches(no), "{expression}");
        }
    }

    #[test]
    fn classes_and_case_are_of_ascii() {
        let matches = |expression, value| Regex::parse(expression).unwrap().matches(value);
        assert!(matches("[^a]", "漢") && matches("[à-ü]", "é"));
        assert!(!matches(r"\w", "é") && !matches(r"\d", "٣") && !matches("(?i)é", "É"));
    }

    #[test]
    fn an_error_says_what_is_wrong() {
        let groups = "()".repeat(17);
        for (expression, expected) in [
            ("a)(b", "found closing ')' without matching '('"),
            ("a|(b", "found open group without closing ')'"),
            ("(?=a)", "look-around is not supported"),
            (r"\1", "backreferences are not supported"),
            ("(?#a", "unrecognized inline flag"),
            (
                "(a{1000}){1000}",
                "too large once compiled; repeat less, or use shorter classes",
            ),
            (
                &groups,
                "more than 16 capturing groups; write (?:…) for a group",
            ),
        ] {
            assert_eq!(Regex::parse(expression).unwrap_err(), expected);
        }
    }

    #[test]
    fn an_expression_is_bounded() {
        let most = Regex::parse("[a-z]{1,800}").unwrap();
        assert!(most.matches(&"x".repeat(800)) && !most.matches(&"x".repeat(801)));
        // Twice what the limiter refuses, because states take half as much on wasm32.
        for large in [
            "a{5000}",
            "(a{100}){100}",
            "((a{0,99}){0,99}){0,99}",
            "a{1,99999999999}",
            "(?:){4000000000}",
            "[acegikmoqsu]{2000}",
            "(?i)[a-cx-z]{2400}",
        ] {
            Regex::parse(large).unwrap_err();
        }
        let nested = |depth| format!("{}a{}", "(?:".repeat(depth), ")".repeat(depth));
        assert!(Regex::parse(&nested(50)).is_ok());
        Regex::parse(&nested(51)).unwrap_err();
        // Whatever a pattern's length allows without counted repetition fits.
        assert!(Regex::parse(&vec!["a"; 500].join("|")).is_ok());
        assert!(Regex::parse(&format!("(?i){}", "a".repeat(1000))).is_ok());
    }
}
