//! Batches checks: decides which checks share a call, and when it is sent.
//!
//! While few calls are in flight, a check leaves at once. Otherwise checks gather and leave together
//! when they fill a call, when a call ends, or when the youngest call has been in flight so long that
//! waiting for it costs more than another call.

use std::sync::Arc;

use policy::{Name, Revision};
use protocol::{
    CHECK_CBOR,
    compact::{Batch, BatchCheck},
};

use super::{CHECK_PATH, CheckCall};
use crate::{
    active_policy::PolicyState,
    host::{Host, Now},
    metrics::Event,
    outage::Gate,
    request::{Hold, PendingCheck},
    worker::{Step, Worker},
};

/// With fewer calls in flight than this, a check does not wait.
const EAGER_CALLS: usize = 1;
/// Bound: calls to limiters that a worker has in flight. Beyond it, checks wait.
const MAX_CALLS: usize = 8;
/// Bound: checks of one call. Beyond it, the others go in the next call.
const MAX_BATCH: usize = 128;
/// Bytes of entries in one call, at most, unless a single check has more: large requests of one client
/// must not make the checks of others fail. `lower_max_bytes` lowers it for a limiter that accepts
/// less.
const MAX_BATCH_BYTES: usize = 64 * 1024;
/// The lower bound of that.
const MIN_BATCH_BYTES: usize = 512;
/// Bound: checks that wait at a proxy. Beyond it, requests are decided without the limiter.
const MAX_WAITING: usize = 4096;
/// Checks gather behind calls in flight for the timeout divided by this.
const GATHER_PARTS: u64 = 8;

/// What a check adds to a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Bytes of its entries.
    pub(crate) bytes: usize,
    /// Checks in a call with it, at most.
    pub(crate) batch_max: usize,
}

impl Load {
    /// A check that may share a call with any others.
    pub(crate) const ANY: usize = MAX_BATCH;
}

/// Checks that wait to leave.
#[derive(Debug)]
pub(crate) struct Batcher<T> {
    waiting: Vec<T>,
    /// A running mean of the checks in a call, in [`Self::PARTS`].
    checks_per_call: usize,
    max_bytes: usize,
    gather_us: u64,
}

impl<T> Batcher<T> {
    const PARTS: usize = 16;

    /// A batcher for calls that time out after `timeout_ms`.
    pub(crate) fn new(timeout_ms: u64) -> Self {
        Self {
            waiting: Vec::new(),
            checks_per_call: 0,
            max_bytes: MAX_BATCH_BYTES,
            gather_us: timeout_ms.saturating_mul(1000) / GATHER_PARTS,
        }
    }

    /// Adds a check to the next call. Returns it if too many wait.
    pub(crate) fn push(&mut self, check: T) -> Result<(), T> {
        if self.waiting.len() >= MAX_WAITING {
            return Err(check);
        }
        self.waiting.push(check);
        Ok(())
    }

    /// Puts checks that a call left undecided before all others. There are no more than the calls in
    /// flight carried.
    pub(crate) fn requeue(&mut self, checks: Vec<T>) {
        self.waiting.splice(0..0, checks);
    }

    /// A limiter refused a call of several checks with so many bytes of entries as too large. The new
    /// maximum is half of that, never less than half of what the limiter accepts, so no client can
    /// shrink the calls of others further. Each call that it bounds raises it by a 256th: another limiter may
    /// accept more, and the refusal may have been that of a proxy on the way.
    pub(crate) fn lower_max_bytes(&mut self, bytes: usize) {
        self.max_bytes = self.max_bytes.min(bytes / 2).max(MIN_BATCH_BYTES);
    }

