//! Which limits can match a request at all, by a few hash lookups.
//!
//! The index holds one condition of each limit: the one that it shares with the fewest other
//! limits. Limits without a condition that the index can hold (one with a literal) are candidates
//! for every request.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use crate::{MULTIPLE_VALUES, Matcher, hash::Positions};

/// What an entry's value has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Literal {
    /// Equal to it.
    Exact = 0,
    /// Equal to it, or starting with it and a slash.
    Head = 1,
}

/// An entry, as a position in the compiled keys, and whether its values are in lower case.
type Key = (usize, bool);

/// Where the index holds a limit: a hash of the entry, the kind of literal and the literal. Limits that share
/// a slot by collision are candidates for each other's requests, and then ruled out like any candidate.
type Slot = u64;

/// Up to this many limits, each is a candidate: ruling them out costs less than looking them up.
const FEW: usize = 4;

/// When a limit or an exemption applies.
#[derive(Clone, Copy)]
pub(super) struct Conditions<'l> {
    pub(super) matchers: &'l [Matcher],
    /// For each matcher, the position of its entry in the compiled keys.
    pub(super) keys: &'l [usize],
    /// If true, no request matches by its entries.
    pub(super) never: bool,
}

impl<'l> Conditions<'l> {
    fn iter(self) -> impl Iterator<Item = (&'l Matcher, usize)> {
        self.matchers.iter().zip(self.keys.iter().copied())
    }
}

#[derive(Clone, Debug)]
pub(super) struct Index {
    /// Limits by slot.
    filed: Positions,
    /// By position in the compiled keys: how to look up values of the entry, as they are and in
    /// lower case.
    entries: Vec<[Entry; 2]>,
    /// Limits that any request may match.
    rest: Vec<usize>,
    limits: usize,
}

/// What the index holds of one entry.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    exact: bool,
    /// The most slashes in a head, plus one: deeper parts of a value need no lookup. 0 if there are
    /// no heads.
    depth: usize,
}

/// The limits that may match a request, a bit for each.
pub(super) struct Candidates {
    first: u64,
    /// The bits of the limits after the first 64.
    more: Vec<u64>,
}

