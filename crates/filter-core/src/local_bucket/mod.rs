//! Buckets that are decided here: those of this proxy alone, the ones in front of global limits,
//! and stand-ins for global ones during an outage.

mod share;

use algorithms::{Algorithm, Charged, Decision, QueueSlot, State};

pub(crate) use share::{Share, precheck};

use crate::{
    cache::{BucketEntry, BucketKey, Found, LocalState, Room, Table, Update},
    host::{Contended, Host},
    time::Now,
};

/// A bucket in the table, with the numbers it is decided by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalBucket<'a> {
    pub(crate) table: &'a Table,
    pub(crate) key: BucketKey,
    /// The generation of its limit.
    pub(crate) generation: u64,
    pub(crate) algorithm: &'a Algorithm,
    pub(crate) start: Start,
}

/// With how much a bucket starts that the table does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// All of it: the bucket lives here, so what is not here is unused.
    Unused,
    /// The same, and it may be forgotten at any time: the limiter still decides.
    Guard,
    /// This part of what the limiter last said was left; one request's cost if it never said.
    Share {
        /// Among how many proxies it is divided.
        proxies: u64,
        /// Whether other limiters still answer. Then this is soon over, and innocent clients are
        /// not to suffer for it: a bucket starts with the whole share of this proxy, or with all
        /// that was left if that is less. Over all proxies this is a capacity at most.
        answering: bool,
    },
}

/// What to do with a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// Take it if it fits.
    Charge,
    /// As [`Take::Charge`], and remember that the limiter does not know of it.
    Owe,
    /// Only ask.
    Peek,
}

impl LocalBucket<'_> {
    /// Decides a cost and, if asked to, takes it; of a queue, with the slot.
    ///
    /// # Errors
    /// Other workers were always faster.
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
                    Room::Overflow => self.start != Start::Guard,
                    Room::None => false,
                };
                let (at_ms, state_now) = (now.wall_ms, state.as_ref());
                let outcome = match take {
                    Take::Charge | Take::Owe => self.algorithm.charge_here(state_now, at_ms, cost),
                    Take::Peek => self.algorithm.peek_here(state_now, at_ms, cost, 0),
                };
                // Nothing without a state of a fixed size is kept here: policies refuse it.
                let Some(outcome) = outcome else {
                    return Update::Keep(Err(Contended));
                };
                let decided = (outcome.decision, outcome.slot);
                // A state that came to be by starting is kept, or it would start over and over.
                let stored = found.entry.local.is_some();
                match outcome.write.or(state.filter(|_| !stored)) {
                    Some(state) if keeps => {
                        if take == Take::Owe && outcome.charged > 0 && found.room == Room::Own {
                            let debt = &mut found.entry.debt;
                            debt.add(outcome.charged, self.span_us(), now.mono_us);
                        }
                        self.store(found, &state, &outcome.decision, now);
                        Update::Write(Ok(decided))
                    }
                    _ => Update::Keep(Ok(decided)),
                }
            })?
    }

    /// Puts back what was taken at `taken_at_ms`, as far as time has not; of a queue, the slot.
    ///
    /// # Errors
    /// Other workers were always faster.
    pub(crate) fn put_back(
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
                match self.without(found, now, &charge) {
                    Some((state, decision)) => {
                        self.store(found, &state, &decision, now);
                        Update::Write(())
                    }
                    // Pushed out, or of an older generation: there is nothing to put it into.
                    None => Update::Keep(()),
                }
            })
    }

    /// The bucket's state without a charge, and what that comes to.
    fn without(
        &self,
        found: &Found<BucketEntry>,
        now: Now,
        charge: &Charged,
    ) -> Option<(State, Decision)> {
        let local = found.entry.local.as_ref()?;
        let state = State::from_bytes(&local.bytes)?;
        let state = self.algorithm.take_back_here(&state, now.wall_ms, charge)?;
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
        // What the buckets without room took may have been this one's, unless it has an entry.
        let overflow = found
            .overflow
            .as_ref()
            .filter(|_| found.entry.status.is_none());
        if let Some(state) = overflow.and_then(|local| State::from_bytes(&local.bytes)) {
            return Some(state);
        }
        match self.start {
            Start::Guard => None,
            _ if found.room == Room::None => self.with_left(0, now.wall_ms),
            Start::Unused => None,
            Start::Share { proxies, answering } => match found.entry.status {
                None if answering => None,
                None => self.with_left(cost.min(limit), now.wall_ms),
                Some(status) => {
                    let at_ms = wall_of(status.at_us, now);
                    // The limiter has not been told of what is owed.
                    let debt = found.entry.debt.units(self.span_us(), now.mono_us);
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
            unused_at_us: if self.start == Start::Guard {
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

    /// The time in which a full bucket is forgotten.
    fn span_us(&self) -> u64 {
        self.algorithm.window_ms().saturating_mul(1000)
    }

    /// A bucket with so many units left.
    fn with_left(&self, units: u64, at_ms: u64) -> Option<State> {
        let used = self.algorithm.limit().saturating_sub(units);
        self.algorithm.peek_here(None, at_ms, 0, used)?.write
    }
}

/// A moment of the monotonic clock on the wall clock, as it is now.
fn wall_of(mono_us: u64, now: Now) -> u64 {
    let ago_ms = now.mono_us.saturating_sub(mono_us) / 1000;
    now.wall_ms.saturating_sub(ago_ms)
}
