//! What a check reserves and settles at a limit whose responses state their cost.

use algorithms::{CostSettlement, check::Costs};
use policy::{Limit, ResponsePrice};

use super::query::Query;
use crate::script::ScriptCosts;

/// The reservations and settlements of one bucket.
#[derive(Debug)]
pub struct BucketCosts {
    /// The key of its reservations.
    key: String,
    secret: Option<u64>,
    settle: Vec<CostSettlement>,
    count_open: bool,
}

impl BucketCosts {
    pub(super) fn new(key: String, limit: &Limit, price: &ResponsePrice, asked: Query<'_>) -> Self {
        let Query::By(check) = asked else {
            return Self {
                key,
                secret: None,
                settle: Vec::new(),
                count_open: matches!(asked, Query::Alone(_)),
            };
        };
        let own = check.costs.iter().find(|cost| cost.limit == limit.name);
        let reserves = own.map_or(check.reserve, |cost| cost.reserve);
        let id = check.slot.filter(|_| reserves).map(policy::SlotId::bounded);
        let settle = check.settle.iter().filter(|s| s.limit == limit.name);
        let settle = settle.map(|settled| CostSettlement {
            number: settled.reservation.number,
            secret: settled.reservation.secret,
            reserved: settled.reservation.units,
            units: settled.units.min(price.max),
        });
        Self {
            key,
            secret: id.map(|id| id.secret),
            settle: settle.collect(),
            count_open: false,
        }
    }

    /// The key of the reservations.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The arguments for the algorithms.
    pub fn ask(&self) -> Costs<'_> {
        Costs {
            secret: self.secret,
            settle: &self.settle,
            count_open: self.count_open,
        }
    }

    pub(super) fn as_script(&self) -> ScriptCosts<'_> {
        ScriptCosts {
            key: self.key.as_bytes(),
            costs: self.ask(),
        }
    }

    /// The name of a reservation that was made.
    pub(super) fn reservation(&self, number: u64, units: u64) -> Option<protocol::Reservation> {
        let secret = self.secret.filter(|_| number > 0)?;
        Some(protocol::Reservation {
            secret,
            number,
            units,
        })
    }
}
