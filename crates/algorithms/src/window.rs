//! The numbers that the windows share.

use crate::integers::{COUNT_MAX, PRODUCT_MAX};
use crate::{Numbers, ParameterError, Parameters};

/// N units per W milliseconds, validated. N may be 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Window {
    /// N.
    pub limit: u64,
    /// W, in milliseconds, at least 1.
    pub length_ms: u64,
}

impl Window {
    pub fn new(parameters: &Parameters) -> Result<Self, ParameterError> {
        let (limit, length_ms) = (parameters.rate.units, parameters.rate.period_ms);
        let largest = PRODUCT_MAX / length_ms;
        if limit > largest {
            return Err(ParameterError::RateTooLarge { largest });
        }
        Ok(Self { limit, length_ms })
    }

    /// As [`Window::new`], for windows that never multiply by the length.
    pub fn counting(parameters: &Parameters) -> Result<Self, ParameterError> {
        let (limit, length_ms) = (parameters.rate.units, parameters.rate.period_ms);
        if limit > COUNT_MAX {
            return Err(ParameterError::RateTooLarge { largest: COUNT_MAX });
        }
        Ok(Self { limit, length_ms })
    }

    /// The numbers as the Lua twin takes them, for the algorithm `kind`.
    pub const fn numbers(&self, kind: u8) -> Numbers {
        Numbers {
            kind,
            limit: self.limit,
            x: self.length_ms,
            y: 0,
            z: 0,
        }
    }

    /// The start of the aligned window that `now_ms` is in.
    pub const fn aligned_start_ms(&self, now_ms: u64) -> u64 {
        now_ms - now_ms % self.length_ms
    }

    /// The longest ttl of a lease from a count of so many milliseconds.
    pub const fn lease_max_ms(counted_ms: u64) -> u64 {
        counted_ms / 4
    }

    /// Units left of the limit; `None` beyond it.
    pub const fn room(&self, used: u64) -> Option<u64> {
        self.limit.checked_sub(used)
    }

    /// A stored time as it counts for a caller at `now_ms`: moved to `now_ms` if it lies more than
    /// a window ahead. Also returns whether it was moved.
    pub const fn reconcile(&self, newest_ms: u64, now_ms: u64) -> (u64, bool) {
        if newest_ms.saturating_sub(now_ms) > self.length_ms {
            (now_ms, true)
        } else {
            (newest_ms, false)
        }
    }
}
