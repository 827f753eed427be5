//! Which limits can match a request at all, by a few hash lookups.
//!
//! The index holds one condition of each limit: the one that it shared with the fewest other
//! limits when it was added. Each of its patterns is held by a literal: the whole of it, the segments that it begins
//! with, the segments or labels that it ends with, or a few bytes that each match has somewhere. Limits without such
//! a condition are candidates for every request.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use patterns::{BREAK, LEAST_TEXT, Pattern};

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
    /// Containing it, whatever the case of its ASCII letters.
    Gram = 3,
}

/// An entry, as a position in the compiled keys, and whether its values are in lower case.
type Key = (usize, bool);

/// Where the index holds a limit: a hash of the entry, the kind of literal and the literal. Limits that share
/// a slot by collision are candidates for each other's requests, and then ruled out like any candidate.
type Slot = u64;

/// Up to this many limits, each is a candidate: ruling them out costs less than looking them up.
const FEW: usize = 4;

/// Bytes of the longest gram.
const GRAM: usize = 4;

/// Bytes of the shortest.
const LEAST_GRAM: usize = LEAST_TEXT;

/// So many grams of a pattern are tried, from its end: tenants' paths differ there.
const GRAMS: usize = 64;

/// So many limits may share a place before the grams of their patterns are tried: each byte of a value is
/// looked up where an entry has grams, which costs more than to rule out these.
const SHARED: usize = 8;

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
    fn each(self) -> impl Iterator<Item = (&'l Matcher, usize)> {
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
    /// A bit for each length of a gram.
    grams: usize,
}

/// Where the index may hold a pattern, and by which lookup it is found there.
#[derive(Clone, Copy)]
struct Place {
    slot: Slot,
    literal: Literal,
    any_case: bool,
    /// Of a head or an end the number of its parts, of a gram its bytes.
    size: usize,
}

