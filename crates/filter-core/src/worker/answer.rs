//! Checks on their way out, and answers on their way back.

use std::rc::Rc;

use policy::Name;
use protocol::{
    API_HEADER, API_VERSION, Answer, ApiError, CHECK_CBOR, DecidedBy, ErrorCode, LimitAnswer, Mode,
    Outcome,
    compact::{Batch, BatchAnswer, BatchCheck},
};

use super::{
    CHECK_PATH, Call, CallAnswer, Level, Step, Stream, Worker,
    admit::Admission,
    case::{Case, Denying},
    failure::Sent,
    near,
};
use crate::{
    batcher::Flight,
    breaker::{CallResult, Gate},
    client::{Denial as ClientDenial, Standing},
    host::Host,
    metrics::Event,
    table::{Denial, Told, Update},
    time::Now,
};

/// The largest answer that is read: many times what the largest batch needs.
const MAX_ANSWER: usize = 1 << 20;
/// The longest answer of something else that is read for its reason.
const MAX_REASON: usize = 512;

/// Why a whole call brought no decision.
#[derive(Debug, PartialEq, Eq)]
enum NoAnswer {
    /// The limiter does not know the domain.
    UnknownDomain,
    /// Anything else: no limiter, or one in trouble.
    Failed { why: String, sent: Sent },
}

impl NoAnswer {
    fn perhaps(why: String) -> Self {
        let sent = Sent::Perhaps;
        Self::Failed { why, sent }
    }
}

impl Worker {
    /// Lets the checks that wait leave in one call.
    pub(super) fn depart(&mut self, host: &impl Host, now: Now, gate: Gate) {
        let proxy = self
            .shared
            .as_ref()
            .map_or("", |shared| shared.proxy.as_str());
        let (domain, proxy) = (self.config.domain.clone(), proxy.to_owned());
        let flight = self.batcher.depart(now, Case::weight);
        let id = flight.id;
        flight.probe = gate == Gate::Probe;
        let body = if flight.probe {
            // It charges nothing and carries nothing, so nothing is lost with it.
            let mut peek: Vec<Case> = flight.checks.first().map(Case::peek).into_iter().collect();
            batch(domain, proxy, &mut peek).encode()
        } else {
            let doubt = self.breaker.is_troubled(now);
            for case in &mut flight.checks {
                if let Some(shared) = &self.shared {
                    case.take_owed(host, now, &shared.table, doubt);
                }
            }
            let body = batch(domain, proxy, &mut flight.checks).encode();
            let parts = flight.checks.iter().flat_map(|case| &case.parts);
            for ask in parts.filter_map(|part| part.ask.as_deref()) {
                let (spent, returned) = ask.settle.totals();
                self.counts.happened_to(Event::LeaseSettled, spent);
                self.counts.happened_to(Event::LeaseReturned, returned);
            }
            body
        };
        let headers = vec![("content-type", CHECK_CBOR.to_owned())];
        self.call(Call {
            id,
            method: "POST",
            path: CHECK_PATH.to_owned(),
            headers,
            body: Some(body),
            timeout_ms: self.config.limiter.timeout_ms,
        });
    }

