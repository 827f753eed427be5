//! A limit's parameters as its author writes them, before validation, and why they are invalid.

use std::fmt;

use crate::{Adaptive, AdaptiveError, CalendarUnit, WeekStart, integers::PRODUCT_MAX};

/// "N units per period P".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Units per period, N.
    pub units: u64,
    /// The period P, in milliseconds; for a calendar unit its nominal length.
    pub period_ms: u64,
    /// The unit, where windows are days, weeks, months or years of a time zone.
    pub calendar: Option<CalendarUnit>,
}

impl Rate {
    /// So many units in so many milliseconds.
    pub const fn new(units: u64, period_ms: u64) -> Self {
        Self {
            units,
            period_ms,
            calendar: None,
        }
    }

    /// So many units in each day, week, month or year.
    pub const fn in_each(units: u64, unit: CalendarUnit) -> Self {
        Self {
            units,
            period_ms: unit.nominal_ms(),
            calendar: Some(unit),
        }
    }
}

/// The algorithms a limit can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Tokens drip in at the rate up to `burst`; a request takes `cost` of them, and with
    /// `max_delay_ms` waits for them.
    TokenBucket,
    /// Generic cell rate algorithm: a token bucket kept as one arrival time.
    Gcra,
    /// Leaky bucket, as a meter or (with `max_delay_ms`) as a queue.
    LeakyBucket,
    /// A counter per window of one period.
    FixedWindow,
    /// Every admission is stored for one period.
    SlidingWindowLog,
    /// A counter per slice of the period.
    SlidingWindowBuckets,
    /// Two aligned counters, the older one weighted by its overlap.
    SlidingWindow,
    /// Requests in flight: `rate` is how many, and how long a slot lives without being renewed.
    Concurrency,
}

impl Kind {
    /// The name in a limits file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token_bucket",
            Self::Gcra => "gcra",
            Self::LeakyBucket => "leaky_bucket",
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindowLog => "sliding_window_log",
            Self::SlidingWindowBuckets => "sliding_window_buckets",
            Self::SlidingWindow => "sliding_window",
            Self::Concurrency => "concurrency",
        }
    }

    /// Whether it has a capacity that refills: `burst`, and a queue.
    pub const fn is_bucket(self) -> bool {
        matches!(self, Self::TokenBucket | Self::Gcra | Self::LeakyBucket)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a fixed window starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Align {
    /// At multiples of the period since the epoch.
    #[default]
    Epoch,
    /// At the first request that finds no open window.
    FirstRequest,
}

/// The numbers of one limit as written; `Algorithm::new` validates them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Parameters {
    /// Which algorithm.
    pub kind: Kind,
    /// The rate N/P.
    pub rate: Rate,
    /// Bucket capacity in units; `None` means N. Buckets only.
    pub burst: Option<u64>,
    /// The longest a queued request may be held, in milliseconds; makes a bucket a queue. Of a leaky
    /// bucket, `burst` is what the queue holds; of the others, what passes at once.
    pub max_delay_ms: Option<u64>,
    /// Fixed windows only.
    pub align: Option<Align>,
    /// Slices per window. Sliding sub-windows only.
    pub sub_windows: Option<u64>,
    /// Whether the slice that is sliding out still counts whole. Sliding sub-windows only.
    pub strict: Option<bool>,
    /// The time zone whose days are counted, by its name; `None` means UTC. Calendar windows only.
    pub time_zone: Option<&'static str>,
    /// The first day of a week. Calendar weeks only.
    pub week_start: Option<WeekStart>,
    /// How a limit on requests in flight follows its service. Concurrency only.
    pub adaptive: Option<Adaptive>,
}

impl Parameters {
    /// An algorithm at a rate, everything else at its default.
    pub const fn new(kind: Kind, units: u64, period_ms: u64) -> Self {
        Self {
            kind,
            rate: Rate::new(units, period_ms),
            burst: None,
            max_delay_ms: None,
            align: None,
            sub_windows: None,
            strict: None,
            time_zone: None,
            week_start: None,
            adaptive: None,
        }
    }

    /// Checks what holds for every algorithm: a period, and no parameter of another one.
    pub(crate) fn belong_together(&self) -> Result<(), ParameterError> {
        let bucket = self.kind.is_bucket();
        let slices = self.kind == Kind::SlidingWindowBuckets;
        let written = [
            ("burst", self.burst.is_some(), bucket),
            ("max_delay", self.max_delay_ms.is_some(), bucket),
            (
                "align",
                self.align.is_some(),
                self.kind == Kind::FixedWindow,
            ),
            ("sub_windows", self.sub_windows.is_some(), slices),
            ("strict", self.strict.is_some(), slices),
            (
                "adaptive",
                self.adaptive.is_some(),
                self.kind == Kind::Concurrency,
            ),
        ];
        for (parameter, present, belongs) in written {
            if present && !belongs {
                return Err(ParameterError::Unused {
                    parameter,
                    kind: self.kind,
                });
            }
        }
        self.calendar_belongs()?;
        match self.rate.period_ms {
            0 => Err(ParameterError::NoPeriod),
            period if period > PRODUCT_MAX => Err(ParameterError::PeriodTooLong {
                largest_ms: PRODUCT_MAX,
            }),
            _ => Ok(()),
        }
    }

    /// Checks that calendar windows are fixed windows, and that only they have a time zone.
    fn calendar_belongs(&self) -> Result<(), ParameterError> {
        let Some(unit) = self.rate.calendar else {
            return match (self.time_zone, self.week_start) {
                (Some(_), _) => Err(ParameterError::NoCalendar("time_zone")),
                (_, Some(_)) => Err(ParameterError::NoCalendar("week_start")),
                (None, None) => Ok(()),
            };
        };
        if self.kind != Kind::FixedWindow {
            return Err(ParameterError::CalendarKind { unit });
        }
        if self.align.is_some() {
            return Err(ParameterError::CalendarAlign { unit });
        }
        if self.week_start.is_some() && unit != CalendarUnit::Week {
            return Err(ParameterError::NoCalendar("week_start"));
        }
        Ok(())
    }
}

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
    /// How an adaptive limit follows its service.
    Adaptive(AdaptiveError),
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
    #[expect(clippy::too_many_lines, reason = "a list of all errors")]
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
            Self::Adaptive(error) => error.fmt(f),
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
