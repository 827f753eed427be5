//! Random numbers for jitter and sampling. Not for secrets.

/// `SplitMix64`: small, and good enough to spread proxies in time.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A generator whose numbers are determined by `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, or 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// `value`, up to a quarter more or less.
    pub fn jittered(&mut self, value: u64) -> u64 {
        let spread = value / 4;
        (value - spread).saturating_add(self.below(spread.saturating_mul(2).saturating_add(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_within_a_quarter() {
        let mut random = Random::new(1);
        for _ in 0..10_000 {
            let value = random.jittered(200);
            assert!((150..=250).contains(&value), "{value}");
        }
        assert_eq!(random.jittered(0), 0);
        random.jittered(u64::MAX);
    }

    #[test]
    fn below_yields_every_number_under_its_bound_and_not_the_bound() {
        let mut random = Random::new(7);
        let mut seen = [false; 5];
        for _ in 0..1000 {
            seen[usize::try_from(random.below(5)).unwrap()] = true;
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(random.below(0), 0);
    }
}
