//! Requests that a queue holds, and the slots of those that left early.

use std::rc::Rc;

use algorithms::SlotAct;
use protocol::{Answer, Free};

use crate::{
    active_policy::ActivePolicy,
    host::Host,
    request::{Claims, Extracted, LocalUnits, PendingCheck, SlotRelease},
    response::QuotaHeaders,
    time::Now,
    worker::{Edits, StreamId, Worker},
};

/// Releases of slots of requests in flight that wait for a limiter, at most: each of up to 64 slots.
const MAX_UNSENT: usize = 4096;

/// Held requests, sorted so that the next one to continue is last.
#[derive(Debug)]
pub(crate) struct Holds {
    waiting: Vec<Held>,
    /// Counts the permits: each request that is held, or may be, has a clone.
    permits: Rc<()>,
    max: usize,
    /// Slots of requests that left since the last event: of queues of this proxy, and of the store.
    released_local: Vec<LocalUnits>,
    released: Vec<LimiterSlots>,
    /// Releases that no limiter has received yet: at most `max`.
    unsent: Vec<PendingCheck>,
}

/// One of `hold.max` permits to hold a request, until it is dropped.
#[derive(Debug)]
pub(crate) struct HoldPermit(#[expect(dead_code, reason = "it is counted")] Rc<()>);

/// A request that is held until its slot starts.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) until_us: u64,
    pub(crate) stream: StreamId,
    pub(crate) edits: Edits,
    pub(crate) quotas: QuotaHeaders,
    /// Its slots in queues, freed if it leaves before they start, and its permit.
    pub(crate) claims: Claims,
}

/// Slots in queues in the store.
#[derive(Debug)]
pub(crate) struct LimiterSlots {
    policy: Rc<ActivePolicy>,
    entries: Extracted,
    slots: Vec<Free>,
    /// When all of them have passed, on the monotonic clock.
    until_us: u64,
}

impl Holds {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            waiting: Vec::new(),
            permits: Rc::default(),
            max,
            released_local: Vec::new(),
            released: Vec::new(),
            unsent: Vec::new(),
        }
    }

    /// When the next request continues; `u64::MAX`: none is held.
    pub(crate) fn next_us(&self) -> u64 {
        self.waiting.last().map_or(u64::MAX, |held| held.until_us)
    }

    /// A permit for one more request; `None`: `hold.max` are taken.
    pub(crate) fn permit(&self) -> Option<HoldPermit> {
        let taken = Rc::strong_count(&self.permits) - 1;
        (taken < self.max).then(|| HoldPermit(Rc::clone(&self.permits)))
    }

    /// Holds a request. Requests that continue at the same moment keep their order of arrival.
    pub(crate) fn add(&mut self, held: Held) {
        let at = self
            .waiting
            .partition_point(|other| other.until_us > held.until_us);
        self.waiting.insert(at, held);
    }

    /// Takes out a request whose delay is over.
    pub(crate) fn next_due(&mut self, now: Now) -> Option<Held> {
        self.waiting.pop_if(|held| now.reached(held.until_us))
    }

    /// Takes out a request that left.
    pub(crate) fn take(&mut self, stream: StreamId) -> Option<Held> {
        let at = self.waiting.iter().position(|held| held.stream == stream)?;
        Some(self.waiting.remove(at))
    }

    /// Releases the slots of a request that does not continue.
    pub(crate) fn release(&mut self, local: Vec<LocalUnits>, queued: Option<Box<LimiterSlots>>) {
        self.released_local.extend(local);
        self.released.extend(queued.map(|slots| *slots));
    }

    /// Whether no release is pending.
    pub(crate) fn is_settled(&self) -> bool {
        self.released_local.is_empty() && self.released.is_empty() && self.unsent.is_empty()
    }

    /// Takes the releases that could not be sent.
    pub(crate) fn take_unsent(&mut self) -> Vec<PendingCheck> {
        std::mem::take(&mut self.unsent)
    }

    /// Keeps a release that could not be sent, unless all its slots have passed.
    fn keep_unsent(&mut self, mut check: PendingCheck, now: Now) {
        let Some(release) = &check.free else {
            return;
        };
        let max = match release.skip {
            Some(_) => MAX_UNSENT,
            None => self.max,
        };
        if release.until_us > now.mono_us && self.unsent.len() < max {
            // The failed call consumed the entries.
            check.entries = release.entries.clone();
            self.unsent.push(check);
        }
    }
}

