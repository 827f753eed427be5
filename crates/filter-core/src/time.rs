//! The time of each input; nothing in this crate reads a clock.

/// The moment of an input, on both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Microseconds on the process's monotonic clock: deadlines, deny cache, breaker.
    pub mono_us: u64,
    /// Milliseconds since the epoch, which may step: buckets decided in the proxy, whose
    /// windows are aligned to it.
    pub wall_ms: u64,
}

impl Now {
    /// Whether a monotonic deadline has come.
    pub(crate) fn reached(self, deadline_us: u64) -> bool {
        self.mono_us >= deadline_us
    }

    /// Milliseconds until a monotonic deadline, rounded up; 0 if it has come.
    pub(crate) fn millis_until(self, deadline_us: u64) -> u64 {
        deadline_us.saturating_sub(self.mono_us).div_ceil(1000)
    }

    /// Converts a moment of the monotonic clock to the wall clock.
    pub(crate) fn wall_of(self, mono_us: u64) -> u64 {
        let ago_ms = self.mono_us.saturating_sub(mono_us) / 1000;
        self.wall_ms.saturating_sub(ago_ms)
    }

    /// The monotonic time that is `ms` milliseconds from now.
    pub(crate) fn after_ms(self, ms: u64) -> u64 {
        self.mono_us.saturating_add(ms.saturating_mul(1000))
    }
}

/// A time on the monotonic clock, for tests that do not use the wall clock.
#[cfg(test)]
pub(crate) fn at(ms: u64) -> Now {
    Now {
        mono_us: ms * 1000,
        wall_ms: 0,
    }
}
