//! Regular expressions, which a whole value has to match.

use regex_lite::{Error, RegexBuilder};

/// Bound: bytes of a compiled `re:` pattern. Beyond it, refused when it is written.
///
/// This bounds the memory and the time of compiling; [`MAX_STEPS`] bounds the time of a match.
/// States are smaller on wasm32, so the filter compiles whatever `rlctl` and the limiter accepted.
const MAX_COMPILED: usize = 64 * 1024;

/// The deepest nesting of groups.
const MAX_DEPTH: u32 = 50;

/// The most capturing groups. `regex-lite` keeps two offsets for each of them in each state,
/// although only matching is needed: with this many, at most 1 MiB for an expression and thread.
const MAX_GROUPS: usize = 16;

/// Bound: steps of a search by a `re:` pattern. Beyond it, a longer value counts as what makes the
/// limit apply.
///
/// Characters of the value, times the states that the search may be in at each of them. Everything
/// else that a worker of Envoy has to do waits for them.
const MAX_STEPS: usize = 40_000;

/// Bound: bytes of a value that a `re:` pattern reads. Beyond it, a longer value counts as what
/// makes the limit apply.
const MAX_INPUT: usize = 8192;

/// A compiled expression.
#[derive(Clone, Debug)]
pub(crate) struct Regex {
    whole: regex_lite::Regex,
    pub(crate) expression: String,
    /// The longest value that is searched, in bytes. It follows from the text alone, so that filters,
    /// limiters and `rlctl` decide alike.
    pub(crate) max_input: usize,
}

impl Regex {
    /// Compiles an expression, or says what is wrong with it.
    pub(crate) fn parse(expression: &str) -> Result<Self, String> {
        // Alone first: `a)(b` would be balanced inside the group below.
        let alone = compile(expression, MAX_DEPTH).map_err(|error| message(&error))?;
        if alone.captures_len() > MAX_GROUPS + 1 {
            return Err(format!(
                "more than {MAX_GROUPS} capturing groups; write (?:…) for a group"
            ));
        }
        let whole = compile_whole(expression).map_err(|error| message(&error))?;
        let mut reader = Reader {
            rest: expression.as_bytes(),
            verbose: false,
        };
        let states = usize::try_from(reader.alternation().at_once).unwrap_or(MAX_STEPS);
        let max_input = MAX_STEPS / states.max(1);
        Ok(Self {
            whole,
            expression: expression.to_owned(),
            max_input: max_input.min(MAX_INPUT),
        })
    }

    /// Compiles an expression that was parsed elsewhere, with the longest value that it searches.
    pub(crate) fn checked(expression: &str, max_input: u64) -> Option<Self> {
        let max_input = usize::try_from(max_input).ok()?;
        Some(Self {
            whole: compile_whole(expression).ok()?,
            expression: expression.to_owned(),
            max_input: max_input.min(MAX_INPUT),
        })
    }

    /// Whether the whole value matches. Takes time in proportion to its length.
    pub(crate) fn matches(&self, value: &str) -> bool {
        self.whole.is_match(value)
    }
}

/// The work of a search for a part of an expression, in states of `regex-lite`'s automaton.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Work {
    /// All states, with each copy of what is repeated a number of times.
    all: u32,
    /// The most of them that a search may be in at once if it enters the part at one character only.
    at_once: u32,
    /// The fewest characters that the part matches.
    least: u32,
    /// The most; the largest number if there is no bound.
    most: u32,
}

impl Work {
    fn new(all: u32, length: u32) -> Self {
        Self {
            all,
            at_once: all,
            least: length,
            most: length,
        }
    }

    fn or(self, other: Self) -> Self {
        Self {
            all: self.all.saturating_add(other.all).saturating_add(1),
            at_once: self.at_once.saturating_add(other.at_once).saturating_add(1),
            least: self.least.min(other.least),
            most: self.most.max(other.most),
        }
    }

    fn then(self, next: Self) -> Self {
        // The search enters the next part at each character at which this one may end.
        let more = self.most - self.least;
        let of_next = next
            .at_once
            .saturating_mul(more.saturating_add(1))
            .min(next.all);
        Self {
            all: self.all.saturating_add(next.all),
            at_once: match more {
                0 => self.at_once.max(of_next),
                _ => self.at_once.saturating_add(of_next),
            },
            least: self.least.saturating_add(next.least),
            most: self.most.saturating_add(next.most),
        }
    }

    fn times(self, least: u32, most: u32) -> Self {
        let copies = if most == u32::MAX { least } else { most };
        let all = self.all.saturating_add(1).saturating_mul(copies.max(1));
        let same_length = self.least == self.most && self.most > 0;
        Self {
            all,
            // With one length, the search leaves a copy when it enters the next one.
            at_once: if same_length {
                self.at_once.saturating_add(2)
            } else {
                all
            },
            least: self.least.saturating_mul(least),
            most: self.most.saturating_mul(most),
        }
    }
}

