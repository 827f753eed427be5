//! The reply's integers as verdicts.

use algorithms::check::{LimitVerdict, Verdict};
use algorithms::{Decision, Lease, PenaltyStatus, Reserved, RetryAfter, Slot};

use super::{ScriptCheck, packed::unpack};

/// The reply to a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptReply {
    /// The time that decided, in milliseconds since the epoch.
    pub now_ms: u64,
    /// One per check, in order.
    pub results: Vec<Result<Verdict, ScriptError>>,
}

/// Why one check of a batch was not decided; it changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// The caller's limit is older than the bucket's state: reload the policy and send the check again.
    #[error("limit {limit} is older than its bucket, which has generation {generation}")]
    Stale {
        /// Which limit, as an index into the check.
        limit: usize,
        /// The generation found in the state.
        generation: u64,
    },
    /// The key holds something that is not a bucket.
    #[error("the key of limit {limit} holds something that is not a bucket")]
    Corrupt {
        /// Which limit, as an index into the check.
        limit: usize,
    },
}

/// The reply does not have the shape of the call: another script answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the script's reply does not fit the checks that were sent")]
pub struct MalformedReply;

const DENIED: i64 = 0;
const ALLOWED: i64 = 1;
const STALE: i64 = 2;
const CORRUPT: i64 = 3;
const CHARGED: i64 = 4;

