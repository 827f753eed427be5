//! The entry of a bucket that this proxy caches or decides.

use algorithms::{Algorithm, Kind, Parameters, Rate};
use policy::{Name, Penalty};
use protocol::LimitAnswer;

use crate::{
    cache::Record,
    host::{Now, Put, Reader, Row, rows},
    response::QuotaStatus,
};

/// The longest state of an algorithm that fits an entry, in bytes: a queue's.
const MAX_STATE_LEN: usize = algorithms::STATE_BYTES_MAX;

/// The entry of a bucket in the roles `Global`, `Proxy` and `Precheck`. Any field may be absent.
///
/// Times are on the monotonic clock, in microseconds: a step of the wall clock must neither lock a
/// bucket nor free it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BucketEntry {
    /// The limiter's last denial.
    pub(crate) denial: Option<CachedDenial>,
    /// The last status.
    pub(crate) status: Option<BucketStatus>,
    /// The bucket itself, where this proxy decides it.
    pub(crate) local: Option<LocalState>,
    /// Units admitted while no limiter answered.
    pub(crate) debt: Debt,
}

/// The state of an algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocalState {
    /// In the algorithm's encoding.
    pub(crate) bytes: Vec<u8>,
    /// When it last decided a request.
    pub(crate) touched_us: u64,
    /// When the bucket will be unused. Until then it must not be evicted.
    pub(crate) unused_at_us: u64,
}

impl BucketEntry {
    /// Stores a status unless a newer one is stored; returns whether it did. A fallback bucket that was
    /// not used since is dropped: the next outage starts from this status.
    pub(crate) fn update_status(&mut self, status: BucketStatus) -> bool {
        // Of those that arrived in one answer, the last counts what the others took.
        let is_newer = |known: BucketStatus| known.at_us > status.at_us || known == status;
        if self.status.is_some_and(is_newer) {
            return false;
        }
        self.status = Some(status);
        self.local.take_if(|local| local.touched_us < status.at_us);
        true
    }
}

const DENIAL: u8 = 1;
const STATUS: u8 = 2;
const LOCAL: u8 = 4;
const DEBT: u8 = 8;
/// The denial is by a penalty.
const PENALTY: u8 = 16;

impl Record for BucketEntry {
    fn write(&self, out: &mut Vec<u8>) {
        let flag = |bit: u8, set: bool| if set { bit } else { 0 };
        let in_debt = self.debt != Debt::default();
        out.put_u8(
            flag(DENIAL, self.denial.is_some())
                | flag(STATUS, self.status.is_some())
                | flag(LOCAL, self.local.is_some())
                | flag(DEBT, in_debt)
                | flag(
                    PENALTY,
                    self.denial.is_some_and(|denial| denial.is_penalty()),
                ),
        );
        if let Some(denial) = self.denial {
            denial.write(out);
        }
        if let Some(status) = self.status {
            status.write(out);
        }
        if let Some(local) = &self.local {
            out.put_u64s(&[local.touched_us, local.unused_at_us]);
            out.put_u8(local.bytes.len().try_into().unwrap_or(u8::MAX));
            out.extend_from_slice(&local.bytes);
        }
        if in_debt {
            self.debt.write(out);
        }
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let flags = reader.u8()?;
        let mut entry = Self::default();
        if flags & DENIAL != 0 {
            entry.denial = Some(CachedDenial::read(&mut reader, flags & PENALTY != 0)?);
        }
        if flags & STATUS != 0 {
            entry.status = Some(BucketStatus::read(&mut reader)?);
        }
        if flags & LOCAL != 0 {
            let [touched_us, unused_at_us] = reader.u64s()?;
            let len = usize::from(reader.u8()?);
            if len > MAX_STATE_LEN {
                return None;
            }
            entry.local = Some(LocalState {
                bytes: reader.take(len)?.to_vec(),
                touched_us,
                unused_at_us,
            });
        }
        if flags & DEBT != 0 {
            entry.debt = Debt::read(&mut reader)?;
        }
        reader.is_empty().then_some(entry)
    }

