//! From a request to a decision, or to a check.

use std::rc::Rc;

use algorithms::Algorithm;
use policy::Match;
use protocol::{DecidedBy, Outcome};

use super::{
    Edits, Knowledge, Stream, StreamId, Worker,
    active::Active,
    admit::Admission,
    case::{Attempts, Case, Denying, Hold, Leased, Mode, Part, Taken, standing},
};
use crate::{
    client::{Denial, Shown, Standing},
    descriptor::{Extracted, Plan, Request},
    host::{Contended, Host},
    local::{LocalBucket, Start, Take},
    metrics::Event,
    table::Role,
    time::Now,
};

impl Worker {
    /// Decides about a request as far as it can be done here, and asks the limiter for the rest.
    pub(super) fn decide(
        &mut self,
        host: &impl Host,
        now: Now,
        stream: StreamId,
        request: &impl Request,
    ) {
        match &self.knowledge {
            Knowledge::NoLimits => self.pass(stream, Edits::default(), Shown::default()),
            Knowledge::Limits(policy) => {
                let policy = Rc::clone(policy);
                self.decide_by(host, now, stream, policy, request);
            }
            Knowledge::Nothing => {
                let keys: Vec<_> = self
                    .config
                    .sources
                    .iter()
                    .map(|(key, _)| key.clone())
                    .collect();
                let plan = Plan::new(&keys, &self.config.sources);
                let case = Case {
                    stream: Some(stream),
                    cost: 1,
                    policy: None,
                    entries: plan.extract(request),
                    parts: Vec::new(),
                    opaque: None,
                    attempts: Attempts::default(),
                    hold: Hold::default(),
                    free: None,
                };
                self.ask(host, now, case);
            }
        }
    }

    fn decide_by(
        &mut self,
        host: &impl Host,
        now: Now,
        stream: StreamId,
        policy: Rc<Active>,
        request: &impl Request,
    ) {
        let entries = policy.plan.extract(request);
        let values = entries.values();
        let matches = policy.compiled.matching_values(&values, now.wall_ms);
        let opaque = policy.opaque(&values);
        if matches.is_empty() && opaque.is_none() {
            return self.pass(stream, Edits::default(), Shown::default());
        }
        if let Some(denial) = self.missing(now, &matches, &entries) {
            return self.refuse(stream, denial);
        }
        let mut parts = self.parts(&matches, &policy, now);
        drop(matches);
        self.take_in_hand(now, &policy, &mut parts);
        if let Some(denial) = self.remembered(host, now, &policy, &mut parts, opaque.is_some()) {
            self.put_back_units(&policy, &parts);
            self.note_denial(now, &policy, &parts, &entries, &denial);
            return self.refuse(stream, denial);
        }
        if let Some(denial) = self.take_local(host, now, &policy, &mut parts) {
            self.note_denial(now, &policy, &parts, &entries, &denial);
            return self.refuse(stream, denial);
        }
        self.draw(host, now, &policy, &entries, &mut parts);
        let mut case = Case {
            stream: Some(stream),
            cost: 1,
            policy: Some(policy),
            entries,
            parts,
            opaque,
            attempts: Attempts::default(),
            hold: Hold::default(),
            free: None,
        };
        if case.opaque.is_none() && !case.parts.iter().any(Part::is_global) {
            self.admit(host, now, &mut case, Admission::default());
            if case.parts.iter().any(|part| part.ask.is_some()) {
                self.ask_alone(case);
            }
            return;
        }
        self.ask(host, now, case);
    }

    /// A request that lacks an entry, where a limit denies such requests.
    fn missing(
        &mut self,
        now: Now,
        matches: &[Match<'_, '_>],
        entries: &Extracted,
    ) -> Option<Denial> {
        let mut denying = Denying::default();
        for found in matches.iter().filter(|found| found.missing.is_some()) {
            let limit = found.limit;
            let decision = if found.enforced {
                denying.add(&limit.name, limit.hidden, None);
                if let Some(shared) = &self.shared {
                    let values = found.values.iter().copied();
                    let place = shared.table.place(limit.name.as_str(), values);
                    (self.reporter).add(now, place, limit, DecidedBy::Missing, entries);
                }
                Outcome::Denied
            } else {
                Outcome::WouldDeny
            };
            self.counts
                .decided(&limit.name, decision, DecidedBy::Missing);
            self.counts.happened(Event::Missing);
        }
        (!denying.is_empty()).then(|| Denial {
            by: denying.by,
            source: DecidedBy::Missing,
            retry_after_ms: None,
            standings: Vec::new(),
        })
    }

