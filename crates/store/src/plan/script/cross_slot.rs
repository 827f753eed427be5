//! A check whose buckets are in several slots of a Cluster, where no script can touch all of them.
//!
//! One slot decides after the other: each charges its limits if they all allow the check. After the first
//! denial the other slots charge nothing; the caller still calls them, so that the answer names every limit
//! that denies, and refunds what was charged before. Until the refund, other checks find less left than there
//! is, never more: a check that is denied in the end can cause others to be denied, but lets none pass.
//!
//! The slot that decides last grants leases, and the others do once all have allowed: a denied check is
//! granted nothing.
//!
//! No slot alone has all limits that deny together (`quota_mode`). To each they are observed limits; if the
//! check fits none of them, the plan denies it and refunds the rest.
//!
//! A slot that denies a check which waits counts no denial towards a penalty if the check would pass in time by the
//! limits that it has. If others make the denial final, the caller calls it again, to count it.
//!
//! This is the plan only: what to call next, by the replies so far. The caller does the I/O.

use algorithms::{
    Charged, LeaseRequest, LimitVerdict,
    check::{Mode, Options, Part, PenaltyRequest, Verdict, all_end_within},
};

use super::{Bucket, Charge, Refunded, ScriptCheck};

/// A check that several slots decide, one after the other.
#[derive(Debug)]
pub struct CrossSlotCheck<'a, E> {
    check: &'a ScriptCheck<'a>,
    parts: Vec<Share<E>>,
    refunded: bool,
}

/// Changes a limit before its part is sent.
type Change = fn(&mut Part<'_>);

/// One slot's part of a check, to be decided there.
#[derive(Clone, Debug)]
pub struct SlotCheck<'a> {
    /// The part's name in [`CrossSlotCheck::answer`].
    pub part: usize,
    /// The slot that decides it.
    pub slot: u16,
    /// The limits of that slot.
    pub check: ScriptCheck<'a>,
}

/// A check that every slot has decided, and the latest time that one did, in milliseconds.
pub type Decided<E> = Result<(Verdict, u64), E>;

impl<'a, E: Clone> CrossSlotCheck<'a, E> {
    /// A check of which nothing was sent yet. `slot_of` is the slot of a key.
    pub fn new(check: &'a ScriptCheck<'a>, slot_of: impl Fn(&[u8]) -> u16) -> Self {
        let mut parts: Vec<Share<E>> = Vec::new();
        for (index, limit) in check.limits.iter().enumerate() {
            let (slot, rank) = (slot_of(limit.key.as_bytes()), rank(limit));
            match parts.iter_mut().find(|part| part.slot == slot) {
                Some(part) => part.add(index, rank),
                None => parts.push(Share::new(slot, index, rank)),
            }
        }
        Self {
            check,
            parts,
            refunded: false,
        }
    }

