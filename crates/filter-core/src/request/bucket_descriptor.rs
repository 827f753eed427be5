//! Checks of single buckets that no request waits for.

use std::rc::Rc;

use crate::{
    active_policy::ActivePolicy,
    cache::BucketKey,
    request::{Extracted, LimitCheck, PendingCheck},
    time::Now,
    worker::Worker,
};

/// A descriptor of a bucket, for checks that are sent without a request.
#[derive(Debug)]
pub(crate) struct BucketDescriptor {
    pub(crate) policy: Rc<ActivePolicy>,
    /// The limit's index in the policy.
    pub(crate) at: usize,
    pub(crate) entries: Extracted,
}

impl Worker {
    /// Sends a check of one bucket that charges no request; `carry` gives it what it carries.
    pub(crate) fn check_bucket(
        &mut self,
        now: Now,
        descriptor: &BucketDescriptor,
        key: BucketKey,
        carry: &mut dyn FnMut(&mut LimitCheck),
    ) {
        let policy = &descriptor.policy;
        let values = descriptor.entries.values();
        let matches = policy.compiled.matching_values(&values, now.wall_ms);
        let mut limit_checks = self.limit_checks(&matches, policy, now);
        if let Some(limit_check) = limit_checks
            .iter_mut()
            .find(|limit_check| limit_check.key == key)
        {
            carry(limit_check);
            let policy = Rc::clone(policy);
            let entries = descriptor.entries.clone();
            self.push_background(PendingCheck::background(policy, entries, limit_checks));
        }
    }
}
