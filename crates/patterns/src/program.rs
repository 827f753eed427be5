//! What a regular expression is once compiled, and the search by it. Limiters and `rlctl` compile
//! (see `regex`); filters get programs, and have no reader of expressions.
//!
//! A program is a list of states; behind the last one the value matches. A search keeps the set of
//! states in which it may be, so a value takes at most the number of states at each of its characters,
//! whatever the program (Thompson's simulation). Which part matched what is never asked, so a state
//! needs no memory of its own.

use std::mem;

use cbor::{DecodeError, Reader};

use crate::BREAK;

/// Bound: states of a `re:` pattern. Beyond it, refused when it is written; a filter leaves a limit
/// with such a pattern to the limiter.
///
/// Three times what [`MAX_COMPILED`](super::regex::MAX_COMPILED) is expected to allow.
pub(crate) const MAX_STATES: usize = 8192;

/// Numbers that stand for something else than the character with that number. Each has arguments.
pub(crate) mod code {
    /// One character: the number of its ranges, and the first and last character of each.
    pub(crate) const CHARS: u64 = 0;
    /// As well the next state as the one so many states ahead.
    pub(crate) const BOTH: u64 = 1;
    /// As well the next state as the one so many states back.
    pub(crate) const AGAIN: u64 = 2;
    /// The state so many states ahead.
    pub(crate) const JUMP: u64 = 3;
    /// The next state, between characters of certain [kinds](super::kind).
    pub(crate) const BETWEEN: u64 = 4;
    /// So many states before this are repeated so many times.
    pub(crate) const COPY: u64 = 5;
    /// So many states before this are repeated up to so many times.
    pub(crate) const UP_TO: u64 = 6;
    /// Characters from here stand for themselves.
    pub(crate) const FIRST_CHAR: u64 = 7;
}

/// A compiled expression.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Program {
    /// As it is sent: numbers of CBOR, see [`code`].
    pub(crate) packed: Vec<u8>,
    states: Vec<State>,
    ranges: Vec<(u32, u32)>,
}

/// One state. Steps are relative, so that a repeated part is a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Char(u32),
    /// A character of the ranges from here to there.
    Chars(usize, usize),
    Both(usize),
    Again(usize),
    Jump(usize),
    Between(usize),
}

impl Program {
    /// Unpacks a program. Whatever the bytes, it has at most [`MAX_STATES`].
    pub(crate) fn read(packed: &[u8]) -> Result<Self, DecodeError> {
        let mut program = Self {
            packed: packed.to_vec(),
            ..Self::default()
        };
        let reader = &mut Reader::new(packed);
        while !reader.is_empty() {
            let state = match reader.unsigned()? {
                code::CHARS => {
                    let from = program.ranges.len();
                    for _ in 0..number(reader)? {
                        program.ranges.push((char(reader)?, char(reader)?));
                    }
                    State::Chars(from, program.ranges.len())
                }
                code::BOTH => State::Both(number(reader)?),
                code::AGAIN => State::Again(number(reader)?),
                code::JUMP => State::Jump(number(reader)?),
                code::BETWEEN => State::Between(number(reader)?),
                kind @ (code::COPY | code::UP_TO) => {
                    program.repeat(number(reader)?, number(reader)?, kind == code::UP_TO)?;
                    continue;
                }
                char => State::Char(u32::try_from(char).map_err(|_| TOO_MANY)?),
            };
            program.push(state)?;
        }
        Ok(program)
    }

    fn push(&mut self, state: State) -> Result<(), DecodeError> {
        if self.states.len() >= MAX_STATES {
            return Err(TOO_MANY);
        }
        self.states.push(state);
        Ok(())
    }

    /// Repeats the last `len` states; each time may be the last if they are `optional`.
    fn repeat(&mut self, len: usize, times: usize, optional: bool) -> Result<(), DecodeError> {
        let from = self.states.len().checked_sub(len).ok_or(TOO_MANY)?;
        if len == 0 {
            // Any number of times would fit.
            return Err(TOO_MANY);
        }
        for left in (1..=times).rev() {
            if optional {
                self.push(State::Both(left.saturating_mul(len + 1)))?;
            }
            for at in from..from + len {
                let state = self.states.get(at).copied().ok_or(TOO_MANY)?;
                self.push(state)?;
            }
        }
        Ok(())
    }

    /// The characters that every match starts with: those of the states that a search enters one after
    /// the other.
    pub(crate) fn prefix(&self) -> String {
        let states = { self.states.iter() }.skip_while(|state| matches!(state, State::Between(_)));
        let chars = states.map_while(|state| match state {
            // What a value has in place of bytes that are no UTF-8.
            State::Char(char) => {
                char::from_u32(*char).filter(|char| *char != char::REPLACEMENT_CHARACTER)
            }
            _ => None,
        });
        chars.collect()
    }

