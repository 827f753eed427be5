//! `\…`.

use super::{Parsed, Parser};
use crate::pattern::regex::{
    look::Look,
    set::{Item, Test, is_space, is_word},
};

/// What a backslash stands for.
pub(super) enum Escape {
    Char(char),
    Item(Item),
    Look(Look),
}

impl Parser<'_> {
    /// After `\b`.
    pub(super) fn word_boundary(&mut self) -> Look {
        let mut kinds = [
            ("{start}", Look::WordStart),
            ("{end}", Look::WordEnd),
            ("{start-half}", Look::WordStartHalf),
            ("{end-half}", Look::WordEndHalf),
        ]
        .into_iter();
        let kind = kinds.find(|(kind, _)| self.eat(kind));
        kind.map_or(Look::Word, |(_, look)| look)
    }

    /// After a backslash.
    pub(super) fn escape(&mut self) -> Parsed<Escape> {
        let digit: Test = char::is_ascii_digit;
        let c = self
            .next()
            .ok_or("it ends in a backslash; write \\\\ for one")?;
        Ok(match c {
            'd' => Escape::Item(Item::Named(digit)),
            'D' => Escape::Item(Item::NotNamed(digit)),
            's' => Escape::Item(Item::Named(is_space)),
            'S' => Escape::Item(Item::NotNamed(is_space)),
            'w' => Escape::Item(Item::Named(is_word)),
            'W' => Escape::Item(Item::NotNamed(is_word)),
            'A' => Escape::Look(Look::Start),
            'z' => Escape::Look(Look::End),
            'b' => Escape::Look(Look::Word),
            'B' => Escape::Look(Look::NotWord),
            '<' => Escape::Look(Look::WordStart),
            '>' => Escape::Look(Look::WordEnd),
            'a' => Escape::Char('\x07'),
            't' => Escape::Char('\t'),
            'n' => Escape::Char('\n'),
            'v' => Escape::Char('\x0B'),
            'f' => Escape::Char('\x0C'),
            'r' => Escape::Char('\r'),
            'x' => self.code_point(2)?,
            'u' => self.code_point(4)?,
            'U' => self.code_point(8)?,
            '0'..='9' => return Err("references back are not supported"),
            'p' | 'P' => return Err("Unicode classes are not supported"),
            c if c.is_ascii() && !c.is_ascii_alphabetic() => Escape::Char(c),
            _ => return Err("a backslash before a letter that needs none"),
        })
    }

    /// A character by its number: so many hexadecimal digits, or any number in braces.
    fn code_point(&mut self, digits: usize) -> Parsed<Escape> {
        let text = if self.eat("{") {
            self.until('}')
        } else {
            self.rest.split_at_checked(digits).map(|(text, rest)| {
                self.rest = rest;
                text
            })
        };
        // The standard library would take a sign.
        let text = text.filter(|text| text.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let number = text.and_then(|text| u32::from_str_radix(text, 16).ok());
        let c = number.and_then(char::from_u32);
        c.map(Escape::Char)
            .ok_or("no character; write \\x41, \\x{1F600}, \\u0041 or \\U0001F600")
    }
}
