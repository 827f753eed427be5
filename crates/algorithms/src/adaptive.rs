//! A limit on requests in flight that follows its service: how many slots there are, by how the service answers.
//!
//! Source: the additive and multiplicative steps of TCP's congestion control and of Netflix's
//! concurrency-limits, with two thresholds instead of one. The tail of most services is slow by nature, so
//! slow answers alone are no overload: the bulk (answers after half of the latency) has to move, too. Half
//! of the latency is passed long before the latency is, so growth stops in time.
//!
//! Only freed slots change the limit, so checks cost what they cost without it. Everything is integers: slots in
//! thousandths, shares per mille. `lua/lib/adaptive.lua` is the twin.

use std::fmt;

use crate::concurrency::LIMIT_MAX;

/// What the limit is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Adaptive {
    /// The fewest slots, at least 1.
    pub min: u64,
    /// The most slots.
    pub max: u64,
    /// An answer is late after half of this, and slow after all of it, in milliseconds.
    pub latency_ms: u64,
    /// The share of answers that is to come within the latency, per mille.
    pub share: u64,
}

/// What is invalid in an [`Adaptive`], and what is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AdaptiveError {
    /// The fewest slots are none, or more than the limit starts with.
    Min {
        /// What it starts with.
        largest: u64,
    },
    /// The most slots are fewer than the limit starts with, or more than a bucket holds.
    Max {
        /// What it starts with.
        least: u64,
        /// The most of any bucket.
        largest: u64,
    },
    /// The latency is out of range.
    Latency {
        /// The shortest, in milliseconds.
        least_ms: u64,
        /// The longest, in milliseconds.
        largest_ms: u64,
    },
    /// The share is out of range.
    Share,
}

impl fmt::Display for AdaptiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Min { largest } => write!(f, "min must be from 1 to the limit, {largest}"),
            Self::Max { least, largest } => {
                write!(f, "max must be from the limit, {least}, to {largest}")
            }
            Self::Latency {
                least_ms,
                largest_ms,
            } => write!(f, "latency must be {least_ms}ms to {largest_ms}ms"),
            Self::Share => f.write_str("share must be 50% to 99.9%"),
        }
    }
}

/// How long a service took to answer a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pace {
    /// Up to half of the limit's latency.
    InTime,
    /// Up to the latency.
    Late,
    /// Longer, or it failed as an overloaded service does.
    Slow,
}

/// The limit of a bucket and the window by which it is judged next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdaptiveState {
    /// The limit, in thousandths of a slot.
    pub limit_milli: u64,
    /// The latency that the counts belong to, in milliseconds.
    pub latency_ms: u64,
    /// The share that they belong to, per mille.
    pub share: u64,
    /// When the window began, or begins, in milliseconds since the epoch.
    pub start_ms: u64,
    /// Answers in it.
    pub answers: u64,
    /// Those that were late or slow.
    pub late: u64,
    /// Those that were slow.
    pub slow: u64,
    /// The most slots in use at a time.
    pub most: u64,
    /// The share of answers that is late where the service is nearly alone, per mille.
    pub own_late: u64,
    /// The share of them that is slow.
    pub own_slow: u64,
    /// The latest change of the limit: when, in milliseconds since the epoch; 0: there was none.
    pub moved_ms: u64,
    /// The limit before it, in thousandths of a slot.
    pub moved_from_milli: u64,
    /// The late (and slow) answers of the window that it ended, per mille.
    pub moved_late: u64,
    /// The slow ones of them.
    pub moved_slow: u64,
}

/// How long a state is kept without a slot in use, in milliseconds.
///
/// A service that nobody called for an hour may be another one by now.
pub const ADAPTIVE_LINGER_MS: u64 = 3_600_000;

const LATENCY_MIN_MS: u64 = 2;
const LATENCY_MAX_MS: u64 = 3_600_000;
/// With a smaller share most answers would be slow without a reason to act.
const SHARE_MIN: u64 = 500;
const SHARE_MAX: u64 = 999;

