//! What a check asks of one bucket.

use crate::lease::LeaseAsk;
use crate::{Freed, ReserveAsk};

/// What becomes of [`Ask::debit`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Debits {
    /// They were admitted without the limiter: added up to the limit, never beyond it.
    #[default]
    Admitted,
    /// They are reported once they were used: added whole, beyond the limit up to 2^51 parts of a
    /// bucket or 2^51 units (of a log fewer than a million). A queue has nothing left then.
    Reported,
    /// They are given back, as by [`Algorithm::credit`](crate::Algorithm::credit). Only for checks that charge nothing else.
    GivenBack,
}

/// A check of one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask<'a> {
    /// Units that the request costs; 0 charges nothing.
    pub cost: u64,
    /// Units that were used, or given back, without a decision: first, and stored whichever way the
    /// evaluation is finished.
    pub debit: u64,
    /// What becomes of them.
    pub debits: Debits,
    /// The label of the calendar window that they were admitted in; `None`: that of now.
    pub debit_serial: Option<u64>,
    /// A query for leased units, and settlements of earlier ones.
    pub lease: LeaseAsk<'a>,
    /// Slots of a queue that requests released, and what becomes of slots of requests in flight
    /// ([`SlotAct`](crate::SlotAct)): first, whichever way the evaluation is finished.
    pub free: &'a [Freed],
    /// A limit whose responses say their cost: reservations and what becomes of them.
    pub reserve: Option<ReserveAsk<'a>>,
    /// The state was written by another edit of the limit.
    pub edited: bool,
}
