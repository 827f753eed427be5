//! What follows a decision that a request may go on, and what one that it may not.

use std::rc::Rc;

use policy::Name;
use protocol::{DecidedBy, Outcome};

use super::{
    Edits, Stream, StreamId, Worker,
    active::Active,
    case::{Case, Leased, Mode, Part},
    hold::{Held, HoldPlace, LocalSlot, Slots},
    ticks::HOLDING_MS,
};
use crate::{
    client::{Denial, Shown, Standing},
    host::Host,
    local::{LocalBucket, Start},
    metrics::Event,
    time::Now,
};

/// What is known of a request that may go on.
#[derive(Debug, Default)]
pub(super) struct Admission {
    /// How the client stands with limits decided elsewhere.
    pub(super) standings: Vec<Standing>,
    /// Limits that mark the request.
    pub(super) degraded: Vec<Name>,
    /// How long it is held, in milliseconds.
    pub(super) delay_ms: u64,
    /// Its slots in queues that were asked elsewhere.
    pub(super) slots: Slots,
}

impl Worker {
    /// Lets a request go on, now or when its turn has come.
    pub(super) fn admit(
        &mut self,
        host: &impl Host,
        now: Now,
        case: &mut Case,
        mut admission: Admission,
    ) {
        if let Some(policy) = case.policy.clone() {
            for part in &mut case.parts {
                self.admit_local(host, now, &policy, part, &mut admission);
                self.admit_leased(now, &policy, part, &mut admission);
            }
        }
        let Some(stream) = case.stream else {
            return;
        };
        let edits = Edits {
            degraded: (!admission.degraded.is_empty()).then(|| {
                let names: Vec<&str> = admission.degraded.iter().map(Name::as_str).collect();
                names.join(", ")
            }),
        };
        let shown = Shown {
            standings: admission.standings,
        };
        let mut slots = admission.slots;
        if let Some(policy) = &case.policy {
            slots.local.extend(local_slots(policy, &case.parts));
        }
        if admission.delay_ms == 0 {
            if let Some(policy) = &case.policy {
                self.spend(policy, &mut case.parts);
            }
            self.pass(stream, edits, shown);
        } else if let Some(place) = self.hold_place(case) {
            if let Some(policy) = &case.policy {
                self.spend(policy, &mut case.parts);
            }
            let until_us = now.after_ms(admission.delay_ms);
            self.streams.insert(stream, Stream::Held);
            self.holds.add(Held {
                until_us,
                stream,
                edits,
                shown,
                slots,
                place,
            });
            self.ticks.by(now, until_us, HOLDING_MS);
        } else {
            self.holds.give_up(slots);
            if let Some(policy) = &case.policy {
                self.put_back_units(policy, &case.parts);
            }
            self.refuse_hold(stream, case, admission.delay_ms, shown.standings);
        }
    }

    /// Whether a request may wait; if so, it has a place.
    pub(super) fn may_hold(&self, case: &mut Case) -> bool {
        case.hold.place = self.hold_place(case);
        case.hold.place.is_some()
    }

    /// Where a request may wait.
    fn hold_place(&self, case: &mut Case) -> Option<HoldPlace> {
        case.hold.place.take().or_else(|| self.holds.place())
    }

    /// Sees to it that a request may wait if it has to, before anything else is charged for it. One
    /// for which there is no place asks queues for no delay; one that was delayed here already is
    /// refused, and `false` returned.
    pub(super) fn prepare_hold(&mut self, host: &impl Host, now: Now, case: &mut Case) -> bool {
        if !case.may_be_held() {
            return true;
        }
        case.hold.place = self.holds.place();
        case.hold.barred = case.hold.place.is_none();
        case.hold.entries = Some(Box::new(case.entries.clone()));
        let delays = case.parts.iter().filter_map(|part| part.decided);
        let delay_ms = delays.map(|taken| taken.decision.delay_ms).max();
        let delay_ms = delay_ms.filter(|ms| *ms > 0 && case.hold.barred);
        let (Some(delay_ms), Some(stream)) = (delay_ms, case.stream) else {
            return true;
        };
        if let Some(policy) = case.policy.clone() {
            self.put_back(host, now, &policy, &case.parts);
        }
        self.refuse_hold(stream, case, delay_ms, Vec::new());
        false
    }

