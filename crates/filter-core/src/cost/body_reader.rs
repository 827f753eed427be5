//! Reads numbers from a body as it passes.

use memchr::memchr;
use policy::Pointer;

use super::{
    event_lines::{EventData, EventLines},
    event_search::{EventSearch, NextKeys},
    json_reader::{JsonReader, Targets},
};

/// Bytes of a body that are copied from the host at once.
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
    pub(crate) fn of(media_type: Option<&[u8]>, encoding: Option<&[u8]>) -> Self {
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
            Format::Json => !ended || self.json.is_whole(),
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

#[cfg(test)]
mod tests;
