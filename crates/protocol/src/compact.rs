//! The encoding for the filter: CBOR arrays; a table per batch for keys and limit names; values as
//! bytes.
//!
//! New fields are only ever added at the end of an array; a reader skips unknown ones. Everything read
//! is bounded ([`crate::MAX_CHECKS`], [`crate::MAX_ENTRIES`], [`crate::MAX_VALUE`]) and no input can
//! cause a panic.

mod report;

use std::collections::HashSet;

use cbor::{Reader, Writer};
use policy::{Name, Names, Revision, Wire, arrays, write_list};

use crate::{
    Answer, Check, CostSettlement, Debit, ErrorCode, Lease, LeaseRequest, LimitAnswer, LimitCost,
    LimitRequest, MAX_BATCH_LIMITS, MAX_CHECKS, MAX_ENTRIES, MAX_FREE, MAX_LIMITS, MAX_SETTLED,
    MAX_VALUE, Mode, Pace, RetryAfter, Settlement, Slot, SlotAct, SlotId, SlotOp,
};

pub use cbor::DecodeError;

pub use report::{DeniedBucket, Report, RequestCounts, Tally};

/// Names in one table, at most: one for every limit of a domain.
const MAX_NAMES: usize = 10_000;

arrays! {
    LimitCost { units, reserve }
    Debit { units, serial }
}

fn read_index(reader: &mut Reader<'_>) -> Result<usize, DecodeError> {
    usize::try_from(reader.unsigned()?).map_err(|_| DecodeError::Index)
}

/// A name by its index in a table.
fn read_indexed(reader: &mut Reader<'_>, table: &[Name]) -> Result<Name, DecodeError> {
    let index = read_index(reader)?;
    table.get(index).cloned().ok_or(DecodeError::Index)
}

/// A table of names and their indexes.
#[derive(Default)]
struct Table<'n>(Names<'n>);

impl<'n> Table<'n> {
    fn add(&mut self, name: &'n Name) {
        self.0.add(name.as_str());
    }

    fn write(&self, writer: &mut Writer) {
        writer.list(self.0.list().iter(), |writer, name| writer.text(name));
    }

    /// Writes the index of a name that was added.
    fn write_index(&self, writer: &mut Writer, name: &Name) {
        let index = self.0.position(name.as_str());
        let index = index.and_then(|index| u64::try_from(index).ok());
        writer.unsigned(index.unwrap_or(u64::MAX));
    }
}

// --- A batch of checks.

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
        self.domain.write(&mut writer);
        writer.text(&self.proxy);
        self.revision.write(&mut writer);
        write_list(&mut writer, &self.keys);
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
            let domain = Name::read(reader)?;
            let proxy = reader.text()?;
            if proxy.len() > MAX_PROXY {
                return Err(DecodeError::Bounds("proxy"));
            }
            let revision = Wire::read(reader)?;
            let keys = reader.list(MAX_ENTRIES, "keys", Name::read)?;
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
        let names = reader.list(MAX_NAMES, "limits", Name::read)?;
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
        self.max_delay_ms.write(writer);
        self.slot.write(writer);
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
                max_delay_ms: Wire::read(reader)?,
                slot: Wire::read(reader)?,
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

// --- What a check says about one limit.

/// Settlements of one lease, at most. (A bucket has two epochs at a time.)
const MAX_SETTLEMENTS: usize = 16;

/// The operations on slots.
const FREE: u64 = 1;
const RENEW: u64 = 2;
const ENTER: u64 = 3;
const IN_TIME: u64 = 4;
const LATE: u64 = 5;
const SLOW: u64 = 6;

impl LimitRequest {
    fn write(&self, writer: &mut Writer, limits: &Table<'_>) {
        writer.array(8);
        limits.write_index(writer, &self.limit);
        writer.boolean(self.skip);
        self.cost.write(writer);
        self.debit.write(writer);
        writer.optional(self.lease.as_ref(), |writer, lease| {
            writer.array(2);
            writer.unsigned(lease.want);
            write_list(writer, &lease.settle);
        });
        writer.list(self.slots.iter(), |writer, op| {
            let (act, units) = match op.act {
                SlotAct::Free(units) => (FREE, units),
                SlotAct::Renew => (RENEW, 0),
                SlotAct::Enter => (ENTER, 0),
                SlotAct::Answered(Pace::InTime) => (IN_TIME, 0),
                SlotAct::Answered(Pace::Late) => (LATE, 0),
                SlotAct::Answered(Pace::Slow) => (SLOW, 0),
            };
            writer.array(3);
            op.slot.write(writer);
            writer.unsigned(act);
            writer.unsigned(units);
        });
        write_list(writer, &self.settle);
        writer.unsigned(self.denied);
    }

