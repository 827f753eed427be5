//! The engines that decide the checks of a simulation.

use std::collections::HashMap;

use algorithms::{
    Algorithm, CostSettlement, Denials, Freed, LeaseAsk, Penalty,
    check::{Costs, Mode, Options, Part, PenaltyAsk, Stored, Verdict, check},
};

use crate::error::Error;

/// One limit's part in a check.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The key of the bucket, unique among scenarios.
    pub bucket: String,
    /// The numbers of the bucket.
    pub algorithm: Algorithm,
    /// Counts the edits of the limit.
    pub generation: u64,
    /// Units the check takes.
    pub cost: u64,
    /// Slots to free in the bucket of a queue.
    pub free: Vec<Freed>,
    /// What the check reserves and settles, if responses of the limit say their cost.
    pub costs: Option<Reserving>,
    /// When the bucket is penalized.
    pub penalty: Option<Penalty>,
    /// Whether it can deny.
    pub mode: Mode,
}

/// What a check reserves and settles.
#[derive(Clone, Debug, Default)]
pub struct Reserving {
    /// Its cost is a reservation with this secret.
    pub secret: Option<u64>,
    /// The actual costs of earlier requests.
    pub settle: Vec<CostSettlement>,
}

impl Reserving {
    /// As the algorithms take it.
    pub fn ask(&self) -> Costs<'_> {
        Costs {
            secret: self.secret,
            settle: &self.settle,
            count_open: false,
        }
    }
}

/// Decides checks at given times, and keeps the charged buckets.
pub trait Engine {
    /// Decides one check; one verdict per subject, in order.
    ///
    /// # Errors
    /// The engine could not decide, for instance because the numbers are older than the bucket's: a
    /// scenario edits its limits in order.
    fn check(
        &mut self,
        subjects: &[Subject],
        now_ms: u64,
        options: Options,
    ) -> impl Future<Output = Result<Verdict, Error>>;
}

/// The Rust algorithms, in this process. Nothing expires.
#[derive(Debug, Default)]
pub struct Local {
    buckets: HashMap<String, Stored>,
    denials: HashMap<String, Denials>,
}

impl Engine for Local {
    async fn check(
        &mut self,
        subjects: &[Subject],
        now_ms: u64,
        options: Options,
    ) -> Result<Verdict, Error> {
        let parts: Vec<Part<'_>> = subjects
            .iter()
            .map(|subject| Part {
                costs: subject.costs.as_ref().map(Reserving::ask),
                algorithm: &subject.algorithm,
                generation: subject.generation,
                stored: self.buckets.get(&subject.bucket),
                cost: subject.cost,
                debit: 0,
                debit_serial: None,
                lease: LeaseAsk::default(),
                free: &subject.free,
                penalty: subject.penalty.map(|penalty| PenaltyAsk {
                    penalty,
                    stored: self.denials.get(&subject.bucket),
                    reported: 0,
                }),
                mode: subject.mode,
            })
            .collect();
        let (verdict, writes) = check(&parts, now_ms, options).map_err(|stale| {
            let (limit, generation) = (stale.limit, stale.generation);
            Error::usage(format!(
                "limit {limit} is older than its bucket, at {generation}"
            ))
        })?;
        for (subject, write) in subjects.iter().zip(writes) {
            if let Some(stored) = write {
                self.buckets.insert(subject.bucket.clone(), stored);
            }
        }
        for (subject, limit) in subjects.iter().zip(&verdict.limits) {
            if let Some(denials) = limit.denials {
                self.denials.insert(subject.bucket.clone(), denials);
            }
        }
        Ok(verdict)
    }
}
