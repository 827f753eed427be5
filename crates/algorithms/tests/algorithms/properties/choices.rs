//! Streams of choices that a case is built from.

use crate::support::number;

/// A stream of numbers; once used up, every choice is the first.
pub struct Choices {
    numbers: std::vec::IntoIter<u64>,
}

impl Choices {
    pub fn new(numbers: Vec<u64>) -> Self {
        Self {
            numbers: numbers.into_iter(),
        }
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.numbers
            .next()
            .unwrap_or(0)
            .checked_rem(bound)
            .unwrap_or(0)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == n - 1
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }

    /// A number of any magnitude up to `2^bits`.
    pub fn magnitude(&mut self, bits: u64) -> u64 {
        let bits = self.below(bits + 1);
        self.below((1 << bits) + 1)
    }
}

/// How many numbers a case may use.
const LENGTH: usize = 200;

pub fn with_proptest(property: fn(&mut Choices)) {
    use proptest::prelude::*;

    let config = ProptestConfig {
        cases: u32::try_from(number("RL_PROPERTY_CASES", 1000)).unwrap(),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(numbers in proptest::collection::vec(any::<u64>(), 0..LENGTH))| {
        property(&mut Choices::new(numbers));
    });
}
