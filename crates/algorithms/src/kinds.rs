//! The algorithms' numbers and codes as the Lua twin takes them.

/// An algorithm with its numbers; what `x`, `y` and `z` are depends on the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Numbers {
    /// Which algorithm and variant, from 1.
    pub kind: u8,
    /// The quota in units.
    pub limit: u64,
    /// Buckets: parts of a unit. Windows: the length in milliseconds; calendar windows: the unit.
    /// Slots: their ttl, in milliseconds.
    pub x: u64,
    /// Buckets: parts that drain each millisecond. Sub-windows: how many in a window. Calendar
    /// windows: the label of the first whose edges are known. Slots: the stamp of the request's id.
    pub y: u64,
    /// Queues: the longest delay, in milliseconds. Calendar windows: the start of that window.
    /// Slots: the secret of the request's id.
    pub z: u64,
}

/// Also a leaky bucket as a meter, which is the same.
pub(crate) const TOKEN_BUCKET: u8 = 1;
pub(crate) const GCRA: u8 = 2;
pub(crate) const LEAKY_BUCKET_QUEUE: u8 = 3;
pub(crate) const FIXED_WINDOW_EPOCH: u8 = 4;
pub(crate) const FIXED_WINDOW_FIRST_REQUEST: u8 = 5;
pub(crate) const SLIDING_WINDOW_LOG: u8 = 6;
pub(crate) const SLIDING_WINDOW_BUCKETS_STRICT: u8 = 7;
pub(crate) const SLIDING_WINDOW_BUCKETS_LOOSE: u8 = 8;
pub(crate) const SLIDING_WINDOW: u8 = 9;
/// Followed by the ends of the windows: see [`crate::Algorithm::edges`].
pub(crate) const CALENDAR_WINDOW: u8 = 11;
pub(crate) const CONCURRENCY: u8 = 12;
