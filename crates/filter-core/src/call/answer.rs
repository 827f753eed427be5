//! Handles the end of a check call: decides its checks, retries them, or falls back.

use policy::{Limit, Name, OverLimit};
use protocol::{
    API_HEADER, API_VERSION, Answer, ApiError, DecidedBy, ErrorCode, LimitAnswer, Mode, Outcome,
    RetryAfter, compact::BatchAnswer,
};

use super::CheckCall;
use crate::{
    active_policy::PolicyState,
    cache::{BucketStatus, CachedDenial, write_answer},
    cost::Meter,
    host::{Host, Now},
    metrics::Event,
    outage::{ANSWERED_LATELY_US, CallResult, ChargeStatus},
    request::{
        Admission, Attempts, Claims, DenyingLimits, HeldSlots, Hold, PendingCheck,
        RequestDescriptor, SlotRelease, Stream,
    },
    response::{Denial, QuotaStatus},
    worker::{CallAnswer, HOLDING_MS, Worker},
};

impl Worker {
    /// A check call ended; `None`: it has no complete response.
    pub(crate) fn on_checks_answered(
        &mut self,
        host: &impl Host,
        now: Now,
        call: CheckCall<PendingCheck>,
        answer: Option<&dyn CallAnswer>,
    ) {
        let asked = if call.probe { 1 } else { call.checks.len() };
        let error = match answer.map(|answer| decode(answer, asked)) {
            Some(Ok(answers)) => return self.on_checks_decided(host, now, call, answers),
            Some(Err(error)) => error,
            None => {
                let unknown = CallErrorKind::Failed(ChargeStatus::Unknown);
                CallError::unsigned("no answer".to_owned(), unknown)
            }
        };
        if error.kind != CallErrorKind::UnknownDomain {
            self.warn_failed(now, &error.why);
        }
        match error.kind {
            CallErrorKind::UnknownDomain => {
                let answered = CallResult::Answered { decides: false };
                self.record_call(host, now, call.probe, answered);
                self.policy.poller.poll_soon();
                for check in call.checks {
                    self.unlimited(host, now, check);
                }
            }
            CallErrorKind::Refused { too_large } if self.may_be_request_fault(too_large) => {
                self.on_batch_rejected(host, now, call, too_large, error.signed);
            }
            CallErrorKind::Refused { .. } => {
                self.fail_check_call(host, now, call, ChargeStatus::NotCharged, false);
            }
            CallErrorKind::Failed(charge) => {
                if error.signed && call.deadline_us.is_some() && self.calls.stream.is_open() {
                    self.leave_stream(now, "the limiter failed");
                }
                self.fail_check_call(host, now, call, charge, error.signed);
            }
        }
    }

    /// Each check of a call has an answer, or an error of its own.
    fn on_checks_decided(
        &mut self,
        host: &impl Host,
        now: Now,
        call: CheckCall<PendingCheck>,
        answers: BatchAnswer,
    ) {
        if call.deadline_us.is_none() {
            self.calls.stream.callout_answered();
        }
        // Errors of single checks say nothing about other limiters.
        let decides = answers.results.iter().any(Result::is_ok);
        let answered = CallResult::Answered { decides };
        self.record_call(host, now, call.probe, answered);
        self.apply_metadata(&answers);
        if call.probe {
            self.requests.in_flight.look_at_breaker(now, false);
            self.renew_slots(host, now);
            self.retry_unsent(now);
            // The limiter answers again: the checks that waited for the probe are sent,
            // with the debts of the outage.
            return self.requeue(host, now, call.checks);
        }
        self.calls.retry_budget.answered(now, decides);
        for (check, result) in call.checks.into_iter().zip(answers.results) {
            match result {
                Ok(answer) => self.apply_answer(host, now, call.sent, check, answer),
                Err(code) => self.check_failed(host, now, check, code),
            }
        }
    }

