//! Reading no more overrides than a command needs: a domain may have a hundred thousand.

use policy::{Compiled, Descriptor, Limit, Name, Override, Policy};
use store::{LimitOf, Overrides};

use super::Session;
use crate::{bucket::Values, error::Error};

impl Session<'_> {
    /// The override of one bucket.
    pub async fn override_of(
        &self,
        domain: &Name,
        limit: &Limit,
        values: &Values,
    ) -> Result<Option<Override>, Error> {
        let of = LimitOf { domain, limit };
        let found = self.store.read_override(&of, values).await;
        found.map_err(|error| self.failed(&error))
    }

    /// How many overrides a limit has.
    pub async fn override_count(&self, domain: &Name, limit: &Limit) -> Result<u64, Error> {
        let count = self.store.override_count(&LimitOf { domain, limit }).await;
        count.map_err(|error| self.failed(&error))
    }

    /// Whether an edit of a limit can make one of its overrides invalid, or lose it.
    pub async fn overrides_must_fit(
        &self,
        domain: &Name,
        before: Option<&Limit>,
        after: Option<&Limit>,
    ) -> Result<bool, Error> {
        let (Some(before), Some(after)) = (before, after) else {
            return Ok(false);
        };
        let numbers = |limit: &Limit| {
            let lease = limit.lease_ttl_ms;
            (
                limit.per.clone(),
                limit.quota,
                limit.if_missing,
                limit.scope,
                lease,
            )
        };
        if numbers(before) == numbers(after) {
            return Ok(false);
        }
        Ok(self.override_count(domain, before).await? > 0)
    }

    /// The limits of the domain that is meant, and of their overrides the one of a bucket.
    pub async fn policy_for_bucket(
        &self,
        policy: Policy,
        limit: &Name,
        values: &Values,
    ) -> Result<Policy, Error> {
        let mut policy = policy;
        let domain = &policy.domain;
        if let Some(limit) = policy.limits.iter_mut().find(|found| found.name == *limit) {
            limit.overrides = Vec::from_iter(self.override_of(domain, limit, values).await?);
        }
        Ok(policy)
    }

    /// The limits of the domain that is meant, and of their overrides those that a request meets.
    pub async fn policy_for_request(&self, descriptor: &Descriptor) -> Result<Policy, Error> {
        let mut policy = self.policy(Overrides::None).await?;
        // At the end of time, when nothing but endless pauses holds any more: more is read than
        // needed, never less.
        let compiled = Compiled::new(policy.clone());
        for found in compiled.matching(descriptor, u64::MAX) {
            let values: Values = found.values.iter().map(|v| v.map(<[u8]>::to_vec)).collect();
            let entry = self
                .override_of(compiled.domain(), found.limit, &values)
                .await?;
            if let Some(limit) = policy.limits.get_mut(found.index) {
                limit.overrides.extend(entry);
            }
        }
        Ok(policy)
    }
}