    fn in_use_until_us(&self) -> u64 {
        let local_us = self.local.as_ref().map_or(0, |local| local.unused_at_us);
        local_us.max(self.debt.until_us)
    }
}

// --- The last status of a bucket.

/// The state of a bucket in the limiter's last answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketStatus {
    /// When the answer arrived, on the monotonic clock.
    pub(crate) at_us: u64,
    /// The quota in units, overrides included; `None`: unlimited.
    pub(crate) limit: Option<u64>,
    /// The time in which an empty quota refills completely.
    pub(crate) window_ms: u64,
    /// Units left at `at_us`.
    pub(crate) remaining: u64,
    /// The time from `at_us` until the quota is complete.
    pub(crate) reset_after_ms: u64,
}

impl BucketStatus {
    /// The status in an answer that arrived now.
    pub(crate) fn new(now: Now, answer: &LimitAnswer) -> Self {
        Self {
            at_us: now.mono_us,
            limit: answer.limit,
            window_ms: answer.window_ms,
            remaining: answer.verdict.decision.remaining,
            reset_after_ms: answer.verdict.decision.reset_after_ms,
        }
    }

    /// The client's quota, of which `leased` units are not the limiter's any more; `None`: it is unlimited.
    pub(crate) fn quota_status(
        &self,
        now: Now,
        limit: &Name,
        cost: u64,
        leased: u64,
    ) -> Option<QuotaStatus> {
        let quota = self.limit?;
        let elapsed_ms = now.mono_us.saturating_sub(self.at_us) / 1000;
        Some(QuotaStatus {
            limit: limit.clone(),
            quota,
            window_ms: self.window_ms,
            remaining: self.remaining.saturating_add(leased).min(quota),
            reset_after_ms: Some(self.reset_after_ms.saturating_sub(elapsed_ms)),
            cost,
            denies: false,
        })
    }

    /// The units that would pass at once. Of a queue behind a burst, those left count what would be held, too.
    pub(crate) fn passing(&self, parameters: &Parameters) -> u64 {
        if parameters.max_delay_ms.is_none() || parameters.kind == Kind::LeakyBucket {
            return self.remaining;
        }
        let limit = self.limit.unwrap_or(0);
        let owed = limit.saturating_mul(self.reset_after_ms);
        let used = owed.div_ceil(self.window_ms.max(1));
        self.remaining.min(limit.saturating_sub(used))
    }

    /// Whether an override gives the bucket other parameters than its limit.
    pub(crate) fn differs_from(&self, algorithm: &Algorithm) -> bool {
        let rate = &algorithm.parameters().rate;
        let same_window = self.window_ms == algorithm.window_ms() || self.is_of_unit(rate);
        self.limit != Some(algorithm.limit()) || !same_window
    }

    /// Whether the window fits the rate's calendar unit: some days have 23 or 25 hours, some months 28
    /// days.
    pub(crate) fn is_of_unit(&self, rate: &Rate) -> bool {
        let apart_ms = self.window_ms.abs_diff(rate.period_ms);
        rate.calendar.is_some() && apart_ms <= rate.period_ms / 10
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(self.at_us);
        out.put_u8(u8::from(self.limit.is_some()));
        out.put_u64s(&[self.limit.unwrap_or(0), self.window_ms]);
        out.put_u64s(&[self.remaining, self.reset_after_ms]);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let at_us = reader.u64()?;
        let is_limited = reader.u8()? != 0;
        let limit = reader.u64()?;
        Some(Self {
            at_us,
            limit: is_limited.then_some(limit),
            window_ms: reader.u64()?,
            remaining: reader.u64()?,
            reset_after_ms: reader.u64()?,
        })
    }
}

// --- Units that were admitted without the limiter and are not charged yet.

/// For how long a debt counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DebtSpan {
    /// For this many microseconds after the units were admitted.
    Rolling(u64),
    /// To the end of the calendar window they were admitted in.
    Window {
        /// The label of the window; 0: not known.
        serial: u64,
        /// The end, on the monotonic clock.
        ends_us: u64,
    },
}

