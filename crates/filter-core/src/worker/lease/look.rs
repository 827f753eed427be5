//! A look at the units that the workers share.

use super::Origin;
use crate::{
    host::{Contended, Host},
    lease::{Ask, Hand, Lot, Pool, Seen, Terms},
    table::{Place, Role, Table, Told, Update},
    time::Now,
};

/// What it came to.
pub(super) struct Drawn {
    pub(super) lot: Option<Lot>,
    pub(super) ask: Option<Ask>,
    pub(super) expired: u64,
    /// What is left.
    seen: Seen,
    told: Option<Told>,
}

/// Changes the shared units of a bucket; they are written if they are not what they were. `told` is
/// what the limiter has just said of it. (One function for whatever is done to them: each way of its
/// own through the table would be 2 KB of the module.)
pub(super) fn change(
    host: &impl Host,
    now: Now,
    table: &Table,
    (place, generation): (Place, u64),
    told: Option<Told>,
    act: &mut dyn FnMut(&mut Pool, Option<Told>) -> Drawn,
) -> Result<Drawn, Contended> {
    let place = place.in_role(Role::Lease);
    table.update(host, place, generation, now, |found| {
        if let Some(told) = told {
            found.entry.hear(told);
        }
        let before = found.entry.pool.take().unwrap_or_default();
        let mut pool = before.clone();
        let drawn = act(&mut pool, found.entry.told);
        let changed = pool != before;
        found.entry.pool = Some(pool);
        if changed {
            Update::Write(drawn)
        } else {
            Update::Keep(drawn)
        }
    })
}

impl Drawn {
    #[inline(never)]
    pub(super) fn new(
        pool: &Pool,
        now: Now,
        terms: &Terms,
        lot: Option<Lot>,
        ask: Option<Ask>,
        expired: u64,
        told: Option<Told>,
    ) -> Self {
        Self {
            lot,
            ask,
            expired,
            seen: pool.seen(now, terms),
            told,
        }
    }
}

impl Hand<Origin> {
    /// Takes over what a look at the shared units came to.
    pub(super) fn take_over(&mut self, drawn: &Drawn, now: Now) {
        self.told = drawn.told;
        if let Some(lot) = drawn.lot {
            self.receive(lot, now);
        }
        self.saw(&drawn.seen, now);
    }
}
