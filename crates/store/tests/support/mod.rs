//! The two implementations of a check, behind one trait, to be held against each other.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on should stop with the reason"
)]
#![expect(dead_code, reason = "each test binary uses its part of this")]

mod lua_redis;
pub mod random;
pub mod server;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use algorithms::Algorithm;
use algorithms::check::{Mode, Options, Part, Stored, Verdict, check};
use store::script::{Clock, ScriptCheck, ScriptError, ScriptLimit};

pub use lua_redis::LuaRedis;
pub use server::Server;

/// One limit's part in a check.
#[derive(Clone, Debug)]
pub struct Subject {
    pub key: String,
    pub algorithm: Algorithm,
    pub generation: u64,
    pub cost: u64,
    pub debit: u64,
    pub mode: Mode,
}

/// Anything that decides checks and remembers what it charged.
pub trait Engine {
    fn check(
        &mut self,
        subjects: &[Subject],
        now_ms: u64,
        options: Options,
    ) -> Result<Verdict, ScriptError>;
}

/// `algorithms::check` over a map.
#[derive(Default)]
pub struct RustEngine {
    pub buckets: HashMap<String, Stored>,
}

impl Engine for RustEngine {
    fn check(
        &mut self,
        subjects: &[Subject],
        now_ms: u64,
        options: Options,
    ) -> Result<Verdict, ScriptError> {
        let parts: Vec<_> = subjects
            .iter()
            .map(|subject| Part {
                algorithm: &subject.algorithm,
                generation: subject.generation,
                stored: self.buckets.get(&subject.key),
                cost: subject.cost,
                debit: subject.debit,
                mode: subject.mode,
            })
            .collect();
        let (verdict, writes) =
            check(&parts, now_ms, options).map_err(|stale| ScriptError::Stale {
                limit: stale.limit,
                generation: stale.generation,
            })?;
        for (subject, write) in subjects.iter().zip(writes) {
            if let Some(stored) = write {
                self.buckets.insert(subject.key.clone(), stored);
            }
        }
        Ok(verdict)
    }
}

pub fn script_check(subjects: &[Subject], options: Options) -> ScriptCheck<'_> {
    let limits = subjects.iter().map(|subject| ScriptLimit {
        key: subject.key.as_bytes(),
        algorithm: &subject.algorithm,
        generation: subject.generation,
        cost: subject.cost,
        debit: subject.debit,
        mode: subject.mode,
    });
    ScriptCheck {
        limits: limits.collect(),
        options,
    }
}

impl Engine for LuaRedis {
    fn check(
        &mut self,
        subjects: &[Subject],
        now_ms: u64,
        options: Options,
    ) -> Result<Verdict, ScriptError> {
        let check = script_check(subjects, options);
        self.batch(&[check], Clock::Injected(now_ms))
            .results
            .remove(0)
    }
}

impl Engine for Rc<RefCell<Server>> {
    fn check(
        &mut self,
        subjects: &[Subject],
        now_ms: u64,
        options: Options,
    ) -> Result<Verdict, ScriptError> {
        self.borrow_mut().check(subjects, now_ms, options)
    }
}

impl Engine for Server {
    fn check(
        &mut self,
        subjects: &[Subject],
        now_ms: u64,
        options: Options,
    ) -> Result<Verdict, ScriptError> {
        let check = script_check(subjects, options);
        self.batch(&[check], Clock::Injected(now_ms))
            .results
            .remove(0)
    }
}