    /// What to send now, all at once; if empty, the check is decided, except for [`CrossSlotCheck::refund`].
    pub fn next(&self) -> Vec<SlotCheck<'a>> {
        let open = || {
            let parts = self.parts.iter().enumerate();
            parts.filter(|(_, part)| matches!(part.state, State::Open))
        };
        if self.failed().is_some() {
            return Vec::new();
        }
        if self.check.options.peek || self.check.options.denied || self.is_denied() {
            let requests = open().map(|(i, part)| self.request(i, part, |_| ()));
            let requests: Vec<SlotCheck<'a>> = requests.collect();
            return if requests.is_empty() {
                self.uncounted()
            } else {
                requests
            };
        }
        if let Some((i, part)) = open().min_by_key(|(_, part)| part.rank) {
            let limit: Change = if open().nth(1).is_some() {
                without_surplus
            } else {
                |_| ()
            };
            return vec![self.request(i, part, limit)];
        }
        let parts = self.parts.iter().enumerate();
        let ungranted = parts.filter(|(_, part)| part.ungranted);
        ungranted
            .map(|(i, part)| {
                let mut request = self.request(i, part, surplus_alone);
                part.leave_over_limit(&mut request);
                request
            })
            .collect()
    }

    /// The calls that count denials, once all slots have decided.
    fn uncounted(&self) -> Vec<SlotCheck<'a>> {
        if self.parts.iter().all(|part| part.waits) {
            return Vec::new();
        }
        let parts = self.parts.iter().enumerate();
        let uncounted = parts.filter(|(_, part)| part.uncounted);
        uncounted
            .map(|(i, part)| {
                let mut request = self.request(i, part, denial_alone);
                request.check.options = Options {
                    peek: true,
                    force: self.check.options.force,
                    ..Options::default()
                };
                part.count_denials(&mut request);
                request
            })
            .collect()
    }

    fn request(&self, index: usize, part: &Share<E>, change: Change) -> SlotCheck<'a> {
        let limits = part.limits.iter().filter_map(|i| self.check.limits.get(*i));
        let limits = limits.map(|limit| {
            let mut limit = limit.clone();
            // Its slot has not all of those that deny together.
            if limit.part.mode == Mode::Together {
                limit.part.mode = Mode::Observe;
            }
            change(&mut limit.part);
            limit
        });
        let mut options = self.check.options;
        options.denied |= self.is_denied();
        SlotCheck {
            part: index,
            slot: part.slot,
            check: ScriptCheck {
                limits: limits.collect(),
                options,
            },
        }
    }

    /// Records the verdict of a part's slot, and its time. A failure fails the whole check.
    pub fn answer(&mut self, part: usize, answer: Decided<E>) {
        let others = self.parts.iter().enumerate();
        let mut others = others.filter(|(i, _)| *i != part);
        let is_last = !others.any(|(_, other)| matches!(other.state, State::Open));
        let wants = |i: &usize| {
            let limit = self.check.limits.get(*i);
            limit
                .and_then(|limit| limit.part.lease)
                .is_some_and(|lease| lease.want > 0)
        };
        let wanted = !is_last && !self.check.options.peek;
        let Some(part) = self.parts.get_mut(part) else {
            return;
        };
        if let State::Answered(_, verdict) = &mut part.state {
            // The call was for denials or lease units only, and may not have counted or granted any.
            let counted = std::mem::take(&mut part.uncounted);
            part.ungranted = false;
            match answer {
                Ok((counts, _)) if counted => add_penalties(verdict, &counts),
                Ok((granted, _)) => add_surplus(verdict, granted),
                Err(_) => {}
            }
            return;
        }
        if let Ok((verdict, _)) = &answer {
            part.wait(self.check, verdict);
        }
        part.ungranted = wanted && part.limits.iter().any(wants);
        part.state = match answer {
            Ok((verdict, now_ms)) => State::Answered(now_ms, verdict),
            Err(error) => State::Failed(error),
        };
    }

    /// Splits a part into parts of one limit each, because its slot is being migrated and cannot
    /// decide several buckets at once. Returns false if it has only one.
    pub fn split(&mut self, part: usize) -> bool {
        let Some(whole) = self.parts.get_mut(part).filter(|p| p.limits.len() > 1) else {
            return false;
        };
        // The check can do without lease units.
        (whole.ungranted, whole.uncounted) = (false, false);
        if !matches!(whole.state, State::Open) {
            return true;
        }
        let slot = whole.slot;
        whole.state = State::Split;
        let limits = std::mem::take(&mut whole.limits);
        for index in limits {
            let rank = self.check.limits.get(index).map_or(OBSERVED, rank);
            self.parts.push(Share::new(slot, index, rank));
        }
        true
    }

    /// The index in the check of a limit of a part.
    pub fn limit(&self, part: usize, limit: usize) -> usize {
        let part = self.parts.get(part).and_then(|part| part.limits.get(limit));
        part.copied().unwrap_or(limit)
    }

    /// Whether a slot has executed something that the caller must not send again, and that no refund undoes:
    /// settlements of leases, debits and denials towards a penalty. Or a charge is not known to be refunded.
    pub fn has_executed(&self) -> bool {
        let executed = |(index, verdict): (&usize, &LimitVerdict)| {
            let settles = |lease: LeaseRequest<'_>| !lease.settle.is_empty();
            let denied = !verdict.decision.allowed && !self.check.options.peek;
            let counts = |of: PenaltyRequest| of.reported > 0 || of.counts && denied;
            let acts = |Bucket { part, .. }: &Bucket<'_>| {
                part.debit > 0
                    || part.lease.is_some_and(settles)
                    || part.penalty.is_some_and(counts)
            };
            verdict.charged > 0 || self.check.limits.get(*index).is_some_and(acts)
        };
        self.parts.iter().any(|part| {
            let verdicts = part
                .verdict()
                .into_iter()
                .flat_map(|verdict| &verdict.limits);
            part.limits.iter().zip(verdicts).any(executed)
        })
    }

    fn failed(&self) -> Option<&E> {
        self.parts.iter().find_map(|part| match &part.state {
            State::Failed(error) => Some(error),
            _ => None,
        })
    }

    fn is_denied(&self) -> bool {
        self.verdicts().any(|verdict| !verdict.allowed) || self.fits_none_together()
    }

    /// Whether all limits that deny together have answered that the check does not fit.
    fn fits_none_together(&self) -> bool {
        let limits = &self.check.limits;
        let together = |at: &usize| {
            limits
                .get(*at)
                .is_some_and(|l| l.part.mode == Mode::Together)
        };
        let mut over = self.parts.iter().flat_map(|part| {
            let verdicts = part.verdict().map(|verdict| verdict.limits.as_slice());
            let grouped = part
                .limits
                .iter()
                .enumerate()
                .filter(|(_, at)| together(at));
            grouped.map(move |(nth, _)| {
                let verdict = verdicts.and_then(|limits| limits.get(nth));
                verdict.is_some_and(|limit| !limit.decision.allowed)
            })
        });
        over.next()
            .is_some_and(|first| first && over.all(|over| over))
    }

    fn verdicts(&self) -> impl Iterator<Item = &Verdict> {
        self.parts.iter().filter_map(Share::verdict)
    }

    /// The check's verdict. `missing` is the error for a limit that no slot decided, which does not
    /// happen once [`CrossSlotCheck::next`] is empty.
    pub fn decided(self, missing: impl Fn() -> E) -> Decided<E> {
        let mut limits: Vec<Option<LimitVerdict>> = vec![None; self.check.limits.len()];
        let (mut allowed, mut latest_ms) = (!self.fits_none_together(), 0);
        for part in self.parts {
            match part.state {
                State::Answered(now_ms, verdict) => {
                    allowed &= verdict.allowed;
                    latest_ms = latest_ms.max(now_ms);
                    for (index, verdict) in part.limits.into_iter().zip(verdict.limits) {
                        if let Some(limit) = limits.get_mut(index) {
                            *limit = Some(verdict);
                        }
                    }
                }
                State::Failed(error) => return Err(error),
                State::Open | State::Split => {}
            }
        }
        let limits: Option<Vec<_>> = limits.into_iter().collect();
        let mut limits = limits.ok_or_else(missing)?;
        if !allowed {
            // They are refunded, or may be: settled as well, they would give back units of others.
            for limit in &mut limits {
                limit.reserved.number = 0;
            }
        }
        Ok((Verdict { allowed, limits }, latest_ms))
    }
}

