//! Buckets that this proxy decides: those of `scope: proxy`, the prechecks in front of global
//! limits, and fallback buckets during an outage.

use algorithms::{Algorithm, Charged, Decision, Edges, Kind, Parameters, Rate, Slot, State};

use crate::{
    cache::{BucketAt, BucketEntry, DebtSpan, Found, LocalState, Role, Room, Table, Update},
    host::{Contended, Host, Now},
    request::LimitCheck,
    worker::Worker,
};

/// A bucket in the shared table, with its parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalBucket<'a> {
    pub(crate) table: &'a Table,
    pub(crate) bucket: BucketAt,
    pub(crate) algorithm: &'a Algorithm,
    pub(crate) start: Start,
}

/// The initial state of a bucket that the table does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// Full: no request has used it.
    Full,
    /// Full, and it may be evicted at any time, because the limiter still decides.
    Precheck,
    /// A share of the units left by the limiter's last answer; without an answer, one request's cost.
    Fallback {
        /// The proxies that share the limit.
        proxies: u64,
        /// Whether other limiters still answer, so that the fallback will be short. Then the bucket
        /// starts with all units that were left, up to this proxy's share of the limit: over all
        /// proxies at most one capacity.
        answering: bool,
        /// How long admitted units count as a debt.
        span: DebtSpan,
    },
}

/// What to do with a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// Charge it if it fits.
    Charge,
    /// As [`Take::Charge`], and record a debt.
    ChargeAsDebt,
    /// Decide without a charge.
    Peek,
}

impl LocalBucket<'_> {
    /// Decides a cost and, if `take` says so, charges it. Returns the slot too if the bucket is a
    /// queue.
    ///
    /// # Errors
    /// Other workers wrote first, too often.
    pub(crate) fn decide(
        &self,
        host: &impl Host,
        now: Now,
        cost: u64,
        take: Take,
    ) -> Result<(Decision, Option<Slot>), Contended> {
        self.table.update(host, self.bucket, now, |found| {
            let state = self.state(found, now, cost);
            let keeps = match found.room {
                Room::Own => true,
                Room::Overflow => self.start != Start::Precheck,
                Room::None => false,
            };
            let (at_ms, state_now) = (now.wall_ms, state.as_ref());
            let charge = take != Take::Peek;
            let decided = (self.algorithm).decide_local(state_now, at_ms, (cost, 0), charge);
            // Policies refuse limits here whose algorithm has no state of a fixed size.
            let Some((decision, slot, write)) = decided else {
                return Update::Keep(Err(Contended));
            };
            // The starting state is stored, or the bucket would start again each time.
            let stored = found.entry.local.is_some();
            match write.or(state.filter(|_| !stored)) {
                Some(state) if keeps => {
                    if let (Take::ChargeAsDebt, Start::Fallback { span, .. }) = (take, self.start)
                        && decision.allowed
                        && cost > 0
                        && found.room == Room::Own
                    {
                        found.entry.debt.add(cost, span, now.mono_us);
                    }
                    self.store(found, &state, &decision, now);
                    Update::Write(Ok((decision, slot)))
                }
                _ => Update::Keep(Ok((decision, slot))),
            }
        })?
    }

    /// Refunds a charge as far as it still counts; in a queue, frees the slot.
    ///
    /// # Errors
    /// Other workers wrote first, too often.
    pub(crate) fn refund(
        &self,
        host: &impl Host,
        now: Now,
        charged: &Charged,
    ) -> Result<(), Contended> {
        self.table.update(host, self.bucket, now, |found| {
            match self.refunded(found, now, charged) {
                Some((state, decision)) => {
                    self.store(found, &state, &decision, now);
                    Update::Write(())
                }
                // The bucket was evicted, or the limit edited.
                None => Update::Keep(()),
            }
        })
    }

    /// The bucket's state after the refund, and a decision of cost 0 by it.
    fn refunded(
        &self,
        found: &Found<BucketEntry>,
        now: Now,
        charge: &Charged,
    ) -> Option<(State, Decision)> {
        let local = found.entry.local.as_ref()?;
        let state = State::from_bytes(&local.bytes)?;
        let state = self.algorithm.refund_local(&state, now.wall_ms, charge)?;
        let at_ms = now.wall_ms;
        let (decision, ..) = (self.algorithm).decide_local(Some(&state), at_ms, (0, 0), false)?;
        Some((state, decision))
    }

    /// The bucket's state; `None` if it is unused.
    fn state(&self, found: &Found<BucketEntry>, now: Now, cost: u64) -> Option<State> {
        let stored = found.entry.local.as_ref();
        if let Some(state) = stored.and_then(|local| State::from_bytes(&local.bytes)) {
            return Some(state);
        }
        let limit = self.algorithm.limit();
        // The overflow may contain this bucket's charges, unless the bucket has an entry.
        let overflow = found
            .overflow
            .as_ref()
            .filter(|_| found.entry.status.is_none());
        if let Some(state) = overflow.and_then(|local| State::from_bytes(&local.bytes)) {
            return Some(state);
        }
        match self.start {
            Start::Precheck => None,
            _ if found.room == Room::None => self.with_left(0, now.wall_ms),
            Start::Full => None,
            Start::Fallback {
                proxies,
                answering,
                span,
            } => match found.entry.status {
                None if answering => None,
                None => self.with_left(cost.min(limit), now.wall_ms),
                Some(status) => {
                    let at_ms = now.wall_of(status.at_us);
                    // The limiter's last status does not include debts.
                    let debt = found.entry.debt.units(span, now.mono_us);
                    let parts = if answering { 1 } else { proxies.max(1) };
                    let left =
                        (status.passing(self.algorithm.parameters()) / parts).saturating_sub(debt);
                    self.with_left(left.min(limit), at_ms)
                }
            },
        }
    }

    fn store(&self, found: &mut Found<BucketEntry>, state: &State, decision: &Decision, now: Now) {
        let local = state.to_bytes().map(|bytes| LocalState {
            bytes,
            touched_us: now.mono_us,
            unused_at_us: if self.start == Start::Precheck {
                0
            } else {
                now.after_ms(decision.reset_after_ms)
            },
        });
        if found.room == Room::Own {
            found.entry.local = local;
        } else {
            found.overflow = local;
        }
    }

    /// The state of a bucket with this many units left.
    fn with_left(&self, units: u64, at_ms: u64) -> Option<State> {
        let used = self.algorithm.limit().saturating_sub(units);
        let (.., write) = (self.algorithm).decide_local(None, at_ms, (0, used), false)?;
        write
    }
}

