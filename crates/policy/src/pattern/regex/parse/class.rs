//! `[…]`.

use super::{Parsed, Parser, escape::Escape};
use crate::pattern::regex::set::{Item, Set, Test, named};

const UNCLOSED: &str = "a `[` without its `]`";

impl Parser<'_> {
    /// After a `[`.
    pub(super) fn set(&mut self) -> Parsed<Set> {
        self.skip_space();
        let negated = self.eat("^");
        self.skip_space();
        let mut items = Vec::new();
        // Here these stand for themselves.
        while self.eat("-") {
            items.push(Item::one('-'));
            self.skip_space();
        }
        if items.is_empty() && self.eat("]") {
            items.push(Item::one(']'));
        }
        loop {
            self.skip_space();
            if self.eat("]") {
                return Ok(Set {
                    items,
                    negated,
                    any_case: self.flags.any_case,
                });
            }
            let mut operators = ["&&", "--", "~~"].iter();
            if operators.any(|operator| self.rest.starts_with(operator)) {
                return Err("&&, -- and ~~ in a class are not supported");
            }
            items.push(if self.eat("[") {
                self.posix()?
            } else {
                self.range()?
            });
        }
    }

    /// The rest of `[:alpha:]`.
    fn posix(&mut self) -> Parsed<Item> {
        let named = self.eat(":").then(|| {
            let item: fn(Test) -> Item = if self.eat("^") {
                Item::NotNamed
            } else {
                Item::Named
            };
            let test = self.until(':').and_then(named)?;
            self.eat("]").then(|| item(test))
        });
        named
            .flatten()
            .ok_or("no class within a class but [:alpha:] and the like")
    }

    /// One item, or a range between two.
    fn range(&mut self) -> Parsed<Item> {
        let first = self.item()?;
        self.skip_space();
        let at_dash = self.rest;
        if !self.eat("-") {
            return Ok(first);
        }
        self.skip_space();
        if let Some(b']' | b'-') = self.peek() {
            // The next item, or the end of the class, decides what the dash is.
            self.rest = at_dash;
            return Ok(first);
        }
        match (first, self.item()?) {
            (Item::Range(first, _), Item::Range(last, _)) if first <= last => {
                Ok(Item::Range(first, last))
            }
            _ => Err("a range in a class is from a character to a later one"),
        }
    }

    fn item(&mut self) -> Parsed<Item> {
        match self.next().ok_or(UNCLOSED)? {
            '\\' => match self.escape()? {
                Escape::Char(c) => Ok(Item::one(c)),
                Escape::Item(item) => Ok(item),
                Escape::Look(_) => Err("a class holds characters only"),
            },
            c => Ok(Item::one(c)),
        }
    }
}
