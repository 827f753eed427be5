//! Regular expressions, which a whole value has to match, and how they are compiled.
//!
//! `regex-lite` says what is an expression, and what is wrong with one that is not. What it compiles
//! stays inside it, so an expression that it accepts is read here once more, with the same meaning:
//! a test compares the two.

use cbor::{DecodeError, Writer};
use regex_lite::{Error, RegexBuilder};

use crate::program::{Program, code, kind};

/// Bound: bytes of a `re:` pattern that `regex-lite` compiled. Beyond it, refused when it is written.
///
/// This bounds the memory and the time of compiling; [`MAX_STEPS`] bounds the time of a match.
pub(crate) const MAX_COMPILED: usize = 64 * 1024;

/// The deepest nesting of groups.
const MAX_DEPTH: u32 = 50;

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Regex {
    pub(crate) program: Program,
    /// The longest value that is searched, in bytes. It follows from the text alone, so that filters,
    /// limiters and `rlctl` decide alike.
    pub(crate) max_input: usize,
    /// Every match starts with it.
    prefix: String,
}

impl Regex {
    /// Compiles an expression, or says what is wrong with it.
    pub(crate) fn parse(expression: &str) -> Result<Self, String> {
        let accepted = RegexBuilder::new(expression)
            .size_limit(MAX_COMPILED)
            .nest_limit(MAX_DEPTH)
            .build();
        accepted.map_err(|error| message(&error))?;
        let part = Expression::new(expression).alternation();
        let states = usize::try_from(part.work.at_once).unwrap_or(MAX_STEPS);
        let max_input = (MAX_STEPS / states.max(1)).min(MAX_INPUT);
        let program = Program::read(&part.code.0).map_err(|_| TOO_LARGE.to_owned())?;
        Ok(Self::new(program, max_input))
    }

    /// An expression that was compiled elsewhere, with the longest value that it searches.
    pub(crate) fn compiled(program: &[u8], max_input: u64) -> Result<Self, DecodeError> {
        let max_input = usize::try_from(max_input).unwrap_or(MAX_INPUT);
        let program = Program::read(program)?;
        Ok(Self::new(program, max_input.min(MAX_INPUT)))
    }

    fn new(program: Program, max_input: usize) -> Self {
        Self {
            prefix: program.prefix(),
            program,
            max_input,
        }
    }

    /// The whole segments that every match starts with, as of a glob.
    pub(crate) fn head(&self) -> Option<&[u8]> {
        let (head, _) = self.prefix.rsplit_once('/')?;
        Some(head.as_bytes()).filter(|head| !head.is_empty())
    }
}

const TOO_LARGE: &str = "too large once compiled; repeat less, or use shorter classes";

fn message(error: &Error) -> String {
    match error.to_string() {
        text if text.contains("size limit") => TOO_LARGE.to_owned(),
        text => text,
    }
}

/// The work of a search for a part of an expression, in states of its automaton.
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

/// A part of an expression, compiled.
struct Part {
    /// Its program, see [`code`].
    code: Writer,
    /// How many states the program has once its copies are written out.
    states: u64,
    work: Work,
}

/// First and last characters.
type Ranges = Vec<(u32, u32)>;

impl Part {
    fn new(states: u64, work: Work) -> Self {
        Self {
            code: Writer::default(),
            states,
            work,
        }
    }

    fn nothing() -> Self {
        Self::new(0, Work::new(0, 0))
    }

