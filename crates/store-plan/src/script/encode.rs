//! Checks as KEYS and ARGV.

use algorithms::check::{Costs, Mode, Options};
use algorithms::{Algorithm, Debits, Freed, LeaseAsk, PROXY_MARKS, Penalty, QueueSlot};

use super::{packed, weight};

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
    /// Units admitted earlier without a check; charged once, whatever is left.
    pub debit: u64,
    /// The label of the calendar window that they were admitted in; `None`: that of now.
    pub debit_serial: Option<u64>,
    /// Units wanted for requests to come, and what became of earlier ones; `None` costs the
    /// script nothing, and its reply has nothing of leases.
    pub lease: Option<LeaseAsk<'a>>,
    /// Slots of a queue that requests gave up.
    pub free: &'a [Freed],
    /// Of a limit whose responses say their cost.
    pub costs: Option<ScriptCosts<'a>>,
    /// Of a limit with a penalty.
    pub penalty: Option<ScriptPenalty<'a>>,
    /// How it takes part.
    pub mode: Mode,
}

/// What a check reserves and settles at one limit.
#[derive(Clone, Copy, Debug)]
pub struct ScriptCosts<'a> {
    /// The key of the bucket's reservations, in its slot.
    pub key: &'a [u8],
    /// What is asked.
    pub costs: Costs<'a>,
}

/// The penalty of one limit.
#[derive(Clone, Copy, Debug)]
pub struct ScriptPenalty<'a> {
    /// The key of the bucket's denials, in its slot.
    pub key: &'a [u8],
    /// When the bucket is penalized.
    pub penalty: Penalty,
    /// Denials that proxies decided from their caches, counted now.
    pub reported: u64,
}

/// One request against several limits, all or nothing. The keys are distinct.
#[derive(Clone, Debug)]
pub struct ScriptCheck<'a> {
    /// In the order of the answer.
    pub limits: Vec<ScriptLimit<'a>>,
    /// Peek and force.
    pub options: Options,
}

impl ScriptCheck<'_> {
    /// See [`super::weight()`].
    pub fn weight(&self) -> usize {
        let limits = self.limits.iter();
        limits
            .map(|limit| {
                let settled = limit.costs.map_or(0, |c| 2 + c.costs.settle.len() / 4);
                weight(limit.algorithm, limit.lease.is_some())
                    + limit.free.len() / 4
                    + settled
                    + 2 * usize::from(limit.penalty.is_some())
            })
            .sum()
    }
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

/// The arguments of one EVALSHA of [`super::source::CHECK`] or [`super::source::REFUND`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptCall<'a> {
    /// KEYS.
    pub keys: Vec<&'a [u8]>,
    /// ARGV; that of `CHECK` is [`Self::packed`].
    pub args: Vec<i64>,
}

impl ScriptCall<'_> {
    /// All numbers as one argument.
    pub fn packed(&self) -> Vec<u8> {
        packed::pack(&self.args)
    }
}

/// Larger than any limit, and still exact in Lua.
const COST_MAX: u64 = 1 << 52;

/// No bucket has an epoch of this name, nor a slot that starts then: they are times.
const EPOCH_MAX: u64 = (1 << 53) - 1;

const PEEK: i64 = 1;
const FORCE: i64 = 2;
const REPORTED: i64 = 4;
const GIVEN_BACK: i64 = 8;
const DENIED: i64 = 16;
const OBSERVED: i64 = 16;
const LEASED: i64 = 32;
const FREEING: i64 = 64;
const PRICED: i64 = 128;
const PENALIZING: i64 = 256;

/// In the place of a reservation's secret: none is made, and those that are open are added up.
const COUNT_OPEN: i64 = -2;

/// How many of the latest forms a check is compared with: the checks of a batch are of few kinds, and
/// where they are not, looking further would cost more than it saves.
const FORMS_COMPARED: usize = 8;

