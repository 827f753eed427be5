//! A batch of checks.

use std::collections::HashSet;

use policy::{Name, Revision, SlotId};

use super::limit_request::ReadParts as _;
use super::{DecodeError, MAX_NAMES, ReadWords as _, Reader, Table, WriteWords as _, Writer};
use crate::{
    Check, LimitRequest, MAX_BATCH_LIMITS, MAX_CHECKS, MAX_ENTRIES, MAX_FREE, MAX_LIMITS,
    MAX_SETTLED, MAX_VALUE,
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
    /// What it says about single limits: see [`Check::limits`].
    pub limits: Vec<LimitRequest>,
    /// The longest delay that the proxy permits: see [`Check::max_delay_ms`].
    pub max_delay_ms: Option<u64>,
    /// The request's id: see [`Check::slot`].
    pub slot: Option<SlotId>,
}

impl BatchCheck {
    /// The check, given the batch's keys.
    pub fn into_check(self, keys: &[Name]) -> Check {
        let entries = keys.iter().zip(self.values);
        let entries = entries.filter_map(|(key, value)| Some((key.clone(), value?)));
        Check {
            descriptor: entries.collect(),
            cost: self.cost,
            limits: self.limits,
            max_delay_ms: self.max_delay_ms,
            slot: self.slot,
            ..Check::default()
        }
    }
}

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
        for entry in self.checks.iter().flat_map(|check| &check.limits) {
            limits.add(&entry.limit);
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
            let mut limits = Limits::read(reader)?;
            let checks = reader.list(MAX_CHECKS, "checks", |reader| {
                BatchCheck::read(reader, keys.len(), &mut limits)
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

/// The limits that a batch names, and its entries of them so far.
struct Limits {
    names: Vec<Name>,
    /// By limit: the latest check with an entry of it, counted from 1.
    latest: Vec<u32>,
    checks: u32,
    entries: usize,
}

impl Limits {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let names = reader.list(MAX_NAMES, "limits", Reader::name)?;
        // Two indexes of one name would be two entries for one limit.
        if names.iter().collect::<HashSet<_>>().len() < names.len() {
            return Err(DecodeError::Twice);
        }
        Ok(Self {
            latest: vec![0; names.len()],
            names,
            checks: 0,
            entries: 0,
        })
    }

    /// The entries of the next check.
    fn entries(&mut self, reader: &mut Reader<'_>) -> Result<Vec<LimitRequest>, DecodeError> {
        self.checks += 1;
        let left = MAX_BATCH_LIMITS.saturating_sub(self.entries);
        let entries = reader.list(MAX_LIMITS.min(left), "limits of checks", |reader| {
            LimitRequest::read(reader, &self.names, |at| {
                let latest = self.latest.get_mut(at).ok_or(DecodeError::Index)?;
                if std::mem::replace(latest, self.checks) == self.checks {
                    return Err(DecodeError::Twice);
                }
                Ok(())
            })
        })?;
        self.entries += entries.len();
        let slots = entries.iter().map(|entry| entry.slots.len());
        let settle = entries.iter().map(|entry| entry.settle.len());
        if slots.sum::<usize>() > MAX_FREE || settle.sum::<usize>() > MAX_SETTLED {
            return Err(DecodeError::Bounds("slots and settlements"));
        }
        Ok(entries)
    }
}

impl BatchCheck {
    fn write(&self, writer: &mut Writer, limits: &Table<'_>) {
        writer.array(5);
        writer.list(self.values.iter(), |writer, value| {
            writer.optional(value.as_deref(), Writer::bytes);
        });
        writer.unsigned(self.cost);
        writer.list(self.limits.iter(), |writer, entry| {
            entry.write(writer, limits);
        });
        writer.optional(self.max_delay_ms, Writer::unsigned);
        writer.optional(self.slot, |writer, slot| {
            writer.array(2);
            writer.unsigned(slot.stamp);
            writer.unsigned(slot.secret);
        });
    }

    fn read(
        reader: &mut Reader<'_>,
        keys: usize,
        limits: &mut Limits,
    ) -> Result<Self, DecodeError> {
        reader.fields(5, |reader| {
            Ok(Self {
                values: reader.list(keys, "values", |reader| reader.optional(read_value))?,
                cost: reader.unsigned()?,
                limits: limits.entries(reader)?,
                max_delay_ms: reader.optional(Reader::unsigned)?,
                slot: reader.optional(Reader::slot_id)?,
            })
        })
    }
}

fn read_value(reader: &mut Reader<'_>) -> Result<Vec<u8>, DecodeError> {
    match reader.bytes()? {
        value if value.len() > MAX_VALUE => Err(DecodeError::Bounds("value")),
        value => Ok(value.to_vec()),
    }
}
