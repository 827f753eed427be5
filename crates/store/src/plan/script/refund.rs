//! Charges that are refunded, as KEYS and ARGV, and the reply.

use algorithms::Charged;

use super::{
    Bucket, Clock, MalformedReply, ScriptCall, encode_kind, encode_numbers, encode_own, exact,
    named,
};

/// Units that a check took from one bucket before another bucket denied it.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The bucket.
    pub bucket: &'a Bucket<'a>,
    /// What was taken, and when by the clock of the bucket's server.
    pub charged: Charged,
}

/// The result of refunding one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refunded {
    /// Whether there was something to refund.
    pub taken: bool,
    /// The largest cost that would be admitted now.
    pub remaining: u64,
    /// Milliseconds until the bucket is unused.
    pub reset_after_ms: u64,
}

/// Lays out charges of buckets in one slot, to be refunded.
pub fn encode_refunds<'a>(charges: &[Charge<'a>], clock: Clock) -> ScriptCall<'a> {
    let mut args = Vec::with_capacity(1 + 13 * charges.len());
    args.push(clock.argument());
    for charge in charges {
        let part = &charge.bucket.part;
        args.extend([
            encode_kind(&part.algorithm),
            exact(part.generation),
            exact(charge.charged.units),
            exact(charge.charged.at_ms),
        ]);
        args.extend(encode_numbers(&part.algorithm));
        args.push(exact(charge.charged.lease_ttl_ms));
        args.extend(named(&charge.charged.slot.unwrap_or_default()));
        encode_own(&mut args, &part.algorithm, None);
    }
    let keys = charges.iter().map(|charge| charge.bucket.key.as_bytes());
    ScriptCall {
        keys: keys.collect(),
        args,
    }
}

/// Reads the reply to [`encode_refunds`] of as many charges.
///
/// # Errors
/// [`MalformedReply`] where it is not one.
pub fn decode_refunds(reply: &[i64], charges: usize) -> Result<Vec<Refunded>, MalformedReply> {
    let (_, rows) = reply.split_first().ok_or(MalformedReply)?;
    if rows.len() != 3 * charges {
        return Err(MalformedReply);
    }
    let unsigned = |number: i64| u64::try_from(number).map_err(|_| MalformedReply);
    let row = |row: &[i64]| match *row {
        [taken, remaining, reset_after] => Ok(Refunded {
            taken: taken == 1,
            remaining: unsigned(remaining)?,
            reset_after_ms: unsigned(reset_after)?,
        }),
        _ => Err(MalformedReply),
    };
    rows.chunks(3).map(row).collect()
}

// ---- Units given back to one bucket, as KEYS and ARGV, and the reply.

/// Units to give back.
#[derive(Clone, Copy, Debug)]
pub struct Credit<'a> {
    /// The bucket. Its reservations stay open; its denials are deleted.
    pub bucket: &'a Bucket<'a>,
    /// How much.
    pub units: u64,
    /// Change nothing; the reply says what would happen.
    pub peek: bool,
    /// The limits were just read again: a newer generation in the bucket is left over from a backup.
    pub force: bool,
}

/// The result of a credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credited {
    /// The bucket holds less usage than before, or (`false`) held none.
    Done {
        /// Whether anything was used.
        used: bool,
        /// The largest cost that would have been admitted before.
        left_before: u64,
        /// The largest cost that would be admitted now.
        left: u64,
        /// Milliseconds until the bucket is unused.
        reset_after_ms: u64,
    },
    /// The bucket was used with a newer edit of its limit, or its calendar windows have other edges now:
    /// nothing was changed.
    Stale,
    /// The key holds something that is not a bucket.
    Corrupt,
}

const PEEK: i64 = 1;
const FORCE: i64 = 2;
const SETTLES: i64 = 4;

/// Lays out a call of [`crate::scripts::CREDIT`].
pub fn encode_credit<'a>(credit: &Credit<'a>, clock: Clock) -> ScriptCall<'a> {
    let Bucket {
        reservations, part, ..
    } = credit.bucket;
    let flag = |set: bool, flag| if set { flag } else { 0 };
    let mut args = vec![
        clock.argument(),
        flag(credit.peek, PEEK) + flag(credit.force, FORCE) + flag(reservations.is_some(), SETTLES),
        encode_kind(&part.algorithm),
        exact(part.generation),
        exact(credit.units),
    ];
    args.extend(encode_numbers(&part.algorithm));
    args.push(exact(part.lease.unwrap_or_default().ttl_ms));
    encode_own(&mut args, &part.algorithm, None);
    ScriptCall {
        keys: credit.bucket.keys().map(str::as_bytes).collect(),
        args,
    }
}

/// Reads the reply to [`encode_credit`].
///
/// # Errors
/// [`MalformedReply`] where it is not one.
pub fn decode_credited(reply: &[i64]) -> Result<Credited, MalformedReply> {
    let unsigned = |number: i64| u64::try_from(number).map_err(|_| MalformedReply);
    match *reply {
        [used @ (0 | 1), _, before, after, reset] => Ok(Credited::Done {
            used: used == 1,
            left_before: unsigned(before)?,
            left: unsigned(after)?,
            reset_after_ms: unsigned(reset)?,
        }),
        [2, ..] => Ok(Credited::Stale),
        [3, ..] => Ok(Credited::Corrupt),
        _ => Err(MalformedReply),
    }
}