    fn push(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.code.unsigned(*number);
        }
    }

    fn append(&mut self, other: &Self) {
        self.code.0.extend_from_slice(&other.code.0);
    }

    fn char(char: char) -> Self {
        match u64::from(char) {
            ..code::FIRST_CHAR => Self::class(&[(char.into(), char.into())]),
            char => {
                let mut part = Self::new(1, Work::new(1, 1));
                part.push(&[char]);
                part
            }
        }
    }

    /// One character of some ranges. They take time, too.
    fn class(ranges: &[(u32, u32)]) -> Self {
        let many = u32::try_from(ranges.len()).unwrap_or(u32::MAX);
        let mut part = Self::new(1, Work::new(1 + many.saturating_sub(1) / 2, 1));
        part.push(&[code::CHARS, many.into()]);
        for (first, last) in ranges {
            part.push(&[(*first).into(), (*last).into()]);
        }
        part
    }

    /// A place between two characters of certain kinds.
    fn between(test: impl Fn(usize, usize) -> bool) -> Self {
        let places =
            (0..kind::ALL).flat_map(|before| (0..kind::ALL).map(move |after| (before, after)));
        let bits = places
            .filter(|(before, after)| test(*before, *after))
            .map(|(before, after)| 1 << kind::bit(before, after));
        let mut part = Self::new(1, Work::new(1, 0));
        part.push(&[code::BETWEEN, bits.sum()]);
        part
    }

    fn then(mut self, next: &Self) -> Self {
        self.append(next);
        self.states = self.states.saturating_add(next.states);
        self.work = self.work.then(next.work);
        self
    }

    fn or(self, other: &Self) -> Self {
        let states = self.states.saturating_add(other.states).saturating_add(2);
        let mut either = Self::new(states, self.work.or(other.work));
        either.push(&[code::BOTH, self.states.saturating_add(2)]);
        either.append(&self);
        either.push(&[code::JUMP, other.states.saturating_add(1)]);
        either.append(other);
        either
    }

    fn times(self, least: u32, most: u32) -> Self {
        let mut all = Self::new(0, self.work.times(least, most));
        let len = self.states;
        // Nothing is nothing, however often.
        if len == 0 || most == 0 {
            return all;
        }
        let endless = most == u32::MAX;
        let optional = u64::from(if endless { 0 } else { most - least });
        let optional_len = optional.saturating_mul(len.saturating_add(1));
        let least = u64::from(least);
        all.states = len.saturating_mul(least.max(endless.into()));
        all.states = all.states.saturating_add(optional_len);
        match (least, endless) {
            (0, true) => all.push(&[code::BOTH, len.saturating_add(2)]),
            (0, false) => all.push(&[code::BOTH, optional_len]),
            _ => {}
        }
        all.append(&self);
        if least > 1 {
            all.push(&[code::COPY, len, least - 1]);
        }
        if endless {
            all.push(&[code::AGAIN, len]);
            all.states = all.states.saturating_add(if least == 0 { 2 } else { 1 });
        }
        // The first is there already if none had to be.
        let optional = optional.saturating_sub((least == 0).into());
        if optional > 0 {
            all.push(&[code::UP_TO, len, optional]);
        }
        all
    }
}

/// Reads an expression that `regex-lite` has accepted.
struct Expression<'e> {
    rest: &'e str,
    /// The flags that are on, a bit for each letter.
    flags: u64,
}

/// One item of a class, or one escape.
enum Item {
    Char(char),
    Class(Ranges),
    Between(Part),
}

impl<'e> Expression<'e> {
    fn new(text: &'e str) -> Self {
        Self {
            rest: text,
            flags: 0,
        }
    }

    fn is(&self, flag: char) -> bool {
        self.flags & bit(flag) != 0
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let next = chars.next();
        self.rest = chars.as_str();
        next
    }

    fn eat(&mut self, char: char) -> bool {
        let rest = self.rest.strip_prefix(char);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// What comes before a character; skips both.
    fn until(&mut self, char: char) -> &'e str {
        let (before, rest) = self.rest.split_once(char).unwrap_or((self.rest, ""));
        self.rest = rest;
        before
    }

    /// With the flag `x`, blanks and comments are left out.
    fn skip_blanks(&mut self) {
        while self.is('x') {
            match self.peek() {
                Some('#') => {
                    self.until('\n');
                }
                Some(char) if char.is_whitespace() => {
                    self.next();
                }
                _ => return,
            }
        }
    }

