//! Requests that wait for their turn in a queue.

use super::{Edits, StreamId};
use crate::{client::Shown, time::Now};

/// Held requests, the next one last.
#[derive(Debug)]
pub(super) struct Holds {
    waiting: Vec<Held>,
    max: usize,
}

#[derive(Debug)]
struct Held {
    until_us: u64,
    stream: StreamId,
    edits: Edits,
    shown: Shown,
}

impl Holds {
    pub(super) fn new(max: usize) -> Self {
        Self {
            waiting: Vec::new(),
            max,
        }
    }

    /// When the turn of the next comes; `u64::MAX`: none is held.
    pub(super) fn next_us(&self) -> u64 {
        self.waiting.last().map_or(u64::MAX, |held| held.until_us)
    }

    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= self.max
    }

    /// Holds a request. Those that end at the same moment go on in the order they came.
    pub(super) fn add(&mut self, until_us: u64, stream: StreamId, edits: Edits, shown: Shown) {
        let at = self
            .waiting
            .partition_point(|held| held.until_us > until_us);
        let held = Held {
            until_us,
            stream,
            edits,
            shown,
        };
        self.waiting.insert(at, held);
    }

    /// Takes out a request whose turn has come.
    pub(super) fn next_due(&mut self, now: Now) -> Option<(StreamId, Edits, Shown)> {
        let due = self.waiting.pop_if(|held| now.reached(held.until_us))?;
        Some((due.stream, due.edits, due.shown))
    }

    /// Forgets a request that has gone.
    pub(super) fn forget(&mut self, stream: StreamId) {
        self.waiting.retain(|held| held.stream != stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_go_on_in_the_order_of_their_turns() {
        let mut holds = Holds::new(5);
        for (stream, until_us) in [(1, 30), (2, 10), (3, 20), (4, 10), (5, 40)] {
            assert!(!holds.is_full());
            holds.add(
                until_us,
                StreamId(stream),
                Edits::default(),
                Shown::default(),
            );
        }
        assert!(holds.is_full());
        holds.forget(StreamId(3));
        let now = Now {
            mono_us: 30,
            wall_ms: 0,
        };
        let mut order = Vec::new();
        while let Some((stream, ..)) = holds.next_due(now) {
            order.push(stream.0);
        }
        assert_eq!(order, [2, 4, 1]);
        assert_eq!(holds.next_us(), 40);
    }
}