    /// A check call failed as a whole. Checks that were certainly not charged are retried as far as the
    /// retry budget allows; the others fall back. `answered`: a limiter answered with an error.
    pub(crate) fn fail_check_call(
        &mut self,
        host: &impl Host,
        now: Now,
        mut call: CheckCall<PendingCheck>,
        charge: ChargeStatus,
        answered: bool,
    ) {
        if charge == ChargeStatus::NotCharged {
            self.retry_call(host, now, &mut call, answered);
            if call.checks.is_empty() {
                return;
            }
        }
        let failure = self.failure(now, call.sent);
        self.record_call(host, now, call.probe, failure);
        for mut check in call.checks {
            if call.probe {
                self.decide_unsent(host, now, check);
            } else {
                // One that has lost its store says so at once, before another one can answer.
                check.attempts.others_answer = self.others_answer(now, &check.attempts)
                    || (answered && self.calls.retry_budget.is_answered_now(now));
                self.fall_back_unanswered(host, now, check, charge);
            }
        }
    }

    /// The limiter has no such domain. Without loaded limits, the request is not limited. With loaded
    /// limits, the limiter has lost them, and the request falls back.
    fn unlimited(&mut self, host: &impl Host, now: Now, mut check: PendingCheck) {
        if check.policy.is_some() {
            self.decide_unsent(host, now, check);
        } else if self.is_awaited(&check) {
            self.admit(host, now, &mut check, Admission::default());
        } else {
            self.undo_left(check.claims);
        }
    }

    fn check_failed(&mut self, host: &impl Host, now: Now, check: PendingCheck, code: ErrorCode) {
        if code == ErrorCode::UnknownDomain {
            return self.unlimited(host, now, check);
        }
        self.counts.happened(Event::CheckFailed);
        self.fall_back_unanswered(host, now, check, ChargeStatus::after(code));
    }

    /// Applies what an answer reports beside the decisions: numbers of proxies, and the revision.
    fn apply_metadata(&mut self, answers: &BatchAnswer) {
        if let PolicyState::Limits(policy) = &self.policy.state {
            for (limit, proxies) in &answers.proxies {
                policy.set_proxies(limit.as_str(), *proxies);
            }
            if *policy.compiled.revision() == answers.revision {
                return;
            }
        }
        self.policy.poller.poll_soon();
    }
}

// --- Reads the answer to a check call.

/// Bound: bytes of a limiter's answer. Beyond it, the call counts as failed.
///
/// Many times what the largest batch needs.
const MAX_ANSWER: usize = 1 << 20;
/// The longest response of a server other than a limiter that is read for the log, in bytes.
const MAX_REASON: usize = 512;

/// Why a whole call decided nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CallError {
    why: String,
    /// Whether a limiter said so, and not a proxy in between.
    signed: bool,
    kind: CallErrorKind,
}

#[derive(Debug, PartialEq, Eq)]
enum CallErrorKind {
    /// The limiter has no such domain.
    UnknownDomain,
    /// The call was not read, so nothing was charged: it is too large, or malformed.
    Refused { too_large: bool },
    /// Any other failure.
    Failed(ChargeStatus),
}

impl CallError {
    /// Classifies a limiter's error.
    fn from_api(error: &ApiError) -> Self {
        Self {
            why: format!("{}: {}", error.code.word(), error.message),
            signed: true,
            kind: match error.code {
                ErrorCode::UnknownDomain => CallErrorKind::UnknownDomain,
                ErrorCode::TooLarge => CallErrorKind::Refused { too_large: true },
                ErrorCode::InvalidRequest => CallErrorKind::Refused { too_large: false },
                code => CallErrorKind::Failed(ChargeStatus::after(code)),
            },
        }
    }

    fn unsigned(why: String, kind: CallErrorKind) -> Self {
        let signed = false;
        Self { why, signed, kind }
    }
}