    fn alternation(&mut self) -> Part {
        let mut parts = vec![self.sequence()];
        while self.eat('|') {
            parts.push(self.sequence());
        }
        // From the last one, so that each is followed by one jump.
        let parts = parts.into_iter().rev();
        let whole = parts.reduce(|after, part| part.or(&after));
        whole.unwrap_or_else(Part::nothing)
    }

    fn sequence(&mut self) -> Part {
        let mut parts = Vec::new();
        loop {
            self.skip_blanks();
            match self.peek() {
                None | Some('|' | ')') => break,
                Some('*' | '+' | '?' | '{') => {
                    let (least, most) = self.repetition();
                    // Flags come between, but are no part: `a(?i)*` is `a*`.
                    let part = parts.pop().unwrap_or_else(Part::nothing);
                    parts.push(part.times(least, most));
                }
                Some('(') => parts.extend(self.group()),
                Some(_) => parts.push(self.item()),
            }
        }
        let parts = parts.iter();
        parts.fold(Part::nothing(), Part::then)
    }

    fn repetition(&mut self) -> (u32, u32) {
        let of = match self.next() {
            Some('?') => (0, 1),
            Some('*') => (0, u32::MAX),
            Some('+') => (1, u32::MAX),
            _ => {
                let mut numbers = String::new();
                loop {
                    self.skip_blanks();
                    match self.next() {
                        None | Some('}') => break,
                        Some(char) => numbers.push(char),
                    }
                }
                self.skip_blanks();
                let number = |text: &str| text.trim().parse().unwrap_or(u32::MAX);
                let (least, most) = numbers.split_once(',').unwrap_or((&numbers, &numbers));
                (number(least), number(most))
            }
        };
        // Whether it takes much or little makes no difference to whether the whole value matches.
        self.eat('?');
        of
    }

    /// A group; `None` for flags of the rest of the group around.
    fn group(&mut self) -> Option<Part> {
        let outside = self.flags;
        self.eat('(');
        self.skip_blanks();
        if self.eat('?') {
            let mut on = true;
            loop {
                match self.next()? {
                    '-' => on = false,
                    ':' => break,
                    '<' => {
                        self.until('>');
                        break;
                    }
                    ')' => return None,
                    flag if on => self.flags |= bit(flag),
                    flag => self.flags &= !bit(flag),
                }
            }
        }
        let mut part = self.alternation();
        self.eat(')');
        self.flags = outside;
        // `regex-lite` has states for its two ends.
        part.work.all = part.work.all.saturating_add(2);
        part.work.at_once = part.work.at_once.saturating_add(2);
        Some(part)
    }

    fn item(&mut self) -> Part {
        let item = match self.next() {
            Some('[') => Item::Class(self.class()),
            Some('\\') => self.escape(),
            Some('.') if self.is('s') => Item::Class(vec![ANY]),
            Some('.') if self.is('R') => Item::Class(negated(&[(10, 10), (13, 13)])),
            Some('.') => Item::Class(negated(&[(10, 10)])),
            Some('^') => Item::Between(self.start()),
            Some('$') => Item::Between(self.end()),
            char => Item::Char(char.unwrap_or_default()),
        };
        match item {
            Item::Char(char) if self.is('i') && char.is_ascii_alphabetic() => {
                let char = char.to_ascii_lowercase().into();
                Part::class(&folded(vec![(char, char)]))
            }
            Item::Char(char) => Part::char(char),
            Item::Class(ranges) => Part::class(&ranges),
            Item::Between(part) => part,
        }
    }

    fn start(&self) -> Part {
        let (lines, crlf) = (self.is('m'), self.is('R'));
        Part::between(|before, after| match before {
            kind::EDGE => true,
            kind::LINE_FEED => lines,
            kind::CARRIAGE_RETURN => lines && crlf && after != kind::LINE_FEED,
            _ => false,
        })
    }

    fn end(&self) -> Part {
        let (lines, crlf) = (self.is('m'), self.is('R'));
        Part::between(|before, after| match after {
            kind::EDGE => true,
            kind::LINE_FEED => lines && !(crlf && before == kind::CARRIAGE_RETURN),
            kind::CARRIAGE_RETURN => lines && crlf,
            _ => false,
        })
    }

