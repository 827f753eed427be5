//! Small states as bytes, for the entries of a proxy's shared data.
//!
//! The bytes may have been written by another program, so reading checks everything that the
//! algorithms rely on.

use crate::integers::PRODUCT_MAX;
use crate::{
    CalendarWindowState, FixedWindowState, GcraState, QueueSlots, QueueState, SlidingWindowState,
    Span, State, TokenBucketState,
};

/// The size of the longest encoded state: a queue with the most freed intervals that are kept.
pub const STATE_BYTES_MAX: usize = QUEUE_BYTES + 2 * NUMBER * FREE_KEPT;

/// Freed intervals that are kept; of more, the latest are lost.
const FREE_KEPT: usize = 6;

/// The size of any other encoded state.
pub const STATE_BYTES: usize = 32;
/// The size of a queue without freed intervals.
const QUEUE_BYTES: usize = STATE_BYTES + NUMBER;

/// Bytes of one number: enough for the 53 bits that every number keeps to.
const NUMBER: usize = 7;

/// The largest number that is accepted.
const NUMBER_MAX: u64 = (1 << 53) - 1;

const TOKEN_BUCKET: u8 = 1;
const GCRA: u8 = 2;
const FIXED_WINDOW: u8 = 3;
const SLIDING_WINDOW: u8 = 4;
const QUEUE: u8 = 5;
const CALENDAR_WINDOW: u8 = 6;