/// A condition of a limit: its matcher, and places that together cover every value that satisfies it.
struct Way<'l> {
    matcher: &'l Matcher,
    key: usize,
    places: Vec<Place>,
    /// The most limits in one of them.
    crowd: usize,
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
        if limit.never {
            return;
        }
        let ways = limit.each();
        let ways = ways.filter_map(|(matcher, key)| self.way(matcher, key));
        match ways.min_by_key(|way| (way.crowd, way.places.len())) {
            None => self.rest.push(at),
            Some(way) => self.file(at, &way),
        }
    }

    fn way<'l>(&self, matcher: &'l Matcher, key: usize) -> Option<Way<'l>> {
        let mut way = Way {
            matcher,
            key,
            places: Vec::new(),
            crowd: 0,
        };
        for pattern in matcher.patterns.iter().filter(|found| !found.is_negated()) {
            let (crowd, place) = self.rarest(pattern, key)?;
            way.crowd = way.crowd.max(crowd);
            way.places.push(place);
        }
        (!way.places.is_empty()).then_some(way)
    }

    /// The place of a pattern that the fewest limits are in, and how many.
    fn rarest(&self, pattern: &Pattern, key: usize) -> Option<(usize, Place)> {
        let mut rarest: Option<(usize, Place)> = None;
        for gram in [0, GRAM, LEAST_GRAM] {
            let few =
                |(crowd, place): (usize, Place)| crowd < SHARED || place.literal == Literal::Gram;
            if rarest.is_some_and(few) {
                break;
            }
            places(pattern, key, gram, &mut |place| {
                let most = rarest.map_or(CROWD, |(crowd, _)| crowd);
                let crowd = self.filed.of(place.slot).take(most).count();
                if rarest.is_none() || crowd < most {
                    rarest = Some((crowd, place));
                }
            });
        }
        rarest
    }

    /// Removes a limit; its position is for another one. What lookups the others need stays as it is.
    pub(super) fn remove(&mut self, at: usize, limit: Conditions<'_>) {
        for (matcher, key) in limit.each() {
            let has_grams = self
                .entries
                .get(key)
                .is_some_and(|[entry, _]| entry.grams > 0);
            for pattern in &matcher.patterns {
                for gram in [0, GRAM, LEAST_GRAM] {
                    if gram == 0 || has_grams {
                        let remove = &mut |place: Place| self.filed.remove(place.slot, at);
                        places(pattern, key, gram, remove);
                    }
                }
            }
        }
        self.rest.retain(|other| *other != at);
        self.unsearched.retain(|(.., other)| *other != at);
    }

    /// The last position is no limit's any more.
    pub(super) fn shorten(&mut self, limits: usize) {
        self.limits = limits;
    }

    fn file(&mut self, limit: usize, way: &Way<'_>) {
        for place in &way.places {
            self.filed.add(place.slot, limit);
            self.note_lookup(way.key, place);
        }
        let patterns = way.matcher.patterns.iter();
        for pattern in patterns.filter(|pattern| !pattern.is_negated()) {
            if let Some(longest) = pattern.longest_searched() {
                let found = (longest, way.key, limit);
                let at = self.unsearched.partition_point(|other| *other < found);
                self.unsearched.insert(at, found);
            }
        }
    }

    fn note_lookup(&mut self, key: usize, place: &Place) {
        let Some([as_is, lower]) = self.entries.get_mut(key) else {
            return;
        };
        let entry = if place.any_case { lower } else { as_is };
        match place.literal {
            Literal::Exact => entry.exact = true,
            Literal::Head => entry.depth = entry.depth.max(place.size),
            Literal::End => entry.ends = entry.ends.max(place.size),
            Literal::Gram => entry.grams |= 1 << place.size,
        }
    }

    /// Every limit that may match.
    /// `value`: that of the entry at a position.
    pub(super) fn candidates<'e>(&self, value: &dyn Fn(usize) -> Option<&'e [u8]>) -> Candidates {
        let mut values = (0..self.entries.len()).map(value);
        if self.limits <= FEW || values.any(|value| value == Some(MULTIPLE_VALUES)) {
            return Candidates::all(self.limits);
        }
        let mut found = Candidates {
            first: 0,
            more: vec![0; self.limits / 64],
        };
        for limit in &self.rest {
            found.add(*limit);
        }
        let len = |key: usize| value(key).map_or(0, <[u8]>::len);
        let most = (0..self.entries.len()).map(len).max().unwrap_or(0);
        let unsearched = self
            .unsearched
            .iter()
            .take_while(|(longest, ..)| *longest < most);
        for (longest, key, limit) in unsearched {
            if len(*key) > *longest {
                found.add(*limit);
            }
        }
        for (key, [as_is, lower]) in self.entries.iter().enumerate() {
            let Some(value) = value(key) else { continue };
            let found = &mut |limit| found.add(limit);
            self.look_up_value(*as_is, (key, false), value, found);
            if lower.exact || lower.depth > 0 || lower.ends > 0 {
                let value = value.to_ascii_lowercase();
                self.look_up_value(*lower, (key, true), &value, found);
            }
        }
        found
    }

    fn look_up_value(&self, entry: Entry, key: Key, value: &[u8], found: &mut impl FnMut(usize)) {
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
        // A client may repeat a gram that thousands of limits share.
        let mut crowds = Positions::default();
        for size in LEAST_GRAM..=GRAM {
            if entry.grams >> size & 1 == 1 {
                for gram in value.windows(size) {
                    let slot = gram_slot(key.0, gram);
                    if crowds.of(slot).next().is_none() && self.look_up(slot, found) > SHARED {
                        crowds.add(slot, 0);
                    }
                }
            }
        }
    }

    /// Returns how many limits share the slot.
    fn look_up(&self, slot: Slot, found: &mut impl FnMut(usize)) -> usize {
        self.filed.of(slot).map(found).count()
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

/// The slot of a few bytes, which is found at each byte of a value: by one multiplication.
fn gram_slot(key: usize, gram: &[u8]) -> Slot {
    let key = u64::try_from(key).unwrap_or(u64::MAX);
    let bytes = gram.iter().map(u8::to_ascii_lowercase);
    let number = bytes.fold(key << 1 | 1, |number, byte| number << 8 | u64::from(byte));
    let product = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // The low bits depend on the last bytes only.
    product ^ product >> 32
}

/// Calls back with the places of a pattern: by its ends or the whole of it, or else by so many bytes that every match
/// contains between them.
fn places(pattern: &Pattern, key: usize, gram: usize, visit: &mut dyn FnMut(Place)) {
    if gram > 0 {
        let texts = pattern.inner();
        let grams = texts.windows(gram).rev();
        for bytes in grams.filter(|bytes| !bytes.contains(&BREAK)).take(GRAMS) {
            visit(Place {
                slot: gram_slot(key, bytes),
                literal: Literal::Gram,
                any_case: false,
                size: gram,
            });
        }
        return;
    }
    let any_case = pattern.any_case();
    for (literal, text) in [
        (Literal::Exact, pattern.exact()),
        (Literal::Head, pattern.head()),
        (Literal::End, pattern.end()),
    ] {
        let Some(text) = text else { continue };
        let separates = |byte: &&u8| match literal {
            Literal::Head => **byte == b'/',
            _ => is_separator(**byte),
        };
        visit(Place {
            slot: slot((key, any_case), literal, text),
            literal,
            any_case,
            size: text.iter().filter(separates).count() + 1,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matchers(limits: u32, pattern: impl Fn(u32) -> String) -> Vec<[Matcher; 1]> {
        let matcher = |n| Matcher {
            key: "path".parse().unwrap(),
            entry: "path".parse().unwrap(),
            patterns: vec![Pattern::parse(&pattern(n)).unwrap()],
        };
        (0..limits).map(|n| [matcher(n)]).collect()
    }

    fn conditions(matchers: &[Matcher; 1]) -> Conditions<'_> {
        Conditions {
            matchers,
            keys: &[0],
            never: false,
        }
    }

    fn candidates(index: &Index, path: &str) -> Vec<usize> {
        index
            .candidates(&|_| Some(path.as_bytes()))
            .iter()
            .collect()
    }

    #[test]
    fn of_thousands_of_limits_few_are_compared_with_a_value() {
        let kinds: [fn(u32) -> String; 8] = [
            |n| format!("/t-{n}/**"),
            |n| format!("/**/t-{n}"),
            |n| format!("/**/t-{n}/**"),
            |n| format!("/t-{n}*"),
            |n| format!("/shared/*/t-{n}*"),
            |n| format!("re:/.*-t{n}x[0-9]+"),
            |n| format!("re:(?i)/[a-z]+/t-{n}x?"),
            |n| format!("re:/v1/(users|orders)/t-{n}(/.*)?"),
        ];
        for kind in kinds {
            let limits = matchers(2000, kind);
            let of: Vec<_> = limits.iter().map(conditions).collect();
            let mut index = Index::new(&of, 1);
            let others = candidates(&index, "/v1/users/of/others");
            assert!(others.len() <= SHARED, "{} {others:?}", kind(0));
            let paths = [
                "/t-1234",
                "/shared/a/t-1234",
                "/a-t1234x5",
                "/A/T-1234X",
                "/v1/users/t-1234/a",
            ];
            let found = paths.map(|path| candidates(&index, path));
            assert!(
                found.iter().all(|found| found.len() < 40),
                "{} {found:?}",
                kind(0)
            );
            assert!(
                found.iter().any(|found| found.contains(&1234)),
                "{}",
                kind(0)
            );
            for at in (0..of.len()).rev() {
                index.remove(at, of[at]);
            }
            let found = paths.map(|path| candidates(&index, path));
            assert!(found.iter().all(Vec::is_empty), "{} {found:?}", kind(0));
        }
    }

    #[test]
    fn a_path_that_repeats_what_limits_share_visits_them_once() {
        for shared in ["tenant", "aaaa"] {
            let limits = matchers(2000, |_| format!("re:.*{shared}.*[0-9]+"));
            let of: Vec<_> = limits.iter().map(conditions).collect();
            let index = Index::new(&of, 1);
            let path = format!("/{shared}").repeat(10_000);
            let mut visited = 0;
            let entry = index.entries[0][0];
            index.look_up_value(entry, (0, false), path.as_bytes(), &mut |_| visited += 1);
            assert!((2000..2100).contains(&visited), "{shared}: {visited}");
        }
    }

    /// Each byte of a value is looked up where there are grams.
    #[test]
    fn grams_are_for_limits_that_share_their_other_places() {
        for (limits, pattern) in [
            (8, "/shared/**"),
            (2000, "/shared/**"),
            (8, "re:/shared/t12x.*"),
        ] {
            let limits = matchers(limits, |_| pattern.to_owned());
            let of: Vec<_> = limits.iter().map(conditions).collect();
            let index = Index::new(&of, 1);
            assert_eq!(index.entries[0][0].grams, 0, "{pattern}");
        }
    }
}