    pub(super) fn parts(&self, matches: &[Match<'_, '_>], policy: &Active, now: Now) -> Vec<Part> {
        let Some(shared) = &self.shared else {
            return Vec::new();
        };
        let mut parts = Vec::with_capacity(matches.len());
        let matches = matches.iter().filter(|found| found.missing.is_none());
        parts.extend(matches.filter_map(|found| Part::new(found, policy, &shared.table, now)));
        parts
    }

    /// Reads what is remembered of the global buckets; a denial of one that still holds is
    /// repeated, unless a limit may match that could replace it.
    fn remembered(
        &mut self,
        host: &impl Host,
        now: Now,
        policy: &Active,
        parts: &mut [Part],
        opaque: bool,
    ) -> Option<Denial> {
        let shared = self.shared.as_ref()?;
        let trouble_us = self.breaker.trouble_us();
        let mut denying = Denying::default();
        for part in parts
            .iter_mut()
            .filter(|part| part.is_global() && part.mode != Mode::Shadow)
        {
            let limit = policy.compiled.limit(part.at)?;
            let (place, generation) = (part.place, limit.generation);
            let known = self.near.recall(place, generation, now, trouble_us);
            let (told, denial) = if let Some(known) = known {
                (known.told, known.denial)
            } else {
                let entry = shared.table.read(host, place, generation, now).entry;
                self.near.looked(place, generation, &entry, now);
                let span_us = limit.quota.algorithm().window_ms().saturating_mul(1000);
                part.owes = entry.owed.units(span_us, now.mono_us) > 0;
                (entry.told, entry.denial)
            };
            part.told = told;
            // A grant may have come since to another worker.
            let hand = self.hands.find(place, generation);
            let shared_units = hand.map_or(0, |hand| hand.shared);
            let denial =
                denial.filter(|denial| shared_units < limit.cost && denial.denies(limit.cost, now));
            if let Some(denial) = denial.filter(|_| part.mode == Mode::Enforce && !opaque) {
                denying.add(&limit.name, limit.hidden, denial.retry_after_ms(now));
                self.counts
                    .decided(&limit.name, Outcome::Denied, DecidedBy::DenyCache);
            }
        }
        if denying.is_empty() {
            return None;
        }
        let standing = |part: &Part| part.told_standing(policy.compiled.limit(part.at)?, now);
        let enforced = parts.iter().filter(|part| part.mode == Mode::Enforce);
        Some(Denial {
            retry_after_ms: denying.retry_after_ms(),
            by: denying.by,
            source: DecidedBy::DenyCache,
            standings: enforced.filter_map(standing).collect(),
        })
    }

    /// Takes from the buckets that live here, and then from those in front of global ones.
    fn take_local(
        &mut self,
        host: &impl Host,
        now: Now,
        policy: &Active,
        parts: &mut [Part],
    ) -> Option<Denial> {
        let enforced = |part: &Part| part.mode == Mode::Enforce;
        for n in 0..parts.len() {
            let part = parts.get_mut(n)?;
            if part.is_global() || !enforced(part) {
                continue;
            }
            let allowed = self.take_proxy(host, now, policy, part);
            if !allowed {
                return self.denied_locally(host, now, policy, parts, n, DecidedBy::Proxy);
            }
        }
        for n in 0..parts.len() {
            let part = parts.get_mut(n)?;
            // What was granted in advance is not sent.
            let sent = enforced(part) && part.lease == Leased::No;
            if sent && !self.take_precheck(host, now, policy, part) {
                return self.denied_locally(host, now, policy, parts, n, DecidedBy::Precheck);
            }
        }
        None
    }

