//! Charges that are refunded, as KEYS and ARGV, and the reply.

use algorithms::{Algorithm, Slot};

use super::{
    Clock, MalformedReply, ScriptCall,
    call::{encode_edges, exact, named},
};

/// Units that a check took from one bucket before another bucket denied it.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The bucket's key.
    pub key: &'a [u8],
    /// The limit's numbers.
    pub algorithm: &'a Algorithm,
    /// The generation they belong to.
    pub generation: u64,
    /// How much.
    pub units: u64,
    /// The limit's ttl for leases, in milliseconds; 0 if it has none.
    pub lease_ttl_ms: u64,
    /// When, by the clock of the bucket's server, in milliseconds since the epoch.
    pub at_ms: u64,
    /// The slot, for a queue.
    pub slot: Option<Slot>,
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
        let numbers = charge.algorithm.numbers();
        args.extend([
            i64::from(numbers.kind),
            exact(charge.generation),
            exact(charge.units),
            exact(charge.at_ms),
            exact(numbers.limit),
            exact(numbers.x),
            exact(numbers.y),
            exact(numbers.z),
            exact(charge.lease_ttl_ms),
        ]);
        args.extend(named(&charge.slot.unwrap_or_default()));
        encode_edges(&mut args, charge.algorithm, None);
    }
    ScriptCall {
        keys: charges.iter().map(|charge| charge.key).collect(),
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
