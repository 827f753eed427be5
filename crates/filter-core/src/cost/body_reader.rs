//! Reads numbers from a body as it passes.

use memchr::{memchr, memchr2, memmem::Finder, memrchr2};
use policy::Pointer;

use super::json_reader::{JsonReader, Targets};

/// Bound: bytes of a response's body that are copied at once. Beyond it, the others are read in
/// further pieces.
const PIECE: usize = 64 * 1024;

/// A byte order mark, which a stream of events may begin with.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// The format of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// JSON, one document or several.
    Json,
    /// Server-sent events with JSON in them.
    Events,
    /// Compressed, or anything else.
    Other,
}

/// A reader of one body: counts its bytes and finds numbers in it.
#[derive(Debug)]
pub(crate) struct BodyReader {
    format: Format,
    json: JsonReader,
    /// Bytes of a byte order mark so far; all of them also once another byte has come.
    bom: usize,
    lines: EventLines,
    search: Option<EventSearch>,
    bytes: u64,
}

impl Format {
    /// The format by `content-type` and `content-encoding`.
    pub(crate) fn from_media_type(media_type: Option<&[u8]>, encoding: Option<&[u8]>) -> Self {
        let plain = !encoding.is_some_and(is_encoded);
        let media_type = media_type.filter(|_| plain).unwrap_or_default();
        let media_type = media_type.to_ascii_lowercase();
        let end = memchr(b';', &media_type).unwrap_or(media_type.len());
        let (essence, parameters) = media_type.split_at(end);
        if !has_ascii(parameters) {
            return Self::Other;
        }
        match essence.trim_ascii() {
            b"text/event-stream" => Self::Events,
            essence if essence.ends_with(b"json") => Self::Json,
            _ => Self::Other,
        }
    }
}

/// Whether a header like `content-encoding` names any coding.
pub(crate) fn is_encoded(codings: &[u8]) -> bool {
    let mut codings = codings.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    codings.any(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity"))
}

/// Whether ASCII is written as itself in the character set that a media type's parameters name. In UTF-16,
/// for instance, no key would be found.
fn has_ascii(parameters: &[u8]) -> bool {
    const SET: &[u8] = b"charset=";
    const SETS: [&[u8]; 4] = [b"utf-8", b"us-ascii", b"iso-8859-", b"windows-125"];
    let Some(at) = parameters.windows(SET.len()).position(|part| part == SET) else {
        return true;
    };
    let set = parameters.get(at + SET.len()..).unwrap_or_default();
    let set = set.strip_prefix(b"\"").unwrap_or(set);
    SETS.iter().any(|known| set.starts_with(known))
}

impl BodyReader {
    /// A reader that looks for the numbers at some pointers.
    pub(crate) fn new(format: Format, pointers: &[&Pointer]) -> Self {
        let is_any = !pointers.is_empty();
        let search = (is_any && format == Format::Events).then(|| EventSearch::new(pointers));
        Self {
            format: if is_any { format } else { Format::Other },
            json: JsonReader::new(pointers.len()),
            bom: 0,
            lines: EventLines::default(),
            search: search.flatten(),
            bytes: 0,
        }
    }

    /// Bytes that passed.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn count(&mut self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Reads a chunk of `size` bytes. `piece` returns up to a number of its bytes from an offset, or
    /// `None` if they cannot be read. `pointers` must be the same for each chunk.
    pub(crate) fn read_chunk(
        &mut self,
        pointers: &[&Pointer],
        size: usize,
        piece: impl Fn(usize, usize) -> Option<Vec<u8>>,
    ) {
        let mut from = 0;
        while from < size && self.format != Format::Other {
            let read = piece(from, PIECE.min(size - from));
            let Some(read) = read.filter(|read| !read.is_empty()) else {
                self.give_up();
                break;
            };
            self.read(pointers, &read);
            from = from.saturating_add(read.len());
        }
        self.count(size.saturating_sub(from));
    }

    fn read(&mut self, pointers: &[&Pointer], chunk: &[u8]) {
        self.count(chunk.len());
        let targets = Targets::new(pointers, self.format == Format::Events);
        let json = &mut self.json;
        match self.format {
            Format::Json => json.read(targets, chunk),
            Format::Events => {
                let search = self.search.as_ref();
                let mut events = Events {
                    json,
                    targets,
                    search: search.map(|search| (search, pointers)),
                    next: NextKeys::default(),
                };
                let chunk = after_bom(&mut self.bom, chunk);
                self.lines.read(chunk, &mut events);
            }
            Format::Other => {}
        }
    }

    /// The rest cannot be read, so no number that was found counts.
    fn give_up(&mut self) {
        (self.format, self.json) = (Format::Other, JsonReader::new(0));
    }

    /// Whether it read the body as far as it arrived: its format is known, and nothing in it is wrong.
    pub(crate) fn is_legible(&self, ended: bool) -> bool {
        match self.format {
            Format::Json => self.json.is_whole() || !ended && !self.json.has_failed(),
            Format::Events => true,
            Format::Other => false,
        }
    }

    /// The number at a pointer.
    pub(crate) fn found(&self, at: usize) -> Option<u64> {
        self.json.found(at)
    }

    /// Whether the input so far is a whole body, given whether the response ended.
    pub(crate) fn is_whole(&self, ended: bool) -> bool {
        match self.format {
            Format::Json => ended && self.json.is_whole(),
            Format::Events => ended || self.lines.is_last,
            Format::Other => ended,
        }
    }
}

/// A chunk of a stream of events without what it has of a byte order mark at the start of the stream.
/// (A stream that begins with a part of one is not made of events, and is not read any better.)
fn after_bom<'b>(bom: &mut usize, mut chunk: &'b [u8]) -> &'b [u8] {
    while let (Some(expected), Some((byte, rest))) = (BOM.get(*bom), chunk.split_first()) {
        if byte != expected {
            *bom = BOM.len();
            break;
        }
        *bom += 1;
        chunk = rest;
    }
    chunk
}