// ---- One limit of a check that goes through several slots.

/// Leaves out its query for lease units.
fn without_surplus(part: &mut Part<'_>) {
    if let Some(lease) = &mut part.lease {
        lease.want = 0;
    }
}

/// Leaves only its query for lease units: all else was done.
fn surplus_alone(part: &mut Part<'_>) {
    (part.cost, part.debit) = (0, 0);
    part.free.clear();
    (part.costs, part.penalty) = (None, None);
    if let Some(lease) = &mut part.lease {
        lease.settle = &[];
    }
}

/// Leaves only a denial that it counts: all else was done.
fn denial_alone(part: &mut Part<'_>) {
    let penalty = part.penalty.map(|penalty| PenaltyRequest {
        reported: u64::from(penalty.counts),
        counts: false,
        ..penalty
    });
    surplus_alone(part);
    without_surplus(part);
    part.penalty = penalty;
}

fn add_penalties(verdict: &mut Verdict, counted: &Verdict) {
    for (limit, counted) in verdict.limits.iter_mut().zip(&counted.limits) {
        limit.penalty = counted.penalty;
        // One that it began lasts longer than what denied the check.
        let decision = &mut limit.decision;
        decision.retry_after = decision.retry_after.later(counted.decision.retry_after);
        decision.reset_after_ms = decision.reset_after_ms.max(counted.decision.reset_after_ms);
    }
}

fn add_surplus(verdict: &mut Verdict, granted: Verdict) {
    for (limit, granted) in verdict.limits.iter_mut().zip(granted.limits) {
        limit.lease = granted.lease;
        limit.leased = granted.leased;
        limit.decision.remaining = granted.decision.remaining;
        limit.decision.reset_after_ms = granted.decision.reset_after_ms;
    }
}

/// The rank of limits that never deny: they are charged when no other limit can deny any more.
const OBSERVED: u8 = 2;

/// The order in which slots are charged. A queue comes late: when its charge is refunded, requests
/// that were queued after it stay where they are.
fn rank(limit: &Bucket<'_>) -> u8 {
    let is_queue = limit.part.algorithm.parameters().max_delay_ms.is_some();
    match limit.part.mode {
        Mode::Observe | Mode::Together => OBSERVED,
        Mode::Enforce => u8::from(is_queue),
    }
}

// ---- One slot's part of a check, and its progress.

/// The limits of a check whose buckets are in one slot.
#[derive(Debug)]
struct Share<E> {
    slot: u16,
    /// Their indices.
    limits: Vec<usize>,
    /// Lower ones are charged first.
    rank: u8,
    state: State<E>,
    /// Whether it has decided, but was not queried yet for lease units that the check wants.
    ungranted: bool,
    /// Whether the check would pass in time by its limits alone.
    waits: bool,
    /// Whether it has counted no denial therefore, but is to if that is final.
    uncounted: bool,
}

