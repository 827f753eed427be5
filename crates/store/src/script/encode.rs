//! Checks as KEYS and ARGV.

use algorithms::check::{Mode, Options};
use algorithms::{Algorithm, LeaseAsk, PROXY_MARKS};

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
    /// Units wanted for requests to come, and what became of earlier ones; `None` costs the
    /// script nothing, and tells nothing of what is leased.
    pub lease: Option<LeaseAsk<'a>>,
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

impl Clock {
    /// ARGV 1.
    pub(super) fn argument(self) -> i64 {
        match self {
            Self::Server => -1,
            Self::Injected(ms) => exact(ms),
        }
    }
}

/// The arguments of one EVALSHA of [`super::CHECK`] or [`super::TAKE_BACK`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptCall<'a> {
    /// KEYS.
    pub keys: Vec<&'a [u8]>,
    /// ARGV.
    pub args: Vec<i64>,
}

/// Larger than any limit, and still exact in Lua.
const COST_MAX: u64 = 1 << 52;

/// No bucket has an epoch of this name: they are times.
const EPOCH_MAX: u64 = (1 << 53) - 1;

const PEEK: i64 = 1;
const FORCE: i64 = 2;
const OBSERVED: i64 = 16;
const LEASED: i64 = 32;

/// Lays out a batch of checks, to be decided in this order.
pub fn encode<'a>(checks: &[ScriptCheck<'a>], clock: Clock) -> ScriptCall<'a> {
    let limits = checks.iter().map(|check| check.limits.len()).sum();
    let mut keys = Vec::with_capacity(limits);
    let mut args = Vec::with_capacity(1 + 2 * checks.len() + 8 * limits);
    args.push(clock.argument());
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
            let leased = limit.lease.map_or(0, |_| LEASED);
            args.extend([
                i64::from(numbers.kind) + observed + leased,
                exact(limit.generation),
                exact(limit.cost),
                exact(limit.debit),
                exact(numbers.limit),
                exact(numbers.x),
                exact(numbers.y),
                exact(numbers.z),
            ]);
            if let Some(lease) = &limit.lease {
                encode_lease(&mut args, lease);
            }
        }
    }
    ScriptCall { keys, args }
}

fn encode_lease(args: &mut Vec<i64>, lease: &LeaseAsk<'_>) {
    args.extend([
        exact(lease.ttl_ms),
        exact(lease.want),
        i64::from(lease.proxy % PROXY_MARKS),
        i64::try_from(lease.settle.len()).unwrap_or(i64::MAX),
    ]);
    for settlement in lease.settle {
        args.extend([
            i64::try_from(settlement.epoch.min(EPOCH_MAX)).unwrap_or(i64::MAX),
            exact(settlement.spent),
            exact(settlement.returned),
        ]);
    }
}

/// A number that Lua holds exactly.
pub(super) fn exact(number: u64) -> i64 {
    i64::try_from(number.min(COST_MAX)).unwrap_or(i64::MAX)
}
