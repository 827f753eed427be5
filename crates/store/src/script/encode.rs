//! Checks as KEYS and ARGV.

use algorithms::Algorithm;
use algorithms::check::{Mode, Options};

/// One limit's part in a check.
#[derive(Clone, Copy, Debug)]
pub struct ScriptLimit<'a> {
    /// The bucket's key.
    pub key: &'a [u8],
    /// The limit's numbers.
    pub algorithm: &'a Algorithm,
    /// The generation they belong to.
    pub generation: u64,
    /// Units the check takes; more than `COST_MAX` counts as that.
    pub cost: u64,
    /// Units admitted earlier without asking; charged once, whatever is left.
    pub debit: u64,
    /// How it takes part.
    pub mode: Mode,
}

/// One request against several limits, all or nothing. The keys are distinct.
#[derive(Clone, Debug)]
pub struct ScriptCheck<'a> {
    /// In the order of the answer.
    pub limits: Vec<ScriptLimit<'a>>,
    /// Peek and force.
    pub options: Options,
}

/// Whose time decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The server's, read once per call. The only one for production.
    #[default]
    Server,
    /// A test's or a simulation's, in milliseconds; keys then live for a day.
    Injected(u64),
}

/// The arguments of one EVALSHA of [`super::CHECK`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptCall<'a> {
    /// KEYS.
    pub keys: Vec<&'a [u8]>,
    /// ARGV.
    pub args: Vec<i64>,
}

/// Larger than any limit, and still exact in Lua.
const COST_MAX: u64 = 1 << 52;

const PEEK: i64 = 1;
const FORCE: i64 = 2;
const OBSERVED: i64 = 16;

/// Lays out a batch of checks, to be decided in this order.
pub fn encode<'a>(checks: &[ScriptCheck<'a>], clock: Clock) -> ScriptCall<'a> {
    let limits = checks.iter().map(|check| check.limits.len()).sum();
    let mut keys = Vec::with_capacity(limits);
    let mut args = Vec::with_capacity(1 + 2 * checks.len() + 8 * limits);
    args.push(match clock {
        Clock::Server => -1,
        Clock::Injected(ms) => exact(ms),
    });
    for check in checks {
        let peek = if check.options.peek { PEEK } else { 0 };
        let force = if check.options.force { FORCE } else { 0 };
        args.push(peek + force);
        args.push(i64::try_from(check.limits.len()).unwrap_or(i64::MAX));
        for limit in &check.limits {
            keys.push(limit.key);
            let numbers = limit.algorithm.numbers();
            let observed = if limit.mode == Mode::Observe {
                OBSERVED
            } else {
                0
            };
            args.extend([
                i64::from(numbers.kind) + observed,
                exact(limit.generation),
                exact(limit.cost),
                exact(limit.debit),
                exact(numbers.limit),
                exact(numbers.x),
                exact(numbers.y),
                exact(numbers.z),
            ]);
        }
    }
    ScriptCall { keys, args }
}

/// A number that Lua holds exactly.
fn exact(number: u64) -> i64 {
    i64::try_from(number.min(COST_MAX)).unwrap_or(i64::MAX)
}
