//! The numbers in a response's body, read as it passes.

use super::{
    event_lines::{EventData, EventLines},
    json_reader::{JsonReader, Targets},
};

/// What a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// JSON, one document or several.
    Json,
    /// Server-sent events with JSON in them.
    Events,
    /// Compressed, or anything else.
    Other,
}

/// A reader of one body: its bytes are counted, and numbers in it found.
#[derive(Debug)]
pub(crate) struct BodyReader {
    format: Format,
    json: JsonReader,
    lines: EventLines,
    bytes: u64,
}

impl Format {
    /// By the response's `content-type` and `content-encoding`.
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
    /// A reader that looks for so many pointers.
    pub(crate) fn new(format: Format, pointers: usize) -> Self {
        Self {
            format: if pointers > 0 { format } else { Format::Other },
            json: JsonReader::new(pointers),
            lines: EventLines::default(),
            bytes: 0,
        }
    }

    /// Whether it looks at what passes, rather than only at how much.
    pub(crate) fn looks(&self) -> bool {
        self.format != Format::Other
    }

    /// Bytes that passed.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts bytes that it need not look at.
    pub(crate) fn count(&mut self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// A chunk passes; `pointers` are the same for each.
    pub(crate) fn read(&mut self, pointers: &[&policy::Pointer], chunk: &[u8]) {
        self.count(chunk.len());
        let targets = Targets::new(pointers, self.format == Format::Events);
        let json = &mut self.json;
        match self.format {
            Format::Json => json.read(targets, chunk),
            Format::Events => self.lines.read(chunk, &mut Events { json, targets }),
            Format::Other => {}
        }
    }

    /// What follows cannot be read, so nothing that was found counts.
    pub(crate) fn give_up(&mut self) {
        (self.format, self.json) = (Format::Other, JsonReader::new(0));
    }

    /// The number at a pointer.
    pub(crate) fn found(&self, at: usize) -> Option<u64> {
        self.json.found(at)
    }

    /// Whether what passed is a whole body, if the response ended (`ended`) or did not.
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
}

impl EventData for Events<'_, '_> {
    fn data(&mut self, bytes: &[u8]) {
        self.json.read(self.targets, bytes);
    }

    fn end(&mut self) {
        self.json.restart();
    }
}

#[cfg(test)]
mod tests;