/// Reads the reply, one string, to [`super::encode`] of the same checks.
///
/// # Errors
/// [`MalformedReply`] where it is not one.
pub fn decode(reply: &[u8], checks: &[ScriptCheck<'_>]) -> Result<ScriptReply, MalformedReply> {
    let mut numbers = unpack(reply)?.into_iter();
    let now_ms = unsigned(numbers.next().ok_or(MalformedReply)?)?;
    let mut results = Vec::with_capacity(checks.len());
    for check in checks {
        results.push(decode_check(&mut numbers, check)?);
    }
    match numbers.next() {
        None => Ok(ScriptReply { now_ms, results }),
        Some(_) => Err(MalformedReply),
    }
}

fn decode_check(
    numbers: &mut impl Iterator<Item = i64>,
    check: &ScriptCheck<'_>,
) -> Result<Result<Verdict, ScriptError>, MalformedReply> {
    let status = numbers.next().ok_or(MalformedReply)?;
    if status == CHARGED {
        return charged(numbers, check).map(Ok);
    }
    let mut limits = Vec::with_capacity(check.limits.len());
    let mut culprit = None;
    for (index, limit) in check.limits.iter().enumerate() {
        let row = Row::read(numbers)?;
        let leases = match limit.lease {
            Some(_) => LeaseRow::read(numbers)?,
            None => LeaseRow::default(),
        };
        let slot = if limit.algorithm.gives_slots() {
            slot(numbers)?
        } else {
            None
        };
        let reserved = match limit.costs {
            Some(_) => reserved(numbers)?,
            None => Reserved::default(),
        };
        let penalty = match limit.penalty {
            Some(_) => penalty(numbers)?,
            None => PenaltyStatus::default(),
        };
        match row.fits {
            STALE => {
                let generation = unsigned(row.charged)?;
                culprit = Some(ScriptError::Stale {
                    limit: index,
                    generation,
                });
            }
            CORRUPT => culprit = Some(ScriptError::Corrupt { limit: index }),
            _ => limits.push(LimitVerdict {
                mode: limit.mode,
                decision: row.decision()?,
                charged: unsigned(row.charged)?,
                lease: leases.lease()?,
                slot,
                leased: unsigned(leases.leased)?,
                reserved,
                penalty,
                denials: None,
            }),
        }
    }
    match (status, culprit) {
        (DENIED | ALLOWED, None) => Ok(Ok(Verdict {
            allowed: status == ALLOWED,
            limits,
        })),
        (STALE | CORRUPT, Some(error)) => Ok(Err(error)),
        _ => Err(MalformedReply),
    }
}

/// A check that every limit charged.
fn charged(
    numbers: &mut impl Iterator<Item = i64>,
    check: &ScriptCheck<'_>,
) -> Result<Verdict, MalformedReply> {
    let mut next = || unsigned(numbers.next().ok_or(MalformedReply)?);
    let mut limits = Vec::with_capacity(check.limits.len());
    for limit in &check.limits {
        limits.push(LimitVerdict {
            mode: limit.mode,
            decision: Decision {
                allowed: true,
                remaining: next()?,
                retry_after: RetryAfter::Now,
                reset_after_ms: next()?,
                delay_ms: 0,
            },
            charged: limit.cost,
            lease: None,
            slot: None,
            leased: 0,
            reserved: Reserved::default(),
            penalty: PenaltyStatus::default(),
            denials: None,
        });
    }
    Ok(Verdict {
        allowed: true,
        limits,
    })
}

/// What was reserved and settled.
fn reserved(numbers: &mut impl Iterator<Item = i64>) -> Result<Reserved, MalformedReply> {
    let mut next = || unsigned(numbers.next().ok_or(MalformedReply)?);
    Ok(Reserved {
        number: next()?,
        given_back: next()?,
        excess: next()?,
        open: next()?,
    })
}

/// The status of a penalty.
fn penalty(numbers: &mut impl Iterator<Item = i64>) -> Result<PenaltyStatus, MalformedReply> {
    let mut next = || unsigned(numbers.next().ok_or(MalformedReply)?);
    Ok(PenaltyStatus {
        left_ms: next()?,
        denials: next()?,
        begun: next()? == 1,
        unread: false,
    })
}

/// The integers of one limit.
struct Row {
    fits: i64,
    charged: i64,
    remaining: i64,
    retry_after: i64,
    reset_after: i64,
    delay: i64,
}

impl Row {
    fn read(numbers: &mut impl Iterator<Item = i64>) -> Result<Self, MalformedReply> {
        let mut next = || numbers.next().ok_or(MalformedReply);
        Ok(Self {
            fits: next()?,
            charged: next()?,
            remaining: next()?,
            retry_after: next()?,
            reset_after: next()?,
            delay: next()?,
        })
    }

    fn decision(&self) -> Result<Decision, MalformedReply> {
        Ok(Decision {
            allowed: self.fits == ALLOWED,
            remaining: unsigned(self.remaining)?,
            retry_after: match self.retry_after {
                -1 => RetryAfter::Never,
                0 => RetryAfter::Now,
                ms => RetryAfter::Millis(unsigned(ms)?),
            },
            reset_after_ms: unsigned(self.reset_after)?,
            delay_ms: unsigned(self.delay)?,
        })
    }
}

/// The integers of a limit's leases.
#[derive(Default)]
struct LeaseRow {
    granted: i64,
    epoch: i64,
    ttl: i64,
    leased: i64,
}

impl LeaseRow {
    fn read(numbers: &mut impl Iterator<Item = i64>) -> Result<Self, MalformedReply> {
        let mut next = || numbers.next().ok_or(MalformedReply);
        Ok(Self {
            granted: next()?,
            epoch: next()?,
            ttl: next()?,
            leased: next()?,
        })
    }

    fn lease(&self) -> Result<Option<Lease>, MalformedReply> {
        if self.granted == 0 {
            return Ok(None);
        }
        Ok(Some(Lease {
            units: unsigned(self.granted)?,
            epoch: unsigned(self.epoch)?,
            ttl_ms: unsigned(self.ttl)?,
        }))
    }
}

/// The name of a slot; all zeros mean that there is none, because `since_ms` of a name is never 0.
fn slot(numbers: &mut impl Iterator<Item = i64>) -> Result<Option<Slot>, MalformedReply> {
    let mut next = || unsigned(numbers.next().ok_or(MalformedReply)?);
    let slot = Slot {
        start_ms: next()?,
        parts: next()?,
        since_ms: next()?,
        turn: next()?,
    };
    Ok((slot != Slot::default()).then_some(slot))
}

fn unsigned(number: i64) -> Result<u64, MalformedReply> {
    u64::try_from(number).map_err(|_| MalformedReply)
}
