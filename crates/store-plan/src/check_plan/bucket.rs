//! A bucket of a check, with its numbers.

use algorithms::{Algorithm, Kind, LeaseRequest, SlotOp};
use policy::{Compiled, Limit, Mode};

use super::{costs::BucketCosts, lease::Lease, penalty::BucketPenalty, query::Query};
use crate::Keys;

/// A bucket that a check touches.
#[derive(Debug)]
pub struct Bucket {
    /// Its key.
    pub key: String,
    /// The limit's numbers, or those of the bucket's override.
    pub algorithm: Algorithm,
    /// The generation they belong to.
    pub generation: u64,
    /// Units the check takes.
    pub cost: u64,
    /// Units admitted earlier without a check.
    pub debit: u64,
    /// The label of the calendar window in which they were admitted; `None`: the current one.
    pub debit_serial: Option<u64>,
    pub(super) lease: Option<Box<Lease>>,
    /// For a limit whose responses state their cost: what is reserved and settled.
    pub costs: Option<Box<BucketCosts>>,
    /// For a limit with a penalty.
    pub penalty: Option<Box<BucketPenalty>>,
    /// Operations on slots.
    pub free: Vec<SlotOp>,
    /// How it takes part.
    pub mode: algorithms::check::Mode,
}

impl Bucket {
    pub(super) fn new(
        policy: &Compiled,
        limit: &Limit,
        values: &[Option<Vec<u8>>],
        algorithm: &Algorithm,
        asked: Query<'_>,
        mode: Mode,
        keys: &Keys,
    ) -> Self {
        let owing = algorithm.owing_beyond();
        let algorithm = if limit.settles() { &owing } else { algorithm };
        let kind = algorithm.kind();
        let (debit, debit_serial) = asked.debit(limit, kind);
        let key = keys.bucket_of(policy.domain(), limit, values);
        let costs = limit.response_price().map(|price| {
            let key = keys.reservations_of(&key);
            Box::new(BucketCosts::new(key, price, asked))
        });
        let penalty = limit.penalty.map(|penalty| {
            Box::new(BucketPenalty {
                key: keys.denials_of(&key),
                penalty,
                reported: asked.denied(),
            })
        });
        Self {
            key,
            costs,
            penalty,
            algorithm: asked.algorithm(algorithm),
            generation: limit.generation,
            cost: match kind {
                Kind::Concurrency => asked.cost(kind).min(1),
                _ => asked.units(limit, algorithm),
            },
            debit,
            debit_serial,
            lease: asked.lease(limit, algorithm),
            free: asked.slots(limit, kind),
            mode: match mode {
                // `CheckPlan::of_service` changes it where limits deny together.
                Mode::Enforce => algorithms::check::Mode::Enforce,
                Mode::Shadow | Mode::Degrade => algorithms::check::Mode::Observe,
            },
        }
    }

    /// The lease query; all zero if there is none.
    pub fn lease_request(&self) -> LeaseRequest<'_> {
        self.lease
            .as_ref()
            .map(|lease| lease.request())
            .unwrap_or_default()
    }
}
