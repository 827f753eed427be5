//! Many checks, few callouts.
//!
//! A check need not wait while few callouts are in flight. While they are,
//! checks gather, and leave together when one lands, or when the youngest
//! callout has been away long enough that waiting for it costs more than
//! another callout would.

use crate::time::Now;

/// Callouts in flight up to which a check does not wait.
const EAGER_CALLS: usize = 1;
/// Callouts in flight at once, at most.
const MAX_CALLS: usize = 8;
/// Checks in one callout, at most.
const MAX_BATCH: usize = 128;
/// Bytes of entries in one callout, at most, unless a single check has more: what one client
/// sends must not make the checks of others fail. A limiter that takes less lowers it.
const MAX_BATCH_BYTES: usize = 64 * 1024;
/// It is never lowered further.
const MIN_BATCH_BYTES: usize = 512;
/// Checks waiting, at most. Beyond them a check is answered as if the limiter were away.
const MAX_WAITING: usize = 4096;
/// The part of the timeout that checks gather behind callouts in flight.
const GATHER_PARTS: u64 = 8;

/// One callout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub(crate) u32);

/// Checks that left together.
#[derive(Debug)]
pub(crate) struct CheckCall<T> {
    pub(crate) id: CallId,
    pub(crate) sent: Now,
    /// Whether it only asks if there is an answer, before the checks are asked for.
    pub(crate) probe: bool,
    pub(crate) checks: Vec<T>,
}

/// What a check adds to a callout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Bytes of its entries.
    pub(crate) bytes: usize,
    /// Checks in a callout with it, at most.
    pub(crate) batch_max: usize,
}

impl Load {
    /// A check that may leave with any others.
    pub(crate) const ANY: usize = MAX_BATCH;
}

/// Checks waiting to leave, and callouts on their way.
#[derive(Debug)]
pub(crate) struct Batcher<T> {
    waiting: Vec<T>,
    calls: Vec<CheckCall<T>>,
    /// How many checks left together of late, in [`Self::PARTS`].
    checks_per_call: usize,
    max_bytes: usize,
    timeout_us: u64,
    next_id: u32,
}

impl<T> Batcher<T> {
    const PARTS: usize = 16;

    /// A batcher for callouts that time out after `timeout_ms`.
    pub(crate) fn new(timeout_ms: u64) -> Self {
        Self {
            waiting: Vec::new(),
            calls: Vec::new(),
            checks_per_call: 0,
            max_bytes: MAX_BATCH_BYTES,
            timeout_us: timeout_ms.saturating_mul(1000),
            next_id: 0,
        }
    }

    /// Lets a check wait for the next callout; gives it back if too many wait.
    pub(crate) fn push(&mut self, check: T) -> Result<(), T> {
        if self.waiting.len() >= MAX_WAITING {
            return Err(check);
        }
        self.waiting.push(check);
        Ok(())
    }

    /// Puts checks that come back undecided before all others. They are no more than calls in
    /// flight carry.
    pub(crate) fn requeue(&mut self, checks: Vec<T>) {
        self.waiting.splice(0..0, checks);
    }

    /// A callout of several checks with so many bytes of entries was too large for the limiter.
    /// Half of that is never less than half of what the limiter takes, so that no client can
    /// shrink the callouts of others further.
    pub(crate) fn lower_max_bytes(&mut self, bytes: usize) {
        self.max_bytes = self.max_bytes.min(bytes / 2).max(MIN_BATCH_BYTES);
    }

