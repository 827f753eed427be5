//! The encoding for the filter: CBOR arrays; a table per batch for keys and limit names; values as
//! bytes.
//!
//! New fields are only ever added at the end of an array; a reader skips unknown ones. Everything read
//! is bounded ([`crate::MAX_CHECKS`], [`crate::MAX_ENTRIES`], [`crate::MAX_VALUE`]) and no input can
//! cause a panic.

mod report;

use std::collections::HashSet;

use cbor::{Reader, Writer};
use policy::{Name, Names, Revision};

use crate::{
    Answer, Check, CostSettlement, Debit, ErrorCode, Lease, LeaseRequest, LimitAnswer, LimitCost,
    LimitRequest, MAX_BATCH_LIMITS, MAX_CHECKS, MAX_ENTRIES, MAX_FREE, MAX_LIMITS, MAX_SETTLED,
    MAX_VALUE, Mode, Pace, Reservation, RetryAfter, Settlement, Slot, SlotAct, SlotId, SlotOp,
};

pub use cbor::DecodeError;

pub use report::{DeniedBucket, Report, RequestCounts, Tally};

/// Names in one table, at most: one for every limit of a domain.
const MAX_NAMES: usize = 10_000;

/// What messages consist of, beside plain items.
trait WriteWords {
    fn name(&mut self, name: &Name);
    fn revision(&mut self, revision: &Revision);
    fn reservation(&mut self, reservation: &Reservation);
    fn slot(&mut self, slot: &Slot);
}

/// What messages consist of, beside plain items.
trait ReadWords {
    fn name(&mut self) -> Result<Name, DecodeError>;
    fn revision(&mut self) -> Result<Revision, DecodeError>;
    fn index(&mut self) -> Result<usize, DecodeError>;
    /// A name by its index in a table.
    fn indexed(&mut self, table: &[Name]) -> Result<Name, DecodeError>;
    fn reservation(&mut self) -> Result<Reservation, DecodeError>;
    fn slot(&mut self) -> Result<Slot, DecodeError>;
    fn slot_id(&mut self) -> Result<SlotId, DecodeError>;
}

impl WriteWords for Writer {
    fn name(&mut self, name: &Name) {
        self.text(name.as_str());
    }

    fn revision(&mut self, revision: &Revision) {
        self.array(2);
        self.unsigned(revision.number);
        self.unsigned(revision.digest);
    }

    fn reservation(&mut self, reservation: &Reservation) {
        self.array(4);
        self.unsigned(reservation.secret);
        self.unsigned(reservation.number);
        self.unsigned(reservation.units);
        self.unsigned(reservation.seal);
    }

    fn slot(&mut self, slot: &Slot) {
        self.array(4);
        self.unsigned(slot.start_ms);
        self.unsigned(slot.parts);
        self.unsigned(slot.since_ms);
        self.unsigned(slot.turn);
    }
}

impl ReadWords for Reader<'_> {
    fn name(&mut self) -> Result<Name, DecodeError> {
        let text = self.text()?;
        text.parse()
            .map_err(|_| DecodeError::Name(beginning(text).to_owned()))
    }

    fn revision(&mut self) -> Result<Revision, DecodeError> {
        self.fields(2, |reader| {
            Ok(Revision {
                number: reader.unsigned()?,
                digest: reader.unsigned()?,
            })
        })
    }

    fn index(&mut self) -> Result<usize, DecodeError> {
        usize::try_from(self.unsigned()?).map_err(|_| DecodeError::Index)
    }

    fn indexed(&mut self, table: &[Name]) -> Result<Name, DecodeError> {
        let index = self.index()?;
        table.get(index).cloned().ok_or(DecodeError::Index)
    }

    fn reservation(&mut self) -> Result<Reservation, DecodeError> {
        self.fields(4, |reader| {
            Ok(Reservation {
                secret: reader.unsigned()?,
                number: reader.unsigned()?,
                units: reader.unsigned()?,
                seal: reader.unsigned()?,
            })
        })
    }

    fn slot(&mut self) -> Result<Slot, DecodeError> {
        self.fields(4, |reader| {
            Ok(Slot {
                start_ms: reader.unsigned()?,
                parts: reader.unsigned()?,
                since_ms: reader.unsigned()?,
                turn: reader.unsigned()?,
            })
        })
    }

    fn slot_id(&mut self) -> Result<SlotId, DecodeError> {
        self.fields(2, |reader| {
            Ok(SlotId {
                stamp: reader.unsigned()?,
                secret: reader.unsigned()?,
            })
        })
    }
}

