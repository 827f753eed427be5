//! The algorithms by name: each is declared once.

use super::{ask::Ask, state::State};
use crate::calendar_window::CalendarWindow;
use crate::concurrency::Concurrency;
use crate::evaluated::Evaluated;
use crate::fixed_window::FixedWindow;
use crate::gcra::Gcra;
use crate::leaky_bucket::LeakyBucket;
use crate::quota::{Loaded, Quota};
use crate::sliding_window::SlidingWindow;
use crate::sliding_window_buckets::SlidingWindowBuckets;
use crate::sliding_window_log::SlidingWindowLog;
use crate::token_bucket::TokenBucket;
use crate::{Charged, Kind, ParameterError, Parameters, Reservations, ReserveAsk};

/// Declares the algorithms once: their numbers, their evaluations, and how to reach either. The
/// last one has no kind of its own: a fixed window uses it if its rate names a calendar unit.
macro_rules! engines {
    ($($named:ident),+; $calendar:ident) => {
        impl Engine {
            pub(super) fn new(parameters: &Parameters) -> Result<Self, ParameterError> {
                if parameters.rate.calendar.is_some() {
                    return $calendar::new(parameters).map(Self::$calendar);
                }
                Ok(match parameters.kind {
                    $(Kind::$named => Self::$named($named::new(parameters)?)),+
                })
            }
        }

        engines!($($named),+, $calendar);
    };
    ($($kind:ident),+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(super) enum Engine {
            $($kind($kind)),+
        }

        pub(super) enum Engines<'a> {
            $($kind(Evaluated<'a, $kind>)),+
        }

        impl Engine {
            pub(super) fn refund(&self, state: &State, now_ms: u64, charge: &Charged) -> Option<State> {
                match self {
                    $(Self::$kind(quota) => refund(quota, state, now_ms, charge)),+
                }
            }

            /// The state after a credit, and the reservations that belong to it.
            pub(super) fn credit(
                &self,
                state: &State,
                reserved: Option<&ReserveAsk<'_>>,
                (now_ms, ttl_ms): (u64, u64),
                units: u64,
            ) -> (State, Option<Reservations>) {
                match self {
                    $(Self::$kind(quota) => {
                        let mut loaded = quota.load($kind::own(state), now_ms, ttl_ms);
                        let read = reserved.map(|ask| Reservations::read(quota, &loaded, ask));
                        quota.credit(&mut loaded.usage, units);
                        ($kind::wrap(quota.save(loaded.usage)), read)
                    }),+
                }
            }

            pub(super) fn evaluate<'a>(
                &'a self,
                state: Option<&'a State>,
                now_ms: u64,
                ask: Ask<'a>,
            ) -> Engines<'a> {
                match self {
                    $(Self::$kind(quota) => {
                        Engines::$kind(Evaluated::new(quota, state, now_ms, ask))
                    }),+
                }
            }
        }

        /// The same expression for each algorithm.
        macro_rules! each {
            ($enum:ident, $value:expr, $inner:pat => $body:expr) => {
                match $value {
                    $($enum::$kind($inner) => $body),+
                }
            };
        }
    };
}

engines!(
    TokenBucket,
    Gcra,
    LeakyBucket,
    FixedWindow,
    SlidingWindowLog,
    SlidingWindowBuckets,
    SlidingWindow,
    Concurrency;
    CalendarWindow
);

/// The state without a charge; `None`: unchanged.
pub(super) fn refund<Q: Quota>(
    quota: &Q,
    state: &State,
    now_ms: u64,
    charge: &Charged,
) -> Option<State> {
    let own = Q::own(state)?;
    let Loaded { mut usage, shifted } = quota.load(Some(own), now_ms, charge.lease_ttl_ms);
    let taken = shifted.is_none()
        && match charge.slot {
            Some(slot) => quota.refund_slot(&mut usage, slot, charge.units),
            None => quota.refund(&mut usage, charge.at_ms, charge.units),
        };
    taken.then(|| Q::wrap(quota.save(usage)))
}