    /// `first` accepts the position of the entry's limit among `limits`.
    fn read(
        reader: &mut Reader<'_>,
        limits: &[Name],
        first: impl FnOnce(usize) -> Result<(), DecodeError>,
    ) -> Result<Self, DecodeError> {
        reader.fields(8, |reader| {
            let at = read_index(reader)?;
            first(at)?;
            Ok(Self {
                limit: limits.get(at).cloned().ok_or(DecodeError::Index)?,
                skip: reader.boolean()?,
                cost: Wire::read(reader)?,
                debit: Wire::read(reader)?,
                lease: reader.optional(|reader| {
                    reader.fields(2, |reader| {
                        Ok(LeaseRequest {
                            want: reader.unsigned()?,
                            settle: reader.list(
                                MAX_SETTLEMENTS,
                                "settlements",
                                Settlement::read,
                            )?,
                        })
                    })
                })?,
                slots: reader.list(MAX_FREE, "slots", read_slot_op)?,
                settle: reader.list(MAX_SETTLED, "settle", CostSettlement::read)?,
                denied: reader.unsigned()?,
            })
        })
    }
}

fn read_slot_op(reader: &mut Reader<'_>) -> Result<SlotOp, DecodeError> {
    reader.fields(3, |reader| {
        let slot = Slot::read(reader)?;
        let (act, units) = (reader.unsigned()?, reader.unsigned()?);
        let act = match act {
            FREE => SlotAct::Free(units),
            RENEW => SlotAct::Renew,
            ENTER => SlotAct::Enter,
            IN_TIME => SlotAct::Answered(Pace::InTime),
            LATE => SlotAct::Answered(Pace::Late),
            SLOW => SlotAct::Answered(Pace::Slow),
            _ => return Err(DecodeError::Type),
        };
        Ok(SlotOp { slot, act })
    })
}

// --- The answers to a batch.

/// The answers to a [`Batch`].
///
/// They omit [`LimitAnswer::bucket`]: the proxy has its own checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchAnswer {
    /// The revision that decided. A proxy that has another one polls for it.
    pub revision: Revision,
    /// How many proxies recently sent checks of each limit, if known.
    pub proxies: Vec<(Name, u64)>,
    /// A decision or an error for each check, in order.
    pub results: Vec<Result<Answer, ErrorCode>>,
}

const ALLOWED: u64 = 1;
const HIDDEN: u64 = 2;
const SHADOW: u64 = 4;
const DEGRADE: u64 = 8;
/// The flags above these bits are the remaining time of a penalty, in milliseconds.
const PENALTY_FROM: u32 = 8;

impl BatchAnswer {
    /// The answers as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut limits = Table::default();
        let counted = self.proxies.iter().map(|(limit, _)| limit);
        let decided = self.results.iter().flatten();
        let limiting = decided.flat_map(|answer| answer.limits.iter().map(|limit| &limit.name));
        for limit in counted.chain(limiting) {
            limits.add(limit);
        }
        let mut writer = Writer::default();
        writer.array(4);
        self.revision.write(&mut writer);
        limits.write(&mut writer);
        writer.list(self.proxies.iter(), |writer, (limit, count)| {
            writer.array(2);
            limits.write_index(writer, limit);
            writer.unsigned(*count);
        });
        writer.list(self.results.iter(), |writer, result| {
            write_result(writer, result.as_ref(), &limits);
        });
        writer.0
    }

    /// Reads the answers.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        Reader::new(bytes).fields(4, |reader| {
            let revision = Revision::read(reader)?;
            let limits = reader.list(MAX_NAMES, "limits", Name::read)?;
            let proxies = reader.list(MAX_NAMES, "proxies", |reader| {
                reader.fields(2, |reader| {
                    Ok((read_indexed(reader, &limits)?, reader.unsigned()?))
                })
            })?;
            let results = reader.list(MAX_CHECKS, "results", |reader| {
                read_result(reader, &revision, &limits)
            })?;
            Ok(Self {
                revision,
                proxies,
                results,
            })
        })
    }
}

