//! States of a fixed size, for the slots of a proxy's shared data.
//!
//! Whatever is read there may have been written by another version or another
//! program, so reading checks everything that the algorithms rely on.

use crate::integers::PRODUCT_MAX;
use crate::{FixedWindowState, GcraState, SlidingWindowState, State, TokenBucketState};

/// The size of an encoded state.
pub const STATE_BYTES: usize = 32;

/// Bytes of one number: enough for the 53 bits that every number keeps to.
const NUMBER: usize = 7;

/// The largest number that is accepted.
const NUMBER_MAX: u64 = (1 << 53) - 1;

const TOKEN_BUCKET: u8 = 1;
const GCRA: u8 = 2;
const FIXED_WINDOW: u8 = 3;
const SLIDING_WINDOW: u8 = 4;

impl State {
    /// The state in a fixed size; `None` for a state that has none: logs and sub-windows, and
    /// what has units leased out, which no proxy keeps.
    pub fn to_bytes(&self) -> Option<[u8; STATE_BYTES]> {
        Some(match self {
            Self::TokenBucket(s) if s.leases.is_none() => {
                encode(TOKEN_BUCKET, [s.debt, s.at_ms, s.parts_per_unit, 0])
            }
            Self::Gcra(s) if s.leases.is_none() => {
                encode(GCRA, [s.tat_ms, s.tat_parts, s.parts_per_ms, 0])
            }
            Self::FixedWindow(s) if s.granted.is_none() => {
                encode(FIXED_WINDOW, [s.start_ms, s.used, 0, 0])
            }
            Self::SlidingWindow(s) if s.granted.is_none() => encode(
                SLIDING_WINDOW,
                [s.start_ms, s.current, s.previous, s.length_ms],
            ),
            Self::TokenBucket(_)
            | Self::Gcra(_)
            | Self::FixedWindow(_)
            | Self::SlidingWindow(_)
            | Self::SlidingWindowLog(_)
            | Self::SlidingWindowBuckets(_) => return None,
        })
    }

    /// Reads what [`State::to_bytes`] wrote; `None` for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (tag, [a, b, c, d]) = decode(bytes)?;
        match tag {
            TOKEN_BUCKET if unit(c) && d == 0 => Some(Self::TokenBucket(TokenBucketState {
                debt: a,
                at_ms: b,
                parts_per_unit: c,
                leases: None,
            })),
            GCRA if b < c && unit(c) && d == 0 => Some(Self::Gcra(GcraState {
                tat_ms: a,
                tat_parts: b,
                parts_per_ms: c,
                leases: None,
                at_ms: 0,
            })),
            FIXED_WINDOW if c == 0 && d == 0 => Some(Self::FixedWindow(FixedWindowState {
                start_ms: a,
                used: b,
                granted: None,
            })),
            SLIDING_WINDOW if unit(d) => Some(Self::SlidingWindow(SlidingWindowState {
                start_ms: a,
                current: b,
                previous: c,
                length_ms: d,
                granted: None,
            })),
            _ => None,
        }
    }
}

/// Whether something may be divided by this.
const fn unit(number: u64) -> bool {
    number >= 1 && number <= PRODUCT_MAX
}

fn encode(tag: u8, numbers: [u64; 4]) -> [u8; STATE_BYTES] {
    let mut bytes = [0; STATE_BYTES];
    let (head, body) = bytes.split_at_mut(1);
    head.fill(tag);
    for (slot, number) in body.chunks_exact_mut(NUMBER).zip(numbers) {
        for (byte, value) in slot.iter_mut().zip(number.to_le_bytes()) {
            *byte = value;
        }
    }
    bytes
}

fn decode(bytes: &[u8]) -> Option<(u8, [u64; 4])> {
    if bytes.len() != STATE_BYTES {
        return None;
    }
    let (tag, body) = bytes.split_first()?;
    let slots = body.chunks_exact(NUMBER);
    if slots.remainder().iter().any(|&byte| byte != 0) {
        return None;
    }
    let mut numbers = [0; 4];
    for (number, slot) in numbers.iter_mut().zip(slots) {
        let mut wide = [0; 8];
        for (byte, value) in wide.iter_mut().zip(slot) {
            *byte = *value;
        }
        *number = u64::from_le_bytes(wide);
        if *number > NUMBER_MAX {
            return None;
        }
    }
    Some((*tag, numbers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_survives_the_slot() {
        let states = [
            State::TokenBucket(TokenBucketState {
                debt: 1 << 51,
                at_ms: 1_763_000_040_000,
                parts_per_unit: 86_400_000,
                leases: None,
            }),
            State::Gcra(GcraState {
                tat_ms: (1 << 52) - 1,
                tat_parts: 6,
                parts_per_ms: 7,
                leases: None,
                at_ms: 0,
            }),
        ];
        for state in states {
            let bytes = state.to_bytes().unwrap();
            assert_eq!(State::from_bytes(&bytes), Some(state));
        }
    }

    #[test]
    fn what_no_algorithm_wrote_is_refused() {
        assert_eq!(State::from_bytes(&[]), None);
        assert_eq!(State::from_bytes(&[0; STATE_BYTES]), None);
        assert_eq!(State::from_bytes(&[0xff; STATE_BYTES]), None);
        let divides_by_zero = encode(TOKEN_BUCKET, [5, 5, 0, 0]);
        assert_eq!(State::from_bytes(&divides_by_zero), None);
        let fraction_above_one = encode(GCRA, [5, 7, 7, 0]);
        assert_eq!(State::from_bytes(&fraction_above_one), None);
        let mut padded = encode(TOKEN_BUCKET, [5, 5, 1, 0]);
        padded[31] = 1;
        assert_eq!(State::from_bytes(&padded), None);
    }
}
