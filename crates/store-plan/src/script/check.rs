//! What the check script decides: one request, against limits.

use algorithms::check::{Costs, Mode, Options};
use algorithms::{Algorithm, LeaseRequest, Penalty, SlotOp};

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
    /// The label of the calendar window in which they were admitted; `None`: the current one.
    pub debit_serial: Option<u64>,
    /// A query for lease units, and settlements of earlier ones; `None` costs the script nothing,
    /// and its reply has no lease numbers.
    pub lease: Option<LeaseRequest<'a>>,
    /// Slots of a queue that requests gave up.
    pub free: &'a [SlotOp],
    /// For a limit whose responses state their cost.
    pub costs: Option<ScriptCosts<'a>>,
    /// For a limit with a penalty.
    pub penalty: Option<ScriptPenalty<'a>>,
    /// How it takes part.
    pub mode: Mode,
}

impl<'a> ScriptLimit<'a> {
    /// A limit that charges one unit, and nothing more.
    pub fn new(key: &'a [u8], algorithm: &'a Algorithm, generation: u64) -> Self {
        Self {
            key,
            algorithm,
            generation,
            cost: 1,
            debit: 0,
            debit_serial: None,
            lease: None,
            free: &[],
            costs: None,
            penalty: None,
            mode: Mode::Enforce,
        }
    }
}

/// What a check reserves and settles at one limit.
#[derive(Clone, Copy, Debug)]
pub struct ScriptCosts<'a> {
    /// The key of the bucket's reservations, in its slot.
    pub key: &'a [u8],
    /// The reservation and the settlements.
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
