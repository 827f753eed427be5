//! Applies the answer to one check: carries out the decision and caches the state of its buckets.

use policy::{Limit, Name, OverLimit};
use protocol::{Answer, DecidedBy, LimitAnswer, Mode};

use super::clamp::clamp;
use crate::{
    cache::{Answered, BucketStatus, CachedDenial, write_answer},
    cost::Meter,
    host::Host,
    metrics::Event,
    outage::ChargeStatus,
    request::{Admission, Claims, DenyingLimits, HeldSlots, LimiterSlots, PendingCheck, Stream},
    response::{Denial, QuotaStatus},
    time::Now,
    worker::Worker,
};

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
        let mut given = Claims {
            in_flight: HeldSlots::from_answer(&check, &answer, sent),
            meter: Meter::from_answer(&check, &answer),
            ..Claims::default()
        };
        if given.in_flight.is_late(now) {
            self.undo_left(given);
            return self.fall_back(host, now, check, ChargeStatus::Unknown);
        }
        self.apply_grants(host, now, sent, &mut check, &mut answer);
        given.queued = LimiterSlots::from_answer(&check, &answer, now);
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
        if check.hold.barred {
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
        if limit.penalty.left_ms > 0 {
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
        let (Some(shared), Some(limit_check)) = (self.process.shared(), found) else {
            return;
        };
        let limit = &limit_check.limit;
        // A denial for lack of a hold permit concerns this request only, not the bucket.
        let barred = check.hold.barred && limit.over_limit == OverLimit::Queue;
        let penalized = answer.penalty.left_ms > 0;
        if answer.mode == Mode::Shadow || (barred && !penalized) {
            return;
        }
        let status = BucketStatus::new(now, answer);
        let (key, generation) = (limit_check.key, answer.generation);
        let bucket = (key, generation);
        let last = match limit.penalty {
            Some(_) => self.cache.denial(key, generation),
            None => None,
        };
        let known = last.filter(CachedDenial::is_penalty);
        if !penalized && known.is_some_and(|known| known.outlasts(sent, now)) {
            return;
        }
        // A slot may be free the next moment, so that denial is not cached.
        if answer.allowed || answer.mode != Mode::Enforce || limit.gives_slots() {
            // A report of denials costs nothing, so an allowed answer to it does not end a denial.
            if limit_check.denied > 0 {
                return;
            }
            let urgent = known.is_some() || self.outage.breaker.failed_lately(now);
            if self.cache.store_status(key, generation, status, urgent) {
                let denial = known.map(|_| (None, sent));
                let answered = Answered { status, denial };
                write_answer(host, now, &shared.table, bucket, &answered);
            }
            return;
        }
        let denial = cacheable((now, sent), limit, limit_check.cost, answer, last);
        self.cache.store_denial(key, generation, status, denial);
        let denial = Some((Some(denial), sent));
        let answered = Answered { status, denial };
        write_answer(host, now, &shared.table, bucket, &answered);
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
    if answer.penalty.left_ms > 0 {
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
    CachedDenial::new(sent, answer.retry_after_ms, most_ms, cost)
}

/// The denial of a request by an answer.
fn denial(check: &PendingCheck, answer: &Answer) -> Denial {
    let mut denying = DenyingLimits::default();
    let enforcing = answer
        .limits
        .iter()
        .filter(|limit| limit.mode == Mode::Enforce);
    for limit in enforcing.filter(|limit| !limit.allowed) {
        if check.gives_slots(&limit.name) {
            denying.add_without_time(&limit.name, limit.hidden);
        } else {
            denying.add(&limit.name, limit.hidden, limit.retry_after_ms);
        }
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
            remaining: limit.remaining,
            reset_after_ms: Some(limit.reset_after_ms),
            cost: check.cost_of(&limit.name),
            denies: false,
        })
    });
    quota_statuses.collect()
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
