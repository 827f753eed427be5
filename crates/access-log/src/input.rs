//! Bytes of a log: decompressed by what they are, not by the log's name, and split into lines of bounded length.

use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::{
    FrameDecoder,
    errors::{FrameDecoderError, ReadFrameHeaderError},
};

/// Bound: bytes of a line of a log. Beyond it, the line counts as broken.
pub const LINE_MAX: usize = 1 << 20;

/// Bound: bytes without a line break that are skipped in a log. Beyond it, reading ends with an error.
pub(crate) const SKIPPED_MAX: u64 = 64 << 20;

/// Bound: bytes of the window of a log compressed by zstd. Beyond it, the log cannot be read.
const WINDOW_MAX: u64 = 32 << 20;

const BUFFER: usize = 64 * 1024;

/// Bytes that are looked at to tell how a log is compressed.
const MAGIC: usize = 4;

type Bytes = Box<dyn Read + Send>;

/// A log's bytes as they were before they were compressed.
fn decompressed(mut bytes: Bytes) -> io::Result<Box<dyn BufRead + Send>> {
    let mut start = [0; MAGIC];
    let mut read = 0;
    while let Some(rest) = start.get_mut(read..).filter(|rest| !rest.is_empty()) {
        match bytes.read(rest) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let start = start.get(..read).unwrap_or_default().to_vec();
    let whole = BufReader::with_capacity(BUFFER, Cursor::new(start.clone()).chain(bytes));
    Ok(match start.as_slice() {
        [0x1f, 0x8b, ..] => Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(whole))),
        // A frame, or one that is to be skipped, with which parallel compressors begin.
        [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => {
            Box::new(BufReader::with_capacity(BUFFER, Zstd::new(whole)))
        }
        _ => Box::new(whole),
    })
}

/// Frames compressed by zstd, one after the other, as rotated logs are appended.
struct Zstd {
    source: BufReader<Chain<Cursor<Vec<u8>>, Bytes>>,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl Zstd {
    fn new(source: BufReader<Chain<Cursor<Vec<u8>>, Bytes>>) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(WINDOW_MAX);
        Self {
            source,
            decoder,
            in_frame: false,
        }
    }

    /// Begins the next frame; `false` at the end of the log.
    fn begin(&mut self) -> io::Result<bool> {
        loop {
            if self.source.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.reset(&mut self.source) {
                Ok(()) => {
                    self.in_frame = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let skipped = io::copy(
                        &mut self.source.by_ref().take(length.into()),
                        &mut io::sink(),
                    )?;
                    if skipped < length.into() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }
}

impl Read for Zstd {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        use ruzstd::decoding::BlockDecodingStrategy::UptoBlocks;
        loop {
            if !self.in_frame && !self.begin()? {
                return Ok(0);
            }
            if self.decoder.can_collect() > 0 {
                return self.decoder.read(to);
            }
            if self.decoder.is_finished() {
                self.in_frame = false;
                continue;
            }
            let decoded = self.decoder.decode_blocks(&mut self.source, UptoBlocks(1));
            decoded.map_err(io::Error::other)?;
        }
    }
}

/// The lines of a log.
pub(crate) struct Lines {
    bytes: Box<dyn BufRead + Send>,
    line: Vec<u8>,
    /// The number of the current line, from 1.
    pub(crate) number: u64,
}

/// What follows in a log.
pub(crate) enum Next<'l> {
    /// A line, without its end.
    Line(&'l [u8]),
    /// A line that is longer than [`LINE_MAX`].
    TooLong,
    /// A line that is longer than [`SKIPPED_MAX`]: its end was not looked for.
    NoLines,
    /// The log's end.
    End,
}

impl Lines {
    pub(crate) fn new(bytes: Bytes) -> io::Result<Self> {
        Ok(Self {
            bytes: decompressed(bytes)?,
            line: Vec::new(),
            number: 0,
        })
    }

    pub(crate) fn next(&mut self) -> io::Result<Next<'_>> {
        self.line.clear();
        let mut length = 0_u64;
        loop {
            let buffer = match self.bytes.fill_buf() {
                Ok(buffer) => buffer,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if buffer.is_empty() {
                if length == 0 {
                    return Ok(Next::End);
                }
                break;
            }
            let end = memchr::memchr(b'\n', buffer);
            let piece = buffer
                .get(..end.unwrap_or(buffer.len()))
                .unwrap_or_default();
            if self.line.len() + piece.len() <= LINE_MAX {
                self.line.extend_from_slice(piece);
            }
            let used = piece.len() + usize::from(end.is_some());
            length = length.saturating_add(u64::try_from(used).unwrap_or(u64::MAX));
            self.bytes.consume(used);
            if end.is_some() {
                break;
            }
            if length > SKIPPED_MAX {
                self.number += 1;
                return Ok(Next::NoLines);
            }
        }
        self.number += 1;
        if length > u64::try_from(LINE_MAX).unwrap_or(u64::MAX) {
            return Ok(Next::TooLong);
        }
        let line = self.line.as_slice();
        Ok(Next::Line(line.strip_suffix(b"\r").unwrap_or(line)))
    }
}
