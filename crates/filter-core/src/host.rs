//! The host of the state machine: Envoy's shared data.

/// The map that all workers of one Envoy process share.
///
/// It is unbounded, deletes nothing and is open to other plugins. So the filter writes a fixed set of
/// keys only, and validates each value that it reads. Keys are UTF-8.
pub trait Host {
    /// A value and its version; `None` if it was never written.
    fn load(&self, key: &[u8]) -> Option<Versioned>;

    /// Writes a value if its version is still `expected`.
    fn swap(&self, key: &[u8], value: &[u8], expected: Version) -> Result<(), CasMismatch>;
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