#[derive(Debug)]
enum State<E> {
    Open,
    /// Decided at this time of the slot's server, in milliseconds.
    Answered(u64, Verdict),
    Failed(E),
    /// Replaced by parts of one limit each.
    Split,
}

impl<E> Share<E> {
    /// A part with one limit, not sent yet.
    fn new(slot: u16, limit: usize, rank: u8) -> Self {
        Self {
            slot,
            limits: vec![limit],
            rank,
            state: State::Open,
            ungranted: false,
            waits: true,
            uncounted: false,
        }
    }

    /// Adds another limit of the slot. One that may deny makes the part one that may; a queue makes
    /// it a queue.
    fn add(&mut self, limit: usize, rank: u8) {
        self.limits.push(limit);
        self.rank = match (self.rank, rank) {
            (OBSERVED, other) | (other, OBSERVED) => other,
            (a, b) => a.max(b),
        };
    }

    /// What its slot decided.
    fn verdict(&self) -> Option<&Verdict> {
        match &self.state {
            State::Answered(_, verdict) => Some(verdict),
            State::Open | State::Failed(_) | State::Split => None,
        }
    }

    /// Records whether the check waits for it, as the script has decided.
    fn wait(&mut self, check: &ScriptCheck<'_>, verdict: &Verdict) {
        if verdict.allowed {
            return;
        }
        let limits = self.limits.iter().filter_map(|at| check.limits.get(*at));
        let limits = || limits.clone().map(|limit| &limit.part).zip(&verdict.limits);
        let waits = limits().map(|(part, limit)| part.wait(limit.decision.retry_after));
        self.waits = all_end_within(check.options.patience_ms, waits);
        let counts = |(part, limit): (&Part<'_>, &LimitVerdict)| {
            !limit.decision.allowed && part.penalty.is_some_and(|of| of.counts)
        };
        self.uncounted = self.waits && !check.options.peek && limits().any(counts);
    }

    /// Counts denials where it has denied.
    fn count_denials(&self, denials: &mut SlotCheck<'_>) {
        if let Some(verdict) = self.verdict() {
            for (limit, verdict) in denials.check.limits.iter_mut().zip(&verdict.limits) {
                if let Some(penalty) = &mut limit.part.penalty
                    && verdict.decision.allowed
                {
                    penalty.reported = 0;
                }
            }
        }
    }

    /// An observed limit grants no lease units to a check that is over it.
    fn leave_over_limit(&self, surplus: &mut SlotCheck<'_>) {
        if let Some(verdict) = self.verdict() {
            for (limit, verdict) in surplus.check.limits.iter_mut().zip(&verdict.limits) {
                if !verdict.decision.allowed {
                    without_surplus(&mut limit.part);
                }
            }
        }
    }
}

// ---- The charges of a check that is denied in the end, or failed.

impl<'a, E: Clone> CrossSlotCheck<'a, E> {
    /// The charges to refund, with their limits' indices and slots. Returned only once: the caller
    /// must not retry, because the outcome of a failed try is not known.
    pub fn refund(&mut self) -> Vec<(usize, u16, Charge<'a>)> {
        if self.refunded || !(self.is_denied() || self.failed().is_some()) {
            return Vec::new();
        }
        self.refunded = true;
        let limits = &self.check.limits;
        let charges = self.parts.iter().flat_map(|part| {
            let (now_ms, verdicts) = match &part.state {
                State::Answered(now_ms, verdict) => (*now_ms, verdict.limits.as_slice()),
                _ => (0, &[][..]),
            };
            let charged = part.limits.iter().zip(verdicts);
            charged.filter_map(move |(index, verdict)| {
                let bucket = limits.get(*index)?;
                let charge = Charge {
                    bucket,
                    charged: Charged {
                        at_ms: now_ms,
                        units: verdict.charged,
                        lease_ttl_ms: bucket.part.lease.map_or(0, |lease| lease.ttl_ms),
                        slot: verdict.slot,
                    },
                };
                (verdict.charged > 0).then_some((*index, part.slot, charge))
            })
        });
        charges.collect()
    }

    /// Records that a charge was refunded.
    pub fn refunded(&mut self, limit: usize, now: Refunded) {
        for part in &mut self.parts {
            let at = part.limits.iter().position(|index| *index == limit);
            let (State::Answered(_, verdict), Some(at)) = (&mut part.state, at) else {
                continue;
            };
            if let Some(verdict) = verdict.limits.get_mut(at) {
                verdict.decision.remaining = now.remaining;
                verdict.decision.reset_after_ms = now.reset_after_ms;
                if now.taken {
                    (verdict.charged, verdict.slot) = (0, None);
                }
            }
        }
    }
}
