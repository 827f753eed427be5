//! Extracts numbers from JSON that passes in chunks.
//!
//! The reader stores a position and numbers, never text, so the memory of a stream does not depend on
//! its body. It checks brackets and strings, which is enough to detect a truncated document; it ignores
//! other mistakes.

use memchr::memchr2;
use policy::{MAX_POINTERS, MAX_TOKENS, Pointer};

/// Keys whose value is an object that wraps the event: its fields count as the event's own.
const WRAPPERS: [&str; 2] = ["message", "response"];
/// The levels of containers whose kind matters, from the outermost: a wrapper or list, a pointer's, and
/// one more.
const LEVELS: usize = MAX_TOKENS + 2;

/// Reads consecutive documents. If several have a number, the last one counts.
#[derive(Debug)]
pub(super) struct JsonReader {
    state: State,
    /// Open containers.
    depth: usize,
    /// The depth of the container that is being skipped.
    shallow: usize,
    /// A bit for each of the first [`LEVELS`] containers that is a list.
    lists: u16,
    /// The position of the current item in each list.
    index: [u32; LEVELS],
    /// Containers around the one in which pointers begin.
    base: usize,
    /// Whether the next string is a key.
    wants_key: bool,
    /// Bytes of the current key.
    key_len: usize,
    /// A bit for each pointer that continues with the current key, and after the key, with its value;
    /// above [`MAX_POINTERS`], a bit for each of [`WRAPPERS`].
    hits: u32,
    number: Number,
    /// For each pointer.
    numbers: Vec<Numbers>,
    failed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Between values.
    Between,
    Key,
    KeyEscape,
    Text,
    TextEscape,
    Number,
    /// In a container in which nothing is looked for.
    Skip,
    SkipText,
    SkipEscape,
}

/// The numbers found at one pointer.
#[derive(Clone, Copy, Debug, Default)]
struct Numbers {
    /// How many of its parts the open containers match.
    matched: usize,
    /// The number in the current document.
    here: Option<u64>,
    /// The number in the last document that had one.
    last: Option<u64>,
}

impl JsonReader {
    pub(super) fn new(pointers: usize) -> Self {
        Self {
            state: State::Between,
            depth: 0,
            shallow: 0,
            lists: 0,
            index: [0; LEVELS],
            base: 0,
            wants_key: false,
            key_len: 0,
            hits: 0,
            number: Number::default(),
            numbers: vec![Numbers::default(); pointers.min(MAX_POINTERS)],
            failed: false,
        }
    }

    /// The last number found at a pointer.
    pub(super) fn found(&self, at: usize) -> Option<u64> {
        self.numbers.get(at)?.last
    }

    /// Whether the input so far consists of whole documents.
    pub(super) fn is_whole(&self) -> bool {
        self.depth == 0 && !self.failed && matches!(self.state, State::Between | State::Number)
    }

    /// Whether the input is not JSON, whatever follows.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Starts again with another document, whatever was read before.
    pub(super) fn restart(&mut self) {
        (self.state, self.failed, self.shallow) = (State::Between, false, 0);
        self.begin_document();
    }

    fn begin_document(&mut self) {
        (self.depth, self.base, self.lists) = (0, 0, 0);
        (self.wants_key, self.hits) = (false, 0);
        for of in &mut self.numbers {
            (of.matched, of.here) = (0, None);
        }
    }

