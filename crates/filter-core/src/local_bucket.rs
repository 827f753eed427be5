//! Buckets that this proxy decides: those of `scope: proxy`, the prechecks in front of global
//! limits, and fallback buckets during an outage.

mod share;

use algorithms::{Algorithm, Charged, Decision, QueueSlot, State};

pub(crate) use share::{Share, precheck};

use crate::{
    cache::{BucketEntry, BucketKey, DebtSpan, Found, LocalState, Room, Table, Update},
    host::{Contended, Host},
    time::Now,
};

/// A bucket in the shared table, with its parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalBucket<'a> {
    pub(crate) table: &'a Table,
    pub(crate) key: BucketKey,
    /// The generation of its limit.
    pub(crate) generation: u64,
    pub(crate) algorithm: &'a Algorithm,
    pub(crate) start: Start,
}

/// The initial state of a bucket that the table does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// Full: no request has used it.
    Full,
    /// Full, and it may be evicted at any time, because the limiter still decides.
    Precheck,
    /// A share of the units left by the limiter's last answer; without an answer, one request's cost.
    Fallback {
        /// The proxies that share the limit.
        proxies: u64,
        /// Whether other limiters still answer, so that the fallback will be short. Then the bucket
        /// starts with all units that were left, up to this proxy's share of the limit: over all
        /// proxies at most one capacity.
        answering: bool,
        /// How long admitted units count as a debt.
        span: DebtSpan,
    },
}

/// What to do with a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// Charge it if it fits.
    Charge,
    /// As [`Take::Charge`], and record a debt.
    ChargeAsDebt,
    /// Decide without a charge.
    Peek,
}

impl LocalBucket<'_> {
    /// Decides a cost and, if `take` says so, charges it. Returns the slot too if the bucket is a
    /// queue.
    ///
    /// # Errors
    /// Other workers wrote first, too often.
    pub(crate) fn decide(
        &self,
        host: &impl Host,
        now: Now,
        cost: u64,
        take: Take,
    ) -> Result<(Decision, Option<QueueSlot>), Contended> {
        self.table
            .update(host, self.key, self.generation, now, |found| {
                let state = self.state(found, now, cost);
                let keeps = match found.room {
                    Room::Own => true,
                    Room::Overflow => self.start != Start::Precheck,
                    Room::None => false,
                };
                let (at_ms, state_now) = (now.wall_ms, state.as_ref());
                let outcome = match take {
                    Take::Charge | Take::ChargeAsDebt => {
                        self.algorithm.charge_here(state_now, at_ms, cost)
                    }
                    Take::Peek => self.algorithm.peek_here(state_now, at_ms, cost, 0),
                };
                // Policies refuse limits here whose algorithm has no state of a fixed size.
                let Some(outcome) = outcome else {
                    return Update::Keep(Err(Contended));
                };
                let decided = (outcome.decision, outcome.slot);
                // The starting state is stored, or the bucket would start again each time.
                let stored = found.entry.local.is_some();
                match outcome.write.or(state.filter(|_| !stored)) {
                    Some(state) if keeps => {
                        if let (Take::ChargeAsDebt, Start::Fallback { span, .. }) =
                            (take, self.start)
                            && outcome.charged > 0
                            && found.room == Room::Own
                        {
                            found.entry.debt.add(outcome.charged, span, now.mono_us);
                        }
                        self.store(found, &state, &outcome.decision, now);
                        Update::Write(Ok(decided))
                    }
                    _ => Update::Keep(Ok(decided)),
                }
            })?
    }

    /// Refunds a charge that was made at `taken_at_ms`, as far as it still counts; in a queue,
    /// frees the slot.
    ///
    /// # Errors
    /// Other workers wrote first, too often.
    pub(crate) fn refund(
        &self,
        host: &impl Host,
        now: Now,
        taken_at_ms: u64,
        cost: u64,
        slot: Option<QueueSlot>,
    ) -> Result<(), Contended> {
        self.table
            .update(host, self.key, self.generation, now, |found| {
                let charge = Charged {
                    at_ms: taken_at_ms,
                    units: cost,
                    lease_ttl_ms: 0,
                    slot,
                };
                match self.refunded(found, now, &charge) {
                    Some((state, decision)) => {
                        self.store(found, &state, &decision, now);
                        Update::Write(())
                    }
                    // The bucket was evicted, or the limit edited.
                    None => Update::Keep(()),
                }
            })
    }

    /// The bucket's state after the refund, and a decision of cost 0 by it.
    fn refunded(
        &self,
        found: &Found<BucketEntry>,
        now: Now,
        charge: &Charged,
    ) -> Option<(State, Decision)> {
        let local = found.entry.local.as_ref()?;
        let state = State::from_bytes(&local.bytes)?;
        let state = self.algorithm.refund_here(&state, now.wall_ms, charge)?;
        let asked = self.algorithm.peek_here(Some(&state), now.wall_ms, 0, 0)?;
        Some((state, asked.decision))
    }

    /// The bucket's state; `None` if it is unused.
    fn state(&self, found: &Found<BucketEntry>, now: Now, cost: u64) -> Option<State> {
        let stored = found.entry.local.as_ref();
        if let Some(state) = stored.and_then(|local| State::from_bytes(&local.bytes)) {
            return Some(state);
        }
        let limit = self.algorithm.limit();
        // The overflow may contain this bucket's charges, unless the bucket has an entry.
        let overflow = found
            .overflow
            .as_ref()
            .filter(|_| found.entry.status.is_none());
        if let Some(state) = overflow.and_then(|local| State::from_bytes(&local.bytes)) {
            return Some(state);
        }
        match self.start {
            Start::Precheck => None,
            _ if found.room == Room::None => self.with_left(0, now.wall_ms),
            Start::Full => None,
            Start::Fallback {
                proxies,
                answering,
                span,
            } => match found.entry.status {
                None if answering => None,
                None => self.with_left(cost.min(limit), now.wall_ms),
                Some(status) => {
                    let at_ms = now.wall_of(status.at_us);
                    // The limiter's last status does not include debts.
                    let debt = found.entry.debt.units(span, now.mono_us);
                    let parts = if answering { 1 } else { proxies.max(1) };
                    let left = (status.remaining / parts).saturating_sub(debt);
                    self.with_left(left.min(limit), at_ms)
                }
            },
        }
    }

    fn store(&self, found: &mut Found<BucketEntry>, state: &State, decision: &Decision, now: Now) {
        let local = state.to_bytes().map(|bytes| LocalState {
            bytes,
            touched_us: now.mono_us,
            unused_at_us: if self.start == Start::Precheck {
                0
            } else {
                now.after_ms(decision.reset_after_ms)
            },
        });
        if found.room == Room::Own {
            found.entry.local = local;
        } else {
            found.overflow = local;
        }
    }

    /// The state of a bucket with this many units left.
    fn with_left(&self, units: u64, at_ms: u64) -> Option<State> {
        let used = self.algorithm.limit().saturating_sub(units);
        self.algorithm.peek_here(None, at_ms, 0, used)?.write
    }
}