/// Reads the answer to a batch. A response decides nothing unless it comes from a limiter of this
/// API version, is complete, and has one result for each check.
pub(crate) fn decode(answer: &dyn CallAnswer, checks: usize) -> Result<BatchAnswer, CallError> {
    let unknown = CallErrorKind::Failed(ChargeStatus::Unknown);
    let failed = |why: String| Err(CallError::unsigned(why, unknown));
    let status = answer.header(":status").unwrap_or_default();
    let status = String::from_utf8_lossy(status);
    if answer.header(API_HEADER) != Some(API_VERSION.as_bytes()) {
        let body = answer.body(MAX_REASON).unwrap_or_default();
        // The reason becomes part of one log line.
        let plain = |byte: &u8| {
            if matches!(byte, b' '..=b'~') {
                *byte
            } else {
                b'.'
            }
        };
        let reason: String = body.iter().map(plain).map(char::from).collect();
        let why = format!("status {status}, not from a limiter: {reason}");
        let kind = match &*status {
            "413" => CallErrorKind::Refused { too_large: true },
            _ => CallErrorKind::Failed(ChargeStatus::after_reply(&body)),
        };
        return Err(CallError::unsigned(why, kind));
    }
    let Some(body) = answer.body(MAX_ANSWER) else {
        return failed("an answer without end".to_owned());
    };
    if status != "200" {
        return match ApiError::from_json(&body) {
            Some(error) => Err(CallError::from_api(&error)),
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

// --- Applies the answer to one check: carries out the decision and caches the state of its buckets.

impl Worker {
    /// Applies the answer to one check.
    pub(crate) fn apply_answer(
        &mut self,
        host: &impl Host,
        now: Now,
        sent: Now,
        mut check: PendingCheck,
        mut answer: Answer,
    ) {
        if let Some(release) = check.free.as_deref() {
            return self.on_slots_answered(now, sent, release, &answer);
        }
        clamp(&check, &mut answer);
        let request = RequestDescriptor::from_answer(&check, &answer);
        let mut given = Claims {
            in_flight: HeldSlots::from_answer(&check, &answer, sent, request.as_ref()),
            meter: Meter::from_answer(&check, &answer, request.as_ref()),
            ..Claims::default()
        };
        if given.in_flight.is_late(now) {
            self.undo_left(given);
            return self.fall_back(host, now, check, ChargeStatus::Unknown);
        }
        self.apply_grants(host, now, sent, &mut check, &mut answer);
        given.queued = SlotRelease::from_answer(&check, &answer, now, request.as_ref());
        check.claims.add(given);
        for limit in &answer.limits {
            if check.cost > 0 {
                self.count_answer(limit);
            }
            self.cache_answer(host, now, sent, &check, limit);
        }
        if !self.is_awaited(&check) {
            return self.undo_left(check.claims);
        }
        if answer.allowed {
            let admission = Admission {
                quota_statuses: quota_statuses(&check, &answer),
                degraded: degraded(&answer),
                delay_ms: longest_delay(&answer),
            };
            return self.admit(host, now, &mut check, admission);
        }
        self.undo(host, now, std::mem::take(&mut check.claims));
        if check.hold == Hold::Barred {
            self.counts.happened(Event::HoldFull);
        }
        if let Some(stream) = check.stream {
            self.refuse(stream, denial(&check, &answer));
        }
    }

    /// Whether a request still waits for the answer to a check.
    pub(crate) fn is_awaited(&self, check: &PendingCheck) -> bool {
        let stream = check
            .stream
            .and_then(|stream| self.requests.streams.get(stream));
        matches!(stream, Some(Stream::Waiting))
    }

    fn count_answer(&mut self, limit: &LimitAnswer) {
        self.counts
            .decided(&limit.name, limit.outcome(), DecidedBy::Limiter);
        if limit.verdict.penalty.left_ms > 0 {
            self.counts.happened(Event::Penalized);
        }
    }

    /// Caches the answer about one bucket. A denial is written to the shared table at once, for the
    /// next request; a status is written later, for fallback decisions.
    fn cache_answer(
        &mut self,
        host: &impl Host,
        now: Now,
        sent: Now,
        check: &PendingCheck,
        answer: &LimitAnswer,
    ) {
        let found = check.find(&answer.name).filter(|of| of.is_global());
        let Some(limit_check) = found else {
            return;
        };
        let limit = &limit_check.limit;
        // A denial for lack of a hold permit concerns this request only, not the bucket.
        let barred = check.hold == Hold::Barred && limit.over_limit == OverLimit::Queue;
        let penalized = answer.verdict.penalty.left_ms > 0;
        if answer.mode == Mode::Shadow || (barred && !penalized) {
            return;
        }
        let status = BucketStatus::new(now, answer);
        let bucket = limit_check.bucket.key.at(answer.generation);
        let last = match limit.penalty {
            Some(_) => self.cache.denial(bucket),
            None => None,
        };
        let known = last.filter(CachedDenial::is_penalty);
        if !penalized && known.is_some_and(|known| known.outlasts(sent, now)) {
            return;
        }
        // A slot may be free the next moment, so that denial is not cached.
        if answer.outcome() != Outcome::Denied || limit.gives_slots() {
            // A report of denials costs nothing, so an allowed answer to it does not end a denial.
            if limit_check.denied > 0 {
                return;
            }
            let urgent = known.is_some() || self.outage.breaker.failed_lately(now);
            if self.cache.store_status(bucket, status, urgent) {
                let denial = known.map(|_| (None, sent));
                write_answer(host, now, &self.process.table, bucket, status, denial);
            }
            return;
        }
        let denial = cacheable((now, sent), limit, limit_check.asked, answer, last);
        self.cache.store_denial(bucket, status, denial);
        let denial = Some((Some(denial), sent));
        write_answer(host, now, &self.process.table, bucket, status, denial);
    }
}

/// The cache entry for a denial by one limit, after its `last`.
fn cacheable(
    (now, sent): (Now, Now),
    limit: &Limit,
    cost: u64,
    answer: &LimitAnswer,
    last: Option<CachedDenial>,
) -> CachedDenial {
    if answer.verdict.penalty.left_ms > 0 {
        return CachedDenial::penalty(now, sent, answer, last);
    }
    // Other proxies may return leased units.
    let most_ms = match (limit.lease_ttl_ms, limit.over_limit) {
        (Some(ttl_ms), _) => (ttl_ms / 4).min(CachedDenial::MAX_MS),
        // Requests that leave a queue free their slots.
        (None, OverLimit::Queue) => CachedDenial::QUEUE_MS,
        // A response that costs less than its request reserved makes room.
        _ if limit.settles() => CachedDenial::QUEUE_MS,
        _ => CachedDenial::MAX_MS,
    };
    let retry_after_ms = answer.verdict.decision.retry_after.millis();
    CachedDenial::new(sent, retry_after_ms, most_ms, cost)
}

/// The denial of a request by an answer.
fn denial(check: &PendingCheck, answer: &Answer) -> Denial {
    let mut denying = DenyingLimits::default();
    let limits = answer.limits.iter();
    for limit in limits.filter(|limit| limit.outcome() == Outcome::Denied) {
        if check.gives_slots(&limit.name) {
            denying.add_without_time(&limit.name, limit.hidden);
        } else {
            let retry_after_ms = limit.verdict.decision.retry_after.millis();
            denying.add(&limit.name, limit.hidden, retry_after_ms);
        }
        denying.answer_with(check.find(&limit.name).and_then(|of| of.limit.deny_status));
    }
    denying.denial(DecidedBy::Limiter, quota_statuses(check, answer))
}

/// The client's quota at each limit that clients may see.
fn quota_statuses(check: &PendingCheck, answer: &Answer) -> Vec<QuotaStatus> {
    let quotas = answer.limits.iter();
    // The headers are about rates.
    let quotas = quotas.filter(|limit| {
        limit.mode == Mode::Enforce && !limit.hidden && !check.gives_slots(&limit.name)
    });
    let quota_statuses = quotas.filter_map(|limit| {
        Some(QuotaStatus {
            limit: limit.name.clone(),
            quota: limit.limit?,
            window_ms: limit.window_ms,
            remaining: limit.verdict.decision.remaining,
            reset_after_ms: Some(limit.verdict.decision.reset_after_ms),
            cost: check.find(&limit.name).map_or(1, |of| of.cost),
            denies: false,
        })
    });
    quota_statuses.collect()
}

fn degraded(answer: &Answer) -> Vec<Name> {
    let over = answer
        .limits
        .iter()
        .filter(|limit| limit.outcome() == Outcome::Degraded);
    over.map(|limit| limit.name.clone()).collect()
}

fn longest_delay(answer: &Answer) -> u64 {
    let enforcing = answer
        .limits
        .iter()
        .filter(|limit| limit.mode == Mode::Enforce);
    let delays = enforcing.map(|limit| limit.verdict.decision.delay_ms);
    delays.max().unwrap_or(0)
}

// --- Bounds the numbers in an answer: a faulty limiter must not lock a bucket for ever.

/// The longest wait or window that is accepted, in milliseconds: ten years.
const MAX_MS: u64 = 10 * 365 * 24 * 60 * 60 * 1000;
/// The largest number of units that is accepted; no limit has more.
const MAX_UNITS: u64 = 1 << 53;
/// The longest delay by a limit that is not in this proxy's policy, in milliseconds.
const MAX_DELAY_MS: u64 = 30_000;
/// The longest penalty that a limit may have, in milliseconds: seven days.
const MAX_PENALTY_MS: u64 = 7 * 24 * 60 * 60 * 1000;
/// Limits in the answer to one check, at most.
const MAX_LIMITS: usize = 1024;
/// Proxies that share a limit, at most.
pub(crate) const MAX_PROXIES: u64 = 100_000;

/// Bounds the numbers in an answer, and removes limits that cannot apply.
pub(crate) fn clamp(check: &PendingCheck, answer: &mut Answer) {
    let policy = check.policy.as_ref().map(|policy| &policy.compiled);
    // Names unknown here may belong to a later revision, or to a limit that only the limiter can
    // evaluate.
    let all_known = policy
        .is_some_and(|policy| *policy.revision() == answer.revision && policy.opaque().is_empty());
    answer.limits.truncate(MAX_LIMITS);
    answer.limits.retain_mut(|limit_answer| {
        let limit = policy.and_then(|policy| policy.named(&limit_answer.name));
        clamp_numbers(limit_answer);
        let of = check.find(&limit_answer.name);
        clamp_penalty(limit_answer, limit, of.map(|of| of.bucket.generation));
        let delay_ms = &mut limit_answer.verdict.decision.delay_ms;
        *delay_ms = (*delay_ms).min(match limit {
            Some(limit) if limit.over_limit == OverLimit::Queue => {
                limit.quota.parameters().max_delay_ms.unwrap_or(0)
            }
            Some(_) => 0,
            None => MAX_DELAY_MS,
        });
        limit.is_some() || !all_known
    });
}

/// Bounds a penalty by the limit's own, if the bucket has this generation there too; a bucket that is not
/// enforced has none.
fn clamp_penalty(limit_answer: &mut LimitAnswer, limit: Option<&Limit>, generation: Option<u64>) {
    let most_ms = match limit {
        _ if limit_answer.outcome() != Outcome::Denied => 0,
        Some(limit) if generation == Some(limit_answer.generation) => {
            { limit.penalty }.map_or(0, |penalty| penalty.longest_ms())
        }
        _ => MAX_PENALTY_MS,
    };
    let left_ms = &mut limit_answer.verdict.penalty.left_ms;
    *left_ms = (*left_ms).min(most_ms);
}

fn clamp_numbers(limit_answer: &mut LimitAnswer) {
    let span = |ms: &mut u64| *ms = (*ms).min(MAX_MS);
    let (limit, decision) = (&mut limit_answer.limit, &mut limit_answer.verdict.decision);
    *limit = limit.map(|units| units.min(MAX_UNITS));
    decision.remaining = decision.remaining.min(limit.unwrap_or(MAX_UNITS));
    span(&mut limit_answer.window_ms);
    span(&mut decision.reset_after_ms);
    if let RetryAfter::Millis(ms) = &mut decision.retry_after {
        span(ms);
    }
}

// --- Retries checks that a call left undecided.
//
// The worker retries a call that certainly charged nothing, perhaps at another limiter: the connection
// was refused, or a limiter answered that it charged nothing. It never retries a call that was sent
// and not answered, because that may have been charged.
//
// Retries must not overload limiters that all fail, so each retry costs a token, and each call that
// is answered earns one.

/// Bound: calls for one check. Beyond it, it is decided without the limiter.
const ATTEMPTS_MAX: u8 = 4;
/// Bound: retries before another call was answered. Beyond it, failed checks are decided without
/// the limiter.
const RETRY_TOKENS_MAX: u8 = 8;
/// How recent an answer shows that another limiter answers while calls fail, in microseconds: as long as
/// the breaker would be open.
const ANSWERED_NOW_US: u64 = 250_000;
/// Calls that may carry a check before its retries wait for ticks, while others answer. A limiter that
/// answers with errors does so at once, and Envoy needs a moment to eject it.
const AT_ONCE: u8 = 2;

/// Tokens for retries.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    tokens: u8,
    answered_us: Option<u64>,
    /// When a check was last decided; 0: never.
    checked_us: u64,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self {
            tokens: RETRY_TOKENS_MAX,
            answered_us: None,
            checked_us: 0,
        }
    }
}

impl RetryBudget {
    /// A limiter answered: earns a token. `decides`: at least one check.
    pub(crate) fn answered(&mut self, now: Now, decides: bool) {
        self.tokens = self.tokens.saturating_add(1).min(RETRY_TOKENS_MAX);
        self.answered_us = Some(now.mono_us);
        if decides {
            self.checked_us = now.mono_us;
        }
    }

    /// The policy arrived, so a limiter answered a poll. Until a check is answered, nothing else shows
    /// that one limiter of several works: all first checks may reach one that hangs.
    pub(crate) fn policy_received(&mut self, now: Now) {
        self.answered_us.get_or_insert(now.mono_us);
    }

    /// Whether a limiter answered within `ANSWERED_LATELY_US`. Then a limiter that fails is not the
    /// only one.
    pub(crate) fn answered_lately(&self, now: Now) -> bool {
        let ago_us = self.answered_us.map(|at| now.mono_us.saturating_sub(at));
        ago_us.is_some_and(|ago_us| ago_us <= ANSWERED_LATELY_US)
    }

    /// Whether a check was decided after this time.
    pub(crate) fn answered_since(&self, us: u64) -> bool {
        self.checked_us > us
    }

    /// Whether checks are being decided.
    pub(crate) fn is_answered_now(&self, now: Now) -> bool {
        self.answered_since(now.mono_us.saturating_sub(ANSWERED_NOW_US))
    }

    fn take(&mut self) -> bool {
        let left = self.tokens.checked_sub(1);
        self.tokens = left.unwrap_or(0);
        left.is_some()
    }
}

impl Attempts {
    /// Counts a call that carries the check.
    pub(crate) fn count(&mut self, now: Now) {
        if self.made == 0 {
            self.since_us = now.mono_us;
        }
        self.made = self.made.saturating_add(1);
    }

    /// Whether its first call was sent so lately that another one may carry it.
    fn is_early(&self, now: Now, patience_us: u64) -> bool {
        now.mono_us.saturating_sub(self.since_us) <= patience_us
    }
}

impl Worker {
    /// Retries the checks of a call that failed and charged nothing. Checks that may not be retried
    /// stay in the call. The breaker counts the failures of last attempts only. `answered`: a limiter
    /// answered with an error.
    fn retry_call(
        &mut self,
        host: &impl Host,
        now: Now,
        call: &mut CheckCall<PendingCheck>,
        answered: bool,
    ) {
        if call.probe {
            return;
        }
        // Bounds the wait of each request to one and a half timeouts.
        let patience_us = self.calls.patience_us();
        let (mut later, mut retried) = (Vec::new(), Vec::new());
        if answered && self.calls.retry_budget.is_answered_now(now) {
            // Another limiter has a store. One call at each tick does not overload this one, so these
            // retries cost no token.
            let waits = |check: &mut PendingCheck| {
                check.attempts.made >= AT_ONCE && check.attempts.is_early(now, patience_us)
            };
            later.extend(call.checks.extract_if(.., waits));
        }
        let may = |check: &mut PendingCheck| {
            check.attempts.made < ATTEMPTS_MAX && check.attempts.is_early(now, patience_us)
        };
        if !call.checks.is_empty() && self.calls.retry_budget.take() {
            retried.extend(call.checks.extract_if(.., may));
        }
        if later.is_empty() && retried.is_empty() {
            return;
        }
        self.counts.happened(Event::CalloutRetried);
        // Other workers may have added debts meanwhile.
        self.outage.breaker.record(false, now);
        if !later.is_empty() {
            let later = self.still_awaited(host, now, later);
            self.calls.later.extend(later);
            self.ticks.by(now, 0, HOLDING_MS);
        }
        self.requeue(host, now, retried);
    }

    /// Queues checks again, before all others.
    pub(crate) fn requeue(&mut self, host: &impl Host, now: Now, checks: Vec<PendingCheck>) {
        let waiting = self.still_awaited(host, now, checks);
        self.calls.batcher.requeue(waiting);
    }

    /// Undoes what a call did to its checks, and drops those whose clients left.
    fn still_awaited(
        &mut self,
        host: &impl Host,
        now: Now,
        checks: Vec<PendingCheck>,
    ) -> Vec<PendingCheck> {
        let mut waiting = Vec::with_capacity(checks.len());
        for mut check in checks {
            check.restore_debts(host, now, &self.process.table);
            if check.stream.is_some() && !self.is_awaited(&check) {
                self.undo_unsent(check);
            } else {
                waiting.push(check);
            }
        }
        waiting
    }

    /// A limiter refused to read a call because of its size or content. The call is split in halves
    /// until the check at fault is alone; that one falls back, and no other check is affected.
    /// `signed`: a limiter refused it, so the limiter answers.
    fn on_batch_rejected(
        &mut self,
        host: &impl Host,
        now: Now,
        mut call: CheckCall<PendingCheck>,
        too_large: bool,
        signed: bool,
    ) {
        if signed {
            self.record_call(
                host,
                now,
                call.probe,
                CallResult::Answered { decides: false },
            );
        } else if call.probe {
            self.record_call(host, now, true, CallResult::Failed);
        }
        if call.probe {
            return self.requeue(host, now, call.checks);
        }
        if let [_] = call.checks.as_slice() {
            self.counts.happened(Event::CheckFailed);
            for check in call.checks {
                self.decide_rejected(host, now, check);
            }
            return;
        }
        if too_large {
            let bytes = call.checks.iter().map(|check| check.load().bytes).sum();
            self.calls.batcher.lower_max_bytes(bytes);
        }
        let half = call.checks.len() / 2;
        for check in &mut call.checks {
            check.attempts.batch_max = half.max(1);
        }
        self.requeue(host, now, call.checks);
    }

    /// Whether to search a refused call for a check at fault. Each search costs a retry token,
    /// because a limiter that refuses all calls is as good as none.
    fn may_be_request_fault(&mut self, too_large: bool) -> bool {
        too_large || self.calls.retry_budget.take()
    }
}

#[cfg(test)]
mod tests {
    use algorithms::Decision;

    use super::*;

    fn liar() -> LimitAnswer {
        let mut limit_answer = LimitAnswer {
            generation: u64::MAX,
            limit: Some(u64::MAX),
            window_ms: u64::MAX,
            ..LimitAnswer::new("liar".parse().unwrap())
        };
        let verdict = &mut limit_answer.verdict;
        verdict.decision = Decision {
            allowed: false,
            remaining: u64::MAX,
            retry_after: RetryAfter::Millis(u64::MAX),
            reset_after_ms: u64::MAX,
            delay_ms: u64::MAX,
        };
        (verdict.charged, verdict.penalty.left_ms) = (u64::MAX, u64::MAX);
        limit_answer
    }

    #[test]
    fn a_penalty_in_an_answer_is_clamped_to_its_limits_penalty() {
        let text = b"domain: shop\nlimits:\n  - {name: liar, rate: 1/s}\n";
        let mut policy = limits_file::read("limits.yaml", text).unwrap();
        let mut limit = policy.limits.remove(0);
        let clamped = |limit: Option<&Limit>, change: fn(&mut LimitAnswer)| {
            let mut limit_answer = liar();
            change(&mut limit_answer);
            clamp_penalty(&mut limit_answer, limit, Some(u64::MAX));
            limit_answer.verdict.penalty.left_ms
        };
        assert_eq!(clamped(Some(&limit), |_| ()), 0, "it has none");
        limit.penalty = Some(policy::Penalty::new(10, 60_000, 900_000));
        assert_eq!(clamped(Some(&limit), |_| ()), 900_000);
        assert_eq!(
            clamped(Some(&limit), |of| of.verdict.penalty.left_ms = 7),
            7
        );
        assert_eq!(
            clamped(Some(&limit), |of| of.generation = 1),
            MAX_PENALTY_MS
        );
        assert_eq!(clamped(None, |_| ()), MAX_PENALTY_MS);
        assert_eq!(
            clamped(Some(&limit), |of| of.verdict.decision.allowed = true),
            0
        );
        assert_eq!(clamped(Some(&limit), |of| of.mode = Mode::Shadow), 0);
    }

    #[test]
    fn numbers_in_an_answer_are_clamped_to_the_largest_valid_ones() {
        let mut limit_answer = liar();
        clamp_numbers(&mut limit_answer);
        let decision = limit_answer.verdict.decision;
        assert_eq!(
            (limit_answer.limit, decision.remaining),
            (Some(MAX_UNITS), MAX_UNITS)
        );
        assert_eq!(
            (limit_answer.window_ms, decision.reset_after_ms),
            (MAX_MS, MAX_MS)
        );
        assert_eq!(decision.retry_after, RetryAfter::Millis(MAX_MS));
        limit_answer.limit = Some(5);
        clamp_numbers(&mut limit_answer);
        assert_eq!(limit_answer.verdict.decision.remaining, 5);
    }
}