    pub(super) fn read(&mut self, targets: Targets<'_>, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            bytes = match self.state {
                State::Between => {
                    self.between(targets, byte);
                    rest
                }
                State::Key => self.key(targets, bytes),
                State::KeyEscape => {
                    // No key that is looked for contains an escape.
                    (self.state, self.hits) = (State::Key, 0);
                    rest
                }
                State::Number if is_of_number(byte) => {
                    self.number.add(byte);
                    rest
                }
                State::Number => {
                    self.end_number(targets);
                    bytes
                }
                State::Text => self.text(bytes, State::Between, State::TextEscape),
                State::SkipText => self.text(bytes, State::Skip, State::SkipEscape),
                State::TextEscape => {
                    self.state = State::Text;
                    rest
                }
                State::SkipEscape => {
                    self.state = State::SkipText;
                    rest
                }
                State::Skip => self.skip(bytes),
            }
        }
    }

    fn between(&mut self, targets: Targets<'_>, byte: u8) {
        match byte {
            b'"' if self.wants_key => {
                (self.state, self.key_len) = (State::Key, 0);
                self.hits = self.leading_targets(targets);
            }
            b'"' => self.state = State::Text,
            b'{' | b'[' => self.open(targets, byte == b'['),
            b'}' | b']' => self.close(byte == b']'),
            b',' => {
                self.hits = 0;
                match self.list() {
                    Some(index) => *index = index.saturating_add(1),
                    None => self.wants_key = self.depth > 0,
                }
            }
            b'-' | b'0'..=b'9' if self.hits != 0 || self.list().is_some() => {
                self.number = Number::default();
                self.number.add(byte);
                self.state = State::Number;
            }
            _ => {}
        }
    }

    /// A bit for each pointer that leads to the innermost container, and for the wrappers.
    fn leading_targets(&self, targets: Targets<'_>) -> u32 {
        let level = self.level();
        let mut hits = 0;
        for (at, of) in self.numbers.iter().enumerate() {
            if Some(of.matched) == level {
                hits |= 1 << at;
            }
        }
        if targets.events && self.depth == 1 && self.base == 0 {
            hits |= u32::MAX << MAX_POINTERS;
        }
        hits
    }

    /// How many parts of a pointer lead to the innermost container; `None`: no pointer can.
    fn level(&self) -> Option<usize> {
        self.depth.checked_sub(1)?.checked_sub(self.base)
    }

    fn keep_hits(&mut self, keep: impl Fn(usize) -> bool) {
        let mut left = self.hits;
        while left != 0 {
            let at = left.trailing_zeros();
            left &= left - 1;
            if !keep(usize::try_from(at).unwrap_or(0)) {
                self.hits &= !(1 << at);
            }
        }
    }

    /// The position in the innermost container, if that is a list.
    fn list(&mut self) -> Option<&mut u32> {
        let at = self.depth.checked_sub(1).filter(|at| *at < LEVELS)?;
        let list = self.lists & (1 << at) != 0;
        self.index.get_mut(at).filter(|_| list)
    }

    /// In a list, matches pointers against the position of the current item.
    fn find_item(&mut self, targets: Targets<'_>) {
        let Some(index) = self.list().map(|index| *index) else {
            return;
        };
        let level = self.level().unwrap_or(0);
        self.hits = self.leading_targets(targets);
        self.keep_hits(|at| {
            let text = (at < MAX_POINTERS)
                .then(|| targets.text(at, level))
                .flatten();
            text.is_some_and(|text| is_index(text, index))
        });
    }

    fn open(&mut self, targets: Targets<'_>, is_list: bool) {
        self.find_item(targets);
        let level = self.level();
        let (hits, outer) = (std::mem::take(&mut self.hits), self.depth);
        self.depth = self.depth.saturating_add(1);
        if let Some(bit) = (outer < LEVELS).then(|| 1 << outer) {
            self.lists = self.lists & !bit | if is_list { bit } else { 0 };
        }
        if let Some(index) = self.index.get_mut(outer) {
            *index = 0;
        }
        self.wants_key = !is_list;
        let item_of_all = outer == 1 && self.base == 1;
        let wrapped = hits >> MAX_POINTERS != 0 && !is_list;
        if outer == 0 || item_of_all || wrapped {
            // A list at the top level is a list of events.
            self.base = usize::from(is_list && outer == 0 || outer == 1);
            return;
        }
        let mut leads = false;
        for (at, of) in self.numbers.iter_mut().enumerate() {
            let inner = level.map(|level| level + 1);
            let goes_on = inner.is_some_and(|inner| targets.tokens(at).len() > inner);
            if let (true, Some(inner)) = (goes_on && hits & (1 << at) != 0, inner) {
                of.matched = inner;
                leads = true;
            }
        }
        if !leads {
            (self.state, self.shallow) = (State::Skip, self.depth);
        }
    }

    fn close(&mut self, is_list: bool) {
        if self.depth == 0 || self.list().is_some() != is_list {
            self.failed = true;
        }
        self.depth = self.depth.saturating_sub(1);
        self.closed();
    }

    /// A container ended.
    fn closed(&mut self) {
        (self.wants_key, self.hits) = (false, 0);
        if self.depth == 0 {
            for of in &mut self.numbers {
                of.last = of.here.filter(|_| !self.failed).or(of.last);
            }
            return self.begin_document();
        }
        // A wrapper ended: pointers begin in the event again.
        if self.depth == 1 && self.lists & 1 == 0 {
            self.base = 0;
        }
        let level = self.level().unwrap_or(0);
        for of in &mut self.numbers {
            of.matched = of.matched.min(level);
        }
    }

    // --- Reads strings and keys, and skips containers in which nothing is looked for.

    /// Skips a string; returns what follows.
    fn text<'b>(&mut self, bytes: &'b [u8], end: State, escape: State) -> &'b [u8] {
        let at = memchr2(b'"', b'\\', bytes);
        let Some((&byte, rest)) = at.and_then(|at| bytes.get(at..)?.split_first()) else {
            return &[];
        };
        self.state = if byte == b'"' { end } else { escape };
        rest
    }

    /// Skips a container in which nothing is looked for; returns what follows.
    pub(super) fn skip<'b>(&mut self, mut bytes: &'b [u8]) -> &'b [u8] {
        let structural = |byte: &u8| matches!(byte, b'"' | b'{' | b'[' | b'}' | b']');
        while let Some(at) = bytes.iter().position(structural) {
            let Some((&byte, rest)) = bytes.get(at..).and_then(<[u8]>::split_first) else {
                break;
            };
            bytes = rest;
            match byte {
                b'"' => {
                    self.state = State::SkipText;
                    bytes = self.text(bytes, State::Skip, State::SkipEscape);
                    if self.state != State::Skip {
                        return bytes;
                    }
                }
                b'{' | b'[' => self.depth = self.depth.saturating_add(1),
                _ => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth < self.shallow {
                        self.state = State::Between;
                        self.closed();
                        return bytes;
                    }
                }
            }
        }
        &[]
    }

    /// Reads a part of a key; returns what follows.
    pub(super) fn key<'b>(&mut self, targets: Targets<'_>, bytes: &'b [u8]) -> &'b [u8] {
        let end = memchr2(b'"', b'\\', bytes).unwrap_or(bytes.len());
        let (part, rest) = bytes.split_at_checked(end).unwrap_or((bytes, &[]));
        let level = self.level().unwrap_or(0);
        let (from, to) = (self.key_len, self.key_len.saturating_add(part.len()));
        self.key_len = to;
        let quote = rest.first() == Some(&b'"');
        self.keep_hits(|at| {
            targets.text(at, level).is_some_and(|text| {
                text.as_bytes().get(from..to) == Some(part) && (!quote || text.len() == to)
            })
        });
        if let Some((_, rest)) = rest.split_first() {
            self.state = if quote {
                State::Between
            } else {
                State::KeyEscape
            };
            self.wants_key &= !quote;
            return rest;
        }
        rest
    }
}

