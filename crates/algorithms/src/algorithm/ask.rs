//! What a check asks of one bucket.

use crate::lease::LeaseAsk;
use crate::{ReserveAsk, SlotOp};

/// How [`Ask::debit`] is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Debits {
    /// Units admitted without the limiter: added up to the limit, never beyond it.
    #[default]
    Admitted,
    /// Units reported after use: added whole, beyond the limit up to 2^51 parts of a bucket or 2^51
    /// units (of a log fewer than a million). A queue has nothing left then.
    Reported,
    /// Units given back, as by [`Algorithm::credit`](crate::Algorithm::credit). Only for checks
    /// that charge nothing else.
    GivenBack,
}

/// A check of one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask<'a> {
    /// Units that the request costs; 0 charges nothing.
    pub cost: u64,
    /// Units that were used, or given back, without a decision. They are applied first, and stored
    /// whether the evaluation charges or leaves.
    pub debit: u64,
    /// How the debit is applied.
    pub debits: Debits,
    /// The label of the calendar window in which they were admitted; `None`: the current one.
    pub debit_serial: Option<u64>,
    /// A query for leased units, and settlements of earlier ones.
    pub lease: LeaseAsk<'a>,
    /// Operations on slots. Applied first, whether the evaluation charges or leaves.
    pub free: &'a [SlotOp],
    /// For a limit whose responses state their cost: reservations and settlements.
    pub reserve: Option<ReserveAsk<'a>>,
    /// Whether another generation of the limit wrote the state.
    pub edited: bool,
}
