//! A simulation on a real server.

use std::collections::BTreeSet;

use algorithms::check::{Options, Verdict};
use store::{
    CheckError,
    script::{ScriptCheck, ScriptCosts, ScriptLimit, ScriptPenalty},
};

use crate::{
    clock,
    error::Error,
    session::Session,
    simulate::{Engine, Subject},
};

/// The shipped scripts, on the server of a session.
pub struct Server<'s> {
    session: &'s Session<'s>,
    /// Separates this simulation's keys from those of others.
    run: u64,
    buckets: BTreeSet<String>,
}

impl<'s> Server<'s> {
    /// A simulation of its own.
    pub fn new(session: &'s Session<'s>) -> Self {
        // Unique per process and millisecond, and readable in a key.
        let run = (u64::from(std::process::id()) << 44) ^ clock::now_ms();
        Self {
            session,
            run,
            buckets: BTreeSet::new(),
        }
    }

    /// Removes what the simulation left on the server.
    pub async fn forget(self) -> Result<(), Error> {
        let buckets: Vec<&[u8]> = self.buckets.iter().map(String::as_bytes).collect();
        let forgotten = self.session.store.end_simulation(self.run, &buckets).await;
        forgotten.map_err(|error| self.session.failed(&error))
    }
}

impl Engine for Server<'_> {
    async fn check(
        &mut self,
        subjects: &[Subject],
        now_ms: u64,
        options: Options,
    ) -> Result<Verdict, Error> {
        if subjects.is_empty() {
            return Ok(Verdict {
                allowed: true,
                limits: Vec::new(),
            });
        }
        // Reservations and denials have keys of their own.
        let beside = |letter: char| -> Vec<String> {
            let keys = subjects.iter();
            keys.map(|subject| format!("{letter}:{}", subject.bucket))
                .collect()
        };
        let (records, denials) = (beside('r'), beside('p'));
        let limits = subjects.iter().zip(records.iter().zip(&denials)).map(
            |(subject, (records, denials))| ScriptLimit {
                cost: subject.cost,
                free: &subject.free,
                costs: subject.costs.as_ref().map(|costs| ScriptCosts {
                    key: records.as_bytes(),
                    costs: costs.ask(),
                }),
                penalty: subject.penalty.map(|penalty| ScriptPenalty {
                    key: denials.as_bytes(),
                    penalty,
                    reported: 0,
                }),
                mode: subject.mode,
                ..ScriptLimit::new(
                    subject.bucket.as_bytes(),
                    &subject.algorithm,
                    subject.generation,
                )
            },
        );
        let check = ScriptCheck {
            limits: limits.collect(),
            options,
        };
        let verdict = self.session.store.simulate(self.run, &check, now_ms).await;
        for (subject, (records, denials)) in subjects.iter().zip(records.into_iter().zip(denials)) {
            self.buckets.insert(subject.bucket.clone());
            if subject.costs.is_some() {
                self.buckets.insert(records);
            }
            if subject.penalty.is_some() {
                self.buckets.insert(denials);
            }
        }
        verdict.map_err(|error| match error {
            CheckError::Stale => Error::usage("a limit is older than its bucket"),
            error => self.session.check_failed(&error),
        })
    }
}
