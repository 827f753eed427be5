//! What a limit's author writes, before it is checked.

/// "N units per period P".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Units per period, N.
    pub units: u64,
    /// The period P, in milliseconds.
    pub period_ms: u64,
}

/// The algorithms a limit can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Tokens drip in at the rate up to `burst`; a request takes `cost` of them.
    TokenBucket,
    /// Generic cell rate algorithm: a token bucket kept as one arrival time.
    Gcra,
    /// Leaky bucket, as a meter or (with `max_delay_ms`) as a queue.
    LeakyBucket,
    /// A counter per window of one period.
    FixedWindow,
    /// Every admission remembered for one period.
    SlidingWindowLog,
    /// A counter per slice of the period.
    SlidingWindowBuckets,
    /// Two aligned counters, the older one weighted by its overlap.
    SlidingWindow,
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
    /// The longest a queued request may be held, in milliseconds; makes a leaky bucket a queue.
    pub max_delay_ms: Option<u64>,
    /// Fixed windows only.
    pub align: Option<Align>,
    /// Slices per window. Sliding sub-windows only.
    pub sub_windows: Option<u64>,
    /// Whether the slice that is sliding out still counts whole. Sliding sub-windows only.
    pub strict: Option<bool>,
}