/// A window is judged at this age if it has [`ANSWERS_MIN`], and ends at [`WINDOW_MAX_MS`] in any case.
const WINDOW_MIN_MS: u64 = 1000;
const WINDOW_MAX_MS: u64 = 60_000;
const ANSWERS_MIN: u64 = 20;
/// Bound: answers of a window. Beyond it, further ones are not counted.
const ANSWERS_MAX: u64 = 1_000_000_000;
/// More late answers than this, beyond the service's own, are an overload, per mille.
const OVER_MAX: u64 = 250;
/// The largest share of late answers that is taken for a service's nature, in thousandths. With more no share
/// would be [`OVER_MAX`] above it, and a night of slow exports would end all falls.
const OWN_LATE_MAX: u64 = 500;

impl Adaptive {
    /// Checks the numbers, given the limit that the bucket starts with.
    pub(crate) const fn validate(&self, limit: u64) -> Result<(), AdaptiveError> {
        if self.min < 1 || self.min > limit {
            return Err(AdaptiveError::Min { largest: limit });
        }
        if self.max < limit || self.max > LIMIT_MAX {
            return Err(AdaptiveError::Max {
                least: limit,
                largest: LIMIT_MAX,
            });
        }
        if self.latency_ms < LATENCY_MIN_MS || self.latency_ms > LATENCY_MAX_MS {
            return Err(AdaptiveError::Latency {
                least_ms: LATENCY_MIN_MS,
                largest_ms: LATENCY_MAX_MS,
            });
        }
        if self.share < SHARE_MIN || self.share > SHARE_MAX {
            return Err(AdaptiveError::Share);
        }
        Ok(())
    }

    /// What an answer after so many milliseconds says.
    pub const fn pace(&self, took_ms: u64) -> Pace {
        if took_ms.saturating_mul(2) <= self.latency_ms {
            Pace::InTime
        } else if took_ms <= self.latency_ms {
            Pace::Late
        } else {
            Pace::Slow
        }
    }

    /// The limit within its bounds, in thousandths of a slot. An edit may have moved them.
    fn within(&self, limit_milli: u64) -> u64 {
        limit_milli.clamp(self.min * 1000, self.max * 1000)
    }

    /// The limit of a bucket that starts with so many slots, in thousandths of a slot.
    pub(crate) fn limit_milli(&self, state: Option<&AdaptiveState>, start: u64) -> u64 {
        self.within(state.map_or(start * 1000, |state| state.limit_milli))
    }
}

impl AdaptiveState {
    /// The state after a slot of those `in_use` is freed, whose request had an answer of this pace or none that counts.
    pub(crate) fn after(
        state: Option<&Self>,
        rule: &Adaptive,
        start: u64,
        (now_ms, in_use, pace): (u64, u64, Option<Pace>),
    ) -> Self {
        let mut next = state.copied().unwrap_or(Self {
            limit_milli: start * 1000,
            latency_ms: rule.latency_ms,
            share: rule.share,
            start_ms: now_ms,
            ..Self::default()
        });
        if (next.latency_ms, next.share) != (rule.latency_ms, rule.share) {
            (next.latency_ms, next.share) = (rule.latency_ms, rule.share);
            (next.own_late, next.own_slow) = (0, 0);
            next.restart(now_ms);
        }
        if now_ms < next.start_ms {
            // No window starts later than this, so the clock stepped back.
            if next.start_ms > now_ms.saturating_add(rule.latency_ms) {
                next.restart(now_ms);
            } else {
                // Its request was admitted before the limit changed, so its answer says nothing about the new one.
                return next;
            }
        }
        next.limit_milli = rule.within(next.limit_milli);
        next.most = next.most.max(in_use);
        if let Some(pace) = pace
            && next.answers < ANSWERS_MAX
        {
            next.answers += 1;
            next.late += u64::from(pace != Pace::InTime);
            next.slow += u64::from(pace == Pace::Slow);
        }
        let age_ms = now_ms - next.start_ms;
        if age_ms >= WINDOW_MIN_MS && next.answers >= ANSWERS_MIN {
            next.judge(rule, now_ms);
        } else if age_ms >= WINDOW_MAX_MS {
            next.restart(now_ms);
        }
        next
    }

    fn restart(&mut self, start_ms: u64) {
        self.start_ms = start_ms;
        (self.answers, self.late, self.slow, self.most) = (0, 0, 0, 0);
    }

