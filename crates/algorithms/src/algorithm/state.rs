//! The state of a bucket under any algorithm.

use crate::calendar_window::CalendarWindowState;
use crate::concurrency::ConcurrencyState;
use crate::fixed_window::FixedWindowState;
use crate::gcra::GcraState;
use crate::leaky_bucket::QueueState;
use crate::sliding_window::SlidingWindowState;
use crate::sliding_window_buckets::SlidingWindowBucketsState;
use crate::sliding_window_log::SlidingWindowLogState;
use crate::token_bucket::TokenBucketState;

/// What is stored of a bucket. Absent means a completely unused quota, and so does the state of
/// another algorithm: an edit of `algorithm` starts the bucket afresh.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Of a token bucket or a leaky bucket: each continues the other's state.
    TokenBucket(TokenBucketState),
    /// Of a leaky bucket that is a queue.
    Queue(QueueState),
    /// Of a GCRA.
    Gcra(GcraState),
    /// Of a fixed window.
    FixedWindow(FixedWindowState),
    /// Of a fixed window of the calendar.
    CalendarWindow(CalendarWindowState),
    /// Of a sliding window log.
    SlidingWindowLog(SlidingWindowLogState),
    /// Of a sliding window of sub-windows.
    SlidingWindowBuckets(SlidingWindowBucketsState),
    /// Of a sliding window of two counts.
    SlidingWindow(SlidingWindowState),
    /// Of a limit on requests in flight.
    Concurrency(ConcurrencyState),
}

impl State {
    /// What remains of a bucket after a reset: leased units stay outstanding until they expire, in
    /// a window until it ends, unless they are settled. `None`: nothing.
    #[must_use]
    pub fn reset(&self) -> Option<Self> {
        match self {
            Self::TokenBucket(state) => {
                let leases = state.leases?;
                Some(Self::TokenBucket(TokenBucketState {
                    debt: 0,
                    over: 0,
                    leases: Some(leases),
                    ..*state
                }))
            }
            Self::Gcra(state) => {
                let leases = state.leases?;
                Some(Self::Gcra(GcraState {
                    tat_ms: state.at_ms,
                    tat_parts: 0,
                    over: 0,
                    leases: Some(leases),
                    ..*state
                }))
            }
            Self::FixedWindow(state) => {
                let granted = state.granted?.after_reset()?;
                Some(Self::FixedWindow(FixedWindowState {
                    used: granted.current,
                    granted: Some(granted),
                    ..*state
                }))
            }
            Self::CalendarWindow(state) => {
                let granted = state.granted?.after_reset()?;
                Some(Self::CalendarWindow(CalendarWindowState {
                    used: granted.current,
                    granted: Some(granted),
                    ..*state
                }))
            }
            Self::SlidingWindow(state) => {
                let granted = state.granted?.after_reset()?;
                Some(Self::SlidingWindow(SlidingWindowState {
                    current: granted.current,
                    previous: 0,
                    granted: Some(granted),
                    ..*state
                }))
            }
            Self::SlidingWindowBuckets(state) => state.reset().map(Self::SlidingWindowBuckets),
            Self::SlidingWindowLog(_) | Self::Queue(_) | Self::Concurrency(_) => None,
        }
    }
}
