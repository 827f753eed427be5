//! Reads numbers from a body as it passes.

use policy::Pointer;

use super::{
    event_lines::{EventData, EventLines},
    event_search::{EventSearch, NextKeys},
    json_reader::{JsonReader, Targets},
};

/// Bytes of a body that are copied from the host at once.
const PIECE: usize = 64 * 1024;

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
    lines: EventLines,
    search: Option<EventSearch>,
    bytes: u64,
}

impl Format {
    /// The format by `content-type` and `content-encoding`.
    pub(crate) fn of(media_type: Option<&[u8]>, encoding: Option<&[u8]>) -> Self {
        let plain = encoding.is_none_or(|coding| coding.eq_ignore_ascii_case(b"identity"));
        let media_type = media_type.filter(|_| plain).unwrap_or_default();
        let essence = media_type.split(|byte| *byte == b';').next();
        let essence = essence.unwrap_or_default().trim_ascii();
        let ends_with = |end: &[u8]| {
            let at = essence.len().checked_sub(end.len());
            let tail = at.and_then(|at| essence.get(at..));
            tail.is_some_and(|tail| tail.eq_ignore_ascii_case(end))
        };
        if essence.eq_ignore_ascii_case(b"text/event-stream") {
            Self::Events
        } else if ends_with(b"json") {
            Self::Json
        } else {
            Self::Other
        }
    }
}

impl BodyReader {
    /// A reader that looks for the numbers at some pointers.
    pub(crate) fn new(format: Format, pointers: &[&Pointer]) -> Self {
        let is_any = !pointers.is_empty();
        let search = (is_any && format == Format::Events).then(|| EventSearch::new(pointers));
        Self {
            format: if is_any { format } else { Format::Other },
            json: JsonReader::new(pointers.len()),
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
                self.lines.read(chunk, &mut events);
            }
            Format::Other => {}
        }
    }

    /// The rest cannot be read, so no number that was found counts.
    fn give_up(&mut self) {
        (self.format, self.json) = (Format::Other, JsonReader::new(0));
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