    /// Ends a window.
    fn judge(&mut self, rule: &Adaptive, now_ms: u64) {
        let per_mille = |count: u64| count * 1000 / self.answers.max(1);
        let (late, slow) = (per_mille(self.late), per_mille(self.slow));
        let before = self.limit_milli;
        let alone = before == rule.min * 1000 || self.most <= rule.min;
        self.learn_own(alone, late, slow);
        let allowed = self.own_slow + 1000 - rule.share;
        let over = late.saturating_sub(self.own_late);
        if slow > allowed && over > OVER_MAX && !alone {
            let base = before.min(self.most * 1000);
            self.limit_milli = base * (2000 - slow) / 2000;
        } else if slow <= allowed && over <= OVER_MAX && self.most * 10 >= before / 1000 * 9 {
            let part = match over {
                0..=62 => 4,
                63..=125 => 8,
                _ => 20,
            };
            self.limit_milli += (before / part).max(1000);
        }
        self.limit_milli = rule.within(self.limit_milli);
        if self.limit_milli == before {
            self.restart(now_ms);
            return;
        }
        self.moved_ms = now_ms;
        self.moved_from_milli = before;
        (self.moved_late, self.moved_slow) = (late, slow);
        self.restart(now_ms.saturating_add(rule.latency_ms));
    }

