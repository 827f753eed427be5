//! What a check of one limit answers.

/// When the same cost would be admitted, if nothing else came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RetryAfter {
    /// It was admitted.
    Now,
    /// After this many milliseconds, at least 1 and not one more than needed.
    Millis(u64),
    /// The cost is above what the limit can ever hold.
    Never,
}

/// The answer of one limit to one check. Times count from the caller's `now_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decision {
    /// Whether `cost` fits: `used + cost <= limit`.
    pub allowed: bool,
    /// The largest cost, in units, that would be admitted at this instant after this decision.
    pub remaining: u64,
    /// When the same cost would be admitted.
    pub retry_after: RetryAfter,
    /// Milliseconds until the bucket is completely unused, if nothing else came.
    pub reset_after_ms: u64,
    /// Milliseconds an admitted request is held before it starts (queues only, else 0).
    pub delay_ms: u64,
}
