//! What the host gives the state machine: Envoy's shared data, the time, and the seed of random numbers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use filter_config::Config;
use policy::{Compiled, SnapshotError};

use crate::cache::Table;

/// The map that all workers of one Envoy process share.
///
/// It is unbounded, deletes nothing and is open to other plugins. So the filter writes a fixed set of
/// keys only, and validates each value that it reads. Keys are UTF-8.
pub trait Host {
    /// A value and its version; `None` if it was never written.
    fn load(&self, key: &[u8]) -> Option<Versioned>;

    /// Writes a value if its version is still `expected`.
    fn swap(&self, key: &[u8], value: &[u8], expected: Version) -> Result<(), CasMismatch>;

    /// Reads a snapshot. Where the workers share memory, they share what one of them read.
    fn read_snapshot(&self, bytes: &[u8]) -> Result<Compiled, SnapshotError> {
        Compiled::from_snapshot(bytes)
    }
}

/// The version of a value; each write makes a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(pub u32);

impl Version {
    /// The key is absent. Envoy reads 0 as "any version" and accepts any number for an absent key, so
    /// this is a number that no write gets: if the key was created meanwhile, the swap fails.
    pub const ABSENT: Self = Self(u32::MAX);
}

/// A shared value as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// The value; empty if another plugin "removed" it.
    pub bytes: Vec<u8>,
    /// The version that the next write must expect.
    pub version: Version,
}

/// Another worker wrote first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another worker wrote first")]
pub struct CasMismatch;

/// How often a compare-and-swap is tried. Each failure means that another worker wrote first, so
/// this many in a row need as many busy workers.
pub(crate) const MAX_TRIES: u32 = 16;

/// A shared value could not be written: other workers wrote first [`MAX_TRIES`] times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many workers write the same value")]
pub struct Contended;

/// The result of a change to a shared value.
pub(crate) enum Change<R> {
    /// The value stays as it is.
    Keep(R),
    /// The value becomes these bytes.
    Write(Vec<u8>, R),
}

/// Changes a value by compare-and-swap, a bounded number of times.
pub(crate) fn update<R>(
    host: &impl Host,
    key: &[u8],
    mut change: impl FnMut(&[u8]) -> Change<R>,
) -> Result<R, Contended> {
    for _ in 0..MAX_TRIES {
        let read = host.load(key);
        let (bytes, version) = match &read {
            Some(found) => (found.bytes.as_slice(), found.version),
            None => (&[][..], Version::ABSENT),
        };
        match change(bytes) {
            Change::Keep(result) => return Ok(result),
            Change::Write(bytes, result) => {
                if host.swap(key, &bytes, version).is_ok() {
                    return Ok(result);
                }
            }
        }
    }
    Err(Contended)
}

// --- The process of a worker: the workers of one Envoy are one proxy, and share one table of buckets.

/// The key of the identity in shared data: random bytes, the first half of them the proxy's name, the second the
/// key of the hash that places buckets in the table.
const IDENTITY: &[u8] = b"rl1:identity";

/// What a worker shares with the others of its process.
#[derive(Debug)]
pub(crate) struct Process {
    /// Becomes the identity of the process if no worker has stored one; `None`: the worker has joined.
    seed: Option<[u8; 32]>,
    /// The name of the process in calls to limiters.
    pub(crate) proxy: String,
    pub(crate) table: Table,
}

impl Process {
    /// A process of this worker alone, until it joins the others.
    pub(crate) fn new(seed: [u8; 32], config: &Config) -> Self {
        let (name, hash_key) = seed.split_at(16);
        let name = u128::from_le_bytes(name.try_into().unwrap_or_default());
        let hash_key = hash_key.try_into().unwrap_or_default();
        Self {
            seed: Some(seed),
            proxy: format!("{name:032x}"),
            table: Table::new(config.domain.as_str(), config.buckets, hash_key),
        }
    }

    /// Reads or stores the identity of the process. Returns whether this is the first time.
    pub(crate) fn join(&mut self, host: &impl Host, config: &Config) -> bool {
        let Some(seed) = self.seed.take() else {
            return false;
        };
        *self = Self {
            seed: None,
            ..Self::new(identity(host, seed), config)
        };
        true
    }
}

/// The identity that another worker stored, or `own`, which is stored.
fn identity(host: &impl Host, own: [u8; 32]) -> [u8; 32] {
    for _ in 0..MAX_TRIES {
        let read = host.load(IDENTITY);
        let stored = read.as_ref().map(|read| read.bytes.as_slice().try_into());
        if let Some(Ok(identity)) = stored {
            return identity;
        }
        // Absent, or overwritten by another plugin.
        let expected = read.map_or(Version::ABSENT, |read| read.version);
        // Whichever worker wins, the next read returns its value.
        let _ = host.swap(IDENTITY, &own, expected);
    }
    // Contended: the worker uses an identity of its own, and limiters count one proxy more.
    own
}

// --- Fixed little-endian fields in shared values. A value may have been written by another plugin, so
// each read may fail.

/// Reads fields off the front of a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    left: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { left: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.left
    }

    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, left) = self.left.split_at_checked(len)?;
        self.left = left;
        Some(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, left) = self.left.split_first_chunk()?;
        self.left = left;
        Some(*taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn u64s<const N: usize>(&mut self) -> Option<[u64; N]> {
        let mut values = [0; N];
        for value in &mut values {
            *value = self.u64()?;
        }
        Some(values)
    }
}

/// Appends fields to a value.
pub(crate) trait Put {
    fn put_u8(&mut self, value: u8);
    fn put_u32(&mut self, value: u32);
    fn put_u64(&mut self, value: u64);
    fn put_u64s(&mut self, values: &[u64]);
}