impl Worker {
    /// The bucket of a limit at this proxy.
    pub(crate) fn local_bucket<'a>(
        &'a self,
        of: &LimitCheck,
        algorithm: &'a Algorithm,
        start: Start,
    ) -> LocalBucket<'a> {
        LocalBucket {
            table: &self.process.table,
            bucket: match start {
                Start::Precheck => of.bucket.in_role(Role::Precheck),
                _ => of.bucket,
            },
            algorithm,
            start,
        }
    }
}

// --- One proxy's share of a limit.

/// How to divide a limit's parameters among proxies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Share {
    /// Proxies that use the limit, at least 1.
    pub(crate) proxies: u64,
    /// The cost of one request, which even the smallest share admits from time to time.
    pub(crate) cost: u64,
}

impl Share {
    /// The algorithm of one proxy's bucket; `None` if no algorithm accepts the divided parameters.
    /// Calendar windows also need the edges.
    pub(crate) fn of(self, parameters: &Parameters, edges: Option<&Edges>) -> Option<Algorithm> {
        let proxies = self.proxies.max(1);
        match parameters.kind {
            Kind::TokenBucket | Kind::Gcra | Kind::LeakyBucket => {
                self.of_bucket(parameters, proxies)
            }
            Kind::FixedWindow => {
                let algorithm = self.of_window(parameters, Kind::FixedWindow, proxies)?;
                let length_ms = parameters.rate.period_ms;
                let windows = algorithm.parameters().rate.period_ms / length_ms.max(1);
                Some(with_edges(
                    algorithm,
                    edges.map(|edges| edges.grouped(windows, length_ms)),
                ))
            }
            // `request/in_flight.rs` has the share of requests in flight.
            Kind::Concurrency => None,
            // Logs and sub-windows have no state of a small fixed size.
            Kind::SlidingWindow | Kind::SlidingWindowLog | Kind::SlidingWindowBuckets => {
                self.of_window(parameters, Kind::SlidingWindow, proxies)
            }
        }
    }

    fn of_bucket(self, parameters: &Parameters, proxies: u64) -> Option<Algorithm> {
        let rate = parameters.rate;
        let capacity = parameters.burst.unwrap_or(rate.units);
        let period_ms = rate.period_ms.checked_mul(proxies)?;
        let share = Parameters {
            rate: Rate { period_ms, ..rate },
            burst: Some((capacity / proxies).max(self.cost).min(capacity)),
            ..*parameters
        };
        // If the exact parameters are too large, one unit per whole number of milliseconds is at most a
        // millisecond per unit too slow.
        let coarse = Parameters {
            rate: Rate::new(1, period_ms.div_ceil(rate.units.max(1))),
            ..share
        };
        Algorithm::new(&share)
            .or_else(|_| Algorithm::new(&coarse))
            .ok()
    }

    fn of_window(self, parameters: &Parameters, kind: Kind, proxies: u64) -> Option<Algorithm> {
        let rate = parameters.rate;
        let units = rate.units;
        let share = units / proxies;
        let rate = if share >= self.cost || units < self.cost {
            Rate {
                units: share,
                ..rate
            }
        } else {
            // A share of less than one request per window admits one request in some windows.
            let windows = proxies.checked_mul(self.cost)?.div_ceil(units);
            Rate {
                units: self.cost,
                period_ms: rate.period_ms.checked_mul(windows)?,
                ..rate
            }
        };
        Algorithm::new(&window(parameters, kind, rate)).ok()
    }
}

