//! The part of CBOR (RFC 8949) that the messages use: unsigned integers, byte
//! and text strings, arrays of a known length, booleans and null.
//!
//! Written by hand because it is part of the filter module: a general library would add ten times the
//! code.

/// Why bytes are not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The input is too short.
    #[error("cut short")]
    Short,
    /// An item of another type than expected.
    #[error("an item of another type")]
    Type,
    /// An invalid name.
    #[error("not a name: {0}")]
    Name(String),
    /// An index beyond its table, or more values than keys.
    #[error("an index beyond its table")]
    Index,
    /// Two entries for one thing.
    #[error("something is named twice")]
    Twice,
    /// A size beyond its bound.
    #[error("too many or too long: {0}")]
    Bounds(&'static str),
}

/// Major types, in the upper three bits of an item's first byte.
const UNSIGNED: u8 = 0;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const MAP: u8 = 5;
const TAG: u8 = 6;

const FALSE: u8 = 0xf4;
const TRUE: u8 = 0xf5;
const NULL: u8 = 0xf6;

/// Appends items.
#[derive(Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    fn head(&mut self, major: u8, argument: u64) {
        let major = major << 5;
        let bytes = argument.to_be_bytes();
        // The shortest form that holds the argument.
        let (info, length) = match argument {
            0..24 => return self.0.push(major | bytes[7]),
            24..=0xff => (24, 1),
            0x100..=0xffff => (25, 2),
            0x1_0000..=0xffff_ffff => (26, 4),
            _ => (27, 8),
        };
        self.0.push(major | info);
        self.0.extend(bytes.iter().skip(8 - length));
    }

    fn length(&mut self, major: u8, length: usize) {
        self.head(major, u64::try_from(length).unwrap_or(u64::MAX));
    }

    /// The head of an array of so many items.
    pub fn array(&mut self, length: usize) {
        self.length(ARRAY, length);
    }

    /// A number.
    pub fn unsigned(&mut self, value: u64) {
        self.head(UNSIGNED, value);
    }

    /// A byte string.
    pub fn bytes(&mut self, value: &[u8]) {
        self.length(BYTES, value.len());
        self.0.extend_from_slice(value);
    }

    /// A text string.
    pub fn text(&mut self, value: &str) {
        self.length(TEXT, value.len());
        self.0.extend_from_slice(value.as_bytes());
    }

    /// `true` or `false`.
    pub fn boolean(&mut self, value: bool) {
        self.0.push(if value { TRUE } else { FALSE });
    }

    /// An absent item.
    pub fn null(&mut self) {
        self.0.push(NULL);
    }

    /// Writes an array; `write` appends each of its items.
    pub fn list<T>(
        &mut self,
        items: impl ExactSizeIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T),
    ) {
        self.array(items.len());
        for item in items {
            write(self, item);
        }
    }

    /// Writes an item that may be absent.
    pub fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match value {
            Some(value) => write(self, value),
            None => self.null(),
        }
    }
}

/// Reads items from the front of a message.
pub struct Reader<'b> {
    rest: &'b [u8],
}

impl<'b> Reader<'b> {
    /// A reader of a whole message.
    pub fn new(bytes: &'b [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn take(&mut self, length: u64) -> Result<&'b [u8], DecodeError> {
        let length = usize::try_from(length).map_err(|_| DecodeError::Short)?;
        let (taken, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, DecodeError> {
        let (first, rest) = self.rest.split_first().ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(*first)
    }

    /// The major type of the next item and its argument.
    fn head(&mut self) -> Result<(u8, u64), DecodeError> {
        let first = self.byte()?;
        let length = match first & 31 {
            direct @ 0..24 => return Ok((first >> 5, u64::from(direct))),
            24 => 1,
            25 => 2,
            26 => 4,
            27 => 8,
            // Reserved, or an indefinite length.
            _ => return Err(DecodeError::Type),
        };
        let argument = self.take(length)?.iter();
        let argument = argument.fold(0, |value, byte| (value << 8) | u64::from(*byte));
        Ok((first >> 5, argument))
    }

    fn expect(&mut self, major: u8) -> Result<u64, DecodeError> {
        let (found, argument) = self.head()?;
        if found == major {
            Ok(argument)
        } else {
            Err(DecodeError::Type)
        }
    }

    /// A number.
    pub fn unsigned(&mut self) -> Result<u64, DecodeError> {
        self.expect(UNSIGNED)
    }

    /// A byte string.
    pub fn bytes(&mut self) -> Result<&'b [u8], DecodeError> {
        let length = self.expect(BYTES)?;
        self.take(length)
    }

    /// A text string.
    pub fn text(&mut self) -> Result<&'b str, DecodeError> {
        let length = self.expect(TEXT)?;
        std::str::from_utf8(self.take(length)?).map_err(|_| DecodeError::Type)
    }

    /// `true` or `false`.
    pub fn boolean(&mut self) -> Result<bool, DecodeError> {
        match self.byte()? {
            FALSE => Ok(false),
            TRUE => Ok(true),
            _ => Err(DecodeError::Type),
        }
    }

    /// Reads an item that may be absent.
    pub fn optional<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        if self.null() {
            return Ok(None);
        }
        read(self).map(Some)
    }

