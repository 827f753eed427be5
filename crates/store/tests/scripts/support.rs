//! The two implementations of a check, behind one trait, to be compared.

mod lua_redis;
pub mod random;
pub mod server;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use algorithms::check::{Costs, Mode, Options, Part, PenaltyRequest, Stored, Verdict, check};
use algorithms::{
    Algorithm, BucketRequest, Charged, CostSettlement, Decision, Denials, LeaseRequest, Penalty,
    Settlement, SlotOp, State,
};
use store::script::{Charge, Clock, Refunded, ScriptCheck, ScriptError, ScriptLimit};

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
    pub debit_serial: Option<u64>,
    pub lease: Leasing,
    pub costs: Option<Reserving>,
    pub penalty: Option<Penalized>,
    pub mode: Mode,
}

impl Subject {
    /// Its part in a check, with what is stored.
    pub fn part<'a>(
        &'a self,
        stored: Option<&'a Stored>,
        denials: Option<&'a Denials>,
    ) -> Part<'a> {
        Part {
            algorithm: &self.algorithm,
            generation: self.generation,
            stored,
            cost: self.cost,
            debit: self.debit,
            debit_serial: self.debit_serial,
            lease: self.lease.asked(),
            free: &self.lease.free,
            costs: self.costs.as_ref().map(Reserving::ask),
            penalty: self.penalty.as_ref().map(|of| PenaltyRequest {
                penalty: of.penalty,
                stored: denials,
                reported: of.reported,
            }),
            mode: self.mode,
        }
    }

    pub fn script_limit(&self) -> ScriptLimit<'_> {
        ScriptLimit {
            reservations: self.costs.as_ref().map(|of| of.key.as_bytes()),
            denials: self.penalty.as_ref().map(|of| of.key.as_bytes()),
            ..ScriptLimit::new(self.key.as_bytes(), self.part(None, None))
        }
    }
}

impl Subject {
    /// A limit of which one unit is taken, and nothing else is asked.
    pub fn new(key: &str, algorithm: Algorithm) -> Self {
        Self {
            key: key.to_owned(),
            algorithm,
            generation: 1,
            cost: 1,
            debit: 0,
            debit_serial: None,
            lease: Leasing::default(),
            costs: None,
            penalty: None,
            mode: Mode::Enforce,
        }
    }
}

/// A number that a variable sets.
pub fn number(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// What is reserved and settled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reserving {
    pub key: String,
    pub secret: Option<u64>,
    pub settle: Vec<CostSettlement>,
    pub count_open: bool,
}

impl Reserving {
    pub fn ask(&self) -> Costs<'_> {
        Costs {
            secret: self.secret,
            settle: &self.settle,
            count_open: self.count_open,
        }
    }
}

/// The penalty of a limit, and the denials that proxies report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Penalized {
    pub key: String,
    pub penalty: Penalty,
    pub reported: u64,
}

/// The lease query and settlements of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leasing {
    pub ttl_ms: u64,
    pub want: u64,
    pub proxy: u8,
    pub settle: Vec<Settlement>,
    /// Slots of a queue, which cannot be leased.
    pub free: Vec<SlotOp>,
}

impl Leasing {
    pub fn ask(&self) -> LeaseRequest<'_> {
        LeaseRequest {
            ttl_ms: self.ttl_ms,
            want: self.want,
            proxy: self.proxy,
            settle: &self.settle,
        }
    }

    /// `None` if nothing is asked: then the script does not report outstanding units.
    fn asked(&self) -> Option<LeaseRequest<'_>> {
        let asked = self.ask();
        (asked != LeaseRequest::default()).then_some(asked)
    }
}

/// Anything that decides checks and stores what it charged.
pub trait Engine {
    fn check(
        &mut self,
        subjects: &[Subject],
        now_ms: u64,
        options: Options,
    ) -> Result<Verdict, ScriptError>;