/// Calendar windows with these edges.
pub(crate) fn with_edges(algorithm: Algorithm, edges: Option<Edges>) -> Algorithm {
    edges.map_or(algorithm, |edges| algorithm.with_edges(edges))
}

/// The parameters of a precheck: `percent` of a limit, at least the limit itself.
pub(crate) fn precheck(limit: &Algorithm, percent: u32) -> Option<Algorithm> {
    let parameters = limit.parameters();
    let percent = u64::from(percent.max(100));
    let Rate {
        units, period_ms, ..
    } = parameters.rate;
    let widened = match parameters.kind {
        Kind::TokenBucket | Kind::Gcra | Kind::LeakyBucket => Parameters {
            rate: Rate::new(units.checked_mul(percent)?, period_ms.checked_mul(100)?),
            burst: Some(parameters.burst.unwrap_or(units).checked_mul(percent)? / 100),
            ..*parameters
        },
        kind => {
            // An aligned window never holds more than the log or the sub-windows of the same
            // length that end now.
            let kind = match kind {
                Kind::SlidingWindow => Kind::SlidingWindow,
                _ => Kind::FixedWindow,
            };
            let rate = Rate {
                units: units.checked_mul(percent)? / 100,
                ..parameters.rate
            };
            window(parameters, kind, rate)
        }
    };
    let widened = Algorithm::new(&widened).ok()?;
    Some(with_edges(widened, limit.edges().copied()))
}

/// The parameters of a window of another kind.
fn window(parameters: &Parameters, kind: Kind, rate: Rate) -> Parameters {
    Parameters {
        kind,
        rate,
        burst: None,
        max_delay_ms: None,
        align: parameters.align.filter(|_| kind == Kind::FixedWindow),
        sub_windows: None,
        strict: None,
        ..*parameters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(kind: Kind, rate: (u64, u64), burst: Option<u64>, proxies: u64) -> (u64, u64) {
        let parameters = Parameters {
            burst,
            ..Parameters::new(kind, rate.0, rate.1)
        };
        let algorithm = Share { proxies, cost: 1 }.of(&parameters, None).unwrap();
        (algorithm.limit(), algorithm.window_ms())
    }

    #[test]
    fn a_bucket_is_divided_in_rate_and_capacity() {
        // 10/s with a burst of 20 comes back whole in 2 s, and so does half of it.
        assert_eq!(
            share(Kind::TokenBucket, (10, 1000), Some(20), 1),
            (20, 2000)
        );
        assert_eq!(
            share(Kind::TokenBucket, (10, 1000), Some(20), 2),
            (10, 2000)
        );
        assert_eq!(share(Kind::Gcra, (10, 1000), Some(20), 3), (6, 1800));
        // A share of less than a request is a request at a lower rate.
        assert_eq!(share(Kind::TokenBucket, (1, 1000), None, 10), (1, 10_000));
    }

    #[test]
    fn a_window_is_divided_and_a_share_below_one_unit_lasts_longer() {
        let window = |units, proxies| share(Kind::FixedWindow, (units, 1000), None, proxies);
        assert_eq!(window(10, 3), (3, 1000));
        assert_eq!(window(1, 10), (1, 10_000));
        assert_eq!(window(3, 10), (1, 4000));
        assert_eq!(window(0, 10), (0, 1000));
        assert_eq!(
            share(Kind::SlidingWindowLog, (10, 1000), None, 2),
            (5, 1000)
        );
    }

    #[test]
    fn a_cost_above_the_limit_does_not_fit_its_share() {
        for kind in [Kind::TokenBucket, Kind::FixedWindow] {
            let parameters = Parameters::new(kind, 3, 1000);
            let share = Share {
                proxies: 2,
                cost: 5,
            };
            let algorithm = share.of(&parameters, None).unwrap();
            assert!(!algorithm.evaluate(None, 1, 5).fits(), "{kind}");
        }
    }

    #[test]
    fn a_precheck_is_never_narrower_than_the_limit() {
        let limit = |kind, percent| {
            let limit = Algorithm::new(&Parameters::new(kind, 10, 1000)).unwrap();
            let algorithm = precheck(&limit, percent).unwrap();
            (algorithm.kind(), algorithm.limit(), algorithm.window_ms())
        };
        assert_eq!(limit(Kind::TokenBucket, 120), (Kind::TokenBucket, 12, 1000));
        assert_eq!(
            limit(Kind::SlidingWindow, 150),
            (Kind::SlidingWindow, 15, 1000)
        );
        assert_eq!(
            limit(Kind::SlidingWindowLog, 100),
            (Kind::FixedWindow, 10, 1000)
        );
    }

    #[test]
    fn a_share_of_a_bucket_is_always_a_valid_limit() {
        let largest = (1 << 51) / 1000;
        let (limit, window_ms) = share(Kind::TokenBucket, (1, 1000), Some(largest), 7);
        assert_eq!(limit, largest / 7);
        assert!(window_ms >= largest / 7 * 7000, "{window_ms}");
        assert_eq!(
            share(Kind::TokenBucket, (999_983, 1000), Some(20), 1_000_003).0,
            1
        );
    }
}
