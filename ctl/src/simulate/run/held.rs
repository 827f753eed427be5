//! What requests of a scenario hold until they end.

use algorithms::{CostSettlement, Freed, SlotId, check::Verdict};
use policy::Limit;

use super::super::{Reserving, Subject};

/// What a request holds once it is admitted.
#[derive(Default)]
pub(super) struct Held {
    /// What frees the slots that limits gave it.
    pub slots: Vec<Subject>,
    /// Units that its response settles, by limit.
    pub reserved: Vec<(String, CostSettlement)>,
}

impl Held {
    /// The slots and reservations that the limits of these names gave.
    pub fn of(names: &[String], subjects: Vec<Subject>, verdict: &Verdict) -> Self {
        Self {
            reserved: reserved(names, &subjects, verdict),
            slots: slots(subjects, verdict),
        }
    }
}

/// What a check asks of limits whose responses say their cost.
#[derive(Clone, Copy)]
pub(super) enum Asked<'h> {
    /// The request of this id reserves units.
    Reserve(SlotId),
    /// A request that reserved these units has cost this many.
    Settle(&'h [(String, CostSettlement)], u64),
}

impl Asked<'_> {
    pub fn id(self) -> SlotId {
        match self {
            Self::Reserve(id) => id,
            Self::Settle(..) => SlotId::default(),
        }
    }

    pub fn of(self, limit: &Limit) -> Option<Reserving> {
        let price = limit.response_price()?;
        Some(match self {
            Self::Reserve(id) => Reserving {
                secret: Some(id.secret),
                settle: Vec::new(),
            },
            Self::Settle(reserved, cost) => {
                let own = reserved
                    .iter()
                    .filter(|(name, _)| name == limit.name.as_str());
                let settle = own.map(|(_, settled)| CostSettlement {
                    units: cost.min(price.max),
                    ..*settled
                });
                Reserving {
                    secret: None,
                    settle: settle.collect(),
                }
            }
        })
    }
}

/// What a check reserved.
fn reserved(
    names: &[String],
    subjects: &[Subject],
    verdict: &Verdict,
) -> Vec<(String, CostSettlement)> {
    let limits = names.iter().zip(subjects).zip(&verdict.limits);
    let reserved = limits.filter_map(|((name, subject), limit)| {
        let secret = subject.costs.as_ref()?.secret?;
        let number = Some(limit.reserved.number).filter(|number| *number > 0)?;
        let settlement = CostSettlement {
            number,
            secret,
            reserved: limit.charged,
            units: 0,
        };
        Some((name.clone(), settlement))
    });
    reserved.collect()
}

/// What frees the slots that a check was given.
fn slots(subjects: Vec<Subject>, verdict: &Verdict) -> Vec<Subject> {
    let given = subjects.into_iter().zip(&verdict.limits);
    let held = given.filter_map(|(subject, limit)| {
        let free = Freed {
            slot: limit.slot?,
            units: limit.charged,
        };
        Some(Subject {
            cost: 0,
            free: vec![free],
            costs: None,
            penalty: None,
            ..subject
        })
    });
    held.collect()
}
