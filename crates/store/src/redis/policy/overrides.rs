//! Reading overrides: one, some, or how many there are.

use policy::{Name, OVERRIDES_MAX, Policy, Revision};
use redis_link::{Cmd, Value, value};
use store_plan::{HeadState, record};

use super::fields::head_state;
use crate::{Policies, StoreError, error::corrupt, redis::RedisStore};

/// Fields that one step of reading overrides asks for: a reply of about 100 KB.
const SCAN_COUNT: usize = 1000;

/// Limits whose overrides one step counts: checks wait for less than a millisecond.
const COUNTS_PER_STEP: usize = 1000;

/// Limits whose overrides one step reads: some megabytes at most.
const LIMITS_PER_STEP: usize = 64;

impl RedisStore {
    /// Reads the overrides of all limits into them, page by page; false if the record changed
    /// meanwhile. A page is dropped as soon as it is read: of 100,000 overrides, the texts and their
    /// syntax trees would take several times as much as what is kept.
    pub(super) async fn read_overrides(
        &self,
        policy: &mut Policy,
        revision: &Revision,
    ) -> Result<bool, StoreError> {
        // A list that grows by itself takes up to three times as much in the end.
        let names: Vec<&Name> = policy.limits.iter().map(|limit| &limit.name).collect();
        let mut counts = Vec::with_capacity(names.len());
        for names in names.chunks(COUNTS_PER_STEP) {
            counts.extend(self.override_counts(&policy.domain, names).await?);
        }
        // Few limits have overrides: to look into 10,000 empty hashes takes tens of milliseconds of
        // the server's time.
        let mut open: Vec<(usize, u64)> = Vec::new();
        for ((at, limit), count) in policy.limits.iter_mut().enumerate().zip(counts) {
            let count = usize::try_from(count).unwrap_or(OVERRIDES_MAX);
            limit.overrides.reserve_exact(count.min(OVERRIDES_MAX));
            open.extend((count > 0).then_some((at, 0)));
        }
        let mut read = 0;
        // Also without overrides: an edit may have deleted them after the record was read.
        loop {
            let rest = open.split_off(open.len().min(LIMITS_PER_STEP));
            let limits = open.iter().filter_map(|(at, cursor)| {
                let limit = policy.limits.get(*at)?;
                Some(self.step(&policy.domain, &limit.name, *cursor))
            });
            let step = limits.chain([self.head_of(&policy.domain)]);
            let mut replies = self.control_all(step).await?;
            let head = head_state(replies.pop().unwrap_or(Value::Nil))?;
            if head != HeadState::Live(revision.clone()) {
                return Ok(false);
            }
            let mut still_open = Vec::new();
            for ((at, _), reply) in open.into_iter().zip(replies) {
                let (next, pairs) = value::scan(reply)?;
                let limit = policy.limits.get_mut(at).ok_or_else(value::short)?;
                for json in value::texts(pairs)?.iter().skip(1).step_by(2) {
                    let found = record::read_override(limit, json).map_err(corrupt)?;
                    limit.overrides.push(found);
                    read += 1;
                }
                // Some are returned twice, and an earlier version wrote more.
                if read > 2 * OVERRIDES_MAX {
                    let what = "more overrides than a domain may have".to_owned();
                    return Err(StoreError::Corrupt(what));
                }
                if next != 0 {
                    still_open.push((at, next));
                }
            }
            still_open.extend(rest);
            open = still_open;
            if open.is_empty() {
                break;
            }
        }
        for limit in &mut policy.limits {
            // HSCAN returns some fields twice if the hash has just shrunk.
            let overrides = &mut limit.overrides;
            overrides.sort_unstable_by(|a, b| a.values.cmp(&b.values));
            overrides.dedup_by(|a, b| a.values == b.values);
        }
        Ok(true)
    }

    pub(super) fn step(&self, domain: &Name, limit: &Name, cursor: u64) -> Cmd {
        let mut scan = redis_link::cmd("HSCAN");
        scan.arg(self.keys().overrides(domain, limit)).arg(cursor);
        scan.arg("COUNT").arg(SCAN_COUNT);
        scan
    }
}