/// Reads an expression that `regex-lite` has accepted.
struct Reader<'e> {
    rest: &'e [u8],
    /// The flag `x`: blanks and comments are left out.
    verbose: bool,
}

impl Reader<'_> {
    fn next(&mut self) -> u8 {
        let (first, rest) = self.rest.split_first().unwrap_or((&0, &[]));
        self.rest = rest;
        *first
    }

    fn eat(&mut self, byte: u8) -> bool {
        let is_next = self.rest.first() == Some(&byte);
        if is_next {
            self.next();
        }
        is_next
    }

    /// Skips what comes before a byte, and the byte.
    fn skip_past(&mut self, byte: u8) {
        while !self.rest.is_empty() && self.next() != byte {}
    }

    fn skip_blanks(&mut self) {
        while self.verbose {
            match self.rest.first() {
                Some(b'#') => self.skip_past(b'\n'),
                Some(byte) if byte.is_ascii_whitespace() => drop(self.next()),
                _ => return,
            }
        }
    }

    fn alternation(&mut self) -> Work {
        let mut work = self.sequence();
        while self.eat(b'|') {
            work = work.or(self.sequence());
        }
        work
    }

    fn sequence(&mut self) -> Work {
        let mut work = Work::new(0, 0);
        loop {
            self.skip_blanks();
            if matches!(self.rest.first(), None | Some(b'|' | b')')) {
                return work;
            }
            let mut item = self.item();
            while let Some((least, most)) = self.repetition() {
                item = item.times(least, most);
            }
            work = work.then(item);
        }
    }

    fn repetition(&mut self) -> Option<(u32, u32)> {
        self.skip_blanks();
        let of = match self.rest.first()? {
            b'*' => (0, u32::MAX),
            b'+' => (1, u32::MAX),
            b'?' => (0, 1),
            b'{' => {
                let (mut least, mut number) = (None, None);
                while let Some(byte) = self.rest.get(1).filter(|byte| **byte != b'}') {
                    match byte {
                        b',' => least = Some(number.take().unwrap_or(0)),
                        b'0'..=b'9' => {
                            let digit = u32::from(*byte - b'0');
                            let before = number.unwrap_or(0_u32).saturating_mul(10);
                            number = Some(before.saturating_add(digit));
                        }
                        _ => {}
                    }
                    self.next();
                }
                self.next();
                let most = number.unwrap_or(u32::MAX);
                (least.unwrap_or(most), most)
            }
            _ => return None,
        };
        self.next();
        self.eat(b'?');
        Some(of)
    }

    fn item(&mut self) -> Work {
        match self.next() {
            b'(' => self.group(),
            b'[' => self.class(),
            b'\\' => self.escape(),
            b'^' | b'$' => Work::new(1, 0),
            _ => {
                // The rest of a character of several bytes.
                while self.rest.first().is_some_and(|byte| byte & 0xc0 == 0x80) {
                    self.next();
                }
                Work::new(1, 1)
            }
        }
    }

    /// What follows `(`.
    fn group(&mut self) -> Work {
        let outside = self.verbose;
        if self.eat(b'?') {
            let mut on = true;
            loop {
                match self.next() {
                    b'x' => self.verbose = on,
                    b'-' => on = false,
                    // A name.
                    b'<' => {
                        self.skip_past(b'>');
                        break;
                    }
                    b':' => break,
                    // Flags for the rest of the group around.
                    0 | b')' => return Work::new(0, 0),
                    _ => {}
                }
            }
        }
        let mut work = self.alternation();
        self.next();
        self.verbose = outside;
        // Its two ends.
        work.all = work.all.saturating_add(2);
        work.at_once = work.at_once.saturating_add(2);
        work
    }

    /// What follows `[`. Ranges take time, too.
    fn class(&mut self) -> Work {
        self.eat(b'^');
        let (mut length, mut named) = (0, false);
        loop {
            match self.next() {
                0 if self.rest.is_empty() => break,
                b']' if length > 0 && !named => break,
                b'[' => named = self.rest.first() == Some(&b':'),
                b']' => named = false,
                b'\\' => drop(self.next()),
                _ => {}
            }
            length += 1;
        }
        Work::new(1 + length / 4, 1)
    }

    /// What follows a backslash.
    fn escape(&mut self) -> Work {
        let digits = match self.next() {
            b'b' | b'B' | b'A' | b'z' | b'<' | b'>' => {
                // `\b{start}` is not repeated, `\b{2}` is.
                if let [b'{', letter, ..] = self.rest
                    && letter.is_ascii_alphabetic()
                {
                    self.skip_past(b'}');
                }
                return Work::new(1, 0);
            }
            b'x' => 2,
            b'u' => 4,
            b'U' => 8,
            b'd' | b'D' | b's' | b'S' | b'w' | b'W' => return Work::new(2, 1),
            _ => 0,
        };
        if digits > 0 && self.rest.first() == Some(&b'{') {
            self.skip_past(b'}');
        } else {
            self.rest = self.rest.get(digits..).unwrap_or_default();
        }
        Work::new(1, 1)
    }
}