impl LimiterSlots {
    /// The slots in an answer; `None`: there are none.
    pub(crate) fn of(check: &PendingCheck, answer: &Answer, now: Now) -> Option<Box<Self>> {
        let (policy, entries) = (check.policy.clone()?, check.hold.entries.as_deref()?);
        let given = answer.limits.iter().filter(|limit| limit.charged > 0);
        let slots = given.clone().filter_map(|limit| {
            Some(Free {
                limit: limit.name.clone(),
                slot: limit.slot.filter(|slot| slot.ttl_ms().is_none())?,
                units: limit.charged,
            })
        });
        let slots: Vec<Free> = slots.collect();
        let reset_ms = given.map(|limit| limit.reset_after_ms).max()?;
        (!slots.is_empty()).then(|| {
            Box::new(Self {
                policy,
                entries: entries.clone(),
                slots,
                until_us: now.after_ms(reset_ms),
            })
        })
    }
}

impl Worker {
    /// A check about slots was not answered. One that frees slots is kept; slots to be renewed become
    /// due again.
    pub(crate) fn keep_unsent(&mut self, check: PendingCheck, now: Now) {
        match check.free.as_deref() {
            Some(release) if release.act != SlotAct::Free => {
                self.on_slots_unanswered(now, release);
            }
            _ => self.requests.holds.keep_unsent(check, now),
        }
    }

    /// Frees released slots: in local buckets at once, in the store with the next check call.
    pub(crate) fn free_slots(&mut self, host: &impl Host, now: Now) {
        self.free_in_flight(host, now);
        self.settle_costs(now);
        for units in std::mem::take(&mut self.requests.holds.released_local) {
            self.refund(host, now, &units);
        }
        for slots in std::mem::take(&mut self.requests.holds.released) {
            self.free_global(now, slots);
        }
    }

    /// Sends the releases that could not be sent before.
    pub(crate) fn retry_unsent(&mut self, now: Now) {
        for check in std::mem::take(&mut self.requests.holds.unsent) {
            let to_come = |release: &SlotRelease| release.until_us > now.mono_us;
            if check.free.as_deref().is_some_and(to_come)
                && let Err(check) = self.calls.batcher.push(check)
            {
                self.keep_unsent(check, now);
            }
        }
    }

    fn free_global(&mut self, now: Now, slots: LimiterSlots) {
        let policy = slots.policy;
        let limit_checks = self.limit_checks_of(&slots.entries, &policy, now);
        let mut check = PendingCheck::background(policy, slots.entries.clone(), limit_checks);
        check.free = Some(Box::new(SlotRelease {
            act: SlotAct::Free,
            streams: Vec::new(),
            settle: Vec::new(),
            skip: None,
            slots: slots.slots,
            entries: slots.entries,
            until_us: slots.until_us,
        }));
        if let Err(check) = self.calls.batcher.push(check) {
            self.keep_unsent(check, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_go_on_in_the_order_of_their_turns() {
        let mut holds = Holds::new(5);
        for (stream, until_us) in [(1, 30), (2, 10), (3, 20), (4, 10), (5, 40)] {
            let permit = holds.permit().unwrap();
            holds.add(Held {
                until_us,
                stream: StreamId(stream),
                edits: Edits::default(),
                quotas: QuotaHeaders::default(),
                claims: Claims {
                    permit: Some(permit),
                    ..Claims::default()
                },
            });
        }
        assert!(holds.permit().is_none());
        holds.take(StreamId(3));
        assert!(holds.permit().is_some());
        let now = Now {
            mono_us: 30,
            wall_ms: 0,
        };
        let mut order = Vec::new();
        while let Some(held) = holds.next_due(now) {
            order.push(held.stream.0);
        }
        assert_eq!(order, [2, 4, 1]);
        assert_eq!(holds.next_us(), 40);
    }
}
