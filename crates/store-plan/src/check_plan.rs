//! A check resolved against a policy: which buckets it touches, and with what numbers.

mod answer;
mod bucket;
mod costs;
mod lease;
mod penalty;
mod query;
mod service;

use algorithms::check::{Options, Verdict};
use policy::{Compiled, Limit, Match, Mode, Name, Resolved};
use protocol::{Answer, Check, LimitRequest};

pub use bucket::Bucket;
pub use costs::{BucketCosts, Seal};
pub use penalty::BucketPenalty;
use query::Query;

use crate::{
    CheckPlanError, Keys,
    script::{ScriptCheck, ScriptLimit},
};

/// One check, ready to be decided.
#[derive(Debug)]
pub struct CheckPlan<'p> {
    /// The limits that match, in the order of the policy.
    parts: Vec<LimitPlan<'p>>,
    /// For Envoy's rate limit service: how many of the parts belong to each descriptor.
    counts: Vec<usize>,
    /// Peek and force.
    pub options: Options,
}

/// One limit's part in a check.
#[derive(Debug)]
struct LimitPlan<'p> {
    limit: &'p Limit,
    values: Vec<Option<Vec<u8>>>,
    mode: Mode,
    what: Target,
}

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are buckets, and a box of each would be an allocation for each check"
)]
enum Target {
    /// A bucket decides.
    Bucket(Bucket),
    /// The bucket at this index, which other parts of the check charge as well.
    Same(usize, Box<Bucket>),
    /// The request lacks an entry without which the limit lets nothing pass.
    Missing,
    /// An override lifts the limit.
    Unlimited,
}

/// Whether the plan of a check needs a [`Seal`].
pub fn reserves_or_settles(check: &Check) -> bool {
    let of_limit = |entry: &LimitRequest| {
        !entry.settle.is_empty() || entry.cost.is_some_and(|cost| cost.reserve)
    };
    check.reserve || check.limits.iter().any(of_limit)
}

impl<'p> CheckPlan<'p> {
    /// Resolves one check. `now_ms` decides which overrides are in force, nothing else. A check that
    /// [reserves or settles](reserves_or_settles) needs a `seal`.
    pub fn new(
        policy: &'p Compiled,
        check: &Check,
        keys: &Keys,
        seal: Option<&Seal>,
        now_ms: u64,
        force: bool,
    ) -> Result<Self, CheckPlanError> {
        if let Some(service) = &check.service {
            return Ok(Self::of_service(
                policy, check, service, keys, now_ms, force,
            ));
        }
        if let Some(unknown) = check
            .only
            .iter()
            .find(|n| policy.position(n.as_str()).is_none())
        {
            return Err(CheckPlanError::UnknownLimit(unknown.clone()));
        }
        let planned = |found: Match<'p, '_>| {
            let name = &found.limit.name;
            let entry = check.limit(name);
            let skips = entry.is_some_and(|entry| entry.skip && !entry.acts());
            let wanted = (check.only.is_empty() || check.only.contains(name)) && !skips;
            let query = Query::Check(check, entry, seal);
            wanted.then(|| LimitPlan::new(policy, found, query, keys, now_ms))
        };
        let matches = policy.matching(&check.descriptor, now_ms).into_iter();
        let parts: Vec<LimitPlan<'p>> = matches.filter_map(planned).collect();
        // Paused limits match nothing, and must not cause denials by that; nor must exemptions.
        if parts.is_empty()
            && check.require_match
            && !policy.any_paused(now_ms)
            && policy.exemption(&check.descriptor).is_none()
        {
            return Err(CheckPlanError::NoMatch);
        }
        // The check is denied in any case, so it charges nothing; it still queries the other
        // buckets, so that the answer names every limit that denies.
        let refused = parts.iter().any(LimitPlan::refuses);
        Ok(Self {
            parts,
            counts: Vec::new(),
            options: Options {
                peek: check.peek,
                denied: refused,
                // A check that is refused is not repeated.
                patience_ms: if refused { 0 } else { check.patience_ms },
                force,
                ..Options::default()
            },
        })
    }

    /// A peek at one bucket.
    pub fn of_bucket(
        policy: &'p Compiled,
        limit: &Name,
        values: &[Option<Vec<u8>>],
        cost: u64,
        keys: &Keys,
        now_ms: u64,
    ) -> Result<Self, CheckPlanError> {
        let unknown = || CheckPlanError::UnknownLimit(limit.clone());
        let index = policy.position(limit.as_str()).ok_or_else(unknown)?;
        let limit = policy.limit(index).ok_or_else(unknown)?;
        if values.len() != limit.per.len() {
            return Err(CheckPlanError::WrongBucket {
                limit: limit.name.clone(),
                expected: limit.per.len(),
                given: values.len(),
            });
        }
        let found = Match {
            index,
            limit,
            values: values.iter().map(Option::as_deref).collect(),
            shared: None,
            enforced: limit.enforces(values),
            missing: None,
        };
        Ok(Self {
            parts: vec![LimitPlan::new(
                policy,
                found,
                Query::Peek(cost),
                keys,
                now_ms,
            )],
            counts: Vec::new(),
            options: Options {
                peek: true,
                force: true,
                ..Options::default()
            },
        })
    }

