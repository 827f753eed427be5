//! The calls in flight, by id: what each of them is for.

use crate::time::Now;

/// One call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(u32);

/// What a call in flight is for.
#[derive(Debug)]
pub(crate) enum InFlight<T> {
    /// A poll of the policy.
    Poll,
    /// A report.
    Report,
    /// Frees of slots that a deleted worker left.
    LeftoverFrees,
    /// A batch of checks.
    Checks(CheckCall<T>),
}

/// Checks that share a call.
#[derive(Debug)]
pub(crate) struct CheckCall<T> {
    pub(crate) id: CallId,
    pub(crate) sent: Now,
    /// Whether the call only tests if the limiter answers. The checks follow once it does.
    pub(crate) probe: bool,
    /// When it times out, if it is on the check stream: Envoy times only callouts.
    pub(crate) deadline_us: Option<u64>,
    pub(crate) checks: Vec<T>,
}

/// All calls in flight: at most one poll and one report, and as many check calls as the batcher
/// starts.
#[derive(Debug)]
pub(crate) struct Registry<T> {
    last_id: u32,
    poll: Option<CallId>,
    report: Option<(CallId, Now)>,
    leftover_frees: Vec<CallId>,
    checks: Vec<CheckCall<T>>,
}

impl<T> Default for Registry<T> {
    fn default() -> Self {
        Self {
            last_id: 0,
            poll: None,
            report: None,
            leftover_frees: Vec::new(),
            checks: Vec::new(),
        }
    }
}

impl CallId {
    /// The number that names the call on the check stream.
    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

impl<T> Registry<T> {
    /// Registers a poll. An answer to the poll before it is ignored from now on.
    pub(crate) fn start_poll(&mut self) -> CallId {
        let id = self.new_id();
        self.poll = Some(id);
        id
    }

    /// Registers a report. An answer to the report before it is ignored from now on.
    pub(crate) fn start_report(&mut self, now: Now) -> CallId {
        let id = self.new_id();
        self.report = Some((id, now));
        id
    }

    /// Registers a check call.
    pub(crate) fn start_checks(&mut self, now: Now, probe: bool, checks: Vec<T>) -> CallId {
        let id = self.new_id();
        self.checks.push(CheckCall {
            id,
            sent: now,
            probe,
            deadline_us: None,
            checks,
        });
        id
    }

    /// Registers a check call on the stream.
    pub(crate) fn start_streamed(&mut self, now: Now, deadline_us: u64, checks: Vec<T>) -> CallId {
        let id = self.start_checks(now, false, checks);
        if let Some(call) = self.checks.last_mut() {
            call.deadline_us = Some(deadline_us);
        }
        id
    }

    /// The call on the stream that an answer names.
    pub(crate) fn streamed(&self, id: u32) -> Option<CallId> {
        let streamed = self.checks.iter().filter(|call| call.deadline_us.is_some());
        let mut streamed = streamed.map(|call| call.id);
        streamed.find(|call| call.0 == id)
    }

    /// How many calls are on the stream.
    pub(crate) fn streamed_calls(&self) -> usize {
        let streamed = self.checks.iter();
        streamed.filter(|call| call.deadline_us.is_some()).count()
    }

    /// Takes out a call on the stream.
    pub(crate) fn take_streamed(&mut self) -> Option<CheckCall<T>> {
        self.take_streamed_if(|_| true)
    }

    /// Takes out a call on the stream that timed out, or that was sent later than `now` by a broken
    /// clock.
    pub(crate) fn take_expired(&mut self, now: Now) -> Option<CheckCall<T>> {
        self.take_streamed_if(|call| {
            now.mono_us < call.sent.mono_us
                || call.deadline_us.is_some_and(|at_us| at_us <= now.mono_us)
        })
    }

