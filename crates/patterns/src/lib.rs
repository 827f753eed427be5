//! Patterns: the tests of a limit's `match` on one entry of a descriptor: texts, globs, networks
//! and regular expressions.

#[cfg(all(test, target_arch = "wasm32"))]
#[macro_use]
extern crate wasm_test;

mod cidr;
mod glob;
mod program;
mod regex;

use std::fmt;

use address::Address;
use cbor::{DecodeError, Reader, Writer};
use cidr::Network;
use glob::Glob;
use regex::Regex;

/// One pattern (`/api/**`, `!cidr:10.0.0.0/8`, `i:/login`), parsed once and ready to test values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    negated: bool,
    test: Test,
}

/// What a pattern tests, without its negation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    Exact(Vec<u8>),
    /// As [`Test::Exact`], in lower case, whatever the case of the value's ASCII letters.
    ExactAnyCase(Vec<u8>),
    Glob(Glob),
    Cidr(Network),
    Regex(Regex),
}

/// Why a text is not a pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Longer than [`Pattern::MAX_LEN`].
    #[error("a pattern is at most {max} bytes long", max = Pattern::MAX_LEN)]
    TooLong,
    /// `!!x`.
    #[error("a pattern is negated once; write \\! for a literal exclamation mark")]
    NegatedTwice,
    /// A backslash before a character that needs none, or at the end.
    #[error("a backslash escapes *, ! and \\ only; write \\\\ for a backslash, or exact:…")]
    Escape,
    /// `regex:x` and the like.
    #[error("patterns start with re:, cidr:, exact: or i:; for a literal text write exact:{0}")]
    Prefix(String),
    /// `i:re:x` and the like.
    #[error("i: goes before a text or a glob; a regular expression ignores case by re:(?i)…")]
    AnyCase,
    /// Not a network.
    #[error("a network is an address and a prefix length, like 10.0.0.0/8 or 2001:db8::/32")]
    Cidr,
    /// A network with bits set that its prefix does not cover.
    #[error("the address has bits beyond its prefix; did you mean {0}?")]
    HostBits(String),
    /// Not a regular expression, or too large a one.
    #[error("not a regular expression: {0}")]
    Regex(String),
}

impl Pattern {
    /// The longest pattern, in bytes.
    pub const MAX_LEN: usize = 1024;

