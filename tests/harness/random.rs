//! Numbers at random, the same in every run.

/// A linear congruential generator: its numbers follow from the seed. The load of the recordings in `tests/vectors/logs`
/// came from it.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number, from 0 to one less than `bound`, which is not 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.0 = { self.0 }
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % bound
    }
}
