//! What a check reserves and settles at a limit whose responses state their cost.

use std::{fmt, sync::Arc};

use algorithms::{CostSettlement, Reservation, check::Costs};
use policy::ResponsePrice;
use ring::hmac;

use super::query::Query;
use crate::script::ScriptCosts;

/// Seals the names of reservations, so that nobody can make one up.
///
/// A settlement whose record is gone charges its excess all the same, or whoever makes many reservations
/// could let the records of expensive ones be replaced. Only a name with a seal proves that there was such a
/// reservation. All limiters of a store have the same key ([`crate::Keys::seal`]).
#[derive(Clone)]
pub struct Seal(Arc<hmac::Key>);

impl Seal {
    /// Seals by a key that nobody can guess.
    pub fn new(key: &[u8]) -> Self {
        Self(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, key)))
    }

    /// The seal of a reservation in the bucket whose reservations have this key.
    fn of(&self, key: &str, reservation: &Reservation) -> u64 {
        let Reservation {
            secret,
            number,
            units,
            seal: _,
        } = *reservation;
        let mut text = key.as_bytes().to_vec();
        for number in [secret, number, units] {
            text.extend(number.to_le_bytes());
        }
        let tag = hmac::sign(&self.0, &text);
        let start = tag.as_ref().first_chunk().copied().unwrap_or_default();
        u64::from_le_bytes(start)
    }
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seal").finish_non_exhaustive()
    }
}

/// The reservations and settlements of one bucket.
#[derive(Debug)]
pub struct BucketCosts {
    /// The key of its reservations.
    key: String,
    /// `None`: the check neither reserves nor settles.
    seal: Option<Seal>,
    secret: Option<u64>,
    settle: Vec<CostSettlement>,
    count_open: bool,
}

impl BucketCosts {
    pub(super) fn new(key: String, price: &ResponsePrice, asked: Query<'_>) -> Self {
        let Query::Check(check, entry, seal) = asked else {
            return Self {
                key,
                seal: None,
                secret: None,
                settle: Vec::new(),
                count_open: matches!(asked, Query::Peek(_)),
            };
        };
        let own = entry.and_then(|entry| entry.cost);
        let reserves = own.map_or(check.reserve, |cost| cost.reserve);
        let id = check.slot.filter(|_| reserves).map(policy::SlotId::bounded);
        let settle = entry.into_iter().flat_map(|entry| &entry.settle);
        let settle = settle.map(|settled| {
            let mut settled = *settled;
            settled.units = price.cut(settled.units);
            let reservation = &mut settled.reservation;
            if seal.is_none_or(|seal| seal.of(&key, reservation) != reservation.seal) {
                // Without its record, a reservation that was made up has no excess.
                reservation.units = settled.units;
            }
            settled
        });
        let settle = settle.collect();
        Self {
            key,
            seal: seal.cloned(),
            secret: id.map(|id| id.secret),
            settle,
            count_open: false,
        }
    }

    /// The key of the reservations.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The arguments for the algorithms.
    pub fn request(&self) -> Costs<'_> {
        Costs {
            secret: self.secret,
            settle: &self.settle,
            count_open: self.count_open,
        }
    }

    pub(super) fn as_script(&self) -> ScriptCosts<'_> {
        ScriptCosts {
            key: self.key.as_bytes(),
            costs: self.request(),
        }
    }

    /// The name of a reservation that was made.
    pub(super) fn reservation(&self, number: u64, units: u64) -> Option<Reservation> {
        let reservation = Reservation {
            secret: self.secret.filter(|_| number > 0)?,
            number,
            units,
            seal: 0,
        };
        let seal = self.seal.as_ref();
        Some(Reservation {
            seal: seal.map_or(0, |seal| seal.of(&self.key, &reservation)),
            ..reservation
        })
    }
}