    /// What follows `[`.
    fn class(&mut self) -> Ranges {
        self.skip_blanks();
        let negate = self.eat('^');
        self.skip_blanks();
        let mut ranges = Ranges::new();
        // First of all they stand for themselves.
        while self.eat('-') {
            ranges.push(('-'.into(), '-'.into()));
            self.skip_blanks();
        }
        if ranges.is_empty() && self.eat(']') {
            ranges.push((']'.into(), ']'.into()));
        }
        loop {
            self.skip_blanks();
            let first = match self.next() {
                None | Some(']') => break,
                Some('[') => {
                    ranges.extend(self.posix_class());
                    continue;
                }
                Some('\\') => self.escape(),
                Some(char) => Item::Char(char),
            };
            self.skip_blanks();
            match first {
                Item::Char(first) if self.is_range() => {
                    self.eat('-');
                    self.skip_blanks();
                    let last = match self.next() {
                        Some('\\') => self.escape(),
                        char => Item::Char(char.unwrap_or_default()),
                    };
                    if let Item::Char(last) = last {
                        ranges.push((first.into(), last.into()));
                    }
                }
                Item::Char(char) => ranges.push((char.into(), char.into())),
                Item::Class(class) => ranges.extend(class),
                Item::Between(_) => {}
            }
        }
        let ranges = canonical(ranges);
        let ranges = if self.is('i') { folded(ranges) } else { ranges };
        if negate { negated(&ranges) } else { ranges }
    }

    /// Whether a hyphen is next, and neither the end of the class nor another one behind it.
    fn is_range(&self) -> bool {
        let Some(behind) = self.rest.strip_prefix('-') else {
            return false;
        };
        let mut behind = Expression {
            rest: behind,
            flags: self.flags,
        };
        behind.skip_blanks();
        !matches!(behind.peek(), Some(']' | '-'))
    }

    /// What follows `[` in a class, such as `:^alpha:]`.
    fn posix_class(&mut self) -> Ranges {
        self.eat(':');
        let negate = self.eat('^');
        let ranges = posix(self.until(':'));
        self.eat(']');
        if negate { negated(&ranges) } else { ranges }
    }

    /// What follows a backslash.
    fn escape(&mut self) -> Item {
        let char = self.next().unwrap_or_default();
        Item::Char(match char {
            'x' => self.hexadecimal(2),
            'u' => self.hexadecimal(4),
            'U' => self.hexadecimal(8),
            'd' => return Item::Class(posix("digit")),
            'D' => return Item::Class(negated(&posix("digit"))),
            's' => return Item::Class(posix("space")),
            'S' => return Item::Class(negated(&posix("space"))),
            'w' => return Item::Class(posix("word")),
            'W' => return Item::Class(negated(&posix("word"))),
            'A' => return Item::Between(Part::between(|before, _| before == kind::EDGE)),
            'z' => return Item::Between(Part::between(|_, after| after == kind::EDGE)),
            'b' | 'B' | '<' | '>' => return Item::Between(self.word_boundary(char)),
            'a' => '\x07',
            'f' => '\x0c',
            't' => '\t',
            'n' => '\n',
            'r' => '\r',
            'v' => '\x0b',
            char => char,
        })
    }

    fn word_boundary(&mut self, letter: char) -> Part {
        const WORD: usize = kind::WORD;
        let mut name = match letter {
            '<' => "start".to_owned(),
            '>' => "end".to_owned(),
            _ => String::new(),
        };
        // `\b{start}` is not repeated, `\b{2}` is.
        let mut inside = Expression {
            rest: self.rest,
            flags: self.flags,
        };
        if letter == 'b' && inside.eat('{') {
            inside.skip_blanks();
            if matches!(inside.peek(), Some('a'..='z' | '-')) {
                while let Some(char) = inside.next().filter(|char| *char != '}') {
                    name.push(char);
                    inside.skip_blanks();
                }
                self.rest = inside.rest;
            }
        }
        match name.as_str() {
            "start" => Part::between(|before, after| before != WORD && after == WORD),
            "end" => Part::between(|before, after| before == WORD && after != WORD),
            "start-half" => Part::between(|before, _| before != WORD),
            "end-half" => Part::between(|_, after| after != WORD),
            _ => {
                let inner = letter == 'B';
                Part::between(|before, after| ((before == WORD) == (after == WORD)) == inner)
            }
        }
    }

