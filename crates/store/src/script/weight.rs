//! What a check costs the server, so that one script call takes a bounded time.

use algorithms::{Algorithm, Kind};

/// What one script call may weigh: about half a millisecond of the server's time.
pub(crate) const CALL_MAX: usize = 64;

/// How many times as dear as a token bucket a bucket is, as measured on Redis 7.0: twice what a check
/// of cost 1 takes. One that has to read its whole window takes up to five times as long as this says;
/// a call of them, up to two milliseconds.
pub fn weight(algorithm: &Algorithm, leased: bool) -> usize {
    let sub_windows = algorithm.parameters().sub_windows;
    let sub_windows = usize::try_from(sub_windows.unwrap_or(1)).unwrap_or(usize::MAX);
    match (algorithm.kind(), leased) {
        (Kind::SlidingWindowLog, _) => 8,
        (Kind::SlidingWindowBuckets, false) => 2 + sub_windows / 64,
        (Kind::SlidingWindowBuckets, true) => 4 + sub_windows / 8,
        (_, false) => 1,
        (_, true) => 3,
    }
}
