//! The answer to a check, independent of its encoding.

use algorithms::{Lease, Reservation, Reserved, Slot};
use policy::{Mode, Name, PenaltyStatus, Revision};

/// The decision on one check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The revision that decided.
    pub revision: Revision,
    /// The store's clock, in milliseconds since the epoch.
    pub now_ms: u64,
    /// Whether every enforcing limit allowed it.
    pub allowed: bool,
    /// One entry per matching limit, in the order of the policy.
    pub limits: Vec<LimitAnswer>,
    /// For a [`ServiceCheck`](crate::ServiceCheck): how many entries of `limits` each descriptor has,
    /// in order.
    pub parts: Vec<usize>,
}

impl Answer {
    /// The answers about one descriptor of a [`ServiceCheck`](crate::ServiceCheck).
    pub fn part(&self, at: usize) -> &[LimitAnswer] {
        let Some(length) = self.parts.get(at) else {
            return &[];
        };
        let before = self.parts.iter().take(at).sum::<usize>();
        let limits = self.limits.get(before..).unwrap_or_default();
        limits.get(..*length).unwrap_or_default()
    }
}

/// The answer of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitAnswer {
    /// The limit.
    pub name: Name,
    /// The limit's generation; caches drop state of older ones.
    pub generation: u64,
    /// Values of the limit's `per` entries, `None` where the request had none.
    pub bucket: Vec<(Name, Option<Vec<u8>>)>,
    /// How it takes part.
    pub mode: Mode,
    /// Whether the cost fits this limit, whatever the others said.
    pub allowed: bool,
    /// Units taken from the bucket by this check.
    pub charged: u64,
    /// The quota in units: capacity or N; `None`: unlimited.
    pub limit: Option<u64>,
    /// The time, in milliseconds, in which an empty quota refills completely.
    pub window_ms: u64,
    /// Units left after this decision.
    pub remaining: u64,
    /// 0 if allowed; `None`: never.
    pub retry_after_ms: Option<u64>,
    /// The time until the bucket is unused, in milliseconds.
    pub reset_after_ms: u64,
    /// How long an admitted request is held, in milliseconds.
    pub delay_ms: u64,
    /// Not to be shown to clients.
    pub hidden: bool,
    /// The surplus granted; `None`: none was granted or wanted.
    pub lease: Option<Lease>,
    /// The slot that a queue gave the request, or that it holds in flight; [`SlotAct`](crate::SlotAct)
    /// says what may be done with it. If nothing was charged and slots were renewed: which of them are missing, encoded as
    /// `algorithms::Missing`.
    pub slot: Option<Slot>,
    /// Units of this check that are to be settled when the response has ended.
    pub reservation: Option<Reservation>,
    /// What the check reserved and settled. No encoding has it.
    pub reserved: Reserved,
    /// The penalty of the bucket. The compact encoding has only its remaining time, JSON only whether
    /// there is one.
    pub penalty: PenaltyStatus,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An answer that allows, with arbitrary numbers.
    pub(crate) fn limit(name: &str) -> LimitAnswer {
        LimitAnswer {
            name: name.parse().unwrap(),
            generation: 0,
            bucket: Vec::new(),
            mode: Mode::Enforce,
            allowed: true,
            charged: 0,
            limit: Some(20),
            window_ms: 2000,
            remaining: 20,
            retry_after_ms: Some(0),
            reset_after_ms: 0,
            delay_ms: 0,
            hidden: false,
            lease: None,
            slot: None,
            reservation: None,
            reserved: Reserved::default(),
            penalty: PenaltyStatus::default(),
        }
    }
}
