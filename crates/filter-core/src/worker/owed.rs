//! What was admitted without the limiter, on its way to be charged.

use super::case::{Case, Part};
use crate::{
    host::Host,
    table::{Owed, Table, Update},
    time::Now,
};

impl Case {
    /// Has the units that were admitted during an outage charged, once, by this check. `doubt`:
    /// another worker may have admitted some since this one looked.
    pub(super) fn take_owed(&mut self, host: &impl Host, now: Now, table: &Table, doubt: bool) {
        // One that only tells of leases charges nothing, debts included.
        let doubt = doubt && self.cost > 0;
        let owing = |part: &Part| (part.owes || doubt) && part.is_global();
        self.change_owed(host, now, table, owing, |owed, part, span_us| {
            part.owed = owed.units(span_us, now.mono_us);
            *owed = Owed::default();
        });
    }

    /// The check never left: what it carried is still to be charged.
    pub(super) fn give_back_owed(&mut self, host: &impl Host, now: Now, table: &Table) {
        let carrying = |part: &Part| part.owed > 0;
        self.change_owed(host, now, table, carrying, |owed, part, span_us| {
            owed.add(part.owed, span_us, now.mono_us);
        });
        for part in &mut self.parts {
            part.owed = 0;
        }
    }

    fn change_owed(
        &mut self,
        host: &impl Host,
        now: Now,
        table: &Table,
        concerns: impl Fn(&Part) -> bool,
        mut change: impl FnMut(&mut Owed, &mut Part, u64),
    ) {
        let Some(policy) = &self.policy else {
            return;
        };
        for part in self.parts.iter_mut().filter(|part| concerns(part)) {
            let Some(limit) = policy.compiled.limit(part.at) else {
                continue;
            };
            let span_us = limit.quota.algorithm().window_ms().saturating_mul(1000);
            let (place, generation) = (part.place, limit.generation);
            let changed = table.update(host, place, generation, now, |found| {
                let before = found.entry.owed;
                change(&mut found.entry.owed, part, span_us);
                if found.entry.owed == before {
                    Update::Keep(())
                } else {
                    Update::Write(())
                }
            });
            if changed.is_err() {
                // Contended: the next check of the bucket takes it, if it is still there.
                part.owed = 0;
            }
        }
    }
}