// --- Numbers in JSON, and positions of items.

/// A partly read number, in whole units rounded up.
#[derive(Clone, Copy, Debug, Default)]
struct Number {
    units: u64,
    fraction: bool,
    round_up: bool,
    /// Negative, or with an exponent.
    pub(super) bad: bool,
}

impl Number {
    pub(super) fn add(&mut self, byte: u8) {
        match byte {
            b'0'..=b'9' if self.fraction => self.round_up |= byte != b'0',
            b'0'..=b'9' => {
                let tens = self.units.saturating_mul(10);
                self.units = tens.saturating_add(u64::from(byte - b'0'));
            }
            b'.' => self.fraction = true,
            _ => self.bad = true,
        }
    }

    pub(super) fn value(self) -> u64 {
        self.units.saturating_add(u64::from(self.round_up))
    }
}

impl JsonReader {
    /// The number ended: stores it for the pointers that lead to it.
    fn end_number(&mut self, targets: Targets<'_>) {
        self.state = State::Between;
        self.find_item(targets);
        let Some(parts) = self.level().map(|level| level + 1) else {
            return;
        };
        let hits = std::mem::take(&mut self.hits);
        for (at, of) in self.numbers.iter_mut().enumerate() {
            if hits & (1 << at) != 0 && targets.tokens(at).len() == parts && !self.number.bad {
                of.here = Some(self.number.value());
            }
        }
    }
}

fn is_of_number(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'.' | b'-' | b'+' | b'e' | b'E')
}

/// Whether a part of a pointer is the position of an item.
fn is_index(text: &str, index: u32) -> bool {
    let plain = text == "0" || !text.starts_with('0');
    plain && text.bytes().all(|b| b.is_ascii_digit()) && text.parse() == Ok(index)
}

// --- The pointers that a JSON reader looks for.

/// The pointers to look for.
#[derive(Clone, Copy, Debug)]
pub(in crate::cost) struct Targets<'p> {
    pointers: &'p [&'p Pointer],
    events: bool,
    /// A bit for each pointer that begins with one of [`WRAPPERS`], a part it does not need.
    unwrapped: u32,
}

impl<'p> Targets<'p> {
    /// `events`: whether documents are events, whose [`WRAPPERS`] are transparent.
    pub(in crate::cost) fn new(pointers: &'p [&'p Pointer], events: bool) -> Self {
        let mut unwrapped = 0;
        for (at, pointer) in pointers.iter().enumerate().take(MAX_POINTERS) {
            if let [first, _, ..] = pointer.tokens()
                && events
                && WRAPPERS.contains(&first.as_str())
            {
                unwrapped |= 1 << at;
            }
        }
        Self {
            pointers,
            events,
            unwrapped,
        }
    }

    fn tokens(&self, at: usize) -> &'p [String] {
        let tokens = self.pointers.get(at).map_or(&[][..], |of| of.tokens());
        let skip = usize::from(self.unwrapped >> at & 1 == 1);
        tokens.get(skip..).unwrap_or_default()
    }

    /// The text that bit `at` of the hits stands for, in a container at some level of the pointers.
    fn text(&self, at: usize, level: usize) -> Option<&'p str> {
        match at.checked_sub(MAX_POINTERS) {
            Some(wrapper) => WRAPPERS.get(wrapper).copied(),
            None => self.tokens(at).get(level).map(String::as_str),
        }
    }
}

#[cfg(test)]
mod tests;
