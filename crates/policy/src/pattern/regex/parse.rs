//! From the text of an expression to its program, in one pass.

use super::{
    look::Look,
    program::Program,
    set::{Item, Set},
};
use crate::units::parse_digits;

use escape::Escape;

mod class;
mod escape;
mod group;

type Parsed<T = ()> = Result<T, &'static str>;

pub(super) struct Parser<'t> {
    rest: &'t str,
    flags: Flags,
    program: Program,
}

/// `(?imsxR)`. Which match would be found first (`U`) makes no difference here, and nothing is
/// Unicode's (`u`).
#[derive(Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
struct Flags {
    any_case: bool,
    lines: bool,
    dot_is_all: bool,
    spaced: bool,
    crlf: bool,
}

impl<'t> Parser<'t> {
    pub(super) fn new(expression: &'t str) -> Self {
        Self {
            rest: expression,
            flags: Flags::default(),
            program: Program::default(),
        }
    }

    pub(super) fn parse(mut self) -> Parsed<Program> {
        self.branches(0)?;
        if self.rest.is_empty() {
            Ok(self.program)
        } else {
            Err("a `)` without its `(`")
        }
    }

    /// The next byte: whatever has a meaning of its own is ASCII's.
    fn peek(&self) -> Option<u8> {
        self.rest.bytes().next()
    }

    fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let next = chars.next();
        self.rest = chars.as_str();
        next
    }

    fn eat(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// What comes before a text, which is passed over too.
    fn until(&mut self, end: char) -> Option<&'t str> {
        let (before, rest) = self.rest.split_once(end)?;
        self.rest = rest;
        Some(before)
    }

    /// Passes over what is no part of the expression where it may be spaced out.
    fn skip_space(&mut self) {
        while self.flags.spaced {
            self.rest = self.rest.trim_start();
            if !self.eat("#") {
                return;
            }
            if self.until('\n').is_none() {
                self.rest = "";
            }
        }
    }

    fn branches(&mut self, depth: usize) -> Parsed {
        let mut jumps = Vec::new();
        loop {
            let start = self.program.len();
            self.items(depth)?;
            if !self.eat("|") {
                self.program.land(&jumps);
                return Ok(());
            }
            jumps.push(self.program.branch(start)?);
        }
    }

    fn items(&mut self, depth: usize) -> Parsed {
        let mut last = None;
        loop {
            self.skip_space();
            let start = self.program.len();
            match self.peek() {
                None | Some(b'|' | b')') => return Ok(()),
                Some(b'*' | b'+' | b'?' | b'{') => {
                    let last =
                        last.ok_or("there is nothing to repeat; write \\ before the sign")?;
                    let (min, max) = self.repetition()?;
                    self.program.repeat(last, min, max)?;
                    continue;
                }
                Some(b'(') => {
                    if !self.group(depth)? {
                        continue;
                    }
                }
                Some(_) => self.single()?,
            }
            last = Some(start);
        }
    }

    /// How often: the least and the most.
    fn repetition(&mut self) -> Parsed<(usize, Option<usize>)> {
        let counts = match self.next() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            _ => {
                let counts = self.until('}').and_then(|text| self.counts(text));
                let counts = counts.ok_or("a repetition is one of {n}, {n,} and {n,m}")?;
                self.skip_space();
                counts
            }
        };
        // As much or as little as possible: the value matches or does not.
        self.eat("?");
        Ok(counts)
    }

    fn counts(&self, text: &str) -> Option<(usize, Option<usize>)> {
        let number = |text: &str| parse_digits(text.trim())?.try_into().ok();
        let Some((min, max)) = text.split_once(',') else {
            let exactly = number(text)?;
            return Some((exactly, Some(exactly)));
        };
        let min = number(min)?;
        if max.is_empty() || self.flags.spaced && max.trim().is_empty() {
            return Some((min, None));
        }
        let max = number(max)?;
        (min <= max).then_some((min, Some(max)))
    }

    /// What is neither a group nor an operator.
    fn single(&mut self) -> Parsed {
        let Some(c) = self.next() else {
            return Ok(());
        };
        let look = |text, line, line_cr| match self.flags {
            Flags { lines: false, .. } => text,
            Flags { crlf: false, .. } => line,
            _ => line_cr,
        };
        match c {
            '[' => {
                let set = self.set()?;
                self.program.take_of(set)
            }
            '.' => self.program.take_of(self.dot()),
            '^' => {
                let look = look(Look::Start, Look::StartLine, Look::StartLineCr);
                self.program.look(look)
            }
            '$' => {
                let look = look(Look::End, Look::EndLine, Look::EndLineCr);
                self.program.look(look)
            }
            '\\' => match self.escape()? {
                Escape::Char(c) => self.program.take(c, self.flags.any_case),
                Escape::Item(item) => self.program.take_of(Set {
                    items: vec![item],
                    ..Set::default()
                }),
                Escape::Look(Look::Word) => {
                    let look = self.word_boundary();
                    self.program.look(look)
                }
                Escape::Look(look) => self.program.look(look),
            },
            c => self.program.take(c, self.flags.any_case),
        }
    }

    /// Everything but what ends a line.
    fn dot(&self) -> Set {
        let ends: &[char] = match self.flags {
            Flags {
                dot_is_all: true, ..
            } => &[],
            Flags { crlf: true, .. } => &['\n', '\r'],
            _ => &['\n'],
        };
        Set {
            items: ends.iter().map(|c| Item::one(*c)).collect(),
            negated: true,
            any_case: false,
        }
    }
}