    /// Whether no check waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether it is time for a call beside those `in_flight`.
    pub(crate) fn is_ready(&self, in_flight: &[CheckCall<T>], now: Now) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        match in_flight.len() {
            0..EAGER_CALLS => true,
            // Checks do not gather behind a probe: only those that it was sent for wait for it.
            EAGER_CALLS..MAX_CALLS => in_flight.last().is_some_and(|call| {
                // A full call gains nothing by waiting.
                self.waiting.len() >= MAX_BATCH
                    || call.probe
                    || now.mono_us.saturating_sub(call.sent.mono_us) >= self.gather_us
            }),
            _ => false,
        }
    }

    /// Takes the checks of one call, the oldest first: at least one, and as many more as fit.
    fn take_batch(&mut self, load: impl Fn(&T) -> Load) -> Vec<T> {
        let (mut bytes, mut checks, mut batch_max) = (0, 0, MAX_BATCH);
        let max_bytes = self.max_bytes;
        let fits = |check: &&T| {
            let load = load(check);
            bytes += load.bytes;
            checks += 1;
            batch_max = batch_max.min(load.batch_max);
            bytes <= max_bytes && checks <= batch_max
        };
        let waiting = self.waiting.iter().take(MAX_BATCH);
        let count = waiting
            .take_while(fits)
            .count()
            .max(1)
            .min(self.waiting.len());
        if bytes > max_bytes {
            self.max_bytes = (max_bytes + max_bytes / 256).min(MAX_BATCH_BYTES);
        }
        self.checks_per_call += 2 * count;
        self.checks_per_call -= self.checks_per_call / (Self::PARTS / 2);
        self.waiting.drain(..count).collect()
    }

    /// How many checks shared a call lately, rounded down.
    pub(crate) fn checks_per_call(&self) -> usize {
        self.checks_per_call / Self::PARTS
    }

    /// Takes out all checks that wait.
    pub(crate) fn take_waiting(&mut self) -> Vec<T> {
        std::mem::take(&mut self.waiting)
    }

    /// Removes a check that was not sent yet. A check that was sent may be charged, and the answers are
    /// matched by position, so it must stay in the batch.
    pub(crate) fn cancel(&mut self, is_it: impl Fn(&T) -> bool) -> Option<T> {
        let at = self.waiting.iter().position(is_it)?;
        Some(self.waiting.remove(at))
    }
}

// --- End-of-turn batching: checks that arrive in one turn of the event loop leave together.
//
// In one turn, Envoy's event loop delivers all requests that have arrived, and writes to its
// connections after the last of them. So a call made with the first request leaves no sooner than one
// made at the end of the turn, which carries the checks of all.
//
// The worker sends at once while the breaker is open, because then no check leaves, and after the host
// missed an end-of-turn callback.

/// The longest duration of a turn, in microseconds. After that, a tick proves that the turn has ended.
const TURN_MAX_US: u64 = 20_000;

/// The state of end-of-turn batching.
#[derive(Debug, Default)]
pub(crate) struct TurnBatching {
    /// When the worker requested the callback that is due.
    requested_us: Option<u64>,
    /// Whether the host missed the last callback.
    missed: bool,
    /// Whether the breaker was open at the last attempt to send.
    barred: bool,
}

impl Worker {
    /// The turn ended for which the worker emitted a [`Step::AtTurnEnd`].
    pub fn on_turn_end(&mut self, host: &impl Host, now: Now) {
        self.calls.turn.requested_us = None;
        self.calls.turn.missed = false;
        self.free_slots(host, now);
        self.send(host, now);
    }

    /// Sends the checks that are ready at the end of this turn.
    pub(crate) fn send_soon(&mut self, host: &impl Host, now: Now) {
        if !self.calls.is_ready(now) {
            return;
        }
        let turn = &mut self.calls.turn;
        if turn.missed || turn.barred {
            self.send(host, now);
        } else if turn.requested_us.is_none() {
            turn.requested_us = Some(now.mono_us);
            self.steps.push_back(Step::AtTurnEnd);
        }
    }

    /// At a tick: sends the checks that are ready. The turn that they arrived in is over.
    pub(crate) fn send_overdue(&mut self, host: &impl Host, now: Now) {
        let requested_us = self.calls.turn.requested_us;
        if requested_us.is_some_and(|since_us| now.mono_us.saturating_sub(since_us) > TURN_MAX_US) {
            self.calls.turn.missed = true;
        }
        self.send(host, now);
    }

    /// Sends as many calls as are ready; with an open breaker, decides the checks without the limiter.
    fn send(&mut self, host: &impl Host, now: Now) {
        while self.calls.is_ready(now) {
            let gate = self.outage.breaker.gate(host, now);
            self.calls.turn.barred = gate == Gate::Open;
            if gate == Gate::Open {
                for check in self.calls.batcher.take_waiting() {
                    self.decide_unsent(host, now, check);
                }
                return;
            }
            self.send_checks(host, now, gate);
        }
    }
}

// --- Encodes a batch of checks and sends it as a call.

