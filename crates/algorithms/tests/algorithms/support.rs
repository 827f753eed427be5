//! What several of these tests use.

use algorithms::check::Part;
use algorithms::{Algorithm, Kind, Parameters};

/// `SplitMix64`: the numbers follow from the seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }
}

/// A number that a variable sets.
pub fn number(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// A check of one limit that takes only its cost.
pub fn part<'a>(algorithm: &Algorithm, cost: u64) -> Part<'a> {
    Part {
        cost,
        ..Part::new(algorithm, 1)
    }
}

/// So many units in a period, and a capacity.
pub fn bursting(kind: Kind, units: u64, period_ms: u64, burst: u64) -> Parameters {
    let burst = Some(burst);
    Parameters {
        burst,
        ..Parameters::new(kind, units, period_ms)
    }
}

/// Something to which a history happens.
pub trait Subject {
    /// Carries out a step, and says what it answers.
    fn step(&mut self, verb: &str, arguments: &[&str]) -> String;
}

/// Makes a test of each history: what it happens to, and its steps, `;` apart. A step is a verb and its arguments;
/// behind `=` stands what it has to answer. Behind `|` another history of the same begins.
macro_rules! histories {
    ($($(#[$doc:meta])* $test:ident: $of:expr, $histories:literal;)*) => {$(
        $(#[$doc])*
        #[test]
        fn $test() {
            for history in $histories.split('|') {
                crate::support::play(&mut $of, history);
            }
        }
    )*};
}
pub(crate) use histories;

pub fn play(subject: &mut impl Subject, history: &str) {
    for step in history.split(';') {
        let (asked, expected) = step.split_once('=').unwrap_or((step, ""));
        let words: Vec<_> = asked.split_whitespace().collect();
        let answer = subject.step(words[0], &words[1..]);
        let expected = expected.split_whitespace().collect::<Vec<_>>().join(" ");
        let right = expected.is_empty() || answer == expected.replace('_', "");
        assert!(right, "{}: it is {answer}, in {history}", step.trim());
    }
}

/// A number of a history, such as `60_000`.
pub fn count(word: &str) -> u64 {
    word.replace('_', "").parse().unwrap()
}

/// The time after a step of a history that moves the clock, such as `+250` or `-1_000`.
pub fn moved(now_ms: u64, by: &str) -> u64 {
    let by = by
        .replace('_', "")
        .parse()
        .unwrap_or_else(|_| panic!("{by} is no verb"));
    now_ms.checked_add_signed(by).unwrap()
}