impl State {
    /// The state in a few bytes; `None` if it has no small size (logs and sub-windows) or has
    /// leased units, which no proxy keeps. A queue is encoded without its turns, because a proxy
    /// frees a slot only once.
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        match self {
            Self::Queue(s) => queue_to_bytes(s),
            _ => self.to_small_bytes().map(Vec::from),
        }
    }

    /// As [`State::to_bytes`], of the states that take the fewest bytes: `None` for a queue, too.
    pub fn to_small_bytes(&self) -> Option<[u8; STATE_BYTES]> {
        let bytes = match self {
            Self::TokenBucket(s) if s.leases.is_none() => {
                encode(TOKEN_BUCKET, [s.debt, s.at_ms, s.parts_per_unit, s.over])
            }
            Self::Gcra(s) if s.leases.is_none() && s.over == 0 => {
                encode(GCRA, [s.tat_ms, s.tat_parts, s.parts_per_ms, 0])
            }
            Self::FixedWindow(s) if s.granted.is_none() => {
                encode(FIXED_WINDOW, [s.start_ms, s.used, 0, 0])
            }
            Self::CalendarWindow(s) if s.granted.is_none() => encode(
                CALENDAR_WINDOW,
                [u64::from(s.unit), s.serial, s.start_ms, s.used],
            ),
            Self::SlidingWindow(s) if s.granted.is_none() => encode(
                SLIDING_WINDOW,
                [s.start_ms, s.current, s.previous, s.length_ms],
            ),
            Self::TokenBucket(_)
            | Self::Gcra(_)
            | Self::FixedWindow(_)
            | Self::CalendarWindow(_)
            | Self::Queue(_)
            | Self::SlidingWindow(_)
            | Self::SlidingWindowLog(_)
            | Self::SlidingWindowBuckets(_)
            | Self::Concurrency(_) => return None,
        };
        Some(bytes)
    }

    /// Reads what [`State::to_bytes`] wrote; `None` for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.first() == Some(&QUEUE) {
            return queue_from_bytes(bytes);
        }
        let (tag, [a, b, c, d]) = decode(bytes)?;
        match tag {
            TOKEN_BUCKET if unit(c) && d <= a => Some(Self::TokenBucket(TokenBucketState {
                over: d,
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
                over: 0,
            })),
            FIXED_WINDOW if c == 0 && d == 0 => Some(Self::FixedWindow(FixedWindowState {
                start_ms: a,
                used: b,
                granted: None,
            })),
            CALENDAR_WINDOW => Some(Self::CalendarWindow(CalendarWindowState {
                unit: u8::try_from(a).ok()?,
                serial: b,
                start_ms: c,
                used: d,
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

fn queue_to_bytes(state: &QueueState) -> Option<Vec<u8>> {
    let QueueState { level, slots } = state;
    if level.leases.is_some() {
        return None;
    }
    let head = [
        level.debt,
        level.at_ms,
        level.parts_per_unit,
        slots.parts_per_ms,
    ];
    let mut bytes = encode(QUEUE, head).to_vec();
    let spans = slots.free.iter().take(FREE_KEPT);
    let spans = spans.flat_map(|span| [span.start, span.end]);
    for number in [slots.since_ms].into_iter().chain(spans) {
        bytes.extend(number.to_le_bytes().iter().take(NUMBER));
    }
    Some(bytes)
}

fn queue_from_bytes(bytes: &[u8]) -> Option<State> {
    let (head, rest) = bytes.split_at_checked(STATE_BYTES)?;
    let (_, [debt, at_ms, parts_per_unit, parts_per_ms]) = decode(head)?;
    if !unit(parts_per_unit) || bytes.len() > STATE_BYTES_MAX {
        return None;
    }
    let mut numbers = rest.chunks(NUMBER).map(number);
    let since_ms = numbers.next()??;
    let (mut free, mut end) = (Vec::new(), 0);
    while let Some(start) = numbers.next() {
        let span = Span {
            start: start?,
            end: numbers.next()??,
        };
        if span.start < end || span.end <= span.start || span.end > debt {
            return None;
        }
        end = span.end;
        free.push(span);
    }
    let level = TokenBucketState {
        over: 0,
        debt,
        at_ms,
        parts_per_unit,
        leases: None,
    };
    let slots = QueueSlots {
        parts_per_ms,
        since_ms,
        free,
        turns: Vec::new(),
    };
    Some(State::Queue(QueueState { level, slots }))
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
    for (read, slot) in numbers.iter_mut().zip(slots) {
        *read = number(slot)?;
    }
    Some((*tag, numbers))
}

fn number(bytes: &[u8]) -> Option<u64> {
    let mut wide = [0; 8];
    for (byte, value) in wide.iter_mut().zip(bytes) {
        *byte = *value;
    }
    let number = u64::from_le_bytes(wide);
    (bytes.len() == NUMBER && number <= NUMBER_MAX).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_round_trips_through_its_bytes() {
        let states = [
            State::TokenBucket(TokenBucketState {
                over: 0,
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
                over: 0,
            }),
        ];
        for state in states {
            let bytes = state.to_bytes().unwrap();
            assert_eq!(State::from_bytes(&bytes), Some(state));
        }
    }

    #[test]
    fn a_queue_with_freed_intervals_round_trips_through_its_bytes() {
        let span = |start| Span {
            start,
            end: start + 5,
        };
        let state = |free: Vec<Span>| {
            State::Queue(QueueState {
                level: TokenBucketState {
                    over: 0,
                    debt: 100,
                    at_ms: 1_763_000_040_000,
                    parts_per_unit: 50,
                    leases: None,
                },
                slots: QueueSlots {
                    parts_per_ms: 1,
                    since_ms: 1_763_000_000_000,
                    free,
                    turns: Vec::new(),
                },
            })
        };
        for count in 0..=FREE_KEPT as u64 {
            let state = state((0..count).map(|n| span(n * 10)).collect());
            let bytes = state.to_bytes().unwrap();
            assert!(bytes.len() <= STATE_BYTES_MAX);
            assert_eq!(State::from_bytes(&bytes), Some(state));
            assert_eq!(State::from_bytes(&bytes[..bytes.len() - 1]), None);
        }
        for wrong in [
            vec![span(20), span(10)],
            vec![span(96)],
            vec![Span { start: 9, end: 9 }],
        ] {
            let bytes = state(wrong).to_bytes().unwrap();
            assert_eq!(State::from_bytes(&bytes), None);
        }
    }

    #[test]
    fn invalid_state_bytes_are_refused() {
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