    /// Parses a pattern as written.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        if text.len() > Self::MAX_LEN {
            return Err(PatternError::TooLong);
        }
        let (negated, body) = match text.strip_prefix('!') {
            Some(body) => (true, body),
            None => (false, text),
        };
        if body.starts_with('!') {
            return Err(PatternError::NegatedTwice);
        }
        Ok(Self {
            text: text.to_owned(),
            negated,
            test: Test::parse(body)?,
        })
    }

    /// Writes what the pattern tests, so that [`Pattern::read`] has little to check, and no
    /// expression to compile.
    pub fn write(&self, writer: &mut Writer) {
        writer.array(4);
        writer.boolean(self.negated);
        let body = self.text.strip_prefix('!').unwrap_or(&self.text);
        let lower = || body.strip_prefix("i:").unwrap_or(body).to_ascii_lowercase();
        let (kind, text, number) = match &self.test {
            Test::Exact(text) => (0, text.clone(), 0),
            Test::ExactAnyCase(text) => (1, text.clone(), 0),
            Test::Glob(glob) if glob.any_case() => (3, lower().into_bytes(), 0),
            Test::Glob(_) => (2, body.as_bytes().to_vec(), 0),
            Test::Cidr(network) => (4, network.base.to_text(), network.length.into()),
            // 5 was the text of an expression.
            Test::Regex(regex) => (6, regex.program.packed.clone(), regex.max_input),
        };
        writer.unsigned(kind);
        writer.bytes(&text);
        writer.unsigned(u64::try_from(number).unwrap_or(u64::MAX));
    }

    /// Reads what [`Pattern::write`] wrote. Its text is one that means the same as the one written, or
    /// of a regular expression `re:` alone.
    ///
    /// # Errors
    /// It is a pattern of another version.
    pub fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.fields(4, |reader| {
            let (negated, kind) = (reader.boolean()?, reader.unsigned()?);
            let (bytes, number) = (reader.bytes()?, reader.unsigned()?);
            let body = match kind {
                6 => "",
                _ => str::from_utf8(bytes).map_err(|_| DecodeError::Type)?,
            };
            let glob = || Glob::parse(body).map_err(|_| DecodeError::Type);
            let (prefix, test) = match kind {
                0 => ("exact:", Test::Exact(bytes.to_vec())),
                1 => ("i:", Test::ExactAnyCase(bytes.to_vec())),
                2 => ("", Test::Glob(glob()?)),
                3 => ("i:", Test::Glob(glob()?.ignoring_case())),
                4 => (
                    "cidr:",
                    Test::Cidr(Network::new(bytes, number).ok_or(DecodeError::Type)?),
                ),
                6 => ("re:", Test::Regex(Regex::compiled(bytes, number)?)),
                _ => return Err(DecodeError::Index),
            };
            let mut written = String::with_capacity(body.len() + 8);
            if negated {
                written.push('!');
            }
            written.push_str(prefix);
            written.push_str(body);
            Ok(Self {
                text: written,
                negated,
                test,
            })
        })
    }

    /// Makes a text that is an address match that address, however both are spelled. The pattern
    /// stays as written.
    pub fn read_as_address(&mut self) {
        if let Test::Exact(text) | Test::ExactAnyCase(text) = &mut self.test
            && let Some(address) = Address::parse(text)
        {
            *text = address.canonical().to_text();
        }
    }

    /// The pattern as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it starts with `!`.
    pub fn is_negated(&self) -> bool {
        self.negated
    }

    /// Whether the pattern, without its negation, matches a value.
    pub fn finds(&self, value: &[u8]) -> bool {
        match &self.test {
            Test::Exact(text) => text == value,
            Test::ExactAnyCase(text) => text.eq_ignore_ascii_case(value),
            Test::Glob(glob) => glob.matches(value),
            Test::Cidr(network) => network.contains(value),
            Test::Regex(regex) => {
                // A value too long to search counts as whatever makes the limit apply, so that no
                // client escapes a limit by a longer path.
                if !self.is_searched(value) {
                    return !self.negated;
                }
                regex.program.matches(&String::from_utf8_lossy(value))
            }
        }
    }

    /// Whether [`Pattern::finds`] examines the value: a regular expression does not search a value
    /// that is too long.
    pub fn is_searched(&self, value: &[u8]) -> bool {
        self.longest_searched().is_none_or(|max| value.len() <= max)
    }

    /// The longest value that a regular expression searches, in bytes; `None` for other patterns.
    pub fn longest_searched(&self) -> Option<usize> {
        match &self.test {
            Test::Regex(regex) => Some(regex.max_input),
            _ => None,
        }
    }

    /// The one value that a positive, exact pattern matches, in lower case if it matches
    /// [any case](Self::any_case).
    pub fn exact(&self) -> Option<&[u8]> {
        match &self.test {
            Test::Exact(text) | Test::ExactAnyCase(text) if !self.negated => Some(text),
            _ => None,
        }
    }

    /// Whether the case of ASCII letters makes no difference to a text or glob.
    pub fn any_case(&self) -> bool {
        match &self.test {
            Test::ExactAnyCase(_) => true,
            Test::Glob(glob) => glob.any_case(),
            Test::Exact(_) | Test::Cidr(_) | Test::Regex(_) => false,
        }
    }

    /// The text that every match of a positive glob or regular expression equals, or starts with before a
    /// slash; a value that a regular expression [does not search](Self::is_searched) may be another.
    pub fn head(&self) -> Option<&[u8]> {
        match &self.test {
            Test::Glob(glob) if !self.negated => glob.head(),
            Test::Regex(regex) if !self.negated => regex.head(),
            _ => None,
        }
    }

    /// The text that every match of a positive glob equals, or ends with behind a slash or a dot.
    pub fn end(&self) -> Option<&[u8]> {
        match &self.test {
            Test::Glob(glob) if !self.negated => glob.end(),
            _ => None,
        }
    }

    /// Texts that every match of a positive glob or regular expression contains behind its head and before its
    /// end, whatever the case of ASCII letters, with a [`BREAK`] or more between two; a value that a regular
    /// expression [does not search](Self::is_searched) need not. Found anew in each call.
    pub fn inner(&self) -> Vec<u8> {
        let mut texts = match &self.test {
            Test::Glob(_) if !self.negated => {
                glob::literals(self.text.strip_prefix("i:").unwrap_or(&self.text))
            }
            Test::Regex(regex) if !self.negated => regex.program.literals(),
            _ => Vec::new(),
        };
        let [head, end] = [self.head(), self.end()].map(|text| text.map_or(0, <[u8]>::len));
        texts.truncate(texts.len().saturating_sub(end));
        texts.drain(..head.min(texts.len()));
        texts
    }

    /// Whether the values that a positive pattern matches have a text in common by which it may be looked up.
    pub fn is_looked_up(&self) -> bool {
        let texts = self.inner();
        let mut texts = texts.split(|byte| *byte == BREAK);
        self.exact().or(self.head()).or(self.end()).is_some()
            || texts.any(|text| text.len() >= LEAST_TEXT)
    }
}

/// The shortest text inside a pattern that it is looked up by: nearly every value has most of the shorter ones.
pub const LEAST_TEXT: usize = 3;

/// Stands between the texts of [`Pattern::inner`], none of which has it: they are UTF-8.
pub const BREAK: u8 = 0xff;

impl Test {
    fn parse(body: &str) -> Result<Self, PatternError> {
        if let Some(body) = body.strip_prefix("i:") {
            return Self::parse_any_case(&body.to_ascii_lowercase());
        }
        if let Some(text) = body.strip_prefix("exact:") {
            return Ok(Self::Exact(text.as_bytes().to_vec()));
        }
        if let Some(network) = body.strip_prefix("cidr:") {
            return Network::parse(network).map(Self::Cidr);
        }
        if let Some(expression) = body.strip_prefix("re:") {
            let regex = Regex::parse(expression);
            return regex.map(Self::Regex).map_err(PatternError::Regex);
        }
        // Refuses prefixes of other systems, which would silently become texts that match nothing.
        let foreign = ["regex:", "regexp:", "glob:", "prefix:", "suffix:", "ip:"];
        if foreign.iter().any(|prefix| body.starts_with(prefix)) {
            return Err(PatternError::Prefix(body.to_owned()));
        }
        let glob = Glob::parse(body)?;
        Ok(match glob.literal() {
            Some(text) => Self::Exact(text),
            None => Self::Glob(glob),
        })
    }

    /// What follows `i:`, in lower case.
    fn parse_any_case(body: &str) -> Result<Self, PatternError> {
        match Self::parse(body)? {
            Self::Exact(text) => Ok(Self::ExactAnyCase(text)),
            Self::Glob(glob) if !glob.any_case() => Ok(Self::Glob(glob.ignoring_case())),
            // `i:i:x` and `i:i:x*`, too.
            _ => Err(PatternError::AnyCase),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests;
