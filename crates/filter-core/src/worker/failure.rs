//! Decisions without the limiter: each limit says itself what happens then.

use std::rc::Rc;

use algorithms::{Algorithm, Decision as LocalDecision, QueueSlot};
use policy::{Limit, OnFailure};
use protocol::{DecidedBy, ErrorCode, Outcome};

use super::{
    Level, Step, Worker,
    active::{Active, StandIn},
    admit::Admission,
    case::{Attempts, Case, Denying, Hold, Mode, Part, standing},
    hold::LocalSlot,
};
use crate::{
    client::Denial,
    host::Host,
    local::{LocalBucket, Start, Take},
    metrics::Event,
    time::Now,
};

/// Whether a check may have been charged by the limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// It never left, or the limiter said that it charged nothing: what is admitted now will be
    /// owed.
    No,
    /// It left. What is admitted now may be charged there already, and is never charged twice.
    Perhaps,
}

impl Sent {
    /// What the limiter's own error tells.
    pub(super) fn after(code: ErrorCode) -> Self {
        match code {
            ErrorCode::Stale
            | ErrorCode::PolicyUnavailable
            | ErrorCode::StoreUntouched
            | ErrorCode::Overloaded
            | ErrorCode::Unauthorized
            | ErrorCode::InvalidRequest
            | ErrorCode::TooLarge => Self::No,
            _ => Self::Perhaps,
        }
    }

    /// What Envoy tells in the place of a limiter that it could not reach. What it does not tell
    /// in these words is taken for a check that left.
    pub(super) fn after_reply(body: &[u8]) -> Self {
        const NEVER_LEFT: [&str; 5] = [
            "no healthy upstream",
            "reset reason: remote connection failure",
            "reset reason: local connection failure",
            "reset reason: connection timeout",
            "reset reason: overflow",
        ];
        let says = |reason: &str| {
            let mut parts = body.windows(reason.len());
            parts.any(|part| part == reason.as_bytes())
        };
        if NEVER_LEFT.into_iter().any(says) {
            Self::No
        } else {
            Self::Perhaps
        }
    }
}

/// What the limits of a request say together.
#[derive(Debug, Default)]
struct Together {
    /// Limits that fail closed.
    closed: Denying,
    /// Stand-ins that have nothing left.
    exhausted: Denying,
    admission: Admission,
}

/// What is asked about one limit.
#[derive(Clone, Copy)]
struct Question<'a> {
    policy: &'a Active,
    part: &'a Part,
    limit: &'a Limit,
    take: Take,
}

/// When to try a limit that fails closed again: the limiter may be back then.
const RETRY_CLOSED_MS: u64 = 1000;

impl Worker {
    /// Decides a request that the limiter was never asked about.
    pub(super) fn unasked(&mut self, host: &impl Host, now: Now, case: Case) {
        self.untold(&case);
        self.without_limiter(host, now, case, Sent::No);
    }

    /// Decides a request that no limiter reads. It is its own fault: others rely on what they
    /// know as before, and only of its own buckets is looked up what is owed.
    pub(super) fn decide_alone(&mut self, host: &impl Host, now: Now, case: Case) {
        self.untold(&case);
        if let Some(policy) = &case.policy {
            for part in &case.parts {
                if let Some(limit) = policy.compiled.limit(part.at) {
                    self.near.distrust(part.place, limit.generation);
                }
            }
        }
        self.decide_here(host, now, case, Sent::No);
    }

    /// Decides a request that the limiter did not decide.
    pub(super) fn without_limiter(&mut self, host: &impl Host, now: Now, case: Case, sent: Sent) {
        if case.free.is_some() {
            return self.holds.keep_unsent(case, now);
        }
        // What is owed from now on is looked up: an error about one check is none of the breaker's.
        self.breaker.note(false, now);
        self.decide_here(host, now, case, sent);
    }

