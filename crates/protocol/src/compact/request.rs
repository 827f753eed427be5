//! A batch of checks.

use policy::{Name, Revision, SlotId};

use super::check_parts::{
    WriteParts as _, read_cost, read_denied, read_free, read_lease, read_settled, read_slot_id,
    read_value, write_denied, write_lease,
};
use super::{DecodeError, MAX_NAMES, ReadWords as _, Reader, Table, WriteWords as _, Writer};
use crate::{
    Check, CostSettlement, Debit, Denied, Free, LeaseRequest, LimitCost, MAX_CHECKS, MAX_ENTRIES,
    MAX_FREE, MAX_LIMITS, MAX_SETTLED,
};

/// Checks of one domain that a proxy sends together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The domain.
    pub domain: Name,
    /// The id of the proxy, one Envoy process: a random word.
    pub proxy: String,
    /// The revision that the proxy has; `None`: none yet.
    pub revision: Option<Revision>,
    /// The descriptor entries, in the order of the checks' values.
    pub keys: Vec<Name>,
    /// The checks.
    pub checks: Vec<BatchCheck>,
}

/// One check of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchCheck {
    /// The values of the batch's keys, `None` for entries that the request lacks. If it is shorter than
    /// the keys, the other entries are absent.
    pub values: Vec<Option<Vec<u8>>>,
    /// How many requests this stands for; 0 is a peek.
    pub cost: u64,
    /// Limits that the proxy has settled already.
    pub skip: Vec<Name>,
    /// Units that the proxy admitted without a check, to be charged now.
    pub debits: Vec<Debit>,
    /// Units it wants in advance, and settlements of earlier ones: see [`Check::leases`].
    pub leases: Vec<LeaseRequest>,
    /// Slots to free, renew or enter: see [`Check::free`].
    pub free: Vec<Free>,
    /// The longest delay that the proxy permits: see [`Check::max_delay_ms`].
    pub max_delay_ms: Option<u64>,
    /// The request's id: see [`Check::slot`].
    pub slot: Option<SlotId>,
    /// Its cost at single limits: see [`Check::costs`].
    pub costs: Vec<LimitCost>,
    /// Settlements of reservations: see [`Check::settle`].
    pub settle: Vec<CostSettlement>,
    /// Requests that the proxy denied from its caches: see [`Check::denied`].
    pub denied: Vec<Denied>,
}

impl BatchCheck {
    /// The check, given the batch's keys.
    pub fn into_check(self, keys: &[Name]) -> Check {
        let entries = keys.iter().zip(self.values);
        let entries = entries.filter_map(|(key, value)| Some((key.clone(), value?)));
        Check {
            descriptor: entries.collect(),
            cost: self.cost,
            skip: self.skip,
            debits: self.debits,
            leases: self.leases,
            free: self.free,
            max_delay_ms: self.max_delay_ms,
            slot: self.slot,
            costs: self.costs,
            settle: self.settle,
            denied: self.denied,
            ..Check::default()
        }
    }
}

/// The encoding of no maximum delay.
const ANY_DELAY: u64 = u64::MAX;
/// The longest name of a proxy, in bytes.
const MAX_PROXY: usize = 64;

impl Batch {
    /// The proxy as a small number below [`policy::PROXY_MARKS`], the same everywhere: buckets use it
    /// to count the proxies that lease from them.
    pub fn proxy_mark(&self) -> u8 {
        policy::proxy_mark(&self.proxy)
    }

    /// The batch as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut limits = Table::default();
        for check in &self.checks {
            let debited = check.debits.iter().map(|debit| &debit.limit);
            let leased = check.leases.iter().map(|lease| &lease.limit);
            let freed = check.free.iter().map(|free| &free.limit);
            let priced = check.costs.iter().map(|cost| &cost.limit);
            let settled = check.settle.iter().map(|settled| &settled.limit);
            let named = check.skip.iter().chain(debited).chain(leased);
            let denied = check.denied.iter().map(|denied| &denied.limit);
            let named = named.chain(freed).chain(priced).chain(settled);
            for limit in named.chain(denied) {
                limits.add(limit);
            }
        }
        let mut writer = Writer::default();
        writer.array(6);
        writer.name(&self.domain);
        writer.text(&self.proxy);
        writer.optional(self.revision.as_ref(), Writer::revision);
        writer.list(self.keys.iter(), Writer::name);
        limits.write(&mut writer);
        writer.list(self.checks.iter(), |writer, check| {
            check.write(writer, &limits);
        });
        writer.0
    }

    /// Reads a batch.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        Reader::new(bytes).fields(6, |reader| {
            let domain = reader.name()?;
            let proxy = reader.text()?;
            if proxy.len() > MAX_PROXY {
                return Err(DecodeError::Bounds("proxy"));
            }
            let revision = reader.optional(Reader::revision)?;
            let keys = reader.list(MAX_ENTRIES, "keys", Reader::name)?;
            let limits = reader.list(MAX_NAMES, "limits", Reader::name)?;
            let checks = reader.list(MAX_CHECKS, "checks", |reader| {
                BatchCheck::read(reader, keys.len(), &limits)
            })?;
            Ok(Self {
                domain,
                proxy: proxy.to_owned(),
                revision,
                keys,
                checks,
            })
        })
    }
}

