//! Several logs as one: their requests in the order in which they started.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    io::{self, Read},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use policy::Name;
use serde::Serialize;

use crate::{
    Format, Layout, LayoutError, LogError, Request, Service, Unreadable,
    input::{LINE_MAX, Lines, Next},
    layout::Reader,
    text,
};

/// Bound: requests of logs that wait for others that started earlier and are written later. Beyond it, the earliest
/// goes on; one that started before it and comes later counts as late.
pub const REORDER_MAX: usize = 100_000;

/// Bound: bytes of requests of logs that wait for others. Beyond it, the earliest goes on.
const HELD_BYTES_MAX: usize = 128 << 20;

/// Bound: logs that are read together. Beyond it, an error.
pub(crate) const LOGS_MAX: usize = 1000;

/// Broken lines that are shown.
const BROKEN_SHOWN: usize = 5;

/// Bound: bytes of a log's first lines that are in no format that is known. Beyond it, reading ends with an error.
const UNKNOWN_MAX: usize = 1 << 20;

/// Requests before one, and behind it, that its time is compared with.
const NEIGHBOURS: usize = 2;

/// A time that is further from those of its neighbours is a wrong clock's, in milliseconds.
const ASTRAY_MS: u64 = 366 * 86_400_000;

/// Opens a log.
type Open = Box<dyn FnMut() -> io::Result<Box<dyn Read + Send>> + Send>;

/// A log, and how its bytes are had.
pub struct Log {
    name: String,
    open: Open,
    /// Whether it can be opened again.
    again: bool,
}

impl Log {
    /// A log that can be opened more than once: first to see when it begins.
    pub fn new(
        name: impl Into<String>,
        open: impl FnMut() -> io::Result<Box<dyn Read + Send>> + Send + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            open: Box::new(open),
            again: true,
        }
    }

    /// A log that can be read once, as a pipe.
    pub fn once(name: impl Into<String>, bytes: impl Read + Send + 'static) -> Self {
        let mut bytes: Option<Box<dyn Read + Send>> = Some(Box::new(bytes));
        Self {
            name: name.into(),
            open: Box::new(move || {
                bytes
                    .take()
                    .ok_or_else(|| io::ErrorKind::NotSeekable.into())
            }),
            again: false,
        }
    }
}

/// What was read of logs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// The formats that the logs have, each with one entry.
    pub formats: Vec<Format>,
    /// Lines that are not empty.
    pub lines: u64,
    /// Requests.
    #[serde(skip)]
    pub requests: u64,
    /// Lines about something else: connections that sent no request, and what a program says about itself.
    pub others: u64,
    /// Lines that cannot be read.
    pub broken: u64,
    /// The first of these.
    pub first_broken: Vec<Broken>,
    /// Requests that started before one that went on already: they count as started with it.
    pub late: u64,
    /// Logs that could not be read to their end.
    pub cut: Vec<Cut>,
    /// Where the entries are that limits need, and how many requests have each.
    pub entries: Vec<FoundEntry>,
    /// Whether every time was written as a whole second.
    pub whole_seconds: bool,
    /// How many requests say how long they took.
    pub durations: u64,
    /// How many say how their service answered.
    pub service_times: u64,
    /// How many say the bytes of their response's body.
    pub sizes: u64,
    /// How many say the status of their response.
    pub statuses: u64,
}

/// A line that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Broken {
    /// The log.
    pub file: String,
    /// The line's number, from 1.
    pub line: u64,
    /// Why.
    pub why: Unreadable,
}

/// A log that ends early.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cut {
    /// The log.
    pub file: String,
    /// Why.
    pub why: String,
}

/// An entry of descriptors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FoundEntry {
    /// Its name.
    pub name: Name,
    /// Where lines have it.
    pub from: String,
    /// How many requests have it.
    pub requests: u64,
}

impl Counts {
    fn add_broken(&mut self, log: &str, line: u64, why: Unreadable) {
        self.broken += 1;
        if self.first_broken.len() < BROKEN_SHOWN {
            let file = log.to_owned();
            self.first_broken.push(Broken { file, line, why });
        }
    }

    fn add_format(&mut self, reader: Option<&Reader>) {
        let format = reader.map(|reader| reader.format);
        self.formats
            .extend(format.filter(|format| !self.formats.contains(format)));
    }
}

