//! Which limits can match a request at all, by a few hash lookups.
//!
//! Of each limit one condition is filed: the one that it shares with the
//! fewest other limits. Limits without a condition that can be filed (no
//! literal in it) are candidates for every request.

use std::collections::HashMap;

use super::Rule;
use crate::{Limit, Matcher};

/// Where a limit is filed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Slot<'p> {
    /// The entry, as a position in the compiled keys.
    key: usize,
    literal: Literal<'p>,
}

/// What values of an entry have to be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Literal<'p> {
    /// Equal to it.
    Exact(&'p [u8]),
    /// Equal to it, or it and a slash and more.
    Head(&'p [u8]),
}

/// The limits filed under one entry.
#[derive(Clone, Debug, Default)]
struct Shelf {
    exact: HashMap<Box<[u8]>, Vec<usize>>,
    heads: HashMap<Box<[u8]>, Vec<usize>>,
    /// The most slashes in a head: what lies deeper in a value need not be looked up.
    depth: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Index {
    /// By position in the compiled keys.
    shelves: Vec<(usize, Shelf)>,
    /// Limits that any request may match.
    rest: Vec<usize>,
}

impl Index {
    pub(super) fn new(limits: &[Limit], rules: &[Rule]) -> Self {
        let options: Vec<Vec<Vec<Slot<'_>>>> = limits
            .iter()
            .zip(rules)
            .map(|(limit, rule)| {
                let matchers = limit.matchers.iter().zip(&rule.matchers);
                matchers.filter_map(|(m, key)| slots(m, *key)).collect()
            })
            .collect();
        let mut crowd: HashMap<&Slot<'_>, usize> = HashMap::new();
        for slot in options.iter().flatten().flatten() {
            *crowd.entry(slot).or_default() += 1;
        }
        let mut shelves: HashMap<usize, Shelf> = HashMap::new();
        let mut rest = Vec::new();
        for (at, options) in options.iter().enumerate() {
            let crowding = |slots: &&Vec<Slot<'_>>| {
                let most = slots.iter().filter_map(|slot| crowd.get(slot)).max();
                (most.copied(), slots.len())
            };
            match options.iter().min_by_key(crowding) {
                None => rest.push(at),
                Some(slots) => {
                    for slot in slots {
                        shelves.entry(slot.key).or_default().file(at, &slot.literal);
                    }
                }
            }
        }
        let mut shelves: Vec<_> = shelves.into_iter().collect();
        shelves.sort_unstable_by_key(|(key, _)| *key);
        Self { shelves, rest }
    }

    /// Every limit that may match; some more than once.
    pub(super) fn candidates(&self, values: &[Option<&[u8]>]) -> Vec<usize> {
        let mut found = self.rest.clone();
        for (key, shelf) in &self.shelves {
            if let Some(value) = values.get(*key).copied().flatten() {
                shelf.look_up(value, &mut found);
            }
        }
        found
    }
}

impl Shelf {
    fn file(&mut self, limit: usize, literal: &Literal<'_>) {
        let at = match *literal {
            Literal::Exact(value) => self.exact.entry(value.into()),
            Literal::Head(head) => {
                let slashes = head.split(|byte| *byte == b'/').count() - 1;
                self.depth = self.depth.max(slashes);
                self.heads.entry(head.into())
            }
        };
        at.or_default().push(limit);
    }

    fn look_up(&self, value: &[u8], found: &mut Vec<usize>) {
        if let Some(limits) = self.exact.get(value) {
            found.extend(limits);
        }
        if self.heads.is_empty() {
            return;
        }
        let slashes = value.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let ends = slashes.map(|(at, _)| at).take(self.depth + 1);
        for end in ends.chain([value.len()]) {
            if let Some(limits) = value.get(..end).and_then(|head| self.heads.get(head)) {
                found.extend(limits);
            }
        }
    }
}

/// Slots of which every value that satisfies the condition is in one; `None` if there are none.
fn slots(matcher: &Matcher, key: usize) -> Option<Vec<Slot<'_>>> {
    let positive = matcher.patterns.iter().filter(|p| !p.is_negated());
    let slots: Option<Vec<Slot<'_>>> = positive
        .map(|pattern| {
            let exact = pattern.exact().map(Literal::Exact);
            let literal = exact.or_else(|| pattern.head().map(Literal::Head))?;
            Some(Slot { key, literal })
        })
        .collect();
    slots.filter(|slots| !slots.is_empty())
}
