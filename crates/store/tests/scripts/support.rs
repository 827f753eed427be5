//! The two implementations of a check, behind one trait, to be compared.

mod lua_redis;
pub mod random;
pub mod server;

use std::collections::HashMap;

use algorithms::check::{Mode, Options, Part, PenaltyRequest, Stored, Verdict, check};
use algorithms::{
    Algorithm, BucketRequest, CostSettlement, Decision, Denials, Kind, LeaseRequest, LimitVerdict,
    Parameters, Penalty, ReserveRequest, Settlement, SlotOp, State,
};
use store::script::{
    Bucket, Charge, Clock, Credit, Credited, Refunded, ScriptCheck, ScriptError, ScriptReply,
};

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
    /// Its part in a check.
    pub fn part(&self) -> Part<'_> {
        Part {
            algorithm: self.algorithm,
            generation: self.generation,
            cost: self.cost,
            debit: self.debit,
            debit_serial: self.debit_serial,
            lease: self.lease.asked(),
            free: self.lease.free.clone(),
            costs: self.costs.as_ref().map(Reserving::ask),
            penalty: self.penalty.as_ref().map(|of| PenaltyRequest {
                penalty: of.penalty,
                reported: of.reported,
                counts: of.counts,
            }),
            mode: self.mode,
        }
    }

    pub fn bucket(&self) -> Bucket<'_> {
        Bucket {
            reservations: self.costs.as_ref().map(|of| of.key.clone()),
            denials: self.penalty.as_ref().map(|of| of.key.clone()),
            ..Bucket::new(&self.key, self.part())
        }
    }

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

/// Every algorithm, but for slots of requests in flight, by so many units in a period.
pub const KINDS: [Kind; 7] = [
    Kind::TokenBucket,
    Kind::Gcra,
    Kind::LeakyBucket,
    Kind::FixedWindow,
    Kind::SlidingWindowLog,
    Kind::SlidingWindowBuckets,
    Kind::SlidingWindow,
];

/// A limit of a kind, in ten sub-windows if it needs some.
pub fn algorithm(kind: Kind, units: u64, period_ms: u64) -> Algorithm {
    let sub_windows = (kind == Kind::SlidingWindowBuckets).then_some(10);
    let parameters = Parameters::new(kind, units, period_ms);
    let parameters = Parameters {
        sub_windows,
        ..parameters
    };
    Algorithm::new(&parameters).unwrap()
}