/// Lays out a batch of checks, to be decided in this order. What checks ask in the same words is
/// said once.
pub fn encode<'a>(checks: &[ScriptCheck<'a>], clock: Clock) -> ScriptCall<'a> {
    let limits = checks.iter().map(|check| check.limits.len()).sum();
    let mut keys = Vec::with_capacity(limits);
    let mut args = Vec::with_capacity(32 + checks.len());
    args.extend([clock.argument(), 0]);
    let mut forms = Vec::new();
    let mut asked = Vec::with_capacity(checks.len());
    for check in checks {
        keys.extend(check.limits.iter().map(|limit| limit.key));
        for limit in &check.limits {
            keys.extend(limit.costs.map(|costs| costs.key));
            keys.extend(limit.penalty.map(|penalty| penalty.key));
        }
        let start = args.len();
        encode_form(&mut args, check);
        asked.push(number_of_last(&mut forms, &mut args, start));
    }
    if let Some(count) = args.get_mut(1) {
        *count = integer(forms.len());
    }
    args.extend(asked);
    ScriptCall { keys, args }
}

/// The number, from 1, of the form that `args` ends with, from `start` on; one that is there already
/// is cut off. `forms` has where they start.
fn number_of_last(forms: &mut Vec<usize>, args: &mut Vec<i64>, start: usize) -> i64 {
    let form = args.get(start..);
    let ends = forms.iter().skip(1).copied().chain([start]);
    let known = forms.iter().copied().zip(ends).enumerate();
    let mut latest = known.skip(forms.len().saturating_sub(FORMS_COMPARED));
    if let Some((index, _)) = latest.find(|(_, (from, to))| args.get(*from..*to) == form) {
        args.truncate(start);
        return integer(index + 1);
    }
    forms.push(start);
    integer(forms.len())
}

/// What a check asks, whichever buckets it touches.
fn encode_form(args: &mut Vec<i64>, check: &ScriptCheck<'_>) {
    let peek = if check.options.peek { PEEK } else { 0 };
    let force = if check.options.force { FORCE } else { 0 };
    let debits = match check.options.debits {
        Debits::Admitted => 0,
        Debits::Reported => REPORTED,
        Debits::GivenBack => GIVEN_BACK,
    };
    let denied = if check.options.denied { DENIED } else { 0 };
    args.extend([peek + force + debits + denied, integer(check.limits.len())]);
    for limit in &check.limits {
        let numbers = limit.algorithm.numbers();
        let observed = if limit.mode == Mode::Observe {
            OBSERVED
        } else {
            0
        };
        let leased = limit.lease.map_or(0, |_| LEASED);
        let freeing = if limit.free.is_empty() { 0 } else { FREEING };
        let priced = limit.costs.map_or(0, |_| PRICED);
        let penalizing = limit.penalty.map_or(0, |_| PENALIZING);
        args.extend([
            i64::from(numbers.kind) + observed + leased + freeing + priced + penalizing,
            exact(limit.generation),
            exact(limit.cost),
            exact(limit.debit),
            exact(numbers.limit),
            exact(numbers.x),
            exact(numbers.y),
            exact(numbers.z),
        ]);
        if let Some(lease) = &limit.lease {
            encode_lease(args, lease);
        }
        if !limit.free.is_empty() {
            args.push(integer(limit.free.len()));
            for Freed { slot, units } in limit.free {
                args.extend(named(slot));
                args.push(exact(*units));
            }
        }
        if let Some(ScriptCosts { costs, .. }) = &limit.costs {
            encode_costs(args, costs);
        }
        if let Some(ScriptPenalty {
            penalty, reported, ..
        }) = &limit.penalty
        {
            args.extend([
                exact(penalty.after),
                exact(penalty.within_ms),
                exact(penalty.for_ms),
                exact(*reported),
            ]);
        }
        encode_edges(args, limit.algorithm, limit.debit_serial);
    }
}