struct Events<'r, 'p> {
    json: &'r mut JsonReader,
    targets: Targets<'p>,
    search: Option<(&'r EventSearch, &'r [&'p Pointer])>,
    next: NextKeys,
}

impl EventData for Events<'_, '_> {
    fn skipped<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let next = &mut self.next;
        self.search.map_or(&[], |(search, pointers)| {
            search.without(pointers, bytes, next)
        })
    }

    fn data(&mut self, bytes: &[u8]) {
        self.json.read(self.targets, bytes);
    }

    fn end(&mut self) {
        self.json.restart();
    }
}

// --- Extracts the data of server-sent events from a body that passes in chunks.
//
// <https://html.spec.whatwg.org/multipage/server-sent-events.html>

/// Receives the content of the lines.
trait EventData {
    /// The whole events at the start of `bytes` that can be skipped, because they have no data that
    /// counts. `bytes` begins with an event.
    fn skipped<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8];
    /// Bytes of the event's data.
    fn data(&mut self, bytes: &[u8]);
    /// The event is complete.
    fn end(&mut self);
}

const DATA: &[u8] = b"data:";
/// Lines after which a provider sends nothing that counts.
const LAST_LINES: [&[u8]; 3] = [
    b"data: [DONE]",
    b"event: message_stop",
    b"event: response.completed",
];
/// Bytes of a line that are stored: more than the longest of those.
const HEAD: usize = 32;

/// The state of reading lines.
#[derive(Debug)]
struct EventLines {
    /// The start of the line.
    head: [u8; HEAD],
    /// Bytes of the line so far.
    len: usize,
    /// The last byte was a carriage return.
    after_return: bool,
    /// An event has begun: at least a part of one of its lines was read.
    in_event: bool,
    /// The last event marks the end of the answer.
    is_last: bool,
}

impl Default for EventLines {
    fn default() -> Self {
        Self {
            head: [0; HEAD],
            len: 0,
            after_return: false,
            in_event: false,
            is_last: false,
        }
    }
}

impl EventLines {
    pub(super) fn read(&mut self, mut bytes: &[u8], to: &mut impl EventData) {
        if self.after_return && !bytes.is_empty() {
            self.after_return = false;
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
        }
        while !bytes.is_empty() {
            if !self.in_event {
                bytes = self.skip(bytes, to.skipped(bytes));
            }
            let end = memchr2(b'\n', b'\r', bytes);
            let (line, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
            self.part(line, to);
            let Some((&byte, rest)) = rest.split_first() else {
                return;
            };
            self.end_line(to);
            self.after_return = byte == b'\r' && rest.is_empty();
            bytes = match rest.strip_prefix(b"\n") {
                Some(rest) if byte == b'\r' => rest,
                _ => rest,
            };
        }
    }

    /// Skips whole events; returns what follows.
    fn skip<'b>(&mut self, bytes: &'b [u8], events: &[u8]) -> &'b [u8] {
        let last = last_event(events);
        if !last.is_empty() {
            let mut lines = last.split(|byte| matches!(byte, b'\n' | b'\r'));
            self.is_last = lines.any(|line| LAST_LINES.contains(&line));
        }
        bytes.get(events.len()..).unwrap_or_default()
    }

    /// Reads a part of a line.
    fn part(&mut self, line: &[u8], to: &mut impl EventData) {
        let known = self.len;
        for (place, byte) in self.head.iter_mut().skip(known).zip(line) {
            *place = *byte;
        }
        self.len = known.saturating_add(line.len());
        if self.len > 0 && !self.in_event {
            (self.in_event, self.is_last) = (true, false);
        }
        let is_data = self.head.starts_with(DATA) && self.len > DATA.len();
        let skip = DATA.len().saturating_sub(known);
        if let Some(data) = line.get(skip..).filter(|_| is_data) {
            to.data(data);
        }
    }

    fn end_line(&mut self, to: &mut impl EventData) {
        let head = self.head.get(..self.len);
        self.is_last |= head.is_some_and(|line| LAST_LINES.contains(&line));
        match self.len {
            0 => {
                self.in_event = false;
                to.end();
            }
            // A line break joins the lines of an event's data.
            _ => to.data(b"\n"),
        }
        (self.len, self.head) = (0, [0; HEAD]);
    }
}