    /// The buckets to check, in the order of the verdict.
    pub fn buckets(&self) -> impl Iterator<Item = &Bucket> {
        self.parts.iter().filter_map(|part| match &part.what {
            Target::Bucket(bucket) => Some(bucket),
            Target::Same(..) | Target::Missing | Target::Unlimited => None,
        })
    }

    /// The check as the script takes it.
    pub fn script_check(&self) -> ScriptCheck<'_> {
        let limits = self.buckets().map(|bucket| ScriptLimit {
            key: bucket.key.as_bytes(),
            algorithm: &bucket.algorithm,
            generation: bucket.generation,
            cost: bucket.cost,
            debit: bucket.debit,
            debit_serial: bucket.debit_serial,
            lease: bucket.lease.as_ref().map(|lease| lease.request()),
            free: &bucket.free,
            costs: bucket.costs.as_deref().map(BucketCosts::as_script),
            penalty: bucket.penalty.as_deref().map(BucketPenalty::as_script),
            mode: bucket.mode,
        });
        ScriptCheck {
            limits: limits.collect(),
            options: self.options,
        }
    }

    /// The first limit.
    pub fn limit(&self) -> Option<&'p Limit> {
        self.parts.first().map(|part| part.limit)
    }

    /// The key of the first limit's bucket, whether or not it has to be checked.
    pub fn key_of(&self, domain: &Name, keys: &Keys) -> String {
        let first = self.parts.first();
        first.map_or_else(String::new, |part| {
            keys.bucket_of(domain, part.limit, &part.values)
        })
    }

    /// The limit of the bucket at an index of [`CheckPlan::buckets`], for messages.
    pub fn limit_name(&self, bucket: usize) -> Option<&Name> {
        let with_bucket = |part: &&LimitPlan<'_>| matches!(part.what, Target::Bucket(_));
        let part = self.parts.iter().filter(with_bucket).nth(bucket)?;
        Some(&part.limit.name)
    }

    /// The answer if no bucket has to be checked.
    pub fn without_buckets(self, policy: &Compiled, now_ms: u64) -> Answer {
        let nobody = Verdict {
            allowed: true,
            limits: Vec::new(),
        };
        self.answer(policy, &nobody, now_ms)
    }

    /// The verdicts of the buckets as an answer. `verdict` has one entry per bucket.
    pub fn answer(self, policy: &Compiled, verdict: &Verdict, now_ms: u64) -> Answer {
        let refused = self.parts.iter().any(LimitPlan::refuses);
        let together: Vec<bool> = self.parts.iter().map(LimitPlan::denies_together).collect();
        let mut buckets = 0..;
        let parts = self.parts.into_iter();
        let limits = parts.map(|part| part.answer(&mut buckets, &verdict.limits));
        let mut answer = Answer {
            revision: policy.revision().clone(),
            now_ms,
            allowed: verdict.allowed && !refused,
            limits: limits.collect(),
            parts: self.counts,
        };
        if together.contains(&true) {
            service::show_who_denied(&mut answer, &together);
        }
        answer
    }
}

impl<'p> LimitPlan<'p> {
    fn new(
        policy: &'p Compiled,
        found: Match<'p, '_>,
        asked: Query<'_>,
        keys: &Keys,
        now_ms: u64,
    ) -> Self {
        let limit = found.limit;
        // Together with others, such a limit may still deny.
        let of_quota = limit.has_quota_mode();
        let (index, missing) = (found.index, found.missing);
        let mode = match found.mode() {
            _ if of_quota => Mode::Shadow,
            // A request that lacks an entry is not over the limit, but refused.
            Mode::Degrade if missing.is_some() => Mode::Enforce,
            mode => mode,
        };
        let values = found.into_values();
        let quota = match missing {
            Some(_) => None,
            None => policy.quota_for(index, &values, now_ms),
        };
        let what = match quota {
            None => Target::Missing,
            Some(Resolved::Unlimited) => Target::Unlimited,
            Some(Resolved::Quota(quota)) => {
                let algorithm = calendar::at(quota.algorithm(), now_ms);
                Target::Bucket(Bucket::new(
                    policy, limit, &values, &algorithm, asked, mode, keys,
                ))
            }
        };
        Self {
            limit,
            values,
            mode,
            what,
        }
    }

    /// Whether it denies the check together with others.
    fn denies_together(&self) -> bool {
        match &self.what {
            Target::Bucket(bucket) => bucket.mode == algorithms::check::Mode::Together,
            Target::Same(_, bucket) => bucket.mode == algorithms::check::Mode::Together,
            Target::Missing | Target::Unlimited => false,
        }
    }

    /// Whether the check is denied whatever the buckets say.
    fn refuses(&self) -> bool {
        matches!(self.what, Target::Missing) && self.mode == Mode::Enforce
    }
}