pub fn bursting(kind: Kind, units: u64, period_ms: u64, burst: u64) -> Algorithm {
    let burst = Some(burst);
    let parameters = Parameters::new(kind, units, period_ms);
    Algorithm::new(&Parameters {
        burst,
        ..parameters
    })
    .unwrap()
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
    pub fn ask(&self) -> ReserveRequest {
        ReserveRequest {
            secret: self.secret,
            settle: self.settle.clone(),
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
    pub counts: bool,
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

    /// Gives units back, as an operator does.
    fn credit(&mut self, credit: &Credit<'_>, now_ms: u64) -> Credited;

    /// A check of one limit that is not stale.
    fn one(&mut self, subject: &Subject, now_ms: u64) -> LimitVerdict {
        let subjects = std::slice::from_ref(subject);
        let verdict = self.check(subjects, now_ms, Options::default());
        verdict.unwrap().limits.remove(0)
    }
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
        let parts: Vec<_> = subjects.iter().map(Subject::part).collect();
        let asked: Vec<_> = { parts.iter().zip(subjects) }
            .map(|(part, subject)| {
                let denials = subject.penalty.as_ref();
                let denials = denials.and_then(|of| self.denials.get(&of.key));
                (part, self.buckets.get(&subject.key), denials)
            })
            .collect();
        let (mut verdict, writes) =
            check(&asked, now_ms, options).map_err(|stale| ScriptError::Stale {
                limit: stale.limit,
                generation: stale.generation,
            })?;
        for (subject, limit) in subjects.iter().zip(&mut verdict.limits) {
            limit.leased = subject.lease.asked().map_or(0, |_| limit.leased);
        }
        for (subject, (stored, denials)) in subjects.iter().zip(writes) {
            if let (Some(of), Some(denials)) = (&subject.penalty, denials) {
                self.denials.insert(of.key.clone(), denials);
            }
            if let Some(stored) = stored {
                self.buckets.insert(subject.key.clone(), stored);
            }
        }
        Ok(verdict)
    }

    fn refund(&mut self, charge: &Charge<'_>, now_ms: u64) -> Refunded {
        let Bucket { key, part, .. } = charge.bucket;
        if !part.algorithm.covers(now_ms) {
            return Refunded {
                taken: false,
                remaining: 0,
                reset_after_ms: 0,
            };
        }
        let Some(stored) = self.buckets.get_mut(key) else {
            let unused = part.algorithm.evaluate(None, now_ms, 0).leave();
            return refunded(false, &unused.verdict.decision);
        };
        let mut taken = false;
        if stored.generation == part.generation {
            let state = part
                .algorithm
                .refund(&stored.state, now_ms, &charge.charged);
            taken = state != stored.state;
            stored.state = state;
        }
        let asked = BucketRequest {
            edited: stored.generation != part.generation,
            ..asking(charge.charged.lease_ttl_ms)
        };
        let left = part
            .algorithm
            .evaluate_request(Some(&stored.state), now_ms, asked);
        let left = left.leave().verdict.decision;
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

    fn credit(&mut self, credit: &Credit<'_>, now_ms: u64) -> Credited {
        let Bucket { key, part, .. } = &credit.bucket;
        let algorithm = &part.algorithm;
        let ttl_ms = part.lease.unwrap_or_default().ttl_ms;
        let asked = |state| {
            let asked = algorithm.evaluate_request(state, now_ms, asking(ttl_ms));
            let decision = asked.leave().verdict.decision;
            (decision.remaining, decision.reset_after_ms)
        };
        if !algorithm.covers(now_ms) {
            return Credited::Stale;
        }
        let Some(stored) = self.buckets.get_mut(key) else {
            let (left, reset_after_ms) = asked(None);
            return done(false, left, left, reset_after_ms);
        };
        if part.generation < stored.generation && !credit.force {
            return Credited::Stale;
        }
        let (before, reset_before) = asked(Some(&stored.state));
        let credited = algorithm.credit_stored(
            stored,
            part.generation,
            (now_ms, ttl_ms),
            credit.units,
            credit.bucket.reservations.is_some(),
        );
        let used = credit.units > 0 && reset_before > 0;
        if !used {
            return done(false, before, before, reset_before);
        }
        let (after, reset_after_ms) = asked(Some(&credited.state));
        if !credit.peek {
            *stored = credited;
            // Lists and hashes cannot be empty.
            let lists = [Kind::SlidingWindowLog, Kind::SlidingWindowBuckets];
            if reset_after_ms == 0 && lists.contains(&algorithm.kind()) {
                self.buckets.remove(key);
            }
        }
        done(true, before, after, reset_after_ms)
    }
}

/// A part of what is compared: from the nth on, every so-manieth.
pub type Share = (usize, usize);

pub fn done(used: bool, left_before: u64, left: u64, reset_after_ms: u64) -> Credited {
    Credited::Done {
        used,
        left_before,
        left,
        reset_after_ms,
    }
}

/// Takes nothing, of a limit that leases by this ttl.
fn asking(ttl_ms: u64) -> BucketRequest<'static> {
    let lease = LeaseRequest {
        ttl_ms,
        ..LeaseRequest::default()
    };
    BucketRequest {
        lease,
        ..BucketRequest::default()
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
        limits: subjects.iter().map(Subject::bucket).collect(),
        options,
    }
}

/// What runs the scripts.
pub trait Scripts {
    fn batch(&mut self, checks: &[ScriptCheck<'_>], clock: Clock) -> ScriptReply;
    fn refund_all(&mut self, charges: &[Charge<'_>], clock: Clock) -> Vec<Refunded>;
    fn credit_by(&mut self, credit: &Credit<'_>, clock: Clock) -> Credited;
}

impl<T: Scripts> Engine for T {
    fn check(
        &mut self,
        subjects: &[Subject],
        now_ms: u64,
        options: Options,
    ) -> Result<Verdict, ScriptError> {
        let check = script_check(subjects, options);
        let mut reply = self.batch(&[check], Clock::Injected(now_ms));
        reply.results.remove(0)
    }

    fn refund(&mut self, charge: &Charge<'_>, now_ms: u64) -> Refunded {
        let charges = std::slice::from_ref(charge);
        self.refund_all(charges, Clock::Injected(now_ms)).remove(0)
    }

    fn credit(&mut self, credit: &Credit<'_>, now_ms: u64) -> Credited {
        self.credit_by(credit, Clock::Injected(now_ms))
    }
}

/// Tests of what is compared with the algorithms: in an interpreter and on a server of each engine, each with an argument
/// if the function wants one.
macro_rules! on_twins {
    ($($test:ident: $function:ident $(($here:tt, $redis:tt, $valkey:tt))?;)*) => {$(
        mod $test {
            #[test]
            fn in_an_interpreter() {
                super::$function(&mut crate::support::LuaRedis::new() $(, $here)?);
            }

            crate::support::on_servers!(super::$function $(, ($redis, $valkey))?);
        }
    )*};
}
pub(crate) use on_twins;

/// Tests on a server of each engine.
macro_rules! on_servers {
    ($function:path $(, ($redis:tt, $valkey:tt))?) => {
        #[test]
        #[ignore = "needs a server"]
        fn on_redis() {
            $function(&mut crate::support::Server::start(harness::Engine::Redis) $(, $redis)?);
        }

        #[test]
        #[ignore = "needs a server"]
        fn on_valkey() {
            $function(&mut crate::support::Server::start(harness::Engine::Valkey) $(, $valkey)?);
        }
    };
}
pub(crate) use on_servers;
