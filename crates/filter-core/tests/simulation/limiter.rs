//! A limiter in the simulation: the same algorithms, one bucket map, no network.

use std::collections::HashMap;

use algorithms::check::{self, LimitVerdict, Mode, Options, Stored};
use policy::{Compiled, Match, Name, OverLimit, Policy, Revision};
use protocol::{
    Answer, Check, LimitAnswer,
    compact::{Batch, BatchAnswer},
};

/// One bucket: a limit and the values of its `per` entries.
pub type Bucket = (Name, Vec<Option<Vec<u8>>>);

/// The limiter with its store.
pub struct Limiter {
    compiled: Compiled,
    buckets: HashMap<Bucket, Stored>,
    /// Units charged by checks and by debits.
    pub charged: HashMap<Bucket, u64>,
    pub debited: HashMap<Bucket, u64>,
    /// Proxies to tell of.
    pub proxies: u64,
}

impl Limiter {
    pub fn new(limits: &str) -> Self {
        let mut limiter = Self {
            compiled: Compiled::new(Policy::empty("shop".parse().unwrap())),
            buckets: HashMap::new(),
            charged: HashMap::new(),
            debited: HashMap::new(),
            proxies: 1,
        };
        limiter.edit(limits);
        limiter
    }

    /// Replaces the limits; all of them are of a new generation.
    pub fn edit(&mut self, limits: &str) {
        let text = format!("domain: shop\nlimits:\n{limits}");
        let mut policy = Policy::from_yaml("limits.yaml", text.as_bytes()).unwrap();
        let number = self.compiled.revision().number + 1;
        policy.revision = Revision {
            number,
            digest: number,
        };
        for limit in &mut policy.limits {
            limit.generation = number;
        }
        self.compiled = Compiled::new(policy);
    }

    pub fn revision(&self) -> u64 {
        self.compiled.revision().number
    }

    pub fn etag(&self) -> String {
        format!("\"{}\"", self.revision())
    }

    pub fn snapshot(&self) -> Vec<u8> {
        serde_json::to_vec(&self.compiled.to_snapshot()).unwrap()
    }

    /// Decides a batch.
    pub fn check(&mut self, body: &[u8], now_ms: u64) -> Vec<u8> {
        let batch = Batch::decode(body).unwrap();
        assert_eq!(batch.domain.as_str(), "shop");
        let checks = batch.checks.into_iter();
        let checks: Vec<Check> = checks.map(|check| check.into_check(&batch.keys)).collect();
        let results = checks
            .iter()
            .map(|check| Ok(self.decide(check, now_ms, false)));
        let answer = BatchAnswer {
            results: results.collect(),
            revision: self.compiled.revision().clone(),
            proxies: self
                .compiled
                .limits()
                .iter()
                .map(|limit| (limit.name.clone(), self.proxies))
                .collect(),
        };
        answer.encode()
    }

    /// Decides one check, or only asks.
    pub fn decide(&mut self, check: &Check, now_ms: u64, peek: bool) -> Answer {
        let mut matches = self.compiled.matching(&check.descriptor, now_ms);
        matches.retain(|found| !check.skip.contains(&found.limit.name));
        let buckets: Vec<Bucket> = matches.iter().map(bucket).collect();
        let debit = |name: &Name| {
            let debits = check.debits.iter().filter(|debit| debit.limit == *name);
            debits.map(|debit| debit.units).sum()
        };
        let parts = matches
            .iter()
            .zip(&buckets)
            .map(|(found, bucket)| check::Part {
                algorithm: found.limit.quota.algorithm(),
                generation: found.limit.generation,
                stored: self.buckets.get(bucket),
                cost: found.limit.cost * check.cost,
                debit: if peek { 0 } else { debit(&found.limit.name) },
                lease: algorithms::LeaseAsk::default(),
                mode: match mode(found) {
                    protocol::Mode::Enforce => Mode::Enforce,
                    _ => Mode::Observe,
                },
            });
        let parts: Vec<_> = parts.collect();
        let options = Options { peek, force: true };
        let (verdict, writes) = check::check(&parts, now_ms, options).unwrap();
        let limits = matches.iter().zip(&verdict.limits);
        let answer = Answer {
            revision: self.compiled.revision().clone(),
            now_ms,
            allowed: verdict.allowed,
            limits: limits
                .map(|(found, verdict)| told(found, verdict))
                .collect(),
        };
        for ((bucket, write), verdict) in buckets.iter().zip(writes).zip(&verdict.limits) {
            *self.charged.entry(bucket.clone()).or_default() += verdict.charged;
            *self.debited.entry(bucket.clone()).or_default() += debit(&bucket.0);
            if let Some(write) = write.filter(|_| !peek) {
                self.buckets.insert(bucket.clone(), write);
            }
        }
        answer
    }
}

fn bucket(found: &Match<'_, '_>) -> Bucket {
    let values = found.values.iter().map(|value| value.map(<[u8]>::to_vec));
    (found.limit.name.clone(), values.collect())
}

fn mode(found: &Match<'_, '_>) -> protocol::Mode {
    match found.limit.over_limit {
        _ if !found.enforced => protocol::Mode::Shadow,
        OverLimit::Degrade => protocol::Mode::Degrade,
        OverLimit::Reject | OverLimit::Queue => protocol::Mode::Enforce,
    }
}

fn told(found: &Match<'_, '_>, verdict: &LimitVerdict) -> LimitAnswer {
    let algorithm = found.limit.quota.algorithm();
    LimitAnswer {
        name: found.limit.name.clone(),
        generation: found.limit.generation,
        bucket: Vec::new(),
        mode: mode(found),
        allowed: verdict.decision.allowed,
        charged: verdict.charged,
        limit: Some(algorithm.limit()),
        window_ms: algorithm.window_ms(),
        remaining: verdict.decision.remaining,
        retry_after_ms: verdict.decision.retry_after.millis(),
        reset_after_ms: verdict.decision.reset_after_ms,
        delay_ms: verdict.decision.delay_ms,
        hidden: found.limit.hidden,
        lease: None,
    }
}