impl Worker {
    /// Sends the next batch of checks, or with [`Gate::Probe`] a probe in its place.
    fn send_checks(&mut self, host: &impl Host, now: Now, gate: Gate) {
        let mut checks = self.calls.batcher.take_batch(PendingCheck::load);
        let probe = gate == Gate::Probe;
        let body = if probe {
            // A probe charges nothing and carries no debts, so nothing is lost with it.
            let mut peek: Vec<_> = checks.first().map(PendingCheck::peek).into_iter().collect();
            self.encode(&mut peek)
        } else {
            self.take_debts(host, now, &mut checks);
            for check in &mut checks {
                check.attempts.count(now);
            }
            self.count_settlements(&checks);
            self.encode(&mut checks)
        };
        if self.calls.stream.is_open() && !probe {
            return self.send_on_stream(now, checks, &body);
        }
        let id = self.calls.registry.start_checks(now, probe, checks);
        if !probe {
            self.open_stream(now);
        }
        self.post(id, CHECK_PATH, CHECK_CBOR, body, 0);
    }

    /// Moves debts out of the shared table into the checks that charge them.
    fn take_debts(&self, host: &impl Host, now: Now, checks: &mut [PendingCheck]) {
        let failing = self.outage.breaker.failed_lately(now);
        for check in checks {
            check.take_debts(host, now, &self.process.table, failing);
        }
    }

    /// Counts the lease settlements in the checks that are sent for the first time.
    fn count_settlements(&mut self, checks: &[PendingCheck]) {
        let first = checks.iter().filter(|check| check.attempts.made == 1);
        let limit_checks = first.flat_map(|check| &check.limit_checks);
        for query in limit_checks.filter_map(|of| of.lease_query.as_deref()) {
            let (spent, returned) = query.settle.totals();
            self.counts.happened_to(Event::LeaseSettled, spent);
            self.counts.happened_to(Event::LeaseReturned, returned);
        }
    }

    fn encode(&self, checks: &mut [PendingCheck]) -> Vec<u8> {
        encode_checks(self, checks)
    }
}

/// The body of a call with some checks.
pub(crate) fn encode_checks(worker: &Worker, checks: &mut [PendingCheck]) -> Vec<u8> {
    let domain = worker.config.domain.clone();
    let revision = match &worker.policy.state {
        PolicyState::Limits(policy) => Some(policy.compiled.revision().clone()),
        PolicyState::NoLimits | PolicyState::Unknown => None,
    };
    encode(domain, worker.process.proxy.clone(), revision, checks)
}

