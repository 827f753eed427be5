//! Reads of single overrides and of counts: a domain may have 100,000 overrides. Reading them all takes
//! 4 s and 100 MB in a debug build, where one override takes 10 ms and 18 MB.

use std::collections::BTreeMap;

use policy::{Compiled, Descriptor, Limit, Name, Override, Policy};
use store::{InvalidOverride, LimitOf, Overrides, StoreError};

use super::{Session, edit_plan::OverridePages};
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

    /// Whether there is an override of one bucket, even one that cannot be read.
    pub async fn has_override(
        &self,
        domain: &Name,
        limit: &Limit,
        values: &Values,
    ) -> Result<bool, Error> {
        match self
            .store
            .read_override(&LimitOf { domain, limit }, values)
            .await
        {
            Ok(found) => Ok(found.is_some()),
            Err(StoreError::Corrupt(_)) => Ok(true),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// How many overrides a limit has.
    pub async fn override_count(&self, domain: &Name, limit: &Limit) -> Result<u64, Error> {
        let counts = self.store.override_counts(domain, &[&limit.name]).await;
        let counts = counts.map_err(|error| self.failed(&error))?;
        Ok(counts.first().copied().unwrap_or(0))
    }

    /// How many overrides each limit of a policy has.
    pub async fn override_counts(&self, policy: &Policy) -> Result<Vec<u64>, Error> {
        let names: Vec<&Name> = policy.limits.iter().map(|limit| &limit.name).collect();
        let counts = self.store.override_counts(&policy.domain, &names).await;
        counts.map_err(|error| self.failed(&error))
    }

    /// The overrides of a limit in order, `max` at most; if there are more, an arbitrary choice.
    pub async fn some_overrides(
        &self,
        domain: &Name,
        limit: &Limit,
        max: usize,
    ) -> Result<Vec<Override>, Error> {
        let mut found = BTreeMap::new();
        let mut walk = OverridePages::new(domain, limit);
        while found.len() < max
            && let Some(page) = walk.page(self).await?
        {
            for one in page.overrides {
                let one = one.map_err(|invalid| self.unreadable(limit, &invalid))?;
                found.insert(one.values.clone(), one);
            }
        }
        Ok(found.into_values().take(max).collect())
    }

    fn unreadable(&self, limit: &Limit, invalid: &InvalidOverride) -> Error {
        let (json, problems) = (&invalid.json, invalid.problems.join("; "));
        self.failed(&StoreError::Corrupt(format!(
            "an override of {}, {json}: {problems}",
            limit.name
        )))
    }

    /// The limits of the domain, with the override of one bucket only.
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

    /// The limits of the domain, with only the overrides that apply to a request.
    pub async fn policy_for_request(&self, descriptor: &Descriptor) -> Result<Policy, Error> {
        let mut policy = self.policy(Overrides::None).await?;
        // Matches at the end of time, when only endless pauses hold: it may read too many
        // overrides, never too few.
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
