//! Any algorithm, chosen by a limit's parameters.

use crate::bucket::Bucket;
use crate::gcra::{Gcra, GcraState};
use crate::integers::TIME_MAX_MS;
use crate::quota::{Evaluated, Quota};
use crate::token_bucket::{TokenBucket, TokenBucketState};
use crate::{Kind, Outcome, ParameterError, Parameters};

/// An algorithm with its numbers, known to be good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Algorithm {
    parameters: Parameters,
    engine: Engine,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Engine {
    TokenBucket(TokenBucket),
    Gcra(Gcra),
}

/// What a bucket remembers. Absent means a completely unused quota, and so does the state of
/// another algorithm: an edit of `algorithm` starts the bucket afresh.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// See [`TokenBucketState`].
    TokenBucket(TokenBucketState),
    /// See [`GcraState`].
    Gcra(GcraState),
}

/// An algorithm with its numbers as the Lua twin takes them; what `x`, `y` and `z` are depends
/// on the kind (`lua/README.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Numbers {
    /// Which algorithm and variant, from 1.
    pub kind: u8,
    /// The quota in units.
    pub limit: u64,
    /// Buckets: parts of a unit. Windows: the length in milliseconds.
    pub x: u64,
    /// Buckets: parts that drain each millisecond.
    pub y: u64,
    /// Queues: the longest delay, in milliseconds.
    pub z: u64,
}

impl Numbers {
    const fn of_bucket(kind: u8, bucket: &Bucket) -> Self {
        Self {
            kind,
            limit: bucket.capacity,
            x: bucket.parts_per_unit,
            y: bucket.parts_per_ms,
            z: 0,
        }
    }
}

/// A cost tested against one limit, nothing taken yet.
///
/// Several limits are all or nothing, so whether it is [charged](Self::charge)
/// or [left](Self::leave) depends on the others.
pub struct Evaluation<'a>(Engines<'a>);

enum Engines<'a> {
    TokenBucket(Evaluated<'a, TokenBucket>),
    Gcra(Evaluated<'a, Gcra>),
}

/// The same expression for whichever algorithm it is.
macro_rules! each {
    ($enum:ident, $value:expr, $inner:pat => $body:expr) => {
        match $value {
            $enum::TokenBucket($inner) => $body,
            $enum::Gcra($inner) => $body,
        }
    };
}

/// [`each!`], with `$state` bound to the variant of [`State`] that belongs to it.
macro_rules! each_with_state {
    ($enum:ident, $value:expr, $inner:pat, $state:ident => $body:expr) => {
        match $value {
            $enum::TokenBucket($inner) => {
                use State::TokenBucket as $state;
                $body
            }
            $enum::Gcra($inner) => {
                use State::Gcra as $state;
                $body
            }
        }
    };
}

impl Algorithm {
    /// Validates parameters.
    ///
    /// # Errors
    /// The first thing wrong with them, with the value that would do.
    pub fn new(parameters: &Parameters) -> Result<Self, ParameterError> {
        parameters.belong_together()?;
        let engine = match parameters.kind {
            Kind::TokenBucket => Engine::TokenBucket(TokenBucket::new(parameters)?),
            Kind::Gcra => Engine::Gcra(Gcra::new(parameters)?),
            kind => return Err(ParameterError::Unavailable { kind }),
        };
        Ok(Self {
            parameters: *parameters,
            engine,
        })
    }

    /// What it was made from.
    pub const fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Which algorithm.
    pub const fn kind(&self) -> Kind {
        self.parameters.kind
    }

    /// The quota in units: the capacity C, or the N of a window.
    pub fn limit(&self) -> u64 {
        each!(Engine, &self.engine, quota => quota.limit())
    }

    /// The time in which a used-up quota comes back whole, in milliseconds, rounded up.
    pub const fn window_ms(&self) -> u64 {
        match &self.engine {
            Engine::TokenBucket(quota) => quota.bucket.window_ms(),
            Engine::Gcra(quota) => quota.bucket.window_ms(),
        }
    }

    /// The largest step back of the clock, in milliseconds, that is waited out; after a larger
    /// one the state's times are moved along.
    pub const fn horizon_ms(&self) -> u64 {
        match &self.engine {
            Engine::TokenBucket(quota) => quota.bucket.horizon_ms(),
            Engine::Gcra(quota) => quota.bucket.horizon_ms(),
        }
    }

    /// The numbers as the Lua twin takes them.
    pub const fn numbers(&self) -> Numbers {
        match &self.engine {
            Engine::TokenBucket(quota) => Numbers::of_bucket(1, &quota.bucket),
            Engine::Gcra(quota) => Numbers::of_bucket(2, &quota.bucket),
        }
    }

    /// Tests `cost` units at `now_ms`.
    pub fn evaluate(&self, state: Option<&State>, now_ms: u64, cost: u64) -> Evaluation<'_> {
        self.evaluate_with_debit(state, now_ms, cost, 0)
    }

    /// As [`Algorithm::evaluate`], after adding `debit` units that were admitted elsewhere. The
    /// debit is stored whichever way the evaluation is finished, and never takes the bucket
    /// beyond its limit.
    pub fn evaluate_with_debit(
        &self,
        state: Option<&State>,
        now_ms: u64,
        cost: u64,
        debit: u64,
    ) -> Evaluation<'_> {
        let now_ms = now_ms.min(TIME_MAX_MS);
        Evaluation(match &self.engine {
            Engine::TokenBucket(quota) => {
                let state = match state {
                    Some(State::TokenBucket(state)) => Some(state),
                    _ => None,
                };
                Engines::TokenBucket(Evaluated::new(quota, state, now_ms, cost, debit))
            }
            Engine::Gcra(quota) => {
                let state = match state {
                    Some(State::Gcra(state)) => Some(state),
                    _ => None,
                };
                Engines::Gcra(Evaluated::new(quota, state, now_ms, cost, debit))
            }
        })
    }
}

impl Evaluation<'_> {
    /// Whether the cost fits this limit.
    pub const fn fits(&self) -> bool {
        each!(Engines, &self.0, evaluated => evaluated.fits())
    }

    /// Takes the cost if it fits; a cost of 0 takes nothing.
    pub fn charge(self) -> Outcome<State> {
        each_with_state!(Engines, self.0, evaluated, wrap => evaluated.charge().map(wrap))
    }

    /// Takes nothing: another limit denied the check, or it was only a question.
    pub fn leave(self) -> Outcome<State> {
        each_with_state!(Engines, self.0, evaluated, wrap => evaluated.leave().map(wrap))
    }
}