    fn hexadecimal(&mut self, digits: usize) -> char {
        let mut number = 0_u32;
        self.skip_blanks();
        let braces = self.eat('{');
        for _ in 0..if braces { usize::MAX } else { digits } {
            self.skip_blanks();
            match self.next().and_then(|char| char.to_digit(16)) {
                Some(digit) => number = number << 4 | digit,
                None => break,
            }
        }
        self.skip_blanks();
        char::from_u32(number).unwrap_or_default()
    }
}

fn bit(flag: char) -> u64 {
    1 << (u32::from(flag) & 63)
}

// ---- classes ----

const ANY: (u32, u32) = (0, 0x10_ffff);

/// Sorted, and neighbours joined.
fn canonical(mut ranges: Ranges) -> Ranges {
    ranges.sort_unstable();
    let mut joined = Ranges::new();
    for (first, last) in ranges {
        match joined.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => joined.push((first, last)),
        }
    }
    joined
}

/// All other characters.
fn negated(ranges: &[(u32, u32)]) -> Ranges {
    let mut others = Ranges::new();
    let mut from = ANY.0;
    for (first, last) in ranges {
        if from < *first {
            others.push((from, first - 1));
        }
        from = last.saturating_add(1);
    }
    if from <= ANY.1 {
        others.push((from, ANY.1));
    }
    others
}

/// With the letters in the other case. As in `regex-lite`, a range with letters of both cases counts as
/// one of small letters.
fn folded(mut ranges: Ranges) -> Ranges {
    let part = |(first, last): (u32, u32), from: char, to: char| {
        let (first, last) = (first.max(from.into()), last.min(to.into()));
        (first <= last).then_some((first, last))
    };
    let others: Ranges = ranges
        .iter()
        .filter_map(|range| {
            let small = part(*range, 'a', 'z').map(|(first, last)| (first - 32, last - 32));
            small.or_else(|| part(*range, 'A', 'Z').map(|(first, last)| (first + 32, last + 32)))
        })
        .collect();
    ranges.extend(others);
    canonical(ranges)
}

