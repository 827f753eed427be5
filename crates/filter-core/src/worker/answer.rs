//! Answers on their way back: what was decided, and what is remembered of it.

use policy::{Name, OverLimit};
use protocol::{Answer, DecidedBy, ErrorCode, LimitAnswer, Mode, Outcome, compact::BatchAnswer};

use super::{
    CallAnswer, Level, Step, Stream, Worker,
    admit::Admission,
    case::{Case, Denying},
    failure::Sent,
    hold::{GlobalSlots, Slots},
    near,
    read::{NoAnswer, read},
    trust,
};
use crate::{
    batcher::Flight,
    breaker::CallResult,
    client::{Denial as ClientDenial, Standing},
    host::Host,
    metrics::Event,
    plain::plain,
    table::{Denial, Told, Update},
    time::Now,
};

impl Worker {
    /// The answers to a batch of checks.
    pub(super) fn land(
        &mut self,
        host: &impl Host,
        now: Now,
        flight: Flight<Case>,
        answer: Option<&impl CallAnswer>,
    ) {
        let asked = if flight.probe { 1 } else { flight.checks.len() };
        let read = match answer {
            Some(answer) => read(answer, asked),
            None => Err(NoAnswer::perhaps("no answer".to_owned())),
        };
        match read {
            Ok(answers) => {
                self.report(host, now, flight.probe, CallResult::Answered);
                self.learn(&answers);
                if flight.probe {
                    self.retry_unsent(now);
                    // Now the checks that waited for it are asked for, and with them goes what was
                    // admitted meanwhile.
                    return self.ask_again(host, now, flight.checks);
                }
                self.retries.answered(now);
                for (case, result) in flight.checks.into_iter().zip(answers.results) {
                    match result {
                        Ok(answer) => self.answered(host, now, flight.sent, case, answer),
                        Err(code) => self.check_failed(host, now, case, code),
                    }
                }
            }
            Err(NoAnswer::UnknownDomain) => {
                self.report(host, now, flight.probe, CallResult::Answered);
                self.follower.hurry();
                for case in flight.checks {
                    self.unlimited(host, now, case);
                }
            }
            Err(NoAnswer::Refused {
                why,
                too_large,
                signed,
            }) if self.may_be_its_own_fault(too_large) => {
                self.warn_failed(now, &why);
                self.land_refused(host, now, flight, too_large, signed);
            }
            Err(NoAnswer::Refused { why, .. }) => {
                self.warn_failed(now, &why);
                self.land_failed(host, now, flight, Sent::No);
            }
            Err(NoAnswer::Failed { why, sent }) => {
                self.warn_failed(now, &why);
                self.land_failed(host, now, flight, sent);
            }
        }
    }

    /// A batch that came to nothing.
    pub(super) fn land_failed(
        &mut self,
        host: &impl Host,
        now: Now,
        mut flight: Flight<Case>,
        sent: Sent,
    ) {
        if sent == Sent::No {
            self.try_again(host, now, &mut flight);
            if flight.checks.is_empty() {
                return;
            }
        }
        self.report(host, now, flight.probe, CallResult::Failed);
        for case in flight.checks {
            if flight.probe {
                self.unasked(host, now, case);
            } else {
                self.without_limiter(host, now, case, sent);
            }
        }
    }

    /// The limiter has no such domain: nothing limits a request, unless there are limits here. Then
    /// it is the limiter that lost them.
    fn unlimited(&mut self, host: &impl Host, now: Now, mut case: Case) {
        if case.policy.is_some() {
            self.unasked(host, now, case);
        } else if self.is_awaited(&case) {
            self.admit(host, now, &mut case, Admission::default());
        }
    }

    fn check_failed(&mut self, host: &impl Host, now: Now, case: Case, code: ErrorCode) {
        if code == ErrorCode::UnknownDomain {
            return self.unlimited(host, now, case);
        }
        self.counts.happened(Event::CheckFailed);
        self.without_limiter(host, now, case, Sent::after(code));
    }

    /// What an answer tells beside the decisions.
    fn learn(&mut self, answers: &BatchAnswer) {
        if let super::Knowledge::Limits(policy) = &self.knowledge {
            for (limit, proxies) in &answers.proxies {
                policy.set_proxies(limit.as_str(), *proxies);
            }
            if *policy.compiled.revision() == answers.revision {
                return;
            }
        }
        self.follower.hurry();
    }

    /// The decision on one check.
    fn answered(
        &mut self,
        host: &impl Host,
        now: Now,
        sent: Now,
        mut case: Case,
        mut answer: Answer,
    ) {
        if case.free.is_some() {
            return;
        }
        trust::trust(&case, &mut answer);
        self.land_leases(host, now, sent, &mut case, &mut answer);
        let mut slots = Slots {
            global: GlobalSlots::of(&case, &answer, now),
            ..Slots::default()
        };
        for limit in &answer.limits {
            if case.cost > 0 {
                self.count_answer(limit);
            }
            self.remember(host, now, sent, &case, limit);
        }
        if !self.is_awaited(&case) {
            // Its client has left. What it was charged stays charged, but for its slots.
            self.holds.give_up(slots);
            if let Some(policy) = &case.policy {
                self.put_back_units(policy, &case.parts);
            }
            return;
        }
        if answer.allowed {
            let admission = Admission {
                standings: standings(&case, &answer),
                degraded: degraded(&answer),
                delay_ms: longest_delay(&answer),
                slots: std::mem::take(&mut slots),
            };
            return self.admit(host, now, &mut case, admission);
        }
        self.holds.give_up(slots);
        if let Some(policy) = case.policy.clone() {
            self.put_back(host, now, &policy, &case.parts);
        }
        if case.hold.barred {
            self.counts.happened(Event::HoldFull);
        }
        let mut denying = Denying::default();
        let enforcing = answer
            .limits
            .iter()
            .filter(|limit| limit.mode == Mode::Enforce);
        for limit in enforcing.filter(|limit| !limit.allowed) {
            denying.add(&limit.name, limit.hidden, limit.retry_after_ms);
        }
        let denial = ClientDenial {
            retry_after_ms: denying.retry_after_ms(),
            by: denying.by,
            source: DecidedBy::Limiter,
            standings: standings(&case, &answer),
        };
        if let Some(stream) = case.stream {
            self.refuse(stream, denial);
        }
    }

