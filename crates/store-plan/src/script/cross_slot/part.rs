//! One slot's part of a check, and its progress.

use algorithms::check::Verdict;

use super::{
    SlotCheck,
    limit::{OBSERVED, without_surplus},
};

/// The limits of a check whose buckets are in one slot.
#[derive(Debug)]
pub(super) struct Part<E> {
    pub(super) slot: u16,
    /// Their indices.
    pub(super) limits: Vec<usize>,
    /// Lower ones are charged first.
    pub(super) rank: u8,
    pub(super) state: State<E>,
    /// Whether it has decided, but was not queried yet for lease units that the check wants.
    pub(super) ungranted: bool,
}

#[derive(Debug)]
pub(super) enum State<E> {
    Open,
    /// Decided at this time of the slot's server, in milliseconds.
    Answered(u64, Verdict),
    Failed(E),
    /// Replaced by parts of one limit each.
    Split,
}

impl<E> Part<E> {
    /// A part with one limit, not sent yet.
    pub(super) fn new(slot: u16, limit: usize, rank: u8) -> Self {
        Self {
            slot,
            limits: vec![limit],
            rank,
            state: State::Open,
            ungranted: false,
        }
    }

    /// Adds another limit of the slot. One that may deny makes the part one that may; a queue makes
    /// it a queue.
    pub(super) fn add(&mut self, limit: usize, rank: u8) {
        self.limits.push(limit);
        self.rank = match (self.rank, rank) {
            (OBSERVED, other) | (other, OBSERVED) => other,
            (a, b) => a.max(b),
        };
    }

    /// What its slot decided.
    pub(super) fn verdict(&self) -> Option<&Verdict> {
        match &self.state {
            State::Answered(_, verdict) => Some(verdict),
            State::Open | State::Failed(_) | State::Split => None,
        }
    }

    /// An observed limit grants no lease units to a check that is over it.
    pub(super) fn leave_over_limit(&self, surplus: &mut SlotCheck<'_>) {
        if let Some(verdict) = self.verdict() {
            for (limit, verdict) in surplus.check.limits.iter_mut().zip(&verdict.limits) {
                if !verdict.decision.allowed {
                    *limit = without_surplus(*limit);
                }
            }
        }
    }
}
