//! Decisions, counted by limit, outcome and source: for Envoy's metrics, and for reports.

use policy::Name;
use protocol::{DecidedBy, Outcome, compact::Tally};

use super::{Metrics, by_name::ByName};

/// Counters of one limit.
const SLOTS: usize = Outcome::ALL.len() * DecidedBy::ALL.len();

/// Counters since the last flush.
#[derive(Debug, Default)]
pub(super) struct Decisions {
    limits: ByName<SLOTS>,
    /// Flushed decisions that this proxy made and has not reported yet, by limit.
    unreported: Vec<(Name, [u64; SLOTS])>,
}

/// The decision that a counter counts.
fn counted(slot: usize) -> Option<(Outcome, DecidedBy)> {
    let outcome = Outcome::ALL.get(slot / DecidedBy::ALL.len())?;
    let by = DecidedBy::ALL.get(slot % DecidedBy::ALL.len())?;
    Some((*outcome, *by))
}

impl Decisions {
    /// Counts a decision of one limit.
    pub(super) fn add(&mut self, limit: &Name, outcome: Outcome, by: DecidedBy) {
        let slot = outcome as usize * DecidedBy::ALL.len() + by as usize;
        if let Some(count) = self.limits.of(limit).get_mut(slot) {
            *count += 1;
        }
    }

    /// Takes the decisions to report.
    pub(super) fn take_unreported(&mut self) -> Vec<Tally> {
        let mut tallies = Vec::new();
        for (limit, counts) in self.unreported.drain(..) {
            for (slot, count) in counts.into_iter().enumerate().filter(|(_, n)| *n > 0) {
                if let Some((outcome, by)) = counted(slot) {
                    tallies.push(Tally {
                        limit: limit.clone(),
                        outcome,
                        by,
                        count,
                    });
                }
            }
        }
        tallies
    }

    /// Whether there is nothing to report.
    pub(super) fn is_reported(&self) -> bool {
        self.unreported.is_empty()
    }

    /// Keeps the decisions that this proxy made, for the next report.
    fn keep_unreported(&mut self) {
        let limiter = DecidedBy::Limiter as usize;
        for (limit, counts) in self.limits.named() {
            let own =
                |(slot, count): (usize, &u64)| *count > 0 && slot % DecidedBy::ALL.len() != limiter;
            if !counts.iter().enumerate().any(own) {
                continue;
            }
            let known = self.unreported.iter().position(|(name, _)| name == limit);
            let at = known.unwrap_or_else(|| {
                self.unreported.push((limit.clone(), [0; SLOTS]));
                self.unreported.len() - 1
            });
            let Some((_, unreported)) = self.unreported.get_mut(at) else {
                continue;
            };
            for (slot, (sum, count)) in unreported.iter_mut().zip(counts).enumerate() {
                if slot % DecidedBy::ALL.len() != limiter {
                    *sum = sum.saturating_add(*count);
                }
            }
        }
    }

    /// Writes all counters to the host.
    pub(super) fn flush(&mut self, metrics: &mut impl Metrics) {
        self.keep_unreported();
        self.limits.take(|limit, slot, count| {
            if let Some((outcome, by)) = counted(slot) {
                let name = ["rl_decisions", outcome.word(), by.word(), limit].join(".");
                metrics.count(&name, count);
            }
        });
    }
}