impl DebtSpan {
    /// The span of a bucket.
    pub(crate) fn from_algorithm(algorithm: &Algorithm, now: Now) -> Self {
        match algorithm.calendar_window(now.wall_ms) {
            Some(window) => Self::Window {
                serial: window.serial,
                ends_us: now.after_ms(window.end_ms.saturating_sub(now.wall_ms)),
            },
            None => Self::Rolling(algorithm.window_ms().saturating_mul(1000)),
        }
    }

    /// The same window by another label, or none.
    pub(crate) fn labelled(self, label: Option<u64>) -> Self {
        match self {
            Self::Window { ends_us, .. } => Self::Window {
                serial: label.unwrap_or(0),
                ends_us,
            },
            Self::Rolling(_) => self,
        }
    }
}

/// Units admitted without the limiter, over two spans. A span is the time in which a used-up bucket
/// becomes unused: by then the bucket itself has forgiven the units. For calendar windows only the
/// latest counts, as `current`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Debt {
    /// When the current span began; for a calendar window, its label.
    pub(crate) since_us: u64,
    /// Units in the current span.
    pub(crate) current: u64,
    /// Units in the span before it.
    pub(crate) previous: u64,
    /// When all of it is forgiven.
    pub(crate) until_us: u64,
}

impl Debt {
    /// Adds units admitted now, to a bucket with this span.
    pub(crate) fn add(&mut self, units: u64, span: DebtSpan, now_us: u64) {
        let span_us = match span {
            DebtSpan::Rolling(span_us) => span_us,
            DebtSpan::Window { serial, ends_us } => {
                if self.since_us != serial || self.until_us <= now_us {
                    *self = Self {
                        since_us: serial,
                        ..Self::default()
                    };
                }
                self.current = self.current.saturating_add(units);
                self.until_us = ends_us;
                return;
            }
        };
        self.roll(span_us, now_us);
        self.current = self.current.saturating_add(units);
        self.until_us = now_us.saturating_add(span_us);
    }

    /// Units admitted in the last span. Units of the previous span count in proportion to the overlap.
    pub(crate) fn units(mut self, span: DebtSpan, now_us: u64) -> u64 {
        let span_us = match span {
            DebtSpan::Rolling(span_us) => span_us,
            DebtSpan::Window { .. } if now_us < self.until_us => return self.current,
            DebtSpan::Window { .. } => return 0,
        };
        self.roll(span_us, now_us);
        let left_us = span_us.saturating_sub(now_us.saturating_sub(self.since_us));
        let weighted = u128::from(self.previous) * u128::from(left_us);
        let previous = weighted.div_ceil(u128::from(span_us.max(1)));
        self.current
            .saturating_add(u64::try_from(previous).unwrap_or(u64::MAX))
    }

    /// The label of the calendar window in which the units were admitted, if it is known.
    pub(crate) fn serial(&self, span: DebtSpan) -> Option<u64> {
        let calendar = matches!(span, DebtSpan::Window { .. });
        (calendar && self.since_us > 0).then_some(self.since_us)
    }

    fn roll(&mut self, span_us: u64, now_us: u64) {
        let elapsed_us = now_us.saturating_sub(self.since_us);
        if elapsed_us >= span_us.saturating_mul(2) {
            *self = Self {
                since_us: now_us,
                ..Self::default()
            };
        } else if elapsed_us >= span_us {
            self.since_us = self.since_us.saturating_add(span_us);
            self.previous = std::mem::take(&mut self.current);
        }
    }
}

rows! { Debt { since_us, current, previous, until_us } }

// --- Denials that still hold.

/// A denial of the limiter that still holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CachedDenial {
    /// Until when it is cached.
    pub(crate) until_us: u64,
    /// The least cost that was denied; a smaller one may pass. A penalty denies them all.
    pub(crate) least_cost: u64,
    /// When to retry by the limiter's answer, which may be later than the denial is cached;
    /// `u64::MAX`: never.
    pub(crate) retry_at_us: u64,
    /// When the answer with the penalty arrived; 0: there is none.
    pub(crate) penalty_us: u64,
}