    fn take_streamed_if(&mut self, is_it: impl Fn(&CheckCall<T>) -> bool) -> Option<CheckCall<T>> {
        let mut calls = self.checks.iter();
        let at = calls.position(|call| call.deadline_us.is_some() && is_it(call))?;
        Some(self.checks.remove(at))
    }

    /// When the next call on the stream times out.
    pub(crate) fn next_deadline_us(&self) -> u64 {
        let deadlines = self.checks.iter().filter_map(|call| call.deadline_us);
        deadlines.min().unwrap_or(u64::MAX)
    }

    /// Registers a call that frees slots which a deleted worker left.
    pub(crate) fn start_leftover_frees(&mut self) -> CallId {
        let id = self.new_id();
        self.leftover_frees.push(id);
        id
    }

    /// Takes the checks of all calls in flight.
    pub(crate) fn take_checks(&mut self) -> Vec<T> {
        let calls = std::mem::take(&mut self.checks);
        calls.into_iter().flat_map(|call| call.checks).collect()
    }

    /// When the report in flight was sent.
    pub(crate) fn report_sent(&self) -> Option<Now> {
        self.report.map(|(_, sent)| sent)
    }

    /// The check calls in flight, the oldest first.
    pub(crate) fn checks(&self) -> &[CheckCall<T>] {
        &self.checks
    }

    /// Takes out a call that ended; `None` if nothing waits for it any more.
    pub(crate) fn finish(&mut self, id: CallId) -> Option<InFlight<T>> {
        if self.poll.take_if(|poll| *poll == id).is_some() {
            return Some(InFlight::Poll);
        }
        if self.report.take_if(|(report, _)| *report == id).is_some() {
            return Some(InFlight::Report);
        }
        if let Some(at) = self
            .leftover_frees
            .iter()
            .position(|leftover_frees| *leftover_frees == id)
        {
            self.leftover_frees.swap_remove(at);
            return Some(InFlight::LeftoverFrees);
        }
        let at = self.checks.iter().position(|call| call.id == id)?;
        Some(InFlight::Checks(self.checks.remove(at)))
    }

    /// Takes out the oldest check call if it was sent more than `lost_us` ago.
    pub(crate) fn take_lost(&mut self, now: Now, lost_us: u64) -> Option<CheckCall<T>> {
        let first = self.checks.first()?;
        (now.mono_us.saturating_sub(first.sent.mono_us) > lost_us).then(|| self.checks.remove(0))
    }

    fn new_id(&mut self) -> CallId {
        // 0 names no call on the stream.
        self.last_id = self.last_id.wrapping_add(1).max(1);
        CallId(self.last_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::at;

    #[test]
    fn an_id_names_one_call_until_it_ends() {
        let mut registry = Registry::default();
        let poll = registry.start_poll();
        let checks = registry.start_checks(at(1), false, vec![7]);
        let report = registry.start_report(at(2));
        assert!(matches!(registry.finish(poll), Some(InFlight::Poll)));
        assert!(matches!(registry.finish(report), Some(InFlight::Report)));
        let Some(InFlight::Checks(call)) = registry.finish(checks) else {
            panic!("it is in flight");
        };
        assert_eq!((call.checks, call.sent), (vec![7], at(1)));
        for id in [poll, checks, report] {
            assert!(registry.finish(id).is_none());
        }
    }

    #[test]
    fn a_poll_that_was_replaced_is_not_answered_any_more() {
        let mut registry = Registry::<()>::default();
        let given_up = registry.start_poll();
        let poll = registry.start_poll();
        assert!(registry.finish(given_up).is_none());
        assert!(registry.finish(poll).is_some());
    }

    #[test]
    fn a_call_that_the_host_never_ends_is_taken_out() {
        let mut registry = Registry::default();
        let id = registry.start_checks(at(0), false, vec![0]);
        assert!(registry.take_lost(at(1040), 1_040_000).is_none());
        assert_eq!(registry.take_lost(at(1041), 1_040_000).unwrap().checks, [0]);
        assert!(registry.finish(id).is_none());
    }
}
