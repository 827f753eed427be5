//! Which limits apply to a request.

use documents::Name;

use super::Compiled;
use super::walk;
use crate::{Entries, Exemption, IfMissing, Limit};

/// A limit that applies to a request, and the bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match<'c, 'e> {
    /// The limit's position in the policy.
    pub index: usize,
    /// The limit; its overrides are in [`Compiled::quota_for`].
    pub limit: &'c Limit,
    /// The bucket: the values of the limit's `per` entries, `None` where the request has none.
    pub values: Vec<Option<&'e [u8]>>,
    /// The bucket of a limit of the rate limit service, if several values share it, so that it is
    /// not the text of the descriptor.
    pub shared: Option<Vec<u8>>,
    /// Whether this bucket is enforced, or only reported (`enforce`).
    pub enforced: bool,
    /// The entry that the request lacks, where the limit denies such requests
    /// (`if_missing: deny`). No bucket is charged then.
    pub missing: Option<&'c Name>,
}

impl Match<'_, '_> {
    /// The owned values of the bucket.
    pub fn into_values(self) -> Vec<Option<Vec<u8>>> {
        match self.shared {
            Some(bucket) => vec![Some(bucket)],
            None => self
                .values
                .into_iter()
                .map(|v| v.map(<[u8]>::to_vec))
                .collect(),
        }
    }
}

impl Compiled {
    /// The limits that apply to a request at a time in milliseconds since the epoch, in the order
    /// of the policy, after `replaces`. Limits that are paused then count as absent. None applies
    /// to a request that is exempt.
    ///
    /// Every needed entry is looked up once.
    pub fn matching<'e>(
        &self,
        entries: &'e (impl Entries + ?Sized),
        now_ms: u64,
    ) -> Vec<Match<'_, 'e>> {
        let values: Vec<Option<&[u8]>> = self
            .shape
            .keys
            .iter()
            .map(|key| entries.get(key.as_str()))
            .collect();
        match self.matching_values(&values, now_ms) {
            Ok(matches) => self.with_descriptor_limit(matches, entries, now_ms),
            Err(_) => Vec::new(),
        }
    }

    /// Adds the limit of the rate limit service that applies.
    fn with_descriptor_limit<'c, 'e>(
        &'c self,
        mut matches: Vec<Match<'c, 'e>>,
        entries: &'e (impl Entries + ?Sized),
        now_ms: u64,
    ) -> Vec<Match<'c, 'e>> {
        if let Some(found) = self.descriptor_limit(entries, now_ms) {
            let at = matches.partition_point(|other| other.index < found.index);
            matches.insert(at, found);
            self.suppress_replaced(&mut matches);
        }
        matches
    }

    fn descriptor_limit<'c, 'e>(
        &'c self,
        entries: &'e (impl Entries + ?Sized),
        now_ms: u64,
    ) -> Option<Match<'c, 'e>> {
        let walk = self.shape.service.walk.as_ref()?;
        let text = entries.get(crate::DESCRIPTOR)?;
        let descriptor = crate::SentDescriptor::read(text)?;
        let index = walk.find(&descriptor)?;
        let limit = self.limits.get(index)?;
        if self.pause_of(index, now_ms).is_some() {
            return None;
        }
        let shared = walk::bucket_of(limit, &descriptor, text);
        let bucket = shared.as_deref().unwrap_or(text);
        Some(Match {
            index,
            limit,
            enforced: limit.enforces(&[Some(bucket)]),
            values: vec![Some(text)],
            shared,
            missing: None,
        })
    }

    /// As [`Compiled::matching`], for callers that hold the values in the order of
    /// [`Compiled::needed_keys`].
    ///
    /// # Errors
    /// The first exemption that holds, whatever is paused.
    pub fn matching_values<'e>(
        &self,
        values: &[Option<&'e [u8]>],
        now_ms: u64,
    ) -> Result<Vec<Match<'_, 'e>>, &Exemption> {
        match self.exemption_of_values(values) {
            Some(exemption) => Err(exemption),
            None => Ok(self.limits_matching(values, now_ms)),
        }
    }

    fn limits_matching<'e>(&self, values: &[Option<&'e [u8]>], now_ms: u64) -> Vec<Match<'_, 'e>> {
        if self.policy.paused.is_some_and(|pause| pause.holds(now_ms)) {
            return Vec::new();
        }
        let mut matches: Vec<Match<'_, 'e>> = Vec::new();
        for at in self.shape.index.candidates(values).iter() {
            matches.extend(self.test(at, values, now_ms));
        }
        self.suppress_replaced(&mut matches);
        matches
    }

    fn test<'e>(
        &self,
        index: usize,
        values: &[Option<&'e [u8]>],
        now_ms: u64,
    ) -> Option<Match<'_, 'e>> {
        let limit = self.limits.get(index)?;
        if limit.descriptor.is_some() || limit.paused.is_some_and(|pause| pause.holds(now_ms)) {
            return None;
        }
        let rule = self.shape.rules.get(index)?;
        let value = |key: &usize| values.get(*key).copied().flatten();
        let mut matchers = limit.matchers.iter().zip(&rule.matchers);
        if !matchers.all(|(matcher, key)| matcher.holds(value(key))) {
            return None;
        }
        let values: Vec<Option<&[u8]>> = rule.per.iter().map(value).collect();
        let absent = values.iter().position(Option::is_none);
        let missing = match (absent, limit.if_missing) {
            (Some(_), IfMissing::Skip) => return None,
            (Some(at), IfMissing::Deny) => limit.per.get(at),
            (Some(_), IfMissing::Share) | (None, _) => None,
        };
        Some(Match {
            index,
            limit,
            enforced: limit.enforces(&values),
            values,
            shared: None,
            missing,
        })
    }

    /// A limit that matches suppresses those it replaces, unless it is only reported. A limit of
    /// the rate limit service always does, as in that service.
    fn suppress_replaced(&self, matches: &mut Vec<Match<'_, '_>>) {
        let replaced = self.replaced_by(matches);
        if !replaced.is_empty() {
            matches.retain(|found| !replaced.contains(&found.index));
        }
    }

    /// The positions of the limits that these suppress.
    pub fn replaced_by(&self, matches: &[Match<'_, '_>]) -> Vec<usize> {
        let mut replaced: Vec<usize> = Vec::new();
        let service = |found: &Match<'_, '_>| found.limit.descriptor.is_some();
        for found in matches
            .iter()
            .filter(|found| found.enforced || service(found))
        {
            if let Some(rule) = self.shape.rules.get(found.index) {
                replaced.extend_from_slice(&rule.replaces);
            }
        }
        replaced
    }
}
