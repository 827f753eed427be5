//! Extracts the data of server-sent events from a body that passes in chunks.
//!
//! <https://html.spec.whatwg.org/multipage/server-sent-events.html>

use memchr::memchr2;

use super::event_search::last_event;

/// Receives the content of the lines.
pub(super) trait EventData {
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
pub(super) struct EventLines {
    /// The start of the line.
    head: [u8; HEAD],
    /// Bytes of the line so far.
    len: usize,
    /// The last byte was a carriage return.
    after_return: bool,
    /// An event has begun: at least a part of one of its lines was read.
    in_event: bool,
    /// The last event marks the end of the answer.
    pub(super) is_last: bool,
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
