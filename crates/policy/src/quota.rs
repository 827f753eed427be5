//! The numbers of a limit.

use algorithms::{Algorithm, Align, Edges, Kind, ParameterError, Parameters, WeekStart};
use documents::Choice;

/// The validated numbers of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    algorithm: Algorithm,
}

/// The longest delay of a queue whose limit sets none, in milliseconds.
pub(crate) const DEFAULT_MAX_DELAY_MS: u64 = 5000;

impl Quota {
    /// Validates the numbers.
    ///
    /// # Errors
    /// What the algorithm refuses, with the nearest valid value.
    pub fn new(parameters: &Parameters) -> Result<Self, ParameterError> {
        let algorithm = Algorithm::new(parameters)?;
        Ok(Self { algorithm })
    }

    /// The algorithm with these numbers.
    pub fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    /// The same numbers; calendar windows have these edges.
    #[must_use]
    pub fn with_edges(self, edges: Edges) -> Self {
        Self {
            algorithm: self.algorithm.with_edges(edges),
        }
    }

    /// What was written.
    pub fn parameters(&self) -> &Parameters {
        self.algorithm.parameters()
    }
}

/// A value of the algorithms, as a document writes it.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Written<T>(pub T);

impl Choice for Written<Kind> {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("token_bucket", Self(Kind::TokenBucket)),
        ("gcra", Self(Kind::Gcra)),
        ("leaky_bucket", Self(Kind::LeakyBucket)),
        ("fixed_window", Self(Kind::FixedWindow)),
        ("sliding_window_log", Self(Kind::SlidingWindowLog)),
        ("sliding_window_buckets", Self(Kind::SlidingWindowBuckets)),
        ("sliding_window", Self(Kind::SlidingWindow)),
        ("concurrency", Self(Kind::Concurrency)),
    ];
}

impl Choice for Written<Align> {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("epoch", Self(Align::Epoch)),
        ("first_request", Self(Align::FirstRequest)),
    ];
}

impl Choice for Written<WeekStart> {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("monday", Self(WeekStart::Monday)),
        ("sunday", Self(WeekStart::Sunday)),
    ];
}

/// The field of a limit that an error of the algorithm concerns.
pub(crate) fn field_of(error: &ParameterError) -> &'static str {
    match error {
        ParameterError::BurstTooLarge { .. } => "burst",
        ParameterError::DelayTooLong { .. } => "max_delay",
        ParameterError::SlotsTooMany { .. } => "limit",
        ParameterError::SlotTtl { .. } => "slot_ttl",
        ParameterError::SubWindowsMissing | ParameterError::SubWindows { .. } => "sub_windows",
        ParameterError::Unused { parameter, .. } | ParameterError::NoCalendar(parameter) => {
            parameter
        }
        ParameterError::CalendarKind { .. } => "algorithm",
        ParameterError::CalendarAlign { .. } => "align",
        _ => "rate",
    }
}