    /// Refuses a request because as many as may be are held already.
    pub(super) fn refuse_hold(
        &mut self,
        stream: StreamId,
        case: &Case,
        delay_ms: u64,
        standings: Vec<Standing>,
    ) {
        self.counts.happened(Event::HoldFull);
        let denial = Denial {
            by: case.queues(),
            source: DecidedBy::Proxy,
            retry_after_ms: Some(delay_ms),
            standings,
        };
        self.refuse(stream, denial);
    }

    /// The part of a bucket that is decided here in a request that goes on.
    fn admit_local(
        &mut self,
        host: &impl Host,
        now: Now,
        policy: &Rc<Active>,
        part: &mut Part,
        admission: &mut Admission,
    ) {
        let (Some(_), Some(limit)) = (&part.local, policy.compiled.limit(part.at)) else {
            return;
        };
        // Limits that only report are charged exactly when the request is admitted: now.
        if part.mode != Mode::Enforce {
            self.take_proxy(host, now, policy, part);
        }
        let decided = part.decided.map(|taken| taken.decision);
        let fits = decided.is_some_and(|decision| decision.allowed);
        let decision = match part.mode {
            _ if fits => Outcome::Allowed,
            Mode::Degrade => {
                admission.degraded.push(limit.name.clone());
                Outcome::Degraded
            }
            Mode::Enforce | Mode::Shadow => Outcome::WouldDeny,
        };
        self.counts.decided(&limit.name, decision, DecidedBy::Proxy);
        admission.standings.extend(part.standing(limit));
        let delay_ms = decided.map_or(0, |decision| decision.delay_ms);
        admission.delay_ms = admission.delay_ms.max(delay_ms);
    }

    /// The part of a limit whose units were granted in advance in a request that goes on.
    fn admit_leased(&mut self, now: Now, policy: &Active, part: &Part, admission: &mut Admission) {
        if let (true, Some(limit)) = (part.lease != Leased::No, policy.compiled.limit(part.at)) {
            let (allowed, source) = (Outcome::Allowed, DecidedBy::Lease);
            self.counts.decided(&limit.name, allowed, source);
            let standing = self.leased_standing(part, limit, now);
            admission.standings.extend(standing);
        }
    }

    /// A request does not go on after all: buckets of this proxy get back what it took, and so do
    /// grants.
    pub(super) fn put_back(&mut self, host: &impl Host, now: Now, policy: &Active, parts: &[Part]) {
        self.put_back_units(policy, parts);
        let Some(shared) = &self.shared else {
            return;
        };
        for part in parts.iter().filter(|part| part.mode == Mode::Enforce) {
            let (Some(algorithm), Some(limit)) = (&part.local, policy.compiled.limit(part.at))
            else {
                continue;
            };
            if let Some(taken) = part.decided.filter(|taken| taken.decision.allowed) {
                let bucket = LocalBucket {
                    table: &shared.table,
                    place: part.place,
                    generation: limit.generation,
                    algorithm,
                    start: Start::Unused,
                };
                // Contended: the bucket stays the poorer by one request.
                let _ = bucket.put_back(host, now, taken.at_ms, limit.cost, taken.slot);
            }
        }
    }
}

/// The slots that queues of this proxy gave a request.
fn local_slots(policy: &Active, parts: &[Part]) -> Vec<LocalSlot> {
    let enforced = parts.iter().filter(|part| part.mode == Mode::Enforce);
    let slots = enforced.filter_map(|part| {
        let (taken, limit) = (part.decided?, policy.compiled.limit(part.at)?);
        Some(LocalSlot {
            place: part.place,
            generation: limit.generation,
            algorithm: **part.local.as_ref()?,
            cost: limit.cost,
            slot: taken.slot?,
            at_ms: taken.at_ms,
        })
    });
    slots.collect()
}