    fn decide_here(&mut self, host: &impl Host, now: Now, mut case: Case, sent: Sent) {
        if case.free.is_some() {
            return self.holds.keep_unsent(case, now);
        }
        if let (Some(shared), Sent::No) = (&self.shared, sent) {
            case.give_back_owed(host, now, &shared.table);
        }
        if !self.is_awaited(&case) {
            return;
        }
        let Some(policy) = case.policy.clone() else {
            return self.without_policy(host, now, case);
        };
        for part in case.parts.iter().filter(|part| part.is_global()) {
            self.near.insist(part.place);
        }
        self.spread(host, now);
        let mut together = Together::default();
        if case.opaque == Some(OnFailure::Deny) {
            together.closed.by.push((self.config.domain.clone(), false));
        }
        let charge = if sent == Sent::No {
            Take::Owe
        } else {
            Take::Charge
        };
        // Ask all of them before anything is taken: all are charged, or none.
        for take in [Take::Peek, charge] {
            together.admission = Admission::default();
            for part in case.parts.iter().filter(|part| part.is_global()) {
                if let Some(limit) = policy.compiled.limit(part.at) {
                    let question = Question {
                        policy: &policy,
                        part,
                        limit,
                        take,
                    };
                    self.stand_in(host, now, &question, &mut together);
                }
            }
            if let Some(denial) = together.denial() {
                self.put_back(host, now, &policy, &case.parts);
                if let Some(stream) = case.stream {
                    self.note_denial(now, &policy, &case.parts, &case.entries, &denial);
                    self.refuse(stream, denial);
                }
                return;
            }
            let delay_ms = together.admission.delay_ms;
            if take == Take::Peek && delay_ms > 0 && !self.may_hold(&mut case) {
                self.put_back(host, now, &policy, &case.parts);
                if let Some(stream) = case.stream {
                    self.refuse_hold(stream, &case, delay_ms, Vec::new());
                }
                return;
            }
        }
        if sent == Sent::No && self.retries.is_answering(now) {
            self.owe_at_once(now, &policy, &case);
        }
        self.admit(host, now, &mut case, together.admission);
    }

    /// What was admitted here is charged at once, where another limiter answers: proxies that know
    /// as little as this one then learn of it.
    fn owe_at_once(&mut self, now: Now, policy: &Rc<Active>, case: &Case) {
        let values = case.entries.values();
        let matches = policy.compiled.matching_values(&values, now.wall_ms);
        let mut parts = self.parts(&matches, policy, now);
        for part in &mut parts {
            part.owes = part.is_global() && part.mode != Mode::Shadow;
        }
        self.ask_alone(Case {
            stream: None,
            cost: 0,
            policy: Some(Rc::clone(policy)),
            entries: case.entries.clone(),
            parts,
            opaque: None,
            attempts: Attempts::default(),
            hold: Hold::default(),
            free: None,
        });
    }

    /// Nothing is known of the limits: the configuration decides.
    fn without_policy(&mut self, host: &impl Host, now: Now, mut case: Case) {
        if self.config.failure_mode == OnFailure::Deny {
            let denial = Denial {
                by: vec![(self.config.domain.clone(), false)],
                source: DecidedBy::Failure,
                retry_after_ms: None,
                standings: Vec::new(),
            };
            if let Some(stream) = case.stream {
                self.refuse(stream, denial);
            }
            return;
        }
        self.counts.happened(Event::Unguarded);
        if !self.warned_unguarded {
            self.warned_unguarded = true;
            let text = format!(
                "rate limiter: no limits of domain {} are known and no limiter answers; \
                 requests pass unlimited",
                self.config.domain
            );
            self.steps.push_back(Step::Log(Level::Warn, text));
        }
        self.admit(host, now, &mut case, Admission::default());
    }