/// A POSIX class, in ASCII.
fn posix(name: &str) -> Ranges {
    let ranges: &[&str] = match name {
        "alnum" => &["09", "AZ", "az"],
        "alpha" => &["AZ", "az"],
        "ascii" => &["\0\x7f"],
        "blank" => &["\t\t", "  "],
        "cntrl" => &["\0\x1f", "\x7f\x7f"],
        "digit" => &["09"],
        "graph" => &["!~"],
        "lower" => &["az"],
        "print" => &[" ~"],
        "punct" => &["!/", ":@", "[`", "{~"],
        "space" => &["\t\r", "  "],
        "upper" => &["AZ"],
        "word" => &["09", "AZ", "__", "az"],
        "xdigit" => &["09", "AF", "af"],
        _ => &[],
    };
    let chars = |range: &&str| {
        let mut chars = range.chars().map(u32::from);
        Some((chars.next()?, chars.next()?))
    };
    ranges.iter().filter_map(chars).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::program::MAX_STATES;

    #[test]
    fn the_whole_value_has_to_match() {
        for (expression, yes, no) in [
            ("a|b", "b", "ab"),
            ("a|ab", "ab", "abb"),
            ("(?i)get", "GET", "GETS"),
            ("(?x) a # a comment", "a", "a "),
            ("(?x) a \\#", "a#", "a"),
            ("(?m)^a$", "a", "a\nb"),
            // No line ends or begins between these two.
            ("(?mR)a\r$\nb|c", "c", "a\r\nb"),
            ("(?mR)a\r^\nb|c", "c", "a\r\nb"),
            ("(?i:[A-C])d", "bd", "bD"),
            (r"a\b_|c", "c", "a_"),
            ("", "", "a"),
            ("..", "é漢", "é"),
        ] {
            let regex = Regex::parse(expression).unwrap();
            assert!(regex.program.matches(yes), "{expression}");
            assert!(!regex.program.matches(no), "{expression}");
        }
    }

    #[test]
    fn classes_and_case_are_of_ascii() {
        let regex = |expression| Regex::parse(expression).unwrap().program;
        let matches = |expression, value| regex(expression).matches(value);
        assert!(matches("[^a]", "漢") && matches("[à-ü]", "é"));
        assert!(!matches(r"\w", "é") && !matches(r"\d", "٣") && !matches("(?i)é", "É"));
    }

    #[test]
    fn an_error_says_what_is_wrong() {
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
        ] {
            assert_eq!(Regex::parse(expression).unwrap_err(), expected);
        }
    }

    #[test]
    fn an_expression_is_bounded() {
        let most = Regex::parse("[a-z]{1,800}").unwrap();
        let matches = |len| most.program.matches(&"x".repeat(len));
        assert!(matches(800) && !matches(801) && !matches(0));
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

    fn work(expression: &str) -> (u32, u32, (u32, Option<u32>)) {
        Regex::parse(expression).unwrap();
        let work = Expression::new(expression).alternation().work;
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
            (r"\d\W", (4, 3, (2, Some(2)))),
            ("[]a]", (1, 1, (1, Some(1)))),
            ("[^]]", (1, 1, (1, Some(1)))),
            (r"[\]a]", (1, 1, (1, Some(1)))),
            ("[[:alpha:]a]", (1, 1, (1, Some(1)))),
            ("[[:alpha:][:digit:]]{2}", (6, 4, (2, Some(2)))),
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

    fn program(numbers: &[u64]) -> Result<Program, DecodeError> {
        let mut part = Part::nothing();
        part.push(numbers);
        Program::read(&part.code.0)
    }

    /// What `regex-lite` answers, with the expression as one group.
    fn definition(expression: &str) -> Option<regex_lite::Regex> {
        // With `(?x)`, a comment at the end would hide what follows on its line.
        let whole = RegexBuilder::new(&format!("\\A(?:{expression}\n)\\z")).build();
        let verbose = whole
            .ok()
            .filter(|whole| whole.is_match("") || expression.contains('x'));
        let plain = RegexBuilder::new(&format!(r"\A(?:{expression})\z")).build();
        plain.ok().or(verbose)
    }

    /// Expressions that are mostly valid, with what they consist of in any order.
    fn expressions() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            4 => r"[abAB0_é漢\r\n -]",
            3 => r"\.|\^|\$|\\[dDsSwWAzbB<>.nrtafv-]|\\b\{(start|end|start-half|end-half)\}",
            1 => r"\\x4[12]|\\x\{6[12]\}|\\u00e9|\\U0000006[12]|\\x 4 1|\\x\{ 6 1 \}|#a\n| ",
            3 => r"\[\^?-{0,2}\]?([abzAZ09é_\n]|[aA0]-[zZ9]|A-z|\\[dDsSwWnr\]-]|\[:\^?(alnum|alpha|ascii|blank|cntrl|digit|graph|lower|print|punct|space|upper|word|xdigit):\]|\\x41-\\x{43}| |# |a - b){0,3}-?\]",
            1 => r"\(\?-?[imsURxu]\)",
        ];
        leaf.prop_recursive(5, 40, 6, |inner| {
            let all = proptest::collection::vec(inner, 1..5);
            prop_oneof![
                3 => all.clone().prop_map(|all| all.concat()),
                1 => all.clone().prop_map(|all| all.join("|")),
                2 => (all.clone(), r"\(|\(\?:|\( \?:|\(\?P<[a-z]{3}>|\(\?<[a-z]{3}>|\(\?[imsURx]{1,2}(-[u])?:|\(\?[i]?-[xms]:")
                    .prop_map(|(all, open)| format!("{open}{})", all.concat())),
                3 => (all, r"[*+?]\??|\{[0-3]\}|\{[01],[1-3]\}\??|\{[0-2],\}|\{ 1 , 2 \}|\(\?i\)\*")
                    .prop_map(|(all, times)| format!("{}{times}", all.concat())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1500))]

        #[test]
        fn a_program_answers_as_regex_lite_does(
            expression in expressions(),
            values in proptest::collection::vec(r"[abAZz09_é漢\r\n -]{0,6}", 16),
        ) {
            if let (Ok(regex), Some(definition)) = (Regex::parse(&expression), definition(&expression)) {
                for value in values {
                    prop_assert_eq!(
                        regex.program.matches(&value),
                        definition.is_match(&value),
                        "{:?} on {:?}", expression, value
                    );
                    if definition.is_match(&value) {
                        let lower = value.to_ascii_lowercase();
                        let mut rest = lower.as_bytes();
                        for text in regex.program.literals().split(|byte| *byte == crate::BREAK) {
                            let text = text.to_ascii_lowercase();
                            let at = (0..=rest.len()).find(|at| rest[*at..].starts_with(&text));
                            prop_assert!(at.is_some(), "{:?} requires {:?} of {:?}", expression, text, value);
                            rest = &rest[at.unwrap() + text.len()..];
                        }
                    }
                }
            }
        }

        /// A search ends whatever the program, and has no state that the program has not.
        #[test]
        fn any_numbers_are_a_program_or_an_error(
            numbers in proptest::collection::vec(prop_oneof![0..7_u64, 0..9_u64, 97..100_u64, any::<u64>()], 0..40),
            value in "[abc\n ]{0,20}",
        ) {
            if let Ok(program) = program(&numbers) {
                program.matches(&value);
            }
            if let Ok(program) = Program::read(value.as_bytes()) {
                program.matches(&value);
            }
        }
    }

    #[test]
    fn a_program_is_bounded() {
        // One state, and then as often as it may be.
        let most = u64::try_from(MAX_STATES).unwrap() - 1;
        let states = [97, code::COPY, 1, most];
        assert!(program(&states).unwrap().matches(&"a".repeat(MAX_STATES)));
        for more in [most + 1, u64::MAX] {
            program(&[97, code::COPY, 1, more]).unwrap_err();
            program(&[97, code::UP_TO, 1, more]).unwrap_err();
        }
        // More states than there are, or none at all however often.
        program(&[97, code::COPY, 2, 1]).unwrap_err();
        program(&[97, code::COPY, u64::MAX, 1]).unwrap_err();
        program(&[97, code::COPY, 0, 1 << 40]).unwrap_err();
        // Steps out of the program and in circles.
        for states in [
            [code::JUMP, 5].as_slice(),
            &[code::JUMP, u64::from(u32::MAX)],
            &[code::JUMP, 0],
            &[code::BOTH, 0, code::AGAIN, 0, code::AGAIN, 1, 98],
            &[code::AGAIN, 99, 97],
            &[code::BETWEEN, 0],
            &[code::CHARS, 0],
        ] {
            assert!(
                !program(states).unwrap().matches("b\u{10ffff}"),
                "{states:?}"
            );
        }
        program(&[code::CHARS, 1 << 40]).unwrap_err();
        let longest = Regex::compiled(b"", u64::MAX).unwrap().max_input;
        assert_eq!(longest, MAX_INPUT);
        program(&[1 << 33]).unwrap_err();
    }

    /// A program is sent with every snapshot.
    #[test]
    fn a_program_is_about_as_long_as_its_expression() {
        for (expression, most) in [
            ("/v[0-9]+/users/[^/]+/orders(/.*)?", 85),
            ("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", 60),
            ("(/?[0-9a-z-]{1,64})*", 30),
            ("(?i)/login", 52),
        ] {
            let length = Regex::parse(expression).unwrap().program.packed.len();
            assert!(length <= most, "{expression}: {length}");
        }
    }
}
