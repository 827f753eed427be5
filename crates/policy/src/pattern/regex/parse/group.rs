//! `(…)`.

use super::{Parsed, Parser};

/// Groups within groups.
const MAX_DEPTH: usize = 50;

impl Parser<'_> {
    /// A group; `false` where it only sets flags for what follows.
    pub(super) fn group(&mut self, depth: usize) -> Parsed<bool> {
        let outside = self.flags;
        self.next();
        self.skip_space();
        let mut looks = ["?=", "?!", "?<=", "?<!"].iter();
        if looks.any(|look| self.rest.starts_with(look)) {
            return Err("look-around is not supported");
        }
        if self.eat("?P<") || self.eat("?<") {
            self.group_name()?;
        } else if self.eat("?") && !self.flags()? {
            return Ok(false);
        }
        if depth >= MAX_DEPTH {
            return Err("too many groups within groups");
        }
        self.branches(depth + 1)?;
        self.flags = outside;
        if self.eat(")") {
            Ok(true)
        } else {
            Err("a `(` without its `)`")
        }
    }

    /// Nothing is captured, so the name says nothing.
    fn group_name(&mut self) -> Parsed {
        let name = self.until('>').unwrap_or_default().as_bytes();
        let is_letter = |c: &u8| c.is_ascii_alphabetic() || *c == b'_' || !c.is_ascii();
        let is_inner = |c: &u8| is_letter(c) || matches!(c, b'0'..=b'9' | b'.' | b'[' | b']');
        if name.first().is_some_and(is_letter) && name.iter().all(is_inner) {
            Ok(())
        } else {
            Err("a group's name is letters, digits and `_`, and ends with `>`")
        }
    }

    /// Reads flags; `true` where a group follows to which alone they apply.
    fn flags(&mut self) -> Parsed<bool> {
        let (mut on, mut last) = (true, '?');
        loop {
            let flag = self.next();
            match flag {
                Some(':') if last != '-' => return Ok(true),
                Some(')') if !matches!(last, '-' | '?') => return Ok(false),
                Some('-') if on => on = false,
                Some('i') => self.flags.any_case = on,
                Some('m') => self.flags.lines = on,
                Some('s') => self.flags.dot_is_all = on,
                Some('x') => self.flags.spaced = on,
                Some('R') => self.flags.crlf = on,
                Some('U' | 'u') => {}
                _ => return Err("after `(?` come flags out of imsxRU, then `:` or `)`"),
            }
            last = flag.unwrap_or_default();
        }
    }
}
