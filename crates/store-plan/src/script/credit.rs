//! Units given back to one bucket, as KEYS and ARGV, and the reply.

use algorithms::Algorithm;

use super::{
    Clock, MalformedReply, ScriptCall,
    call::{encode_edges, exact},
};

/// Units to give back.
#[derive(Clone, Copy, Debug)]
pub struct Credit<'a> {
    /// The bucket's key.
    pub key: &'a [u8],
    /// The key of its reservations, which stay open, if the limit's responses state their cost.
    pub reservations: Option<&'a [u8]>,
    /// The key of its denials, which the credit deletes, if the limit has a penalty.
    pub denials: Option<&'a [u8]>,
    /// The limit's numbers.
    pub algorithm: &'a Algorithm,
    /// The generation they belong to.
    pub generation: u64,
    /// How much.
    pub units: u64,
    /// The limit's ttl for leases, in milliseconds; 0 if it has none.
    pub lease_ttl_ms: u64,
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

/// Lays out a call of [`super::source::CREDIT`].
pub fn encode_credit<'a>(credit: &Credit<'a>, clock: Clock) -> ScriptCall<'a> {
    let numbers = credit.algorithm.numbers();
    let flag = |set: bool, flag| if set { flag } else { 0 };
    let mut args = vec![
        clock.argument(),
        flag(credit.peek, PEEK)
            + flag(credit.force, FORCE)
            + flag(credit.reservations.is_some(), SETTLES),
        i64::from(numbers.kind),
        exact(credit.generation),
        exact(credit.units),
        exact(numbers.limit),
        exact(numbers.x),
        exact(numbers.y),
        exact(numbers.z),
        exact(credit.lease_ttl_ms),
    ];
    encode_edges(&mut args, credit.algorithm, None);
    ScriptCall {
        keys: { [credit.key].into_iter() }
            .chain(credit.reservations)
            .chain(credit.denials)
            .collect(),
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