impl CachedDenial {
    /// The longest that a denial is cached, unless by a penalty.
    pub(crate) const MAX_MS: u64 = 1000;
    /// The longest that a denial by a queue is cached: a request that leaves frees its slot.
    pub(crate) const QUEUE_MS: u64 = 100;

    /// A denial with a `retry_after_ms`, counted from the moment its check was sent. The limiter
    /// read its clock later, but in whole milliseconds, so a millisecond less is never too long.
    /// `most_ms`, at most [`Self::MAX_MS`], bounds how long it is cached.
    pub(crate) fn new(sent: Now, retry_after_ms: Option<u64>, most_ms: u64, cost: u64) -> Self {
        let wait_ms = retry_after_ms.unwrap_or(u64::MAX);
        Self {
            until_us: sent.after_ms(wait_ms.saturating_sub(1).min(most_ms)),
            least_cost: cost,
            retry_at_us: sent.after_ms(wait_ms),
            penalty_us: 0,
        }
    }

    /// The denial of a penalized bucket, to the end of its penalty, after `last`. That may name a later
    /// retry: the answer may be one to a report, which costs nothing and so waits for the penalty alone.
    pub(crate) fn penalty(
        now: Now,
        sent: Now,
        answer: &LimitAnswer,
        last: Option<CachedDenial>,
    ) -> Self {
        let verdict = &answer.verdict;
        let retry_after_ms = verdict.decision.retry_after.millis();
        let denial = Self::new(sent, retry_after_ms, verdict.penalty.left_ms, 0);
        let needed_us = last.map(|last| last.retry_at_us);
        let needed_us = needed_us.filter(|at_us| *at_us != u64::MAX).unwrap_or(0);
        Self {
            retry_at_us: denial.retry_at_us.max(needed_us),
            penalty_us: now.mono_us,
            ..denial
        }
    }

    pub(crate) fn is_penalty(&self) -> bool {
        self.penalty_us > 0
    }

    /// Whether it is a penalty that the answer to a check sent at `sent` cannot have ended: the check may
    /// have been decided before the penalty began.
    pub(crate) fn outlasts(&self, sent: Now, now: Now) -> bool {
        self.penalty_us > sent.mono_us && !now.reached(self.until_us)
    }

    /// Whether the denial still holds for a cost, at a limit with this penalty. A denial that claims to
    /// hold longer than possible was written by another plugin, and is ignored.
    pub(crate) fn denies(&self, cost: u64, now: Now, penalty: Option<Penalty>) -> bool {
        let left_ms = now.millis_until(self.until_us);
        let most_ms = match penalty {
            Some(penalty) if self.is_penalty() => penalty.longest_ms(),
            _ => Self::MAX_MS,
        };
        (1..=most_ms).contains(&left_ms) && cost >= self.least_cost
    }

    /// When to retry, in milliseconds from now; `None`: never.
    pub(crate) fn retry_after_ms(&self, now: Now) -> Option<u64> {
        (self.retry_at_us != u64::MAX).then(|| now.millis_until(self.retry_at_us))
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.put_u64s(&[self.until_us, self.least_cost, self.retry_at_us]);
        if self.is_penalty() {
            out.put_u64(self.penalty_us);
        }
    }