/// A log that is being read.
struct Source {
    log: Log,
    reader: Option<Reader>,
    lines: Option<Lines>,
    /// Whether its end was read, or nothing more is to be read.
    ended: bool,
    /// Bytes of lines before the first whose format is known.
    unknown: usize,
    /// The next requests that were read already, each with the number of its line: so many that the first can be
    /// compared with those behind it. That one is not astray.
    ahead: VecDeque<(u64, Request)>,
    /// When the last ones before these started.
    before: VecDeque<u64>,
    /// Its lines were counted up to here when it was looked into,
    counted: u64,
    /// and its requests compared up to here.
    compared: u64,
}

/// The requests of several logs, in the order in which they started.
///
/// Lines are in the order in which requests ended, so requests wait in a heap until [`REORDER_MAX`] others
/// are read.
pub struct Logs {
    layout: Layout,
    sources: Vec<Source>,
    /// Logs that are not open yet, by their first request, the earliest first.
    waiting: VecDeque<(u64, usize)>,
    /// Logs that are open, by their next request.
    open: BinaryHeap<Reverse<(u64, usize)>>,
    /// Requests that wait, by start, then in the order read; and their places in `held`.
    heap: BinaryHeap<Reverse<(u64, u64, usize)>>,
    held: Vec<Request>,
    held_bytes: usize,
    free: Vec<usize>,
    read: u64,
    /// The start of the last request that went on.
    last_ms: u64,
    /// Whether no more is read.
    stopped: Arc<AtomicBool>,
    counts: Counts,
}

impl Logs {
    /// Looks into each log: at its format and its first requests. Once `stopped` is set every log ends where it
    /// is: what was read until then still goes on.
    ///
    /// # Errors
    /// A log cannot be opened, or has no known format.
    pub fn new(logs: Vec<Log>, layout: Layout, stopped: Arc<AtomicBool>) -> Result<Self, LogError> {
        if logs.len() > LOGS_MAX {
            return Err(LogError::TooMany(logs.len()));
        }
        let counts = Counts {
            entries: { layout.needed.iter() }
                .map(|name| FoundEntry {
                    name: name.clone(),
                    from: String::new(),
                    requests: 0,
                })
                .collect(),
            whole_seconds: true,
            ..Counts::default()
        };
        let mut read = Self {
            layout,
            sources: Vec::with_capacity(logs.len()),
            waiting: VecDeque::new(),
            open: BinaryHeap::new(),
            heap: BinaryHeap::new(),
            held: Vec::new(),
            held_bytes: 0,
            free: Vec::new(),
            read: 0,
            last_ms: 0,
            stopped,
            counts,
        };
        let mut first = Vec::with_capacity(logs.len());
        for (at, log) in logs.into_iter().enumerate() {
            read.sources.push(Source::new(log));
            read.advance(at)?;
            let Some(source) = read.sources.get_mut(at) else {
                continue;
            };
            let Some(next_ms) = source.next_ms() else {
                continue;
            };
            first.push((next_ms, at));
            if source.log.again && !source.ended {
                source.close();
            }
        }
        first.sort_unstable();
        read.waiting = first.into();
        Ok(read)
    }

    /// What was read so far.
    pub fn counts(&self) -> Counts {
        let mut counts = self.counts.clone();
        for reader in self
            .sources
            .iter()
            .filter_map(|source| source.reader.as_ref())
        {
            for (entry, found) in counts.entries.iter_mut().zip(&reader.found) {
                entry.requests += found;
            }
        }
        let format = counts.formats.first().copied().unwrap_or(Format::Json);
        for entry in &mut counts.entries {
            entry.from = self.layout.describe(&entry.name, format);
        }
        counts
    }

    /// The next request.
    ///
    /// # Errors
    /// A log is none. One whose bytes end early or are damaged, or that cannot be opened any more, is
    /// [cut](Counts::cut), which is no error.
    pub fn next_request(&mut self) -> Result<Option<Request>, LogError> {
        while self.heap.len() < REORDER_MAX && self.held_bytes < HELD_BYTES_MAX {
            let Some(at) = self.next_log()? else {
                break;
            };
            let Some(source) = self.sources.get_mut(at) else {
                continue;
            };
            if let Some(request) = source.take() {
                self.hold(request);
            }
            self.advance(at)?;
            self.open(at);
        }
        Ok(self.release())
    }