    /// Takes from a bucket of this proxy; whether it was enough.
    pub(super) fn take_proxy(
        &mut self,
        host: &impl Host,
        now: Now,
        policy: &Active,
        part: &mut Part,
    ) -> bool {
        let taken = part
            .local
            .as_ref()
            .map(|algorithm| self.take_from(host, now, policy, part, Start::Unused, algorithm));
        match taken {
            None => true,
            Some(Ok(taken)) => {
                part.decided = Some(taken);
                taken.decision.allowed
            }
            Some(Err(Contended)) => {
                self.counts.happened(Event::Contended);
                false
            }
        }
    }

    /// Takes from the bucket in front of a global one, if it has one; whether it was enough.
    /// What was taken there counts what was sent, and is never put back.
    fn take_precheck(
        &mut self,
        host: &impl Host,
        now: Now,
        policy: &Active,
        part: &mut Part,
    ) -> bool {
        let Some(algorithm) = policy.precheck(part.at) else {
            return true;
        };
        match self.take_from(host, now, policy, part, Start::Guard, algorithm) {
            Ok(taken) => {
                part.decided = Some(taken);
                taken.decision.allowed
            }
            // The limiter still decides.
            Err(Contended) => true,
        }
    }

    fn take_from(
        &self,
        host: &impl Host,
        now: Now,
        policy: &Active,
        part: &Part,
        start: Start,
        algorithm: &Algorithm,
    ) -> Result<Taken, Contended> {
        let (Some(limit), Some(shared)) = (policy.compiled.limit(part.at), &self.shared) else {
            return Err(Contended);
        };
        let bucket = LocalBucket {
            table: &shared.table,
            place: match start {
                Start::Guard => part.place.in_role(Role::Precheck),
                _ => part.place,
            },
            generation: limit.generation,
            algorithm,
            start,
        };
        let (decision, slot) = bucket.decide(host, now, limit.cost, Take::Charge)?;
        Ok(Taken {
            decision,
            slot,
            at_ms: now.wall_ms,
        })
    }

    /// A local bucket said no: those before it get back what was taken.
    fn denied_locally(
        &mut self,
        host: &impl Host,
        now: Now,
        policy: &Active,
        parts: &[Part],
        denied_by: usize,
        source: DecidedBy,
    ) -> Option<Denial> {
        self.put_back(host, now, policy, parts);
        let part = parts.get(denied_by)?;
        let limit = policy.compiled.limit(part.at)?;
        let algorithm = match source {
            DecidedBy::Precheck => policy.precheck(part.at)?,
            _ => part.local.as_ref()?,
        };
        self.counts.decided(&limit.name, Outcome::Denied, source);
        let decided = part.decided.map(|taken| taken.decision);
        // Contended: try again at once.
        let retry_after_ms = decided.map_or(Some(1), |d| d.retry_after.millis());
        let shown = decided.filter(|_| !limit.hidden);
        let standings: Vec<Standing> = shown
            .map(|decision| standing(limit, algorithm, &decision))
            .into_iter()
            .collect();
        Some(Denial {
            by: vec![(limit.name.clone(), !limit.hidden)],
            source,
            retry_after_ms,
            standings,
        })
    }

    /// Lets the limiter decide.
    fn ask(&mut self, host: &impl Host, now: Now, mut case: Case) {
        let waits = case.policy.is_none()
            || case.opaque.is_some()
            || case
                .parts
                .iter()
                .any(|part| part.is_global() && part.mode != Mode::Shadow);
        if let Some(stream) = case.stream
            && waits
        {
            if !self.prepare_hold(host, now, &mut case) {
                return;
            }
            self.streams.insert(stream, Stream::Waiting);
        } else {
            // The limits left are only reported: nobody has to wait for them.
            self.admit(host, now, &mut case, Admission::default());
            case.stream = None;
        }
        if let Err(case) = self.batcher.push(case) {
            self.counts.happened(Event::QueueFull);
            self.unasked(host, now, case);
        }
    }
}