fn compile_whole(expression: &str) -> Result<regex_lite::Regex, Error> {
    compile(&format!(r"\A(?:{expression})\z"), MAX_DEPTH + 1)
        // With `(?x)`, a comment at the end of the expression would hide what follows on its line.
        .or_else(|_| compile(&format!("\\A(?:{expression}\n)\\z"), MAX_DEPTH + 1))
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

    /// A step takes 5 to 14 ns on a server core and 24 ns in Envoy, so 40,000 take up to a millisecond.
    #[test]
    fn the_longest_value_depends_on_the_states_that_a_search_may_be_in() {
        for (expression, bytes) in [
            ("/[a-z0-9/-]+", 8192),
            ("/v[0-9]+/users/[^/]+/orders(/.*)?", 1666),
            (".*\\.php", 6666),
            ("[a-z]{1,800}", 8192),
            ("/(orders|users|carts)/[0-9a-f-]{36}", 2500),
            ("(/?[0-9a-z-]{1,64})*", 203),
            (".*a.{0,100}b", 196),
            ("(?:.*){742}", 10),
        ] {
            assert_eq!(
                Regex::parse(expression).unwrap().max_input,
                bytes,
                "{expression}"
            );
        }
    }

    fn read(expression: &str) -> (Work, &[u8]) {
        let mut reader = Reader {
            rest: expression.as_bytes(),
            verbose: false,
        };
        (reader.alternation(), reader.rest)
    }

    fn work(expression: &str) -> (u32, u32, (u32, Option<u32>)) {
        Regex::parse(expression).unwrap();
        let (work, rest) = read(expression);
        assert_eq!(rest, b"", "{expression} is read to its end");
        let most = Some(work.most).filter(|most| *most < u32::MAX);
        (work.all, work.at_once, (work.least, most))
    }

    #[test]
    fn the_states_of_an_expression_follow_from_its_text() {
        for (expression, expected) in [
            ("", (0, 0, (0, Some(0)))),
            ("abc", (3, 1, (3, Some(3)))),
            ("é漢", (2, 1, (2, Some(2)))),
            ("ab|cd", (5, 3, (2, Some(2)))),
            ("a|cd", (4, 3, (1, Some(2)))),
            ("a*bc", (4, 4, (2, None))),
            ("a{3}b", (7, 3, (4, Some(4)))),
            ("a{2,}", (4, 3, (2, None))),
            ("(?:a|bb)c{20}", (46, 11, (21, Some(22)))),
            ("(?:a?){9}", (45, 45, (0, Some(9)))),
            ("(ab){5}", (25, 5, (10, Some(10)))),
            ("^a$", (3, 1, (1, Some(1)))),
            // One character each, however it is written.
            (r"\.\x41\x{41}\u0041\U00000041", (5, 1, (5, Some(5)))),
            (r"\bx\B", (3, 1, (1, Some(1)))),
            (r"\b{start}x", (2, 1, (1, Some(1)))),
            (r"\d\W", (4, 2, (2, Some(2)))),
            ("[]a]", (1, 1, (1, Some(1)))),
            ("[^]]", (1, 1, (1, Some(1)))),
            (r"[\]a]", (1, 1, (1, Some(1)))),
            ("[[:alpha:]a]", (3, 3, (1, Some(1)))),
            ("[[:alpha:][:digit:]]{2}", (12, 7, (2, Some(2)))),
            ("(?P<x>a)(?<y>b)", (6, 3, (2, Some(2)))),
            ("(?i)a", (1, 1, (1, Some(1)))),
            ("(?i:a)+?b", (5, 5, (2, None))),
            // Comments and blanks.
            ("(?x) a # ( [\n b", (2, 1, (2, Some(2)))),
            ("(?x: a b ) (?-x: )", (8, 3, (4, Some(4)))),
            ("(?x)a{2}", (4, 3, (2, Some(2)))),
        ] {
            assert_eq!(work(expression), expected, "{expression}");
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(2000))]

        /// Otherwise a part of an expression would not be counted.
        #[test]
        fn every_expression_is_read_to_its_end(
            text in r"(\(|\)|\(\?:|\(\?x\)|\(\?-x:|[a#\n |]|\[a\]|\[[\^\]]|\[:alpha:\]|\\[\[\]()b{}x]|[*+?]|\{2\}|\{1,3\}|41){0,12}"
        ) {
            if Regex::parse(&text).is_ok() {
                proptest::prop_assert_eq!(read(&text).1, b"", "{}", text);
            }
        }
    }
}
