//! Checks on a Cluster: script calls of one slot each, in rounds.
//!
//! Most checks are decided in the first round. One whose buckets are in several slots takes a round
//! for each, see [`CrossSlotCheck`]; all checks of a batch go through their rounds together.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use redis_link::{Deadline, Lane, Outcome, Request, is_refused, slot, value};
use tokio::time::{Instant, sleep_until};

use super::{
    RedisStore,
    checks::{TimedVerdict, call, decode, stale_at_ms, undecided},
};
use crate::{
    CheckError, Refusal, StoreError,
    plan::{
        CheckPlan,
        script::{
            CALL_MAX, Charge, Clock, CrossSlotCheck, ScriptCheck, ScriptError, SlotCheck,
            decode_refunds, encode_refunds,
        },
    },
    scripts::REFUND,
};

/// Pause before a retry on a bucket that is being migrated with the keys beside it, of which some have moved.
const AGAIN: Duration = Duration::from_millis(1);

/// A part of a check in a call: the index of the check, and the part.
type PartOfCheck<'a> = (usize, SlotCheck<'a>);

/// A charge to refund: the index of the check, that of the limit, and the charge.
type ToRefund<'a> = (usize, usize, Charge<'a>);

/// One script call.
enum Job<'a> {
    Check(Vec<PartOfCheck<'a>>),
    Refund(Vec<ToRefund<'a>>),
}

/// A batch of checks that is being decided.
struct ClusterBatch<'a, 'p> {
    plans: &'a [&'a CheckPlan<'p>],
    cross_slots: Vec<CrossSlotCheck<'a, CheckError>>,
    /// Slots that are being migrated: they decide only one bucket at a time.
    moving: BTreeSet<u16>,
    /// Migrating slots where the keys of one bucket are on two nodes: it decides without its denials.
    apart: BTreeSet<u16>,
    /// Whether the next round waits a moment.
    pause: bool,
    /// The server's time where a limit was stale, in milliseconds since the epoch.
    stale_at_ms: Option<u64>,
}

impl RedisStore {
    /// One result for each check, in order.
    pub(super) async fn decide_by_slot(
        &self,
        plans: &[&CheckPlan<'_>],
    ) -> Vec<Result<TimedVerdict, CheckError>> {
        let deadline = Deadline::within(self.options.timeout);
        let half = Instant::now() + self.options.timeout / 2;
        let mut batch = ClusterBatch {
            plans,
            cross_slots: plans
                .iter()
                .map(|planned| CrossSlotCheck::new(&planned.check, slot))
                .collect(),
            moving: BTreeSet::new(),
            apart: BTreeSet::new(),
            pause: false,
            stale_at_ms: None,
        };
        loop {
            let refunds = batch.refunds();
            // Charges of a check that does not pass are refunded even after its deadline.
            let until = if refunds.is_empty() {
                deadline
            } else {
                Deadline::within(self.options.timeout)
            };
            let jobs = batch.jobs(refunds);
            if jobs.is_empty() {
                break;
            }
            let calls: Vec<Request> = jobs.iter().map(Job::call).collect();
            let answers = self.servers.run(Lane::Data, &calls, until).await;
            let again = Instant::now() + AGAIN;
            for (job, answer) in jobs.into_iter().zip(answers) {
                match job {
                    Job::Check(slot_checks)
                        if is_refused(&answer, "TRYAGAIN")
                            && batch.retries(&slot_checks, again < half) => {}
                    Job::Check(slot_checks) => batch.decided(slot_checks, answer),
                    Job::Refund(charges) => batch.refunded(&charges, answer),
                }
            }
            if std::mem::take(&mut batch.pause) {
                sleep_until(again).await;
            }
        }
        if let Some(now_ms) = batch.stale_at_ms {
            self.clock_offset.set(now_ms);
        }
        batch.verdicts()
    }
}

/// The error of a check of which one slot executed something before another answered `stale`: a retry
/// would do it twice.
fn final_error() -> CheckError {
    StoreError::Refused(Refusal {
        code: "STALE".to_owned(),
        message: "the limits changed while the slots were called one by one".to_owned(),
    })
    .into()
}

impl Job<'_> {
    fn call(&self) -> Request {
        match self {
            Self::Check(slot_checks) => {
                let batch: Vec<_> = slot_checks
                    .iter()
                    .map(|(_, slot_check)| &slot_check.check)
                    .collect();
                call(&batch)
            }
            Self::Refund(charges) => {
                let charges: Vec<_> = charges.iter().map(|(.., charge)| *charge).collect();
                let call = encode_refunds(&charges, Clock::Server);
                Request::call(&REFUND, &call.keys, &call.args)
            }
        }
    }
}

impl<'a> ClusterBatch<'a, '_> {
    /// The result of each check.
    fn verdicts(self) -> Vec<Result<TimedVerdict, CheckError>> {
        let missing = || value::short().into();
        let cross_slots = self.cross_slots.into_iter();
        cross_slots
            .map(|cross_slot| {
                let executed = cross_slot.has_executed();
                let decided = cross_slot.decided(missing);
                decided.map_err(|error| match error {
                    CheckError::Stale if executed => final_error(),
                    CheckError::Store(error) if executed => CheckError::PartiallyCharged(error),
                    CheckError::CorruptBucket(_) if executed => {
                        CheckError::PartiallyCharged(StoreError::Corrupt(error.to_string()))
                    }
                    error => error,
                })
            })
            .collect()
    }

    /// The charges to refund now, by slot.
    fn refunds(&mut self) -> BTreeMap<u16, Vec<ToRefund<'a>>> {
        let mut by_slot: BTreeMap<u16, Vec<ToRefund<'a>>> = BTreeMap::new();
        for (check, cross_slot) in self.cross_slots.iter_mut().enumerate() {
            for (limit, slot, charge) in cross_slot.refund() {
                let charges = by_slot.entry(slot).or_default();
                charges.push((check, limit, charge));
            }
        }
        by_slot
    }

    /// What to send next: in each slot the checks in their order, then the refunds.
    fn jobs(&self, refunds: BTreeMap<u16, Vec<ToRefund<'a>>>) -> Vec<Job<'a>> {
        let mut by_slot: BTreeMap<u16, Vec<PartOfCheck<'a>>> = BTreeMap::new();
        for (check, cross_slot) in self.cross_slots.iter().enumerate() {
            for mut slot_check in cross_slot.next() {
                if self.apart.contains(&slot_check.slot) {
                    without_penalties(&mut slot_check.check);
                }
                by_slot
                    .entry(slot_check.slot)
                    .or_default()
                    .push((check, slot_check));
            }
        }
        let mut jobs = Vec::new();
        for (slot, slot_checks) in by_slot {
            let most = self.most(slot);
            jobs.extend(in_calls(slot_checks, most).into_iter().map(Job::Check));
        }
        for (slot, charges) in refunds {
            let calls = charges.chunks(self.most(slot));
            jobs.extend(calls.map(|charges| Job::Refund(charges.to_vec())));
        }
        jobs
    }

    /// The most that a call to a slot may weigh.
    fn most(&self, slot: u16) -> usize {
        if self.moving.contains(&slot) {
            1
        } else {
            CALL_MAX
        }
    }

    fn decided(&mut self, slot_checks: Vec<PartOfCheck<'a>>, answer: Outcome) {
        let batch: Vec<_> = slot_checks
            .iter()
            .map(|(_, slot_check)| &slot_check.check)
            .collect();
        match decode(answer, &batch) {
            Ok(reply) => {
                let now_ms = reply.now_ms;
                self.stale_at_ms = stale_at_ms(&reply).or(self.stale_at_ms);
                for ((check, slot_check), result) in slot_checks.into_iter().zip(reply.results) {
                    let result =
                        result.map_err(|error| self.undecided(check, slot_check.part, error));
                    self.answer(check, &slot_check, result.map(|verdict| (verdict, now_ms)));
                }
            }
            Err(error) => {
                for (check, slot_check) in slot_checks {
                    self.answer(check, &slot_check, Err(error.clone().into()));
                }
            }
        }
    }

    fn answer(
        &mut self,
        check: usize,
        slot_check: &SlotCheck<'a>,
        mut answer: Result<TimedVerdict, CheckError>,
    ) {
        if let Ok((verdict, _)) = &mut answer
            && self.apart.contains(&slot_check.slot)
        {
            for limit in &mut verdict.limits {
                limit.penalty.unread = true;
            }
        }
        if let Some(cross_slot) = self.cross_slots.get_mut(check) {
            cross_slot.answer(slot_check.part, answer);
        }
    }

    fn undecided(&self, check: usize, part: usize, error: ScriptError) -> CheckError {
        match (self.plans.get(check), self.cross_slots.get(check)) {
            (Some(planned), Some(cross_slot)) => {
                undecided(error, planned, |limit| cross_slot.limit(part, limit))
            }
            _ => value::short().into(),
        }
    }

    /// A slot that is being migrated had only some of a call's keys, and did nothing. From now on its buckets
    /// are called one by one; if they already were, the call is retried after a pause, and finally (not
    /// `early`) without the keys of denials. Returns false if nothing is left to try.
    fn retries(&mut self, slot_checks: &[PartOfCheck<'a>], early: bool) -> bool {
        let [(_, first), ..] = slot_checks else {
            return false;
        };
        let buckets: usize = slot_checks
            .iter()
            .map(|(_, slot_check)| slot_check.check.limits.len())
            .sum();
        self.moving.insert(first.slot);
        for (check, slot_check) in slot_checks {
            if let Some(cross_slot) = self.cross_slots.get_mut(*check) {
                cross_slot.split(slot_check.part);
            }
        }
        if buckets > 1 {
            return true;
        }
        self.pause |= early;
        // Each call that was refused with a penalty has one try without, whichever of the slot's was refused first.
        let mut limits = slot_checks
            .iter()
            .flat_map(|(_, slot_check)| &slot_check.check.limits);
        let lighter = !early && limits.any(|limit| limit.part.penalty.is_some());
        if lighter {
            self.apart.insert(first.slot);
        }
        early || lighter
    }

    fn refunded(&mut self, charges: &[ToRefund<'a>], answer: Outcome) {
        let reply = answer.and_then(value::integers).and_then(|numbers| {
            let read = decode_refunds(&numbers, charges.len());
            read.map_err(|error| StoreError::Corrupt(error.to_string()))
        });
        match reply {
            Ok(taken) => {
                for ((check, limit, _), taken) in charges.iter().zip(taken) {
                    if let Some(cross_slot) = self.cross_slots.get_mut(*check) {
                        cross_slot.refunded(*limit, taken);
                    }
                }
            }
            // Whether it ran is not known, so it is not sent again: at worst less is left.
            Err(error) => tracing::debug!(%error, "charges were not refunded"),
        }
    }
}

/// A bucket that was never denied has no denials to move with it, so no node decides it with that
/// key until the whole slot has moved.
fn without_penalties(check: &mut ScriptCheck<'_>) {
    for limit in &mut check.limits {
        limit.part.penalty = None;
    }
}

/// Cuts a slot's list so that no call weighs more than `most`, unless it is one check.
fn in_calls(slot_checks: Vec<PartOfCheck<'_>>, most: usize) -> Vec<Vec<PartOfCheck<'_>>> {
    let (mut calls, mut call, mut sum) = (Vec::new(), Vec::new(), 0);
    for (check, slot_check) in slot_checks {
        let weight = slot_check.check.weight();
        if sum > 0 && sum + weight > most {
            calls.push(std::mem::take(&mut call));
            sum = 0;
        }
        sum += weight;
        call.push((check, slot_check));
    }
    if !call.is_empty() {
        calls.push(call);
    }
    calls
}