impl BatchCheck {
    fn write(&self, writer: &mut Writer, limits: &Table<'_>) {
        // Earlier limiters cannot read the last field; without it, the encoding is the one that they
        // read.
        writer.array(4 + self.more());
        writer.list(self.values.iter(), |writer, value| {
            writer.optional(value.as_deref(), Writer::bytes);
        });
        writer.unsigned(self.cost);
        writer.list(self.skip.iter(), |writer, limit| {
            limits.write_index(writer, limit);
        });
        writer.list(self.debits.iter(), |writer, debit| {
            // Earlier limiters read no serial, and have no limits whose debits have one.
            writer.array(2 + usize::from(debit.serial.is_some()));
            limits.write_index(writer, &debit.limit);
            writer.unsigned(debit.units);
            if let Some(serial) = debit.serial {
                writer.unsigned(serial);
            }
        });
        if self.more() >= 1 {
            writer.list(self.leases.iter(), |writer, lease| {
                write_lease(writer, lease, limits);
            });
        }
        if self.more() >= 2 {
            writer.list(self.free.iter(), |writer, free| {
                writer.array(3);
                limits.write_index(writer, &free.limit);
                writer.slot(&free.slot);
                writer.unsigned(free.units);
            });
        }
        if self.more() >= 3 {
            writer.unsigned(self.max_delay_ms.unwrap_or(ANY_DELAY));
        }
        if self.more() >= 4 {
            writer.optional(self.slot, |writer, slot| {
                writer.array(2);
                writer.unsigned(slot.stamp);
                writer.unsigned(slot.secret);
            });
        }
        if self.more() >= 5 {
            writer.list(self.costs.iter(), |writer, cost| {
                writer.array(3);
                limits.write_index(writer, &cost.limit);
                writer.unsigned(cost.units);
                writer.boolean(cost.reserve);
            });
        }
        if self.more() >= 6 {
            writer.list(self.settle.iter(), |writer, settled| {
                writer.array(3);
                limits.write_index(writer, &settled.limit);
                writer.reservation(&settled.reservation);
                writer.unsigned(settled.units);
            });
        }
        if self.more() >= 7 {
            write_denied(writer, &self.denied, limits);
        }
    }

    /// How many fields it has that earlier versions did not have.
    fn more(&self) -> usize {
        match self {
            Self { denied, .. } if !denied.is_empty() => 7,
            Self { settle, .. } if !settle.is_empty() => 6,
            Self { costs, .. } if !costs.is_empty() => 5,
            Self { slot: Some(_), .. } => 4,
            Self {
                max_delay_ms: Some(_),
                ..
            } => 3,
            Self { free, .. } if !free.is_empty() => 2,
            Self { leases, .. } => usize::from(!leases.is_empty()),
        }
    }

    fn read(reader: &mut Reader<'_>, keys: usize, limits: &[Name]) -> Result<Self, DecodeError> {
        reader.fields_and(4, 7, |reader, more| {
            let mut check = Self {
                values: reader.list(keys, "values", |reader| reader.optional(read_value))?,
                cost: reader.unsigned()?,
                skip: reader.list(MAX_LIMITS, "skip", |reader| reader.indexed(limits))?,
                debits: reader.list(MAX_LIMITS, "debits", |reader| {
                    reader.fields_and(2, 1, |reader, more| {
                        Ok(Debit {
                            limit: reader.indexed(limits)?,
                            units: reader.unsigned()?,
                            serial: (more > 0).then(|| reader.unsigned()).transpose()?,
                        })
                    })
                })?,
                leases: Vec::new(),
                free: Vec::new(),
                max_delay_ms: None,
                slot: None,
                costs: Vec::new(),
                settle: Vec::new(),
                denied: Vec::new(),
            };
            if more >= 1 {
                check.leases = reader.list(MAX_LIMITS, "leases", |r| read_lease(r, limits))?;
            }
            if more >= 2 {
                check.free = reader.list(MAX_FREE, "free", |r| read_free(r, limits))?;
            }
            if more >= 3 {
                check.max_delay_ms = Some(reader.unsigned()?).filter(|ms| *ms < ANY_DELAY);
            }
            if more >= 4 {
                check.slot = reader.optional(read_slot_id)?;
            }
            if more >= 5 {
                check.costs = reader.list(MAX_LIMITS, "costs", |r| read_cost(r, limits))?;
            }
            if more >= 6 {
                check.settle = reader.list(MAX_SETTLED, "settle", |r| read_settled(r, limits))?;
            }
            if more >= 7 {
                check.denied = reader.list(MAX_LIMITS, "denied", |r| read_denied(r, limits))?;
            }
            Ok(check)
        })
    }
}
