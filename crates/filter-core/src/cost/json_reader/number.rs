//! Numbers in JSON, and positions of items.

use super::{JsonReader, State, Targets};

/// A partly read number, in whole units rounded up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Number {
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
    pub(super) fn end_number(&mut self, targets: Targets<'_>) {
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

pub(super) fn is_of_number(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'.' | b'-' | b'+' | b'e' | b'E')
}

/// Whether a part of a pointer is the position of an item.
pub(super) fn is_index(text: &str, index: u32) -> bool {
    let plain = text == "0" || !text.starts_with('0');
    plain && text.bytes().all(|b| b.is_ascii_digit()) && text.parse() == Ok(index)
}