// --- Finds the server-sent events that may contain a wanted number, without parsing them.
//
// An event that lacks the keys of all pointers has none of their numbers, and most events of a stream
// are like that. So the search looks for the keys, and whole events before the first key are not
// parsed.

/// The most searches of one stream; with more keys, every event is parsed.
const MAX_SEARCHES: usize = 4;
/// The least length, with the quote, of a common suffix of keys that one search looks for.
const MIN_END: usize = 6;

/// For each search, how many bytes of the chunk are left at its next key, 0 if there is none, so that
/// it searches no byte of a chunk twice. `None`: not searched yet.
type NextKeys = [Option<usize>; MAX_SEARCHES];

/// A search for the keys of some pointers.
#[derive(Debug)]
struct EventSearch {
    /// Each of the keys ends with one of these.
    ends: Vec<Finder<'static>>,
}

impl EventSearch {
    /// `None`: one of the pointers has no key to search for, or there are too many.
    pub(super) fn new(pointers: &[&Pointer]) -> Option<Self> {
        let mut ends: Vec<Vec<u8>> = Vec::new();
        for pointer in pointers {
            let quoted = [b"\"", key(pointer)?.as_bytes(), b"\""].concat();
            let common = |end: &[u8]| {
                let pairs = end.iter().rev().zip(quoted.iter().rev());
                pairs.take_while(|(one, other)| one == other).count()
            };
            match ends.iter_mut().find(|end| common(end) >= MIN_END) {
                Some(end) => drop(end.drain(..end.len() - common(end))),
                None => ends.push(quoted),
            }
        }
        (ends.len() <= MAX_SEARCHES).then(|| Self {
            ends: ends
                .iter()
                .map(|end| Finder::new(end).into_owned())
                .collect(),
        })
    }

    /// The whole events at the start of `bytes` that can be skipped, because they have none of the
    /// keys. `bytes` begins with an event and is the end of the chunk that `next` refers to.
    pub(super) fn without<'b>(
        &self,
        pointers: &[&Pointer],
        bytes: &'b [u8],
        next: &mut NextKeys,
    ) -> &'b [u8] {
        let mut end = bytes;
        for (finder, next) in self.ends.iter().zip(next) {
            let is_key = |at: &usize| {
                let to = at.saturating_add(finder.needle().len());
                bytes
                    .get(..to)
                    .is_some_and(|text| ends_with_key(pointers, text))
            };
            let left = next.filter(|left| *left <= bytes.len());
            let left = left.unwrap_or_else(|| {
                let at = finder.find_iter(bytes).find(is_key);
                at.map_or(0, |at| bytes.len() - at)
            });
            *next = Some(left);
            end = end.get(..bytes.len() - left).unwrap_or(end);
        }
        end.get(..whole_events(end)).unwrap_or_default()
    }
}

/// The lines of the last of some whole events; empty if there are no events.
fn last_event(events: &[u8]) -> &[u8] {
    let text = events.iter().rposition(|byte| !is_break(*byte));
    let events = text
        .and_then(|text| events.get(..=text))
        .unwrap_or_default();
    events.get(whole_events(events)..).unwrap_or_default()
}

fn ends_with_key(pointers: &[&Pointer], text: &[u8]) -> bool {
    let Some(text) = text.strip_suffix(b"\"") else {
        return false;
    };
    pointers.iter().any(|pointer| {
        let key = key(pointer).unwrap_or_default();
        let before = text.strip_suffix(key.as_bytes());
        before.is_some_and(|before| before.ends_with(b"\""))
    })
}

/// The last part of a pointer that is certainly a key and not the position of an item, and that cannot
/// span two lines of an event.
fn key(pointer: &Pointer) -> Option<&str> {
    let is_key = |token: &&String| {
        token.bytes().any(|byte| !byte.is_ascii_digit()) && !token.contains(['\r', '\n'])
    };
    pointer.tokens().iter().rfind(is_key).map(String::as_str)
}

/// How many bytes at the start are whole events, up to and including the last empty line.
fn whole_events(bytes: &[u8]) -> usize {
    let mut before = bytes;
    while let Some(at) = memrchr2(b'\n', b'\r', before) {
        let line = before.get(..=at).unwrap_or_default();
        let is_empty = match line {
            [.., b'\n' | b'\r', b'\r', b'\n'] => true,
            [.., b'\r', b'\n'] => false,
            [.., first, b'\n'] => is_break(*first),
            // A line feed may follow that belongs to the carriage return.
            [.., first, _] => {
                is_break(*first) && bytes.get(at + 1).is_some_and(|next| *next != b'\n')
            }
            _ => false,
        };
        if is_empty {
            return at + 1;
        }
        before = before.get(..at).unwrap_or_default();
    }
    0
}

fn is_break(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod event_search_tests;
