//! Moves debts from the shared table into the checks that follow an outage.

use crate::{
    cache::{BucketEntry, Debt, DebtSpan, Table, Update},
    host::Host,
    request::{LimitCheck, PendingCheck},
    time::Now,
};

impl PendingCheck {
    /// Moves the debts of the check's buckets into the check, which charges them once. If calls were
    /// `failing` recently, another worker may have added debts since this worker last read the table.
    pub(crate) fn take_debts(&mut self, host: &impl Host, now: Now, table: &Table, failing: bool) {
        // A background check charges only the debts that it was made for.
        let failing = failing && self.cost > 0;
        let owing =
            |limit_check: &LimitCheck| (limit_check.has_debt || failing) && limit_check.is_global();
        self.change_debts(host, now, table, owing, |debt, limit_check, span| {
            limit_check.debit = debt.units(span, now.mono_us);
            limit_check.debit_serial = debt.serial(span);
            *debt = Debt::default();
        });
    }

    /// Puts the debts back: the check was not charged.
    pub(crate) fn restore_debts(&mut self, host: &impl Host, now: Now, table: &Table) {
        let carrying = |limit_check: &LimitCheck| limit_check.debit > 0;
        self.change_debts(host, now, table, carrying, |debt, limit_check, span| {
            let span = span.labelled(limit_check.debit_serial);
            debt.add(limit_check.debit, span, now.mono_us);
        });
        for limit_check in &mut self.limit_checks {
            limit_check.debit = 0;
        }
    }

    fn change_debts(
        &mut self,
        host: &impl Host,
        now: Now,
        table: &Table,
        concerns: impl Fn(&LimitCheck) -> bool,
        mut change: impl FnMut(&mut Debt, &mut LimitCheck, DebtSpan),
    ) {
        for limit_check in self
            .limit_checks
            .iter_mut()
            .filter(|limit_check| concerns(limit_check))
        {
            let span = DebtSpan::of(limit_check.limit.quota.algorithm(), now);
            let (key, generation) = (limit_check.key, limit_check.limit.generation);
            let changed = table.update::<BucketEntry, _>(host, key, generation, now, |found| {
                let before = found.entry.debt;
                change(&mut found.entry.debt, limit_check, span);
                if found.entry.debt == before {
                    Update::Keep(())
                } else {
                    Update::Write(())
                }
            });
            if changed.is_err() {
                // Contended: the next check of the bucket takes the debt if it is still there.
                limit_check.debit = 0;
            }
        }
    }
}