fn encode_costs(args: &mut Vec<i64>, costs: &Costs<'_>) {
    let unreserved = if costs.count_open { COUNT_OPEN } else { -1 };
    let secret = costs.secret.map_or(unreserved, exact);
    args.extend([secret, integer(costs.settle.len())]);
    for settlement in costs.settle {
        args.extend([
            exact(settlement.number),
            exact(settlement.secret),
            exact(settlement.reserved),
            exact(settlement.units),
        ]);
    }
}

/// Of a calendar window: the label of the one that the debit was admitted in, and the ends of those known.
pub(super) fn encode_edges(args: &mut Vec<i64>, algorithm: &Algorithm, debit_serial: Option<u64>) {
    if let Some(edges) = algorithm.edges() {
        args.push(exact(debit_serial.unwrap_or(0)));
        args.extend(edges.starts_ms().into_iter().skip(1).map(time));
    }
}

/// A slot by its four numbers.
pub(super) fn named(slot: &QueueSlot) -> [i64; 4] {
    [
        time(slot.start_ms),
        exact(slot.parts),
        time(slot.since_ms),
        exact(slot.turn),
    ]
}

fn encode_lease(args: &mut Vec<i64>, lease: &LeaseAsk<'_>) {
    args.extend([
        exact(lease.ttl_ms),
        exact(lease.want),
        i64::from(lease.proxy % PROXY_MARKS),
        integer(lease.settle.len()),
    ]);
    for settlement in lease.settle {
        args.extend([
            time(settlement.epoch),
            exact(settlement.spent),
            exact(settlement.returned),
        ]);
    }
}

/// A time of a bucket's clock, which may be ahead of ours.
fn time(ms: u64) -> i64 {
    i64::try_from(ms.min(EPOCH_MAX)).unwrap_or(i64::MAX)
}

/// A number that Lua holds exactly.
pub(super) fn exact(number: u64) -> i64 {
    i64::try_from(number.min(COST_MAX)).unwrap_or(i64::MAX)
}

fn integer(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use algorithms::{Kind, Parameters};

    #[test]
    fn what_is_asked_again_is_said_once() {
        let parameters = Parameters::new(Kind::TokenBucket, 10, 1000);
        let algorithm = Algorithm::new(&parameters).unwrap();
        let check = |key, cost| ScriptCheck {
            limits: vec![ScriptLimit {
                key,
                algorithm: &algorithm,
                generation: 7,
                cost,
                debit: 0,
                debit_serial: None,
                lease: None,
                free: &[],
                costs: None,
                penalty: None,
                mode: Mode::Enforce,
            }],
            options: Options::default(),
        };
        let checks = [check(b"a", 1), check(b"b", 2), check(b"c", 1)];
        let call = encode(&checks, Clock::Server);
        assert_eq!(call.keys, [b"a", b"b", b"c"]);
        let forms = [
            [0, 1, 1, 7, 1, 0, 10, 100, 1, 0],
            [0, 1, 1, 7, 2, 0, 10, 100, 1, 0],
        ];
        assert_eq!(
            call.args,
            [&[-1, 2], &forms[0][..], &forms[1], &[1, 2, 1]].concat()
        );
    }

    #[test]
    fn forms_beyond_those_compared_are_said_again() {
        let parameters = Parameters::new(Kind::TokenBucket, 10, 1000);
        let algorithm = Algorithm::new(&parameters).unwrap();
        let costs = (0..=FORMS_COMPARED).chain([1, 0]);
        let checks: Vec<_> = costs
            .map(|cost| ScriptCheck {
                limits: vec![ScriptLimit {
                    key: b"k",
                    algorithm: &algorithm,
                    generation: 7,
                    cost: cost as u64,
                    debit: 0,
                    debit_serial: None,
                    lease: None,
                    free: &[],
                    costs: None,
                    penalty: None,
                    mode: Mode::Enforce,
                }],
                options: Options::default(),
            })
            .collect();
        let call = encode(&checks, Clock::Server);
        let last = integer(FORMS_COMPARED) + 2;
        assert_eq!(call.args[1], last);
        assert!(call.args.ends_with(&[last - 1, 2, last]), "{:?}", call.args);
    }
}