/// The beginning of a text, enough for a message.
fn beginning(text: &str) -> &str {
    text.get(..text.floor_char_boundary(80)).unwrap_or(text)
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
        writer.optional(self.cost, |writer, cost| {
            writer.array(2);
            writer.unsigned(cost.units);
            writer.boolean(cost.reserve);
        });
        writer.optional(self.debit, |writer, debit| {
            writer.array(2);
            writer.unsigned(debit.units);
            writer.optional(debit.serial, Writer::unsigned);
        });
        writer.optional(self.lease.as_ref(), |writer, lease| {
            writer.array(2);
            writer.unsigned(lease.want);
            writer.list(lease.settle.iter(), |writer, settlement| {
                writer.array(3);
                writer.unsigned(settlement.epoch);
                writer.unsigned(settlement.spent);
                writer.unsigned(settlement.returned);
            });
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
            writer.slot(&op.slot);
            writer.unsigned(act);
            writer.unsigned(units);
        });
        writer.list(self.settle.iter(), |writer, settled| {
            writer.array(2);
            writer.reservation(&settled.reservation);
            writer.unsigned(settled.units);
        });
        writer.unsigned(self.denied);
    }

    /// `first` accepts the position of the entry's limit among `limits`.
    fn read(
        reader: &mut Reader<'_>,
        limits: &[Name],
        first: impl FnOnce(usize) -> Result<(), DecodeError>,
    ) -> Result<Self, DecodeError> {
        reader.fields(8, |reader| {
            let at = reader.index()?;
            first(at)?;
            Ok(Self {
                limit: limits.get(at).cloned().ok_or(DecodeError::Index)?,
                skip: reader.boolean()?,
                cost: reader.optional(|reader| {
                    reader.fields(2, |reader| {
                        Ok(LimitCost {
                            units: reader.unsigned()?,
                            reserve: reader.boolean()?,
                        })
                    })
                })?,
                debit: reader.optional(|reader| {
                    reader.fields(2, |reader| {
                        Ok(Debit {
                            units: reader.unsigned()?,
                            serial: reader.optional(Reader::unsigned)?,
                        })
                    })
                })?,
                lease: reader.optional(|reader| {
                    reader.fields(2, |reader| {
                        Ok(LeaseRequest {
                            want: reader.unsigned()?,
                            settle: reader.list(MAX_SETTLEMENTS, "settlements", read_settlement)?,
                        })
                    })
                })?,
                slots: reader.list(MAX_FREE, "slots", read_slot_op)?,
                settle: reader.list(MAX_SETTLED, "settle", |reader| {
                    reader.fields(2, |reader| {
                        Ok(CostSettlement {
                            reservation: reader.reservation()?,
                            units: reader.unsigned()?,
                        })
                    })
                })?,
                denied: reader.unsigned()?,
            })
        })
    }
}

fn read_settlement(reader: &mut Reader<'_>) -> Result<Settlement, DecodeError> {
    reader.fields(3, |reader| {
        Ok(Settlement {
            epoch: reader.unsigned()?,
            spent: reader.unsigned()?,
            returned: reader.unsigned()?,
        })
    })
}

fn read_slot_op(reader: &mut Reader<'_>) -> Result<SlotOp, DecodeError> {
    reader.fields(3, |reader| {
        let slot = reader.slot()?;
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
        writer.revision(&self.revision);
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
            let revision = reader.revision()?;
            let limits = reader.list(MAX_NAMES, "limits", Reader::name)?;
            let proxies = reader.list(MAX_NAMES, "proxies", |reader| {
                reader.fields(2, |reader| {
                    Ok((reader.indexed(&limits)?, reader.unsigned()?))
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
    writer.optional(limit.limit, Writer::unsigned);
    writer.unsigned(limit.window_ms);
    writer.unsigned(decision.remaining);
    writer.optional(decision.retry_after.millis(), Writer::unsigned);
    writer.unsigned(decision.reset_after_ms);
    writer.unsigned(decision.delay_ms);
    if more >= 1 {
        // Earlier versions read no units as no lease.
        let lease = verdict.lease.unwrap_or(Lease {
            units: 0,
            epoch: 0,
            ttl_ms: 0,
        });
        writer.array(3);
        writer.unsigned(lease.units);
        writer.unsigned(lease.epoch);
        writer.unsigned(lease.ttl_ms);
    }
    if more >= 2 {
        writer.optional(verdict.slot.as_ref(), Writer::slot);
    }
    if let Some(reservation) = &limit.reservation {
        writer.reservation(reservation);
    }
}

fn read_limit(reader: &mut Reader<'_>, limits: &[Name]) -> Result<LimitAnswer, DecodeError> {
    reader.fields_and(10, 3, |reader, more| {
        // Not as a struct that ends in `..LimitVerdict::default()`: that is half a kilobyte more in the filter.
        let mut limit = LimitAnswer::new(reader.indexed(limits)?);
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
        limit.limit = reader.optional(Reader::unsigned)?;
        limit.window_ms = reader.unsigned()?;
        let decision = &mut verdict.decision;
        decision.allowed = flags & ALLOWED != 0;
        decision.remaining = reader.unsigned()?;
        decision.retry_after = RetryAfter::from_millis(reader.optional(Reader::unsigned)?);
        decision.reset_after_ms = reader.unsigned()?;
        decision.delay_ms = reader.unsigned()?;
        if more >= 1 {
            verdict.lease = Some(read_lease(reader)?).filter(|lease| lease.units > 0);
        }
        if more >= 2 {
            verdict.slot = reader.optional(Reader::slot)?;
        }
        if more >= 3 {
            limit.reservation = Some(reader.reservation()?);
        }
        Ok(limit)
    })
}

fn read_lease(reader: &mut Reader<'_>) -> Result<Lease, DecodeError> {
    reader.fields(3, |reader| {
        Ok(Lease {
            units: reader.unsigned()?,
            epoch: reader.unsigned()?,
            ttl_ms: reader.unsigned()?,
        })
    })
}

#[cfg(test)]
mod tests;