    /// Refunds one charge.
    fn refund(&mut self, charge: &Charge<'_>, now_ms: u64) -> Refunded;
}

/// `algorithms::check` over a map.
#[derive(Default)]
pub struct RustEngine {
    pub buckets: HashMap<String, Stored>,
    pub denials: HashMap<String, Denials>,
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
            .map(|subject| {
                let denials = subject.penalty.as_ref();
                subject.part(
                    self.buckets.get(&subject.key),
                    denials.and_then(|of| self.denials.get(&of.key)),
                )
            })
            .collect();
        let (mut verdict, writes) =
            check(&parts, now_ms, options).map_err(|stale| ScriptError::Stale {
                limit: stale.limit,
                generation: stale.generation,
            })?;
        for (subject, limit) in subjects.iter().zip(&mut verdict.limits) {
            limit.leased = subject.lease.asked().map_or(0, |_| limit.leased);
            if let (Some(of), Some(denials)) = (&subject.penalty, limit.denials.take()) {
                self.denials.insert(of.key.clone(), denials);
            }
        }
        for (subject, write) in subjects.iter().zip(writes) {
            if let Some(stored) = write {
                self.buckets.insert(subject.key.clone(), stored);
            }
        }
        Ok(verdict)
    }

    fn refund(&mut self, charge: &Charge<'_>, now_ms: u64) -> Refunded {
        if !charge.algorithm.covers(now_ms) {
            return Refunded {
                taken: false,
                remaining: 0,
                reset_after_ms: 0,
            };
        }
        let key = std::str::from_utf8(charge.key).unwrap();
        let Some(stored) = self.buckets.get_mut(key) else {
            let unused = charge.algorithm.evaluate(None, now_ms, 0).leave();
            return refunded(false, &unused.decision);
        };
        let mut taken = false;
        if stored.generation == charge.generation {
            let charged = Charged {
                at_ms: charge.at_ms,
                units: charge.units,
                lease_ttl_ms: charge.lease_ttl_ms,
                slot: charge.slot,
            };
            let state = charge.algorithm.refund(&stored.state, now_ms, &charged);
            taken = state != stored.state;
            stored.state = state;
        }
        let asked = BucketRequest {
            lease: LeaseRequest {
                ttl_ms: charge.lease_ttl_ms,
                ..LeaseRequest::default()
            },
            edited: stored.generation != charge.generation,
            ..BucketRequest::default()
        };
        let left = charge
            .algorithm
            .evaluate_request(Some(&stored.state), now_ms, asked);
        let left = left.leave().decision;
        // Lists and hashes cannot be empty: without entries, their keys are gone.
        let fixed_size = !matches!(
            stored.state,
            State::SlidingWindowLog(_) | State::SlidingWindowBuckets(_)
        );
        if taken && left.reset_after_ms == 0 && !fixed_size {
            self.buckets.remove(key);
        }
        refunded(taken, &left)
    }
}

fn refunded(taken: bool, left: &Decision) -> Refunded {
    Refunded {
        taken,
        remaining: left.remaining,
        reset_after_ms: left.reset_after_ms,
    }
}

pub fn script_check(subjects: &[Subject], options: Options) -> ScriptCheck<'_> {
    ScriptCheck {
        limits: subjects.iter().map(Subject::script_limit).collect(),
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

    fn refund(&mut self, charge: &Charge<'_>, now_ms: u64) -> Refunded {
        let charges = std::slice::from_ref(charge);
        LuaRedis::refund(self, charges, Clock::Injected(now_ms)).remove(0)
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

    fn refund(&mut self, charge: &Charge<'_>, now_ms: u64) -> Refunded {
        Engine::refund(&mut *self.borrow_mut(), charge, now_ms)
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

    fn refund(&mut self, charge: &Charge<'_>, now_ms: u64) -> Refunded {
        let charges = std::slice::from_ref(charge);
        Server::refund(self, charges, Clock::Injected(now_ms)).remove(0)
    }
}