    /// The service's own shares are measured only where it is nearly alone. Elsewhere a window can only lower
    /// them.
    fn learn_own(&mut self, alone: bool, late: u64, slow: u64) {
        for (own, measured) in [(&mut self.own_late, late), (&mut self.own_slow, slow)] {
            *own = match alone {
                // Not its nature: it fails.
                true if slow > 500 => 0,
                true => (*own + measured).div_ceil(2),
                false => *own - own.saturating_sub(measured).div_ceil(16),
            };
        }
        self.own_late = self.own_late.min(OWN_LATE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Algorithm, BucketRequest, InFlightSlot, Kind, Parameters, SlotAct, SlotId, SlotOp, State,
    };

    const RULE: Adaptive = Adaptive {
        min: 5,
        max: 200,
        latency_ms: 300,
        share: 950,
    };

    /// Answers of one pace, one each 10 ms from a time on, while so many slots are in use.
    fn answered(
        mut state: Option<AdaptiveState>,
        rule: &Adaptive,
        (from_ms, count): (u64, u64),
        in_use: u64,
        pace: Pace,
    ) -> AdaptiveState {
        for nth in 0..count {
            let event = (from_ms + 10 * nth, in_use, Some(pace));
            state = Some(AdaptiveState::after(state.as_ref(), rule, 20, event));
        }
        state.unwrap()
    }

    #[test]
    fn it_grows_in_use_and_falls_when_the_bulk_is_slow() {
        let grown = answered(None, &RULE, (0, 101), 20, Pace::InTime);
        assert_eq!((grown.limit_milli, grown.start_ms), (25_000, 1300));
        assert_eq!((grown.moved_ms, grown.moved_from_milli), (1000, 20_000));
        let unused = answered(None, &RULE, (0, 101), 17, Pace::InTime);
        assert_eq!(unused.limit_milli, 20_000);
        let fallen = answered(None, &RULE, (0, 101), 20, Pace::Slow);
        assert_eq!((fallen.limit_milli, fallen.moved_slow), (10_000, 1000));
        // Alone, it is no overload of ours.
        let alone = answered(None, &RULE, (0, 101), 5, Pace::Slow);
        assert_eq!(alone.limit_milli, 20_000);
    }

    #[test]
    fn a_night_of_late_answers_does_not_stop_it_from_falling() {
        let night = answered(None, &RULE, (0, 6000), 5, Pace::Late);
        assert_eq!(night.own_late, OWN_LATE_MAX);
        let fallen = answered(Some(night), &RULE, (70_000, 400), 20, Pace::Slow);
        assert!(fallen.limit_milli < 20_000, "{fallen:?}");
    }

    #[test]
    fn answers_to_requests_from_before_a_change_do_not_count() {
        let grown = answered(None, &RULE, (0, 101), 20, Pace::InTime);
        let early = answered(Some(grown), &RULE, (1010, 29), 25, Pace::Slow);
        assert_eq!(early, grown);
        let counted = answered(Some(grown), &RULE, (1300, 1), 25, Pace::Slow);
        assert_eq!((counted.answers, counted.slow, counted.most), (1, 1, 25));
        // A clock that stepped back does not stop the window for longer than that.
        let back = answered(Some(grown), &RULE, (10, 1), 25, Pace::Slow);
        assert_eq!((back.answers, back.start_ms), (1, 10));
    }

    #[test]
    fn an_edit_cuts_the_limit_or_starts_a_new_window() {
        let state = AdaptiveState {
            own_late: 300,
            own_slow: 40,
            ..answered(None, &RULE, (0, 90), 20, Pace::Late)
        };
        let narrow = Adaptive { max: 15, ..RULE };
        assert_eq!(narrow.limit_milli(Some(&state), 15), 15_000);
        let cut = answered(Some(state), &narrow, (900, 1), 20, Pace::Late);
        assert_eq!((cut.limit_milli, cut.answers), (15_000, 91));
        for edited in [
            Adaptive { share: 900, ..RULE },
            Adaptive {
                latency_ms: 400,
                ..RULE
            },
        ] {
            let anew = answered(Some(state), &edited, (900, 1), 20, Pace::Late);
            assert_eq!((anew.answers, anew.start_ms), (1, 900));
            assert_eq!((anew.own_late, anew.own_slow), (0, 0));
            assert_eq!(anew.limit_milli, 20_000);
        }
    }

    #[test]
    fn a_minute_with_few_answers_is_not_judged() {
        let few = answered(None, &RULE, (0, 19), 20, Pace::InTime);
        let ended = answered(Some(few), &RULE, (60_000, 1), 20, Pace::InTime);
        // With this one there are 20.
        assert_eq!(ended.limit_milli, 25_000);
        let fewer = answered(None, &RULE, (0, 18), 20, Pace::InTime);
        let ended = answered(Some(fewer), &RULE, (60_000, 1), 20, Pace::InTime);
        assert_eq!((ended.limit_milli, ended.answers), (20_000, 0));
    }

    #[test]
    fn a_pace_is_by_halves_of_the_latency() {
        use Pace::{InTime, Late, Slow};
        let paces = [0, 150, 151, 300, 301, u64::MAX].map(|ms| RULE.pace(ms));
        assert_eq!(paces, [InTime, InTime, Late, Late, Slow, Slow]);
    }

    /// A forged name, a slot that expired and a free that is repeated say nothing.
    #[test]
    fn only_a_slot_that_is_held_says_something_and_once() {
        let parameters = Parameters {
            adaptive: Some(RULE),
            ..Parameters::new(Kind::Concurrency, 20, 1000)
        };
        let algorithm = Algorithm::new(&parameters).unwrap();
        let ask = |state: Option<&State>, now_ms, cost, free: &[SlotOp]| {
            let id = SlotId::new(1, 2, 77);
            let request = BucketRequest {
                cost,
                free,
                ..BucketRequest::default()
            };
            let algorithm = algorithm.for_request(id);
            let outcome = algorithm.evaluate_request(state, now_ms, request).charge();
            outcome.write
        };
        let answers = |state: &Option<State>| match state {
            Some(State::Concurrency(state)) => state.adaptive().map_or(0, |of| of.answers),
            _ => 0,
        };
        let free = |secret| SlotOp {
            slot: InFlightSlot {
                id: SlotId::new(1, 2, secret),
                ttl_ms: 1000,
            }
            .into(),
            act: SlotAct::Answered(Pace::Slow),
        };
        let held = ask(None, 5000, 1, &[]);
        assert_eq!(ask(held.as_ref(), 5001, 0, &[free(78)]), None);
        assert_eq!(answers(&ask(held.as_ref(), 6000, 0, &[free(77)])), 0);
        let freed = ask(held.as_ref(), 5001, 0, &[free(77), free(77)]);
        assert_eq!(answers(&freed), 1);
        assert_eq!(ask(freed.as_ref(), 5002, 0, &[free(77)]), None);
    }
}