    /// Reads a denial, or one by a penalty.
    pub(super) fn read(reader: &mut Reader<'_>, penalty: bool) -> Option<Self> {
        Some(Self {
            until_us: reader.u64()?,
            least_cost: reader.u64()?,
            retry_at_us: reader.u64()?,
            penalty_us: if penalty { reader.u64()? } else { 0 },
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        pub(crate) fn any_entry()(
            denial in proptest::option::of((any::<[u64; 3]>(), proptest::option::of(1..u64::MAX))),
            status in proptest::option::of((any::<[u64; 4]>(), any::<Option<u64>>())),
            local in proptest::option::of((proptest::collection::vec(any::<u8>(), 0..=MAX_STATE_LEN), any::<[u64; 2]>())),
            debt in any::<[u64; 4]>(),
        ) -> BucketEntry {
            BucketEntry {
                denial: denial.map(|([until_us, least_cost, retry_at_us], penalty)| CachedDenial {
                    until_us, least_cost, retry_at_us, penalty_us: penalty.unwrap_or(0),
                }),
                status: status.map(|([at_us, window_ms, remaining, reset_after_ms], limit)| BucketStatus {
                    at_us, limit, window_ms, remaining, reset_after_ms,
                }),
                local: local.map(|(bytes, [touched_us, unused_at_us])| LocalState { bytes, touched_us, unused_at_us }),
                debt: Debt { since_us: debt[0], current: debt[1], previous: debt[2], until_us: debt[3] },
            }
        }
    }

    proptest! {
        #[test]
        fn a_bucket_entry_round_trips_through_bytes(entry in any_entry()) {
            let mut bytes = Vec::new();
            entry.write(&mut bytes);
            prop_assert_eq!(BucketEntry::read(&bytes), Some(entry));
        }

        #[test]
        fn reading_arbitrary_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = BucketEntry::read(&bytes);
        }
    }
}

#[cfg(test)]
mod debt_tests {
    use super::*;

    #[test]
    fn a_debt_fades_within_two_spans() {
        let mut debt = Debt::default();
        let span = DebtSpan::Rolling(1000);
        debt.add(10, span, 50_000);
        assert_eq!(debt.units(span, 50_000), 10);
        assert_eq!(debt.units(span, 50_999), 10);
        assert_eq!(debt.units(span, 51_000), 10);
        assert_eq!(debt.units(span, 51_500), 5);
        assert_eq!(debt.units(span, 51_999), 1);
        assert_eq!(debt.units(span, 52_000), 0);
        debt.add(3, span, 51_500);
        assert_eq!(debt.units(span, 51_500), 8);
        assert_eq!(debt.serial(span), None);
    }

    #[test]
    fn a_debt_of_a_calendar_window_ends_with_it() {
        let window = |serial, ends_us| DebtSpan::Window { serial, ends_us };
        let (today, tomorrow) = (window(7, 60_000), window(8, 90_000));
        let mut debt = Debt::default();
        debt.add(10, today, 50_000);
        debt.add(5, today, 59_999);
        assert_eq!(debt.units(today, 59_999), 15);
        assert_eq!(debt.serial(today), Some(7));
        assert_eq!(debt.units(tomorrow, 60_000), 0);
        debt.add(2, tomorrow, 60_000);
        assert_eq!(debt.units(tomorrow, 60_000), 2);
        assert_eq!(debt.serial(tomorrow), Some(8));
    }
}

#[cfg(test)]
mod denial_tests {
    use super::*;
    use crate::host::at;

    const PENALTY: Option<Penalty> = Some(Penalty::new(10, 60_000, 900_000));

    fn penalty(until_ms: u64) -> CachedDenial {
        CachedDenial {
            penalty_us: 2000,
            ..CachedDenial::new(at(1), Some(until_ms), until_ms, 0)
        }
    }

    #[test]
    fn a_penalty_denies_every_cost_to_its_end() {
        let denial = penalty(900_000);
        for cost in [0, 1, u64::MAX] {
            assert!(denial.denies(cost, at(2), PENALTY));
            assert!(denial.denies(cost, at(899_999), PENALTY));
            assert!(!denial.denies(cost, at(900_000), PENALTY));
        }
    }

    #[test]
    fn a_cached_penalty_longer_than_the_limits_own_does_not_deny() {
        let hour = penalty(3_600_000);
        assert!(!hour.denies(1, at(2), PENALTY));
        assert!(!penalty(900_000).denies(1, at(2), None));
        let denial = CachedDenial::new(at(1), None, 900_000, 1);
        assert!(!denial.denies(1, at(2), PENALTY), "no penalty");
    }
}