    /// Whether no check waits, and none is on its way.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.calls.is_empty()
    }

    /// Whether it is time for a callout.
    pub(crate) fn is_ready(&self, now: Now) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let gathered_us = self.timeout_us / GATHER_PARTS;
        let youngest = self.calls.last();
        match self.calls.len() {
            0..EAGER_CALLS => true,
            // Nobody waits for a probe but those that it was sent for.
            EAGER_CALLS..MAX_CALLS => youngest.is_some_and(|f| {
                f.probe || now.mono_us.saturating_sub(f.sent.mono_us) >= gathered_us
            }),
            _ => false,
        }
    }

    /// Puts the longest waiting checks into a callout: at least one, and then as many as do not
    /// make it too large.
    pub(crate) fn start_call(&mut self, now: Now, load: impl Fn(&T) -> Load) -> &mut CheckCall<T> {
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
        let checks = self.waiting.drain(..count).collect();
        self.checks_per_call += 2 * count;
        self.checks_per_call -= self.checks_per_call / (Self::PARTS / 2);
        let id = self.new_id();
        self.calls.push_mut(CheckCall {
            id,
            sent: now,
            probe: false,
            checks,
        })
    }

    /// How many checks share a callout of late, rounded down.
    pub(crate) fn checks_per_call(&self) -> usize {
        self.checks_per_call / Self::PARTS
    }

    /// An id for a callout that carries no checks.
    pub(crate) fn new_id(&mut self) -> CallId {
        self.next_id = self.next_id.wrapping_add(1);
        CallId(self.next_id)
    }

    /// Takes out a callout that was answered or failed.
    pub(crate) fn finish(&mut self, id: CallId) -> Option<CheckCall<T>> {
        let at = self.calls.iter().position(|call| call.id == id)?;
        Some(self.calls.remove(at))
    }

    /// Takes out a callout that should have been answered long ago. The host reports every
    /// one, timeouts included; this is for the day it does not.
    pub(crate) fn take_lost(&mut self, now: Now) -> Option<CheckCall<T>> {
        let patience_us = self.timeout_us.saturating_mul(2).saturating_add(1_000_000);
        let first = self.calls.first()?;
        (now.mono_us.saturating_sub(first.sent.mono_us) > patience_us).then(|| self.calls.remove(0))
    }

    /// Takes out all checks that wait, because nobody may call.
    pub(crate) fn take_waiting(&mut self) -> Vec<T> {
        std::mem::take(&mut self.waiting)
    }

    /// Drops a check that has not left yet. One that has is charged, and its place in the
    /// answer is needed to read the others'.
    pub(crate) fn cancel(&mut self, is_it: impl Fn(&T) -> bool) -> Option<T> {
        let at = self.waiting.iter().position(is_it)?;
        Some(self.waiting.remove(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn the_first_checks_leave_at_once_and_later_ones_together() {
        let mut batcher = batcher(0);
        let mut sent = Vec::new();
        for check in 0..10 {
            batcher.push(check).unwrap();
            if batcher.is_ready(at(check as u64)) {
                sent.push(batcher.start_call(at(check as u64), LIGHT).checks.clone());
            }
        }
        assert_eq!(sent, [vec![0]]);
        let finished = batcher.finish(CallId(1)).unwrap();
        assert_eq!(finished.checks, [0]);
        assert!(batcher.is_ready(at(10)));
        assert_eq!(
            batcher.start_call(at(10), LIGHT).checks,
            (1..10).collect::<Vec<_>>()
        );
        assert!(!batcher.is_ready(at(10)));
    }

    #[test]
    fn a_slow_answer_does_not_hold_the_others_up() {
        let mut batcher = batcher(1);
        batcher.start_call(at(0), LIGHT);
        batcher.push(1).unwrap();
        assert!(!batcher.is_ready(at(2_499)));
        assert!(batcher.is_ready(at(2_500)));
    }

    #[test]
    fn checks_do_not_gather_behind_a_probe() {
        let mut batcher = batcher(1);
        batcher.start_call(at(0), LIGHT).probe = true;
        batcher.push(1).unwrap();
        assert!(batcher.is_ready(at(1)));
    }

    #[test]
    fn callouts_and_their_checks_are_bounded() {
        let mut batcher = batcher(MAX_WAITING);
        assert_eq!(batcher.push(0), Err(0));
        let mut calls = 0;
        let mut now = 0;
        while batcher.is_ready(at(now)) {
            assert_eq!(batcher.start_call(at(now), LIGHT).checks.len(), MAX_BATCH);
            calls += 1;
            now += 2_500;
        }
        assert_eq!(calls, MAX_CALLS);
    }

    #[test]
    fn large_checks_leave_in_smaller_batches() {
        let mut batcher = batcher(10);
        let size = |check: &usize| bytes(if *check == 3 { 1 << 20 } else { 20_000 });
        let started = |b: &mut Batcher<usize>| b.start_call(at(0), size).checks.clone();
        assert_eq!(started(&mut batcher), [0, 1, 2]);
        assert_eq!(started(&mut batcher), [3]);
        assert_eq!(started(&mut batcher), [4, 5, 6]);
    }

    #[test]
    fn checks_that_were_refused_together_leave_in_smaller_batches_before_others() {
        let mut batcher = batcher(0);
        batcher.push(9).unwrap();
        batcher.requeue((0..4).collect());
        let half = |check: &usize| Load {
            bytes: 1,
            batch_max: if *check < 4 { 2 } else { Load::ANY },
        };
        let mut started = || batcher.start_call(at(0), half).checks.clone();
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
            let checks = batcher.start_call(at(0), size).checks.clone();
            if checks.len() <= 10 {
                break;
            }
            batcher.lower_max_bytes(checks.len() * 1000);
            refused.push(checks.len());
            batcher.requeue(checks);
        }
        assert_eq!(refused, [65, 32, 16]);
        batcher.lower_max_bytes(0);
        assert_eq!(batcher.start_call(at(0), |_| bytes(256)).checks.len(), 2);
    }

    #[test]
    fn a_cancelled_check_leaves_the_others_where_they_were() {
        let mut batcher = batcher(3);
        assert_eq!(batcher.cancel(|check| *check == 1), Some(1));
        assert_eq!(batcher.start_call(at(0), LIGHT).checks, [0, 2]);
        assert_eq!(batcher.cancel(|check| *check == 2), None);
    }

    #[test]
    fn a_callout_that_the_host_forgot_is_found() {
        let mut batcher = batcher(1);
        batcher.start_call(at(0), LIGHT);
        assert!(batcher.take_lost(at(1_040_000)).is_none());
        assert_eq!(batcher.take_lost(at(1_040_001)).unwrap().checks, [0]);
        assert!(batcher.finish(CallId(1)).is_none());
    }
}
