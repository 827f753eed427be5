//! One call of a script: KEYS, and ARGV in numbers that Lua holds exactly.

use algorithms::{Algorithm, Slot};

use super::packed;

/// Which clock decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The server's, read once per call. The only one for production.
    #[default]
    Server,
    /// A test's or a simulation's, in milliseconds; keys then live for a day.
    Injected(u64),
}

impl Clock {
    /// ARGV 1.
    pub(super) fn argument(self) -> i64 {
        match self {
            Self::Server => -1,
            Self::Injected(ms) => exact(ms),
        }
    }
}

/// The arguments of one EVALSHA of [`super::source::CHECK`] or [`super::source::REFUND`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptCall<'a> {
    /// KEYS.
    pub keys: Vec<&'a [u8]>,
    /// ARGV; that of `CHECK` is [`Self::packed`].
    pub args: Vec<i64>,
}

impl ScriptCall<'_> {
    /// All numbers as one argument.
    pub fn packed(&self) -> Vec<u8> {
        packed::pack(&self.args)
    }
}

/// Larger than any limit, and still exact in Lua.
const COST_MAX: u64 = 1 << 52;

/// No bucket has an epoch of this name, nor a slot that starts then: they are times.
const EPOCH_MAX: u64 = (1 << 53) - 1;

/// For a calendar window: the label of the window in which the debit was admitted, and the ends of
/// the known windows.
pub(super) fn encode_edges(args: &mut Vec<i64>, algorithm: &Algorithm, debit_serial: Option<u64>) {
    if let Some(edges) = algorithm.edges() {
        args.push(exact(debit_serial.unwrap_or(0)));
        args.extend(edges.starts_ms().into_iter().skip(1).map(time));
    }
}

/// The four numbers that name a slot.
pub(super) fn named(slot: &Slot) -> [i64; 4] {
    [
        time(slot.start_ms),
        exact(slot.parts),
        time(slot.since_ms),
        exact(slot.turn),
    ]
}

/// A time of a bucket's clock, which may be ahead of ours.
pub(super) fn time(ms: u64) -> i64 {
    i64::try_from(ms.min(EPOCH_MAX)).unwrap_or(i64::MAX)
}

/// A number that Lua holds exactly.
pub(super) fn exact(number: u64) -> i64 {
    i64::try_from(number.min(COST_MAX)).unwrap_or(i64::MAX)
}

pub(super) fn integer(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}