/// Encodes the checks of one call. The batch borrows the values instead of copying them.
fn encode(
    domain: Name,
    proxy: String,
    revision: Option<Revision>,
    checks: &mut [PendingCheck],
) -> Vec<u8> {
    let first = checks.first();
    let keys = first.map_or_else(|| Arc::from([]), |check| Arc::clone(check.entries.keys()));
    let encoded = checks.iter_mut().map(|check| BatchCheck {
        values: check.entries.lend(&keys),
        cost: check.cost,
        limits: check.limit_requests(),
        max_delay_ms: (check.hold == Hold::Barred).then_some(0),
        slot: check.slot,
    });
    let batch = Batch {
        domain,
        proxy,
        checks: encoded.collect(),
        revision,
        keys: keys.to_vec(),
    };
    let body = batch.encode();
    for (check, encoded) in checks.iter_mut().zip(batch.checks) {
        check.entries.give_back(&keys, encoded.values);
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{CallId, InFlight, Registry};

    fn at(us: u64) -> Now {
        Now {
            mono_us: us,
            wall_ms: 0,
        }
    }

    const LIGHT: fn(&usize) -> Load = |_| bytes(1);

    fn bytes(bytes: usize) -> Load {
        let batch_max = Load::ANY;
        Load { bytes, batch_max }
    }

    fn batcher(checks: usize) -> Batcher<usize> {
        let mut batcher = Batcher::new(20);
        for check in 0..checks {
            batcher.push(check).unwrap();
        }
        batcher
    }

    /// Sends a batch in a call that stays in flight.
    fn send(batcher: &mut Batcher<usize>, registry: &mut Registry<usize>, us: u64) -> CallId {
        let checks = batcher.take_batch(LIGHT);
        registry.start_checks(at(us), false, checks)
    }

    #[test]
    fn the_first_checks_leave_at_once_and_later_ones_together() {
        let (mut batcher, mut registry) = (batcher(0), Registry::default());
        let mut sent = Vec::new();
        for check in 0..10 {
            batcher.push(check).unwrap();
            if batcher.is_ready(registry.checks(), at(check as u64)) {
                sent.push(send(&mut batcher, &mut registry, check as u64));
            }
        }
        assert_eq!(sent.len(), 1);
        let Some(InFlight::Checks(first)) = registry.finish(sent[0]) else {
            panic!("it is in flight");
        };
        assert_eq!(first.checks, [0]);
        assert!(batcher.is_ready(registry.checks(), at(10)));
        assert_eq!(batcher.take_batch(LIGHT), (1..10).collect::<Vec<_>>());
        assert!(!batcher.is_ready(registry.checks(), at(10)));
    }

    #[test]
    fn a_slow_answer_does_not_block_later_checks() {
        let (mut batcher, mut registry) = (batcher(1), Registry::default());
        send(&mut batcher, &mut registry, 0);
        batcher.push(1).unwrap();
        assert!(!batcher.is_ready(registry.checks(), at(2_499)));
        assert!(batcher.is_ready(registry.checks(), at(2_500)));
    }

    #[test]
    fn checks_do_not_gather_behind_a_probe() {
        let (mut batcher, mut registry) = (batcher(1), Registry::default());
        registry.start_checks(at(0), true, batcher.take_batch(LIGHT));
        batcher.push(1).unwrap();
        assert!(batcher.is_ready(registry.checks(), at(1)));
    }

    #[test]
    fn calls_and_their_checks_are_bounded() {
        let (mut batcher, mut registry) = (batcher(MAX_WAITING), Registry::default());
        assert_eq!(batcher.push(0), Err(0));
        let mut now = 0;
        while batcher.is_ready(registry.checks(), at(now)) {
            send(&mut batcher, &mut registry, now);
            now += 1;
        }
        let in_flight = registry.checks();
        assert_eq!(in_flight.len(), MAX_CALLS);
        assert!(in_flight.iter().all(|call| call.checks.len() == MAX_BATCH));
    }

    #[test]
    fn large_checks_leave_in_smaller_batches() {
        let mut batcher = batcher(10);
        let size = |check: &usize| bytes(if *check == 3 { 1 << 20 } else { 20_000 });
        let started = |b: &mut Batcher<usize>| b.take_batch(size);
        assert_eq!(started(&mut batcher), [0, 1, 2]);
        assert_eq!(started(&mut batcher), [3]);
        assert_eq!(started(&mut batcher), [4, 5, 6]);
    }

    #[test]
    fn requeued_checks_leave_first_in_smaller_batches() {
        let mut batcher = batcher(0);
        batcher.push(9).unwrap();
        batcher.requeue((0..4).collect());
        let half = |check: &usize| Load {
            bytes: 1,
            batch_max: if *check < 4 { 2 } else { Load::ANY },
        };
        let mut started = || batcher.take_batch(half);
        assert_eq!(
            [started(), started(), started()],
            [vec![0, 1], vec![2, 3], vec![9]]
        );
    }

    #[test]
    fn callouts_shrink_to_what_the_limiter_takes_and_no_further() {
        let mut batcher = batcher(100);
        let size = |_: &usize| bytes(1000);
        let mut refused = Vec::new();
        loop {
            let checks = batcher.take_batch(size);
            if checks.len() <= 10 {
                break;
            }
            batcher.lower_max_bytes(checks.len() * 1000);
            refused.push(checks.len());
            batcher.requeue(checks);
        }
        assert_eq!(refused, [65, 32, 16]);
        batcher.lower_max_bytes(0);
        assert_eq!(batcher.take_batch(|_| bytes(256)).len(), 2);
        // One refusal is not for ever.
        for _ in 0..2000 {
            let checks = batcher.take_batch(size);
            batcher.requeue(checks);
        }
        assert_eq!(batcher.take_batch(size).len(), 65);
    }

    #[test]
    fn a_cancelled_check_leaves_the_others_where_they_were() {
        let mut batcher = batcher(3);
        assert_eq!(batcher.cancel(|check| *check == 1), Some(1));
        assert_eq!(batcher.take_batch(LIGHT), [0, 2]);
        assert_eq!(batcher.cancel(|check| *check == 2), None);
    }
}