    /// What one limit says without the limiter.
    fn stand_in(
        &mut self,
        host: &impl Host,
        now: Now,
        question: &Question<'_>,
        together: &mut Together,
    ) {
        let Question {
            part, limit, take, ..
        } = *question;
        match limit.on_failure {
            // What only reports, reports nothing now.
            _ if part.mode == Mode::Shadow => {}
            OnFailure::Allow => {
                if take != Take::Peek {
                    self.counts
                        .decided(&limit.name, Outcome::Allowed, DecidedBy::Failure);
                }
            }
            OnFailure::Deny if part.mode == Mode::Enforce => {
                self.counts
                    .decided(&limit.name, Outcome::Denied, DecidedBy::Failure);
                together
                    .closed
                    .add(&limit.name, limit.hidden, Some(RETRY_CLOSED_MS));
            }
            OnFailure::Deny | OnFailure::Local => {
                self.local_stand_in(host, now, question, together);
            }
        }
    }

    fn local_stand_in(
        &mut self,
        host: &impl Host,
        now: Now,
        question: &Question<'_>,
        together: &mut Together,
    ) {
        let Question {
            part, limit, take, ..
        } = *question;
        let decided = match question.policy.stand_in(part.at, part.told) {
            StandIn::Unlimited => return,
            StandIn::Impossible => None,
            StandIn::Bucket(algorithm) => {
                let decided = self.ask_stand_in(host, now, question, &algorithm);
                decided.map(|(decision, slot)| {
                    let slots = &mut together.admission.slots.local;
                    slots.extend(slot.filter(|_| part.mode == Mode::Enforce).map(|slot| {
                        LocalSlot {
                            place: part.place,
                            generation: limit.generation,
                            algorithm,
                            cost: limit.cost,
                            slot,
                            at_ms: now.wall_ms,
                        }
                    }));
                    (algorithm, decision)
                })
            }
        };
        let fits = decided
            .as_ref()
            .is_some_and(|(_, decision)| decision.allowed);
        match part.mode {
            Mode::Degrade if !fits => together.admission.degraded.push(limit.name.clone()),
            Mode::Enforce if !fits => {
                let wait_ms = decided.as_ref().and_then(|(_, d)| d.retry_after.millis());
                together.exhausted.add(&limit.name, limit.hidden, wait_ms);
                self.counts
                    .decided(&limit.name, Outcome::Denied, DecidedBy::Local);
            }
            _ if take != Take::Peek => {
                self.counts
                    .decided(&limit.name, Outcome::Allowed, DecidedBy::Local);
            }
            _ => {}
        }
        let Some((algorithm, decision)) = decided.filter(|_| part.mode == Mode::Enforce) else {
            return;
        };
        let admission = &mut together.admission;
        admission.delay_ms = admission.delay_ms.max(decision.delay_ms);
        if !limit.hidden {
            admission
                .standings
                .push(standing(limit, &algorithm, &decision));
        }
    }

    /// `None`: other workers were always faster.
    fn ask_stand_in(
        &self,
        host: &impl Host,
        now: Now,
        question: &Question<'_>,
        algorithm: &Algorithm,
    ) -> Option<(LocalDecision, Option<QueueSlot>)> {
        let Question {
            policy,
            part,
            limit,
            take,
        } = *question;
        let bucket = LocalBucket {
            table: &self.shared.as_ref()?.table,
            place: part.place,
            generation: limit.generation,
            algorithm,
            start: Start::Share {
                proxies: policy.proxies(part.at),
                answering: self.retries.is_answering(now),
            },
        };
        bucket.decide(host, now, limit.cost, take).ok()
    }
}

impl Together {
    /// The reason to refuse, if there is one. A limit that fails closed is not a quota exceeded,
    /// so where both are, the quota is told: it says when to come back.
    fn denial(&mut self) -> Option<Denial> {
        let (denying, source) = if !self.exhausted.is_empty() {
            (std::mem::take(&mut self.exhausted), DecidedBy::Local)
        } else if !self.closed.is_empty() {
            (std::mem::take(&mut self.closed), DecidedBy::Failure)
        } else {
            return None;
        };
        let standings = std::mem::take(&mut self.admission.standings);
        Some(Denial {
            retry_after_ms: denying.retry_after_ms(),
            by: denying.by,
            source,
            standings: if source == DecidedBy::Local {
                standings
            } else {
                Vec::new()
            },
        })
    }
}
