//! Writes the limiter's answer about a bucket to the shared table.

use crate::{
    cache::{BucketEntry, BucketKey, BucketStatus, CachedDenial, Table, Update},
    host::Host,
    time::Now,
};

/// The limiter's answer about a bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    pub(crate) status: BucketStatus,
    /// The denial that replaces the one in the table, and when its check was sent; `None`: the one in
    /// the table may still hold.
    pub(crate) denial: Option<(Option<CachedDenial>, Now)>,
}

/// Writes the limiter's answer about a bucket to the table.
pub(crate) fn write_answer(
    host: &impl Host,
    now: Now,
    table: &Table,
    (key, generation): (BucketKey, u64),
    answered: &Answered,
) {
    // Contended: other workers are writing answers that are as recent.
    let _ = table.update::<BucketEntry, _>(host, key, generation, now, |found| {
        let entry = &mut found.entry;
        let mut changed = entry.update_status(answered.status);
        if let Some((denial, sent)) = answered.denial
            && (denial.is_some_and(|denial| denial.is_penalty())
                || !entry.denial.is_some_and(|known| known.outlasts(sent, now)))
        {
            entry.denial = denial;
            changed = true;
        }
        if changed {
            Update::Write(())
        } else {
            Update::Keep(())
        }
    });
}