    /// Takes an absent item, if it is next.
    fn null(&mut self) -> bool {
        let rest = self.rest.strip_prefix(&[NULL]);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Reads the head of an array of at most `max` items; returns their number.
    fn length(&mut self, max: usize, what: &'static str) -> Result<usize, DecodeError> {
        let length = usize::try_from(self.expect(ARRAY)?).unwrap_or(usize::MAX);
        // Each item has at least one byte, so this bounds the memory that is reserved.
        if length > self.rest.len() {
            return Err(DecodeError::Short);
        }
        if length > max {
            return Err(DecodeError::Bounds(what));
        }
        Ok(length)
    }

    /// Reads an array of at most `max` items; `read` takes each of them.
    pub fn list<T>(
        &mut self,
        max: usize,
        what: &'static str,
        mut read: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let length = self.length(max, what)?;
        let mut items = Vec::with_capacity(length);
        for _ in 0..length {
            items.push(read(self)?);
        }
        Ok(items)
    }

    /// Reads the head of an array of `known` fields; returns how many more it has.
    fn open(&mut self, known: usize) -> Result<u64, DecodeError> {
        let length = self.expect(ARRAY)?;
        let known = u64::try_from(known).unwrap_or(u64::MAX);
        length.checked_sub(known).ok_or(DecodeError::Short)
    }

    /// Reads an array of `known` fields; skips further ones, which later versions may add.
    pub fn fields<T>(
        &mut self,
        known: usize,
        read: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<T, DecodeError> {
        let more = self.open(known)?;
        let value = read(self)?;
        self.skip(more)?;
        Ok(value)
    }

    /// Like [`Self::fields`], but up to `more` fields at the end may be missing, because earlier
    /// versions do not write them; `read` gets their number.
    pub fn fields_and<T>(
        &mut self,
        known: u64,
        more: u64,
        read: impl FnOnce(&mut Self, u64) -> Result<T, DecodeError>,
    ) -> Result<T, DecodeError> {
        let length = self.expect(ARRAY)?;
        let rest = length.checked_sub(known).ok_or(DecodeError::Short)?;
        let value = read(self, rest.min(more))?;
        self.skip(rest.saturating_sub(more))?;
        Ok(value)
    }

    /// The bytes of one item, whatever its type and nesting.
    pub fn item(&mut self) -> Result<&'b [u8], DecodeError> {
        let before = self.rest;
        self.skip(1)?;
        let length = before.len() - self.rest.len();
        before.get(..length).ok_or(DecodeError::Short)
    }

    /// Skips items, whatever their type and nesting.
    fn skip(&mut self, items: u64) -> Result<(), DecodeError> {
        let mut left = items;
        while left > 0 {
            left -= 1;
            let (major, argument) = self.head()?;
            let inside = match major {
                BYTES | TEXT => {
                    self.take(argument)?;
                    0
                }
                ARRAY => argument,
                MAP => argument.checked_mul(2).ok_or(DecodeError::Short)?,
                TAG => 1,
                // Numbers and simple values, which consist of their argument alone.
                _ => 0,
            };
            left = left.checked_add(inside).ok_or(DecodeError::Short)?;
        }
        Ok(())
    }
}
