//! Which limits can match a request at all, by a few hash lookups.
//!
//! The index holds one condition of each limit: the one that it shared with the fewest other
//! limits when it was added. It is held by a literal of the pattern: the whole of it, the segments that it begins with, or
//! the segments or labels that it ends with. Limits without such a condition are candidates for every
//! request.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use patterns::Pattern;

use crate::{MULTIPLE_VALUES, Matcher, hash::Positions};

/// What an entry's value has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Literal {
    /// Equal to it.
    Exact = 0,
    /// Equal to it, or starting with it and a slash.
    Head = 1,
    /// Equal to it, or ending with it behind a slash or a dot.
    End = 2,
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
    /// The ways to file it.
    #[inline(never)]
    fn ways(self) -> Vec<Way<'l>> {
        let matchers = self.matchers.iter().zip(self.keys.iter().copied());
        matchers
            .flat_map(|(matcher, key)| ways(matcher, key))
            .collect()
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
    /// Limits by expressions that do not search values beyond a length, and so apply to them: the
    /// length, the position of the entry, and the limit. By length.
    unsearched: Vec<(usize, usize, usize)>,
    limits: usize,
}

/// What the index holds of one entry.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    exact: bool,
    /// The most slashes in a head, plus one: deeper parts of a value need no lookup. 0 if there are
    /// no heads.
    depth: usize,
    /// The most slashes and dots in an end, plus one. 0 if there are no ends.
    ends: usize,
}

/// A condition of a limit: its matcher, and slots that together cover every value that satisfies it.
struct Way<'l> {
    matcher: &'l Matcher,
    key: usize,
    literal: Literal,
    slots: Vec<Slot>,
}

/// The limits that may match a request, a bit for each.
pub(super) struct Candidates {
    first: u64,
    /// The bits of the limits after the first 64.
    more: Vec<u64>,
}

/// Limits that are counted in a slot: beyond, one slot is as crowded as another.
const CROWD: usize = 1000;

impl Index {
    pub(super) fn new(limits: &[Conditions<'_>], keys: usize) -> Self {
        let mut index = Self {
            filed: Positions::default(),
            entries: Vec::new(),
            rest: Vec::new(),
            unsearched: Vec::new(),
            limits: 0,
        };
        index.widen(keys);
        for (at, limit) in limits.iter().enumerate() {
            index.add(at, *limit);
        }
        index
    }

    /// Makes room for so many keys.
    pub(super) fn widen(&mut self, keys: usize) {
        self.entries.resize(keys, [Entry::default(); 2]);
    }

    /// Adds a limit, by the condition that it shares with the fewest others so far.
    pub(super) fn add(&mut self, at: usize, limit: Conditions<'_>) {
        self.limits = self.limits.max(at + 1);
        let crowd = |way: &&Way<'_>| {
            let crowds = way.slots.iter();
            let crowds = crowds.map(|slot| self.filed.of(*slot).take(CROWD).count());
            (crowds.max(), way.slots.len())
        };
        match limit.ways().iter().min_by_key(crowd) {
            None if limit.never => {}
            None => self.rest.push(at),
            Some(way) => self.file(at, way),
        }
    }

    /// Removes a limit; its position is for another one. What lookups the others need stays as it is.
    pub(super) fn remove(&mut self, at: usize, limit: Conditions<'_>) {
        for slot in limit.ways().iter().flat_map(|way| &way.slots) {
            self.filed.remove(*slot, at);
        }
        self.rest.retain(|other| *other != at);
        self.unsearched.retain(|(.., other)| *other != at);
    }

    /// The last position is no limit's any more.
    pub(super) fn shorten(&mut self, limits: usize) {
        self.limits = limits;
    }

    fn file(&mut self, limit: usize, way: &Way<'_>) {
        for slot in &way.slots {
            self.filed.add(*slot, limit);
        }
        let patterns = way.matcher.patterns.iter();
        for pattern in patterns.filter(|pattern| !pattern.is_negated()) {
            if let Some(longest) = pattern.longest_searched() {
                let found = (longest, way.key, limit);
                let at = self.unsearched.partition_point(|other| *other < found);
                self.unsearched.insert(at, found);
            }
        }
        self.note_lookups(way);
    }

    fn note_lookups(&mut self, way: &Way<'_>) {
        let Some([as_is, lower]) = self.entries.get_mut(way.key) else {
            return;
        };
        for pattern in &way.matcher.patterns {
            let entry = if pattern.any_case() {
                &mut *lower
            } else {
                &mut *as_is
            };
            match literal(pattern, way.literal) {
                Some((Literal::Exact, _)) => entry.exact = true,
                Some((Literal::Head, head)) => {
                    let segments = head.split(|byte| *byte == b'/').count();
                    entry.depth = entry.depth.max(segments);
                }
                Some((Literal::End, end)) => {
                    entry.ends = entry
                        .ends
                        .max(end.split(|byte| is_separator(*byte)).count());
                }
                None => {}
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
        let len = |key: usize| values.get(key).copied().flatten().map_or(0, <[u8]>::len);
        let most = (0..values.len()).map(len).max().unwrap_or(0);
        let unsearched = self
            .unsearched
            .iter()
            .take_while(|(longest, ..)| *longest < most);
        for (longest, key, limit) in unsearched {
            if len(*key) > *longest {
                found.add(*limit);
            }
        }
        for (key, ([as_is, lower], value)) in self.entries.iter().zip(values).enumerate() {
            let Some(value) = value else { continue };
            self.look_up_value(*as_is, (key, false), value, &mut found);
            if lower.exact || lower.depth > 0 || lower.ends > 0 {
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
        let separators = value.iter().enumerate().rev();
        let separators = separators.filter(|(_, byte)| is_separator(**byte));
        let starts = separators.map(|(at, _)| at + 1).chain([0]);
        for start in starts.take(entry.ends) {
            let end = value.get(start..).unwrap_or_default();
            self.look_up(slot(key, Literal::End, end), found);
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
    hasher.write(&[kind as u8 | u8::from(lower) << 2]);
    hasher.write(literal);
    hasher.finish()
}

fn is_separator(byte: u8) -> bool {
    matches!(byte, b'/' | b'.')
}

/// A text by which the index finds a pattern's matches; of a glob with a head and an end, the `preferred` one.
fn literal(pattern: &Pattern, preferred: Literal) -> Option<(Literal, &[u8])> {
    let exact = || Some((Literal::Exact, pattern.exact()?));
    let head = || Some((Literal::Head, pattern.head()?));
    let end = || Some((Literal::End, pattern.end()?));
    match preferred {
        Literal::End => exact().or_else(end).or_else(head),
        Literal::Exact | Literal::Head => exact().or_else(head).or_else(end),
    }
}

/// The ways to file a limit under a condition.
fn ways(matcher: &Matcher, key: usize) -> impl Iterator<Item = Way<'_>> {
    let way = move |preferred| {
        let positive = matcher.patterns.iter().filter(|p| !p.is_negated());
        let slots = positive.map(|pattern| {
            let (kind, text) = literal(pattern, preferred)?;
            Some(slot((key, pattern.any_case()), kind, text))
        });
        let slots: Option<Vec<Slot>> = slots.collect();
        slots.filter(|slots| !slots.is_empty()).map(|slots| Way {
            matcher,
            key,
            literal: preferred,
            slots,
        })
    };
    let (heads, ends) = (way(Literal::Head), way(Literal::End));
    let differ = { heads.iter().zip(&ends) }.any(|(heads, ends)| heads.slots != ends.slots);
    heads.into_iter().chain(ends.filter(|_| differ))
}