    fn open(&mut self, at: usize) {
        if let Some(next_ms) = self.sources.get(at).and_then(Source::next_ms) {
            self.open.push(Reverse((next_ms, at)));
        }
    }

    fn hold(&mut self, request: Request) {
        self.read += 1;
        self.held_bytes += request.bytes();
        let key = (request.at_ms, self.read);
        let place = self.free.pop().unwrap_or(self.held.len());
        match self.held.get_mut(place) {
            Some(held) => *held = request,
            None => self.held.push(request),
        }
        self.heap.push(Reverse((key.0, key.1, place)));
    }

    fn release(&mut self) -> Option<Request> {
        let Reverse((at_ms, _, place)) = self.heap.pop()?;
        let mut request = std::mem::take(self.held.get_mut(place)?);
        self.free.push(place);
        self.held_bytes -= request.bytes();
        if at_ms < self.last_ms {
            self.counts.late += 1;
            request.at_ms = self.last_ms;
        }
        self.last_ms = request.at_ms;
        let counts = &mut self.counts;
        counts.requests += 1;
        counts.durations += u64::from(request.took_ms.is_some());
        counts.service_times += u64::from(request.service != Service::Unknown);
        counts.sizes += u64::from(request.bytes_sent.is_some());
        counts.statuses += u64::from(request.status.is_some());
        Some(request)
    }

    /// The log whose next request is the earliest, opened if it was not.
    fn next_log(&mut self) -> Result<Option<usize>, LogError> {
        if self.stopped.load(Ordering::Relaxed) {
            self.waiting.clear();
        }
        while let Some((first_ms, at)) = self.waiting.front().copied() {
            let earlier = { self.open.peek() }.is_some_and(|Reverse((next, _))| *next < first_ms);
            if earlier {
                break;
            }
            self.waiting.pop_front();
            self.advance(at)?;
            self.open(at);
        }
        Ok(self.open.pop().map(|Reverse((_, at))| at))
    }

    /// Reads the next requests of a log.
    fn advance(&mut self, at: usize) -> Result<(), LogError> {
        let Self {
            layout,
            sources,
            stopped,
            counts,
            ..
        } = self;
        let Some(source) = sources.get_mut(at) else {
            return Ok(());
        };
        match source.advance(layout, stopped, counts) {
            // Of one that cannot be opened any more, all is missing.
            Err(LogError::Io { log, error }) if source.reader.is_some() || source.counted > 0 => {
                counts.cut.push(Cut {
                    file: log,
                    why: error.to_string(),
                });
                source.end();
                source.advance(layout, stopped, counts)
            }
            done => done,
        }
    }
}

impl Source {
    fn new(log: Log) -> Self {
        Self {
            log,
            reader: None,
            lines: None,
            ended: false,
            unknown: 0,
            ahead: VecDeque::with_capacity(NEIGHBOURS + 1),
            before: VecDeque::with_capacity(NEIGHBOURS + 1),
            counted: 0,
            compared: 0,
        }
    }

    /// Nothing more is read of it.
    fn end(&mut self) {
        self.lines = None;
        self.ended = true;
    }

    /// Forgets what was read to see when it begins: many that are compressed could not all be open.
    fn close(&mut self) {
        self.counted = self.lines.take().map_or(0, |lines| lines.number);
        self.reader = None;
        self.unknown = 0;
        self.ahead.clear();
    }

    /// When the next requests start: the earliest, so that a wrong clock does not hold up those behind it.
    fn next_ms(&self) -> Option<u64> {
        self.ahead.iter().map(|(_, request)| request.at_ms).min()
    }

    fn take(&mut self) -> Option<Request> {
        let (_, request) = self.ahead.pop_front()?;
        self.before.push_back(request.at_ms);
        if self.before.len() > NEIGHBOURS {
            self.before.pop_front();
        }
        Some(request)
    }

    /// Whether the next request is far from all its neighbours. One neighbour says nothing: either may be wrong.
    fn is_astray(&self) -> bool {
        let Some((_, next)) = self.ahead.front() else {
            return false;
        };
        let behind = self.ahead.iter().skip(1).map(|(_, other)| other.at_ms);
        let mut others = self.before.iter().copied().chain(behind);
        self.before.len() + self.ahead.len() > 2
            && others.all(|other_ms| other_ms.abs_diff(next.at_ms) > ASTRAY_MS)
    }