impl Put for Vec<u8> {
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }

    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    // As a function call it saves 20 bytes at each call site.
    #[inline(never)]
    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u64s(&mut self, values: &[u64]) {
        for value in values {
            self.put_u64(*value);
        }
    }
}

/// A struct that is its fields in a row; all are numbers.
pub(crate) trait Row: Sized {
    fn write(&self, out: &mut Vec<u8>);
    fn read(reader: &mut Reader<'_>) -> Option<Self>;
}

macro_rules! rows {
    ($($type:ty { $($field:ident),+ })+) => {$(
        impl Row for $type {
            fn write(&self, out: &mut Vec<u8>) {
                out.put_u64s(&[$(self.$field),+]);
            }

            fn read(reader: &mut Reader<'_>) -> Option<Self> {
                let [$($field),+] = reader.u64s()?;
                Some(Self { $($field),+ })
            }
        }
    )+};
}
pub(crate) use rows;

// --- The time of each input: nothing in this crate reads a clock.

/// The moment of an input, on both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Microseconds on the process's monotonic clock: deadlines, deny cache, breaker.
    pub mono_us: u64,
    /// Milliseconds since the epoch, which may step: buckets decided in the proxy, whose
    /// windows are aligned to it.
    pub wall_ms: u64,
}

impl Now {
    /// Whether a monotonic deadline has come.
    pub(crate) fn reached(self, deadline_us: u64) -> bool {
        self.mono_us >= deadline_us
    }

    /// Milliseconds until a monotonic deadline, rounded up; 0 if it has come.
    pub(crate) fn millis_until(self, deadline_us: u64) -> u64 {
        deadline_us.saturating_sub(self.mono_us).div_ceil(1000)
    }

    /// Converts a moment of the monotonic clock to the wall clock.
    pub(crate) fn wall_of(self, mono_us: u64) -> u64 {
        let ago_ms = self.mono_us.saturating_sub(mono_us) / 1000;
        self.wall_ms.saturating_sub(ago_ms)
    }

    /// The monotonic time that is `ms` milliseconds from now.
    pub(crate) fn after_ms(self, ms: u64) -> u64 {
        self.mono_us.saturating_add(ms.saturating_mul(1000))
    }
}

/// Joins the host's two clocks: how far the wall clock is ahead of the monotonic one, as of the last tick.
#[derive(Debug)]
pub struct Clock {
    epoch_ms: AtomicU64,
}

impl Clock {
    /// Reads both clocks.
    pub fn new(wall_ms: u64, mono_us: u64) -> Self {
        Self {
            epoch_ms: AtomicU64::new(wall_ms.saturating_sub(mono_us / 1000)),
        }
    }

    /// Adjusts to a wall clock that was set.
    pub fn adjust(&self, wall_ms: u64, mono_us: u64) {
        let epoch_ms = wall_ms.saturating_sub(mono_us / 1000);
        self.epoch_ms.store(epoch_ms, Relaxed);
    }

    /// The moment at which the monotonic clock has this value.
    pub fn at(&self, mono_us: u64) -> Now {
        let epoch_ms = self.epoch_ms.load(Relaxed);
        Now {
            mono_us,
            wall_ms: epoch_ms.saturating_add(mono_us / 1000),
        }
    }
}

/// The limiter's token as the environment has it; `None` if it cannot be a header, where a line break
/// would be another header.
pub fn usable_token(value: Option<Vec<u8>>) -> Option<String> {
    let value = value.filter(|value| !value.is_empty());
    let text = value.and_then(|bytes| String::from_utf8(bytes).ok());
    text.filter(|text| text.bytes().all(|byte| byte.is_ascii_graphic()))
}

/// A time on the monotonic clock, for tests that do not use the wall clock.
#[cfg(test)]
pub(crate) fn at(ms: u64) -> Now {
    Now {
        mono_us: ms * 1000,
        wall_ms: 0,
    }
}

// --- Random numbers for jitter and sampling. Not for secrets.

/// `SplitMix64`: small, and good enough to spread proxies in time.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A generator whose numbers are determined by `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, or 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// `value`, up to a quarter more or less.
    pub fn jittered(&mut self, value: u64) -> u64 {
        let spread = value / 4;
        (value - spread).saturating_add(self.below(spread.saturating_mul(2).saturating_add(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::SharedData;

    #[test]
    fn all_workers_of_a_process_are_one_proxy() {
        let host = SharedData::default();
        let first = identity(&host, [1; 32]);
        assert_eq!(identity(&host, [2; 32]), first);
        let config =
            Config::from_json(br#"{"domain": "shop", "limiter": {"cluster": "c"}}"#).unwrap();
        assert_eq!(Process::new(first, &config).proxy, "01".repeat(16));
    }

    #[test]
    fn an_invalid_stored_identity_is_replaced() {
        let host = SharedData::default();
        host.overwrite(IDENTITY, b"something else");
        assert_eq!(identity(&host, [3; 32]), [3; 32]);
        assert_eq!(host.load(IDENTITY).unwrap().bytes, [3; 32]);
    }

    #[test]
    fn jitter_stays_within_a_quarter() {
        let mut random = Random::new(1);
        for _ in 0..10_000 {
            let value = random.jittered(200);
            assert!((150..=250).contains(&value), "{value}");
        }
        assert_eq!(random.jittered(0), 0);
        random.jittered(u64::MAX);
    }

    #[test]
    fn below_yields_every_number_under_its_bound_and_not_the_bound() {
        let mut random = Random::new(7);
        let mut seen = [false; 5];
        for _ in 0..1000 {
            seen[usize::try_from(random.below(5)).unwrap()] = true;
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(random.below(0), 0);
    }
}
