//! The entries that share one value of shared data.

use super::{Entry, Found, WAYS};
use crate::{
    codec::{Put, Reader},
    time::Now,
};

/// The first byte of a set; another layout gets another number.
const FORMAT: u8 = 1;

/// A set as read: entries are only cut apart, and read when they are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Set<'a> {
    /// Until when a bucket that was pushed out may still be in use.
    evicted_until_us: u64,
    ways: [Option<Way<'a>>; WAYS],
    written: Vec<u8>,
}

/// One entry of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way<'a> {
    tag: u64,
    generation: u64,
    touched_us: u64,
    unused_at_us: u64,
    entry: &'a [u8],
}

impl<'a> Way<'a> {
    fn parse(reader: &mut Reader<'a>) -> Option<Self> {
        let tag = reader.u64()?;
        let generation = reader.u64()?;
        let touched_us = reader.u64()?;
        let unused_at_us = reader.u64()?;
        let len = usize::from(reader.u8()?);
        Some(Self {
            tag,
            generation,
            touched_us,
            unused_at_us,
            entry: reader.take(len)?,
        })
    }

    /// Whom to push out first: buckets out of use, the longest untouched before the others;
    /// then those that will be out of use soonest.
    fn worth(&self, now_us: u64) -> (u64, u64) {
        (self.unused_at_us.max(now_us), self.touched_us)
    }
}

impl<'a> Set<'a> {
    /// Reads a set. What is not one is an empty one; what ends early has the entries that came whole.
    pub(super) fn parse(bytes: &'a [u8]) -> Self {
        let mut reader = Reader::new(bytes);
        let mut set = Self::default();
        if reader.u8() != Some(FORMAT) {
            return set;
        }
        set.evicted_until_us = reader.u64().unwrap_or(0);
        for way in &mut set.ways {
            *way = Way::parse(&mut reader);
        }
        set
    }

    /// The entry with this tag. One of another generation counts as absent: its limit was edited.
    pub(super) fn find(&self, tag: u64, generation: u64, now: Now) -> Found {
        let way = self.ways.iter().flatten().find(|way| way.tag == tag);
        let entry = way
            .filter(|way| way.generation == generation)
            .and_then(|way| Entry::read(way.entry));
        Found {
            // An entry that is there was not pushed out, even if the edit emptied it.
            evicted: way.is_none() && now.mono_us < self.evicted_until_us,
            entry: entry.unwrap_or_default(),
        }
    }

    /// Puts an entry in the place of its older self, in a free one, or in that of the least worth.
    pub(super) fn insert(&mut self, tag: u64, generation: u64, entry: &Entry, now: Now) {
        let same = |way: &Option<Way<'_>>| way.is_some_and(|way| way.tag == tag);
        let least_worth = || {
            let worth =
                |(_, way): &(usize, &Option<Way<'_>>)| way.map(|way| way.worth(now.mono_us));
            // No way at all is worth less than any.
            self.ways.iter().enumerate().min_by_key(worth)
        };
        let at = match self.ways.iter().position(same) {
            Some(at) => at,
            None => least_worth().map_or(0, |(at, _)| at),
        };
        let lost = self.ways.get_mut(at).and_then(Option::take);
        if let Some(lost) = lost.filter(|lost| lost.tag != tag) {
            self.evicted_until_us = self.evicted_until_us.max(lost.unused_at_us);
        }
        self.written = self.encode(tag, generation, entry, now);
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.written
    }

    fn encode(&self, tag: u64, generation: u64, entry: &Entry, now: Now) -> Vec<u8> {
        let mut out = Vec::with_capacity(512);
        out.put_u8(FORMAT);
        out.put_u64(self.evicted_until_us);
        let mut new = Vec::with_capacity(160);
        entry.write(&mut new);
        let new = Way {
            tag,
            generation,
            touched_us: now.mono_us,
            unused_at_us: entry.unused_at_us(),
            entry: &new,
        };
        for way in std::iter::once(&new).chain(self.ways.iter().flatten()) {
            out.put_u64(way.tag);
            out.put_u64(way.generation);
            out.put_u64(way.touched_us);
            out.put_u64(way.unused_at_us);
            out.put_u8(way.entry.len().try_into().unwrap_or(u8::MAX));
            out.extend_from_slice(way.entry);
        }
        out
    }
}