/// Writes the error's number or null, then the decision.
fn write_result(writer: &mut Writer, result: Result<&Answer, &ErrorCode>, limits: &Table<'_>) {
    writer.array(4);
    let (error, answer) = match result {
        Ok(answer) => (None, Some(answer)),
        Err(code) => (Some(code), None),
    };
    writer.optional(error, |writer, code| {
        writer.unsigned(u64::from(code.number()));
    });
    writer.boolean(answer.is_some_and(|answer| answer.allowed));
    writer.unsigned(answer.map_or(0, |answer| answer.now_ms));
    let answers = answer.map_or(&[][..], |answer| &answer.limits);
    writer.list(answers.iter(), |writer, limit| {
        write_limit(writer, limit, limits);
    });
}

fn read_result(
    reader: &mut Reader<'_>,
    revision: &Revision,
    limits: &[Name],
) -> Result<Result<Answer, ErrorCode>, DecodeError> {
    reader.fields(4, |reader| {
        let error = reader.optional(Reader::unsigned)?;
        let answer = Answer {
            revision: revision.clone(),
            allowed: reader.boolean()?,
            now_ms: reader.unsigned()?,
            limits: reader.list(MAX_NAMES, "answers", |reader| read_limit(reader, limits))?,
            parts: Vec::new(),
        };
        Ok(match error {
            Some(number) => Err(ErrorCode::from_number(number)),
            None => Ok(answer),
        })
    })
}

fn write_limit(writer: &mut Writer, limit: &LimitAnswer, limits: &Table<'_>) {
    let mut flags = match limit.mode {
        Mode::Enforce => 0,
        Mode::Shadow => SHADOW,
        Mode::Degrade => DEGRADE,
    };
    let (verdict, decision) = (&limit.verdict, &limit.verdict.decision);
    if decision.allowed {
        flags |= ALLOWED;
    }
    if limit.hidden {
        flags |= HIDDEN;
    }
    flags |= verdict.penalty.left_ms << PENALTY_FROM;
    let more = match (limit.reservation, verdict.slot, verdict.lease) {
        (Some(_), _, _) => 3,
        (None, Some(_), _) => 2,
        (None, None, Some(_)) => 1,
        (None, None, None) => 0,
    };
    writer.array(10 + more);
    limits.write_index(writer, &limit.name);
    writer.unsigned(limit.generation);
    writer.unsigned(flags);
    writer.unsigned(verdict.charged);
    limit.limit.write(writer);
    writer.unsigned(limit.window_ms);
    writer.unsigned(decision.remaining);
    decision.retry_after.millis().write(writer);
    writer.unsigned(decision.reset_after_ms);
    writer.unsigned(decision.delay_ms);
    if more >= 1 {
        // Earlier versions read no units as no lease.
        let lease = verdict.lease.unwrap_or(Lease {
            units: 0,
            epoch: 0,
            ttl_ms: 0,
        });
        lease.write(writer);
    }
    if more >= 2 {
        verdict.slot.write(writer);
    }
    if let Some(reservation) = &limit.reservation {
        reservation.write(writer);
    }
}

fn read_limit(reader: &mut Reader<'_>, limits: &[Name]) -> Result<LimitAnswer, DecodeError> {
    reader.fields_and(10, 3, |reader, more| {
        // Not as a struct that ends in `..LimitVerdict::default()`: that is half a kilobyte more in the filter.
        let mut limit = LimitAnswer::new(read_indexed(reader, limits)?);
        let verdict = &mut limit.verdict;
        limit.generation = reader.unsigned()?;
        let flags = reader.unsigned()?;
        limit.mode = match flags & (SHADOW | DEGRADE) {
            0 => Mode::Enforce,
            DEGRADE => Mode::Degrade,
            _ => Mode::Shadow,
        };
        limit.hidden = flags & HIDDEN != 0;
        verdict.penalty.left_ms = flags >> PENALTY_FROM;
        verdict.charged = reader.unsigned()?;
        limit.limit = Wire::read(reader)?;
        limit.window_ms = reader.unsigned()?;
        let decision = &mut verdict.decision;
        decision.allowed = flags & ALLOWED != 0;
        decision.remaining = reader.unsigned()?;
        decision.retry_after = RetryAfter::from_millis(reader.optional(Reader::unsigned)?);
        decision.reset_after_ms = reader.unsigned()?;
        decision.delay_ms = reader.unsigned()?;
        if more >= 1 {
            verdict.lease = Some(Lease::read(reader)?).filter(|lease| lease.units > 0);
        }
        if more >= 2 {
            verdict.slot = Wire::read(reader)?;
        }
        if more >= 3 {
            limit.reservation = Some(Wire::read(reader)?);
        }
        Ok(limit)
    })
}

#[cfg(test)]
mod tests;