    /// Reads the next request, and those that it is compared with.
    fn advance(
        &mut self,
        layout: &Layout,
        stopped: &AtomicBool,
        counts: &mut Counts,
    ) -> Result<(), LogError> {
        loop {
            while self.ahead.len() <= NEIGHBOURS && !self.ended {
                if stopped.load(Ordering::Relaxed) {
                    self.end();
                } else {
                    self.read(layout, stopped, counts)?;
                }
            }
            let Some(line) = self.ahead.front().map(|(line, _)| *line) else {
                return Ok(());
            };
            let compared_again = line > self.compared;
            self.compared = self.compared.max(line);
            if !self.is_astray() {
                return Ok(());
            }
            let astray = self.ahead.pop_front();
            if let Some((reader, (_, request))) = self.reader.as_mut().zip(astray) {
                reader.forget(&request);
            }
            if compared_again {
                counts.add_broken(&self.log.name, line, Unreadable::Astray);
            }
        }
    }

    /// Reads one more request.
    fn read(
        &mut self,
        layout: &Layout,
        stopped: &AtomicBool,
        counts: &mut Counts,
    ) -> Result<(), LogError> {
        let io = |error, log: &Log| LogError::Io {
            log: log.name.clone(),
            error,
        };
        if self.lines.is_none() {
            let lines = (self.log.open)().and_then(Lines::new);
            self.lines = Some(lines.map_err(|error| io(error, &self.log))?);
        }
        let Some(lines) = &mut self.lines else {
            return Ok(());
        };
        loop {
            let number = lines.number + 1;
            let next = lines.next();
            // Bytes that end because it was stopped are neither a damaged log nor half a line.
            if stopped.load(Ordering::Relaxed) {
                self.end();
                return Ok(());
            }
            let (read, bytes) = match next.map_err(|error| io(error, &self.log))? {
                Next::End => {
                    self.end();
                    return Ok(());
                }
                Next::NoLines => {
                    return Err(LogError::NoLines {
                        log: self.log.name.clone(),
                        line: number,
                    });
                }
                Next::Line(line) if line.trim_ascii().is_empty() => continue,
                Next::Line(line) => (read_line(&mut self.reader, layout, line)?, line.len()),
                Next::TooLong => (Err(Unreadable::TooLong), LINE_MAX),
            };
            if self.reader.is_none() && read.is_err() {
                self.unknown = self.unknown.saturating_add(bytes);
                if self.unknown > UNKNOWN_MAX {
                    return Err(LogError::Format {
                        log: self.log.name.clone(),
                        lines: number,
                    });
                }
            }
            let counts_again = number > self.counted;
            counts.lines += u64::from(counts_again);
            match read {
                Ok(Some(request)) => {
                    counts.add_format(self.reader.as_ref());
                    let mut reader = self.reader.iter();
                    counts.whole_seconds &= reader.all(|reader| reader.whole_second);
                    self.ahead.push_back((number, request));
                    return Ok(());
                }
                Ok(None) => counts.others += u64::from(counts_again),
                Err(why) if counts_again => counts.add_broken(&self.log.name, number, why),
                Err(_) => {}
            }
        }
    }
}

fn read_line(
    reader: &mut Option<Reader>,
    layout: &Layout,
    line: &[u8],
) -> Result<Result<Option<Request>, Unreadable>, LayoutError> {
    if reader.is_none() {
        *reader = found(layout, line)?;
    }
    let read = match reader {
        Some(reader) => reader.read(line),
        None => Err(Unreadable::Unknown),
    };
    Ok(match read {
        Err(_) if text::is_of_server(line) => Ok(None),
        read => read,
    })
}

/// A reader in the format of a line: the one that is given, or the one that reads it.
fn found(layout: &Layout, line: &[u8]) -> Result<Option<Reader>, LayoutError> {
    let given = layout.pattern.as_ref().map(|_| Format::Pattern);
    if let Some(format) = given.or(layout.format) {
        return Reader::new(layout, format).map(Some);
    }
    let format = match line.trim_ascii_start().first() {
        Some(b'{') => Format::Json,
        Some(b'[') => Format::Envoy,
        _ => Format::Combined,
    };
    // Without what was said about places, which may be about another format.
    let mut plain = Reader::new(&Layout::default(), format)?;
    match plain.read(line) {
        // The time of JSON may be anywhere.
        Ok(_) | Err(Unreadable::Time) => Reader::new(layout, format).map(Some),
        Err(_) => Ok(None),
    }
}
