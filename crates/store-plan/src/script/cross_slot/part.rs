//! One slot's part of a check, and how far it is.

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
    /// Whether it decided without being asked for a surplus that is wanted.
    pub(super) ungranted: bool,
}

#[derive(Debug)]
pub(super) enum State<E> {
    Open,
    /// Decided at this time of the slot's server, in milliseconds.
    Answered(u64, Verdict),
    Failed(E),
    /// Parts of one limit each have taken its place.
    Split,
}

impl<E> Part<E> {
    /// One limit, not asked yet.
    pub(super) fn new(slot: u16, limit: usize, rank: u8) -> Self {
        Self {
            slot,
            limits: vec![limit],
            rank,
            state: State::Open,
            ungranted: false,
        }
    }

    /// Another limit of the slot. One that may deny makes it a part that may; so does a queue.
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

    /// A limit that is only observed and over grants nothing.
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