    /// Adds what every call of the limiter carries.
    pub(super) fn call(&mut self, mut call: Call) {
        if let Some(bearer) = &self.bearer {
            call.headers.push(("authorization", bearer.clone()));
        }
        self.steps.push_back(Step::Call(call));
    }

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
                    return self.ask_anew(host, now, flight.checks);
                }
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
        flight: Flight<Case>,
        sent: Sent,
    ) {
        self.report(host, now, flight.probe, CallResult::Failed);
        for case in flight.checks {
            if flight.probe {
                self.unasked(host, now, case);
            } else {
                self.without_limiter(host, now, case, sent);
            }
        }
    }

    /// A probe was answered: now the checks that waited for it are asked for, and with them goes
    /// what was admitted meanwhile.
    fn ask_anew(&mut self, host: &impl Host, now: Now, cases: Vec<Case>) {
        for case in cases {
            if case.stream.is_some() && !self.is_awaited(&case) {
                self.undo(&case);
            } else if let Err(case) = self.batcher.push(case) {
                self.unasked(host, now, case);
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
        self.land_leases(host, now, sent, &mut case, &mut answer);
        for limit in &answer.limits {
            self.count_answer(limit);
            self.remember(host, now, sent, &case, limit);
        }
        if !self.is_awaited(&case) {
            // Its client has left. What it was charged stays charged.
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
            };
            return self.admit(host, now, &mut case, admission);
        }
        if let Some(policy) = case.policy.clone() {
            self.put_back(host, now, &policy, &case.parts);
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
        let stream = case.stream.and_then(|stream| self.streams.get(&stream));
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
        if answer.mode == Mode::Shadow {
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
        let ttl_ms = limit.lease_ttl_ms;
        let most_ms = ttl_ms.map_or(Denial::MAX_MS, |ms| (ms / 4).min(Denial::MAX_MS));
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
                "rate limiter: a call of {} failed: {why}",
                self.config.limiter.cluster
            );
            self.steps.push_back(Step::Log(Level::Warn, text));
        }
    }
}

/// Reads the answer to a batch. Whatever does not come from a limiter of this version, whole and
/// with as many results as there were checks, decides nothing.
fn read(answer: &impl CallAnswer, checks: usize) -> Result<BatchAnswer, NoAnswer> {
    let failed = |why: String| Err(NoAnswer::perhaps(why));
    let status = answer.header(":status").unwrap_or_default();
    let status = String::from_utf8_lossy(&status).into_owned();
    if answer.header(API_HEADER).as_deref() != Some(API_VERSION.as_bytes()) {
        let body = answer.body(MAX_REASON).unwrap_or_default();
        let sent = Sent::after_reply(&body);
        // A log's line holds nothing that ends it.
        let plain = |byte: &u8| {
            if matches!(byte, b' '..=b'~') {
                *byte
            } else {
                b'.'
            }
        };
        let said: String = body.iter().map(plain).map(char::from).collect();
        let why = format!("status {status}, not from a limiter: {said}");
        return Err(NoAnswer::Failed { why, sent });
    }
    let Some(body) = answer.body(MAX_ANSWER) else {
        return failed("an answer without end".to_owned());
    };
    if status != "200" {
        return match ApiError::from_json(&body) {
            Some(error) if error.code == ErrorCode::UnknownDomain => Err(NoAnswer::UnknownDomain),
            Some(error) => Err(NoAnswer::Failed {
                why: format!("{}: {}", error.code.word(), error.message),
                sent: Sent::after(error.code),
            }),
            None => failed(format!("status {status}")),
        };
    }
    match BatchAnswer::decode(&body) {
        Ok(answers) if answers.results.len() == checks => Ok(answers),
        Ok(answers) => failed(format!(
            "{} results for {checks} checks",
            answers.results.len()
        )),
        Err(error) => failed(error.to_string()),
    }
}

/// The checks of one flight as the limiter reads them; their entries move into the batch.
fn batch(domain: Name, proxy: String, cases: &mut [Case]) -> Batch {
    let first = cases.first();
    let keys = first.map_or_else(|| Rc::from([]), |case| Rc::clone(case.entries.keys()));
    let policy = first.and_then(|case| case.policy.clone());
    let checks = cases.iter_mut().map(|case| BatchCheck {
        values: case.entries.take(&keys),
        cost: case.cost,
        skip: case.settled(),
        debits: case.debits(),
        leases: case.leases(),
    });
    Batch {
        domain,
        proxy,
        checks: checks.collect(),
        revision: policy.map(|policy| policy.compiled.revision().clone()),
        keys: keys.to_vec(),
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
