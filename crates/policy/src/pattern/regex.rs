//! Regular expressions, in the syntax of the crate `regex-lite`: classes and
//! case are ASCII's, and there is neither look-around nor a reference back.
//!
//! The filter carries whatever reads them, so size counts: this is a tenth of
//! that crate, which also searches, captures and replaces. Here a *whole* value
//! matches or does not, which needs no more than the set of places in the
//! expression where it may be. `tests` hold the crate against it.

mod look;
mod parse;
mod program;
mod set;

use parse::Parser;
use program::Program;

/// A parsed expression.
#[derive(Clone, Debug)]
pub(super) struct Regex(Program);

impl Regex {
    /// Parses an expression, or says what is wrong with it.
    pub(super) fn parse(expression: &str) -> Result<Self, &'static str> {
        Parser::new(expression).parse().map(Self)
    }

    /// Whether the whole value matches. Takes time in proportion to its length.
    pub(super) fn matches(&self, value: &str) -> bool {
        self.0.matches(value)
    }
}

#[cfg(test)]
mod tests;