impl Index {
    pub(super) fn new(limits: &[Conditions<'_>], keys: usize) -> Self {
        let options: Vec<Vec<Vec<Slot>>> = limits
            .iter()
            .map(|limit| {
                let fileable = limit.iter().map(|(matcher, key)| slots(matcher, key));
                fileable.filter(|slots| !slots.is_empty()).collect()
            })
            .collect();
        // Counts how many limits each slot could hold.
        let (mut places, mut crowds) = (Positions::default(), Vec::new());
        for slot in options.iter().flatten().flatten() {
            let at = places.of(*slot).next();
            if let Some(crowd) = at.and_then(|at| crowds.get_mut(at)) {
                *crowd += 1;
            } else {
                places.add(*slot, crowds.len());
                crowds.push(1_usize);
            }
        }
        let mut index = Self {
            filed: Positions::default(),
            entries: vec![[Entry::default(); 2]; keys],
            rest: Vec::new(),
            limits: limits.len(),
        };
        let crowd = |slots: &&Vec<Slot>| {
            let places = slots.iter().filter_map(|slot| places.of(*slot).next());
            let sizes = places.filter_map(|at| crowds.get(at));
            (sizes.max(), slots.len())
        };
        for (at, options) in options.iter().enumerate() {
            match options.iter().min_by_key(crowd) {
                None if limits.get(at).is_some_and(|limit| limit.never) => {}
                None => index.rest.push(at),
                Some(slots) => {
                    for slot in slots {
                        index.filed.add(*slot, at);
                    }
                }
            }
        }
        for (matcher, key) in limits.iter().copied().flat_map(Conditions::iter) {
            index.note_lookups(matcher, key);
        }
        index
    }

    fn note_lookups(&mut self, matcher: &Matcher, key: usize) {
        let Some([as_is, lower]) = self.entries.get_mut(key) else {
            return;
        };
        for pattern in &matcher.patterns {
            let entry = if pattern.any_case() {
                &mut *lower
            } else {
                &mut *as_is
            };
            entry.exact = entry.exact || pattern.exact().is_some();
            if let Some(head) = pattern.head() {
                let segments = head.split(|byte| *byte == b'/').count();
                entry.depth = entry.depth.max(segments);
            }
        }
    }

    /// Every limit that may match.
    pub(super) fn candidates(&self, values: &[Option<&[u8]>]) -> Candidates {
        if self.limits <= FEW || values.contains(&Some(MULTIPLE_VALUES)) {
            return Candidates::all(self.limits);
        }
        let mut found = Candidates {
            first: 0,
            more: vec![0; self.limits / 64],
        };
        for limit in &self.rest {
            found.add(*limit);
        }
        for (key, ([as_is, lower], value)) in self.entries.iter().zip(values).enumerate() {
            let Some(value) = value else { continue };
            self.look_up_value(*as_is, (key, false), value, &mut found);
            if lower.exact || lower.depth > 0 {
                let value = value.to_ascii_lowercase();
                self.look_up_value(*lower, (key, true), &value, &mut found);
            }
        }
        found
    }

    fn look_up_value(&self, entry: Entry, key: Key, value: &[u8], found: &mut Candidates) {
        if entry.exact {
            self.look_up(slot(key, Literal::Exact, value), found);
        }
        if entry.depth > 0 {
            let slashes = value.iter().enumerate().filter(|(_, byte)| **byte == b'/');
            let ends = slashes.map(|(at, _)| at).take(entry.depth);
            for end in ends.chain([value.len()]) {
                let head = value.get(..end).unwrap_or_default();
                self.look_up(slot(key, Literal::Head, head), found);
            }
        }
    }

    fn look_up(&self, slot: Slot, found: &mut Candidates) {
        for limit in self.filed.of(slot) {
            found.add(limit);
        }
    }
}

impl Candidates {
    /// All of `limits` limits.
    fn all(limits: usize) -> Self {
        let ones = |count: usize| {
            1_u64
                .unbounded_shl(u32::try_from(count).unwrap_or(64))
                .wrapping_sub(1)
        };
        let more = (1..=limits / 64).map(|word| ones(limits - word * 64));
        Self {
            first: ones(limits),
            more: more.collect(),
        }
    }

    fn add(&mut self, limit: usize) {
        let word = match (limit / 64).checked_sub(1) {
            None => Some(&mut self.first),
            Some(at) => self.more.get_mut(at),
        };
        if let Some(word) = word {
            *word |= 1 << (limit % 64);
        }
    }

    /// Their positions, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        let words = std::iter::once(&self.first).chain(&self.more);
        words.enumerate().flat_map(|(at, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                // Clears the lowest bit.
                left &= left.checked_sub(1)?;
                Some(at * 64 + usize::try_from(bit).unwrap_or(0))
            })
        })
    }
}

fn slot((key, lower): Key, kind: Literal, literal: &[u8]) -> Slot {
    let mut hasher = SipHasher13::new();
    let place = u64::try_from(key).unwrap_or(u64::MAX);
    hasher.write(&place.to_le_bytes());
    hasher.write(&[kind as u8 | u8::from(lower) << 1]);
    hasher.write(literal);
    hasher.finish()
}

/// Slots that together cover every value that satisfies the condition; empty if there are no such slots.
fn slots(matcher: &Matcher, key: usize) -> Vec<Slot> {
    let positive = matcher.patterns.iter().filter(|p| !p.is_negated());
    let slots: Option<Vec<Slot>> = positive
        .map(|pattern| {
            let key = (key, pattern.any_case());
            let exact = pattern.exact().map(|text| slot(key, Literal::Exact, text));
            exact.or_else(|| Some(slot(key, Literal::Head, pattern.head()?)))
        })
        .collect();
    slots.unwrap_or_default()
}
