//! Why parameters are invalid, with the nearest valid value.

use std::fmt;

use crate::{CalendarUnit, Kind};

/// What is invalid in [`crate::Parameters`], and the nearest valid value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParameterError {
    /// The rate's period is 0.
    NoPeriod,
    /// A bucket that never refills: the rate is 0 units.
    NoRefill,
    /// The rate has more units than exact arithmetic holds.
    RateTooLarge {
        /// The largest N for this period.
        largest: u64,
    },
    /// The period is longer than exact arithmetic holds.
    PeriodTooLong {
        /// The longest period, in milliseconds.
        largest_ms: u64,
    },
    /// The capacity is more than exact arithmetic holds at this rate.
    BurstTooLarge {
        /// The largest capacity at this rate.
        largest: u64,
    },
    /// The queue's longest delay is more than exact arithmetic holds.
    DelayTooLong {
        /// The longest delay, in milliseconds.
        largest_ms: u64,
    },
    /// More requests in flight than a bucket holds.
    SlotsTooMany {
        /// The largest limit.
        largest: u64,
    },
    /// A slot's ttl is out of range.
    SlotTtl {
        /// The shortest, in milliseconds.
        least_ms: u64,
        /// The longest, in milliseconds.
        largest_ms: u64,
    },
    /// `sub_windows` is required and absent.
    SubWindowsMissing,
    /// `sub_windows` does not divide the window, or is out of range.
    SubWindows {
        /// The nearest number of sub-windows that divides the window.
        nearest: u64,
    },
    /// A parameter that this algorithm does not have.
    Unused {
        /// The parameter, as written in a limits file.
        parameter: &'static str,
        /// The algorithm.
        kind: Kind,
    },
    /// A rate per day, week, month or year with an algorithm that has no such windows.
    CalendarKind {
        /// The unit of the rate.
        unit: CalendarUnit,
    },
    /// A rate per day, week, month or year with an `align`: the calendar says when its windows start.
    CalendarAlign {
        /// The unit of the rate.
        unit: CalendarUnit,
    },
    /// A parameter of calendar windows (as written in a limits file) on a limit without calendar
    /// windows, or without weeks.
    NoCalendar(&'static str),
}

impl fmt::Display for ParameterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPeriod => f.write_str("the rate's period must be at least 1ms"),
            Self::NoRefill => {
                f.write_str("a bucket's rate must be at least 1 per period; burst may be 0")
            }
            Self::RateTooLarge { largest } => {
                write!(
                    f,
                    "the rate is too large: at most {largest} units in this period"
                )
            }
            Self::PeriodTooLong { largest_ms } => {
                write!(f, "the period is too long: at most {largest_ms}ms")
            }
            Self::BurstTooLarge { largest } => {
                write!(
                    f,
                    "the burst is too large: at most {largest} units at this rate"
                )
            }
            Self::DelayTooLong { largest_ms } => {
                write!(f, "max_delay is too long: at most {largest_ms}ms")
            }
            Self::SlotsTooMany { largest } => {
                write!(
                    f,
                    "the limit is too large: at most {largest} requests in flight"
                )
            }
            Self::SlotTtl {
                least_ms,
                largest_ms,
            } => write!(f, "slot_ttl must be {least_ms}ms to {largest_ms}ms"),
            Self::SubWindowsMissing => {
                f.write_str("sliding_window_buckets needs sub_windows, such as 10")
            }
            Self::SubWindows { nearest } => write!(
                f,
                "sub_windows must be 1 to 1000 and divide the window into whole milliseconds; \
                 the nearest that does is {nearest}"
            ),
            Self::Unused { parameter, kind } => {
                write!(f, "{parameter} does not belong to {kind}")
            }
            Self::CalendarKind { unit } => {
                write!(f, "a rate per {} is a fixed_window", unit.name())
            }
            Self::CalendarAlign { unit } => write!(
                f,
                "align does not belong to a rate per {}: its windows start at local midnights",
                unit.name()
            ),
            Self::NoCalendar("week_start") => {
                f.write_str("week_start belongs to a rate per week, such as 100/week")
            }
            Self::NoCalendar(parameter) => write!(
                f,
                "{parameter} belongs to a rate per day, week, month or year, such as 10000/day"
            ),
        }
    }
}

impl std::error::Error for ParameterError {}
