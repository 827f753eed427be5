//! The answers to a batch.

use policy::{Name, PenaltyStatus, Revision};

use super::limit_request::{ReadParts as _, WriteParts as _};
use super::{DecodeError, MAX_NAMES, ReadWords as _, Reader, Table, WriteWords as _, Writer};
use crate::{Answer, ErrorCode, Lease, LimitAnswer, MAX_CHECKS, Mode, Reserved};

/// The answers to a [`super::Batch`].
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
    if limit.allowed {
        flags |= ALLOWED;
    }
    if limit.hidden {
        flags |= HIDDEN;
    }
    flags |= limit.penalty.left_ms << PENALTY_FROM;
    let more = match (limit.reservation, limit.slot, limit.lease) {
        (Some(_), _, _) => 3,
        (None, Some(_), _) => 2,
        (None, None, Some(_)) => 1,
        (None, None, None) => 0,
    };
    writer.array(10 + more);
    limits.write_index(writer, &limit.name);
    writer.unsigned(limit.generation);
    writer.unsigned(flags);
    writer.unsigned(limit.charged);
    writer.optional(limit.limit, Writer::unsigned);
    writer.unsigned(limit.window_ms);
    writer.unsigned(limit.remaining);
    writer.optional(limit.retry_after_ms, Writer::unsigned);
    writer.unsigned(limit.reset_after_ms);
    writer.unsigned(limit.delay_ms);
    if more >= 1 {
        // Earlier versions read no units as no lease.
        let lease = limit.lease.unwrap_or(Lease {
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
        writer.optional(limit.slot.as_ref(), Writer::slot);
    }
    if let Some(reservation) = &limit.reservation {
        writer.reservation(reservation);
    }
}

fn read_limit(reader: &mut Reader<'_>, limits: &[Name]) -> Result<LimitAnswer, DecodeError> {
    reader.fields_and(10, 3, |reader, more| {
        let name = reader.indexed(limits)?;
        let generation = reader.unsigned()?;
        let flags = reader.unsigned()?;
        Ok(LimitAnswer {
            name,
            generation,
            bucket: Vec::new(),
            mode: match flags & (SHADOW | DEGRADE) {
                0 => Mode::Enforce,
                DEGRADE => Mode::Degrade,
                _ => Mode::Shadow,
            },
            allowed: flags & ALLOWED != 0,
            charged: reader.unsigned()?,
            limit: reader.optional(Reader::unsigned)?,
            window_ms: reader.unsigned()?,
            remaining: reader.unsigned()?,
            retry_after_ms: reader.optional(Reader::unsigned)?,
            reset_after_ms: reader.unsigned()?,
            delay_ms: reader.unsigned()?,
            hidden: flags & HIDDEN != 0,
            lease: match more {
                0 => None,
                _ => Some(read_lease(reader)?).filter(|lease| lease.units > 0),
            },
            slot: match more {
                0 | 1 => None,
                _ => reader.optional(Reader::slot)?,
            },
            reservation: match more {
                0..3 => None,
                _ => Some(reader.reservation()?),
            },
            reserved: Reserved::default(),
            penalty: PenaltyStatus {
                left_ms: flags >> PENALTY_FROM,
                ..PenaltyStatus::default()
            },
        })
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