    /// Whether somebody still waits for the decision on a check.
    pub(super) fn is_awaited(&self, case: &Case) -> bool {
        let stream = case.stream.and_then(|stream| self.streams.get(stream));
        matches!(stream, Some(Stream::Waiting))
    }

    fn count_answer(&mut self, limit: &LimitAnswer) {
        let decision = match (limit.allowed, limit.mode) {
            (true, _) => Outcome::Allowed,
            (false, Mode::Enforce) => Outcome::Denied,
            (false, Mode::Shadow) => Outcome::WouldDeny,
            (false, Mode::Degrade) => Outcome::Degraded,
        };
        self.counts
            .decided(&limit.name, decision, DecidedBy::Limiter);
    }

    /// Remembers what the limiter said of one bucket: denials at once, for the next request; what
    /// is left by and by, for the day it cannot be asked.
    fn remember(
        &mut self,
        host: &impl Host,
        now: Now,
        sent: Now,
        case: &Case,
        answer: &LimitAnswer,
    ) {
        let (Some(shared), Some(policy)) = (&self.shared, &case.policy) else {
            return;
        };
        let named = |at: usize| {
            policy
                .compiled
                .limit(at)
                .filter(|limit| limit.name == answer.name)
        };
        let found = case
            .parts
            .iter()
            .find_map(|part| Some((part, named(part.at)?)));
        let Some((part, limit)) = found.filter(|(part, _)| part.is_global()) else {
            return;
        };
        // No place to wait in is the request's own trouble, not the bucket's.
        let barred = case.hold.barred && limit.over_limit == OverLimit::Queue;
        if answer.mode == Mode::Shadow || barred {
            return;
        }
        let told = Told::new(now, answer);
        let (place, generation) = (part.place, answer.generation);
        if answer.allowed || answer.mode != Mode::Enforce {
            let trouble = self.breaker.is_troubled(now);
            if self.near.heard(place, generation, told, trouble) {
                near::tell(host, now, &shared.table, place, generation, told);
            }
            return;
        }
        // Units of a leased limit come back when others return them.
        let most_ms = match (limit.lease_ttl_ms, limit.over_limit) {
            (Some(ttl_ms), _) => (ttl_ms / 4).min(Denial::MAX_MS),
            // Slots of a queue when their requests leave.
            (None, OverLimit::Queue) => Denial::QUEUE_MS,
            _ => Denial::MAX_MS,
        };
        let denial = Denial::new(sent, answer.retry_after_ms, most_ms, limit.cost);
        self.near.denied(place, generation, told, denial);
        // Contended: other workers are told the same.
        let _ = shared.table.update(host, place, generation, now, |found| {
            found.entry.hear(told);
            found.entry.denial = Some(denial);
            Update::Write(())
        });
    }

    /// Says in the log why calls fail, now and then.
    pub(super) fn warn_failed(&mut self, now: Now, why: &str) {
        const EVERY_US: u64 = 10_000_000;
        if self
            .warned_failed_us
            .is_none_or(|at| now.mono_us.saturating_sub(at) >= EVERY_US)
        {
            self.warned_failed_us = Some(now.mono_us);
            let text = format!(
                "rate limiter: a call of {} failed: {}",
                self.config.limiter.cluster,
                plain(why)
            );
            self.steps.push_back(Step::Log(Level::Warn, text));
        }
    }
}

/// How the client stands with every limit that it may know of.
fn standings(case: &Case, answer: &Answer) -> Vec<Standing> {
    let shown = answer.limits.iter();
    let shown = shown.filter(|limit| limit.mode == Mode::Enforce && !limit.hidden);
    let standings = shown.filter_map(|limit| {
        Some(Standing {
            limit: limit.name.clone(),
            quota: limit.limit?,
            window_ms: limit.window_ms,
            remaining: limit.remaining,
            reset_after_ms: limit.reset_after_ms,
            cost: case.cost_of(&limit.name),
        })
    });
    standings.collect()
}

fn degraded(answer: &Answer) -> Vec<Name> {
    let over = answer
        .limits
        .iter()
        .filter(|limit| !limit.allowed && limit.mode == Mode::Degrade);
    over.map(|limit| limit.name.clone()).collect()
}

fn longest_delay(answer: &Answer) -> u64 {
    let enforcing = answer
        .limits
        .iter()
        .filter(|limit| limit.mode == Mode::Enforce);
    enforcing.map(|limit| limit.delay_ms).max().unwrap_or(0)
}