    /// Texts that every match contains, whatever the case of ASCII letters: the characters of states that no step
    /// ahead leaves out, where each is followed by the next one only. A break for each other state.
    pub(crate) fn literals(&self) -> Vec<u8> {
        let mut texts = Vec::new();
        // States before this one are left out by some match.
        let mut left_out = 0;
        for (at, state) in self.states.iter().enumerate() {
            let char = match *state {
                State::Between(_) => continue,
                State::Char(char) => Some(char),
                State::Chars(from, to) => self.one_letter(from, to),
                State::Both(by) | State::Jump(by) => {
                    left_out = left_out.max(at.saturating_add(by));
                    None
                }
                State::Again(_) => None,
            };
            // Bytes that are no UTF-8 count as this character.
            let char = char.filter(|_| at >= left_out).and_then(char::from_u32);
            match char.filter(|char| *char != char::REPLACEMENT_CHARACTER) {
                Some(char) => texts.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
                None => texts.push(BREAK),
            }
        }
        texts
    }

    /// The character that a state takes, in one case or in both.
    fn one_letter(&self, from: usize, to: usize) -> Option<u32> {
        match self.ranges.get(from..to)? {
            [(first, last)] if first == last => Some(*first),
            // As `(?i)` has them: capital letters first.
            [(upper @ 65..=90, a), (lower, b)]
                if a == upper && b == lower && *lower == upper + 32 =>
            {
                Some(*lower)
            }
            _ => None,
        }
    }

    /// Whether the whole value matches.
    pub(crate) fn matches(&self, value: &str) -> bool {
        let mut chars = value.chars().map(u32::from);
        let (mut now, mut next) = (vec![0], Vec::new());
        // The character, from 1, at which the search was in a state last.
        let mut seen = vec![0_usize; self.states.len() + 1];
        let (mut at, mut before) = (0, kind::EDGE);
        loop {
            at += 1;
            let char = chars.next();
            let after = char.map_or(kind::EDGE, kind::of);
            while let Some(state) = now.pop() {
                match seen.get_mut(state) {
                    Some(last) if *last != at => *last = at,
                    _ => continue,
                }
                let Some(is) = self.states.get(state) else {
                    if char.is_none() {
                        return true;
                    }
                    continue;
                };
                match *is {
                    State::Char(wanted) if char == Some(wanted) => next.push(state + 1),
                    State::Chars(from, to) if self.has(from, to, char) => next.push(state + 1),
                    State::Char(_) | State::Chars(..) => {}
                    State::Both(by) => now.extend([state + 1, state.saturating_add(by)]),
                    State::Again(by) => now.extend([state + 1, state.saturating_sub(by)]),
                    State::Jump(by) => now.push(state.saturating_add(by)),
                    State::Between(kinds) => {
                        if kinds >> kind::bit(before, after) & 1 == 1 {
                            now.push(state + 1);
                        }
                    }
                }
            }
            if char.is_none() || next.is_empty() {
                return false;
            }
            mem::swap(&mut now, &mut next);
            before = after;
        }
    }

    fn has(&self, from: usize, to: usize, char: Option<u32>) -> bool {
        let mut ranges = self.ranges.get(from..to).unwrap_or_default().iter();
        char.is_some_and(|char| ranges.any(|(first, last)| (*first..=*last).contains(&char)))
    }
}

const TOO_MANY: DecodeError = DecodeError::Bounds("a program");

fn number(reader: &mut Reader<'_>) -> Result<usize, DecodeError> {
    usize::try_from(reader.unsigned()?).map_err(|_| TOO_MANY)
}

fn char(reader: &mut Reader<'_>) -> Result<u32, DecodeError> {
    u32::try_from(reader.unsigned()?).map_err(|_| TOO_MANY)
}

/// What `^`, `$`, `\b` and their like distinguish.
pub(crate) mod kind {
    /// Before the first character, or behind the last.
    pub(crate) const EDGE: usize = 0;
    pub(crate) const LINE_FEED: usize = 1;
    pub(crate) const CARRIAGE_RETURN: usize = 2;
    /// An ASCII letter or digit, or an underscore.
    pub(crate) const WORD: usize = 3;
    const OTHER: usize = 4;
    /// How many there are.
    pub(crate) const ALL: usize = 5;

    /// The kind of a character.
    pub(super) fn of(char: u32) -> usize {
        match u8::try_from(char) {
            Ok(b'\n') => LINE_FEED,
            Ok(b'\r') => CARRIAGE_RETURN,
            Ok(b'_') => WORD,
            Ok(byte) if byte.is_ascii_alphanumeric() => WORD,
            _ => OTHER,
        }
    }

    /// The bit of a place between two characters.
    pub(crate) fn bit(before: usize, after: usize) -> usize {
        before * ALL + after
    }
}
