//! The bucket that the proxies call, over the algorithms themselves.

use algorithms::{Algorithm, BucketRequest, Lease, LeaseRequest, Settlement, State};

/// The content of one message to the bucket.
#[derive(Clone, Debug, Default)]
pub struct Question {
    pub cost: u64,
    pub want: u64,
    pub proxy: u8,
    pub settle: Vec<Settlement>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    pub allowed: bool,
    pub charged: u64,
    pub lease: Option<Lease>,
    pub leased: u64,
    pub remaining: u64,
    pub reset_after_ms: u64,
    /// Whether the store writes the key, and with it its TTL.
    pub wrote: bool,
}

/// A bucket in some implementation. All get the same input and have to give the same answers.
pub trait Bucket {
    fn ask(&mut self, now_ms: u64, ttl_ms: u64, question: &Question) -> Reply;
    fn edit(&mut self, algorithm: Algorithm);
    fn reset(&mut self);
    /// The key has expired.
    fn expire(&mut self);
    /// How long its debt alone takes to drain, in milliseconds.
    fn drain_ms(&self) -> u64 {
        0
    }
}

/// The Rust algorithm and its state.
pub struct Real {
    algorithm: Algorithm,
    state: Option<State>,
}

impl Real {
    pub fn new(algorithm: Algorithm) -> Self {
        Self {
            algorithm,
            state: None,
        }
    }
}

impl Bucket for Real {
    fn ask(&mut self, now_ms: u64, ttl_ms: u64, question: &Question) -> Reply {
        let ask = BucketRequest {
            cost: question.cost,
            lease: LeaseRequest {
                ttl_ms,
                want: question.want,
                proxy: question.proxy,
                settle: &question.settle,
            },
            ..BucketRequest::default()
        };
        let state = self.state.take();
        let outcome = self
            .algorithm
            .evaluate_request(state.as_ref(), now_ms, ask)
            .charge();
        let wrote = outcome.write.is_some();
        self.state = outcome.write.or(state);
        Reply {
            allowed: outcome.decision.allowed,
            charged: outcome.charged,
            lease: outcome.lease,
            leased: outcome.leased,
            remaining: outcome.decision.remaining,
            reset_after_ms: outcome.decision.reset_after_ms,
            wrote,
        }
    }

    fn edit(&mut self, algorithm: Algorithm) {
        self.algorithm = algorithm;
    }

    fn reset(&mut self) {
        self.state = self.state.as_ref().and_then(State::reset);
    }

    fn expire(&mut self) {
        self.state = None;
    }

    fn drain_ms(&self) -> u64 {
        let numbers = self.algorithm.numbers();
        match &self.state {
            Some(State::TokenBucket(state)) => state.debt.div_ceil(numbers.y),
            _ => 0,
        }
    }
}
