//! What the state machine asks of its surroundings while it decides.

/// The map that all workers of one Envoy process share.
///
/// It forgets nothing, bounds nothing and is open to other plugins: every key
/// written here belongs to a fixed set, and every value read is distrusted.
pub trait Host {
    /// A value and its version; `None` if nobody ever wrote it.
    fn load(&self, key: &[u8]) -> Option<Versioned>;

    /// Writes a value if its version is still `expected`.
    fn swap(&self, key: &[u8], value: &[u8], expected: Version) -> Result<(), CasMismatch>;
}

/// Which write of a key this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(pub u32);

impl Version {
    /// Nobody wrote the key yet. Envoy takes 0 for "whatever is there" and accepts any number
    /// for an absent key, so the one that no write ever gets is named: a key that somebody
    /// created meanwhile is a mismatch.
    pub const ABSENT: Self = Self(u32::MAX);
}

/// A shared value as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// The value; empty if another plugin "removed" it.
    pub bytes: Vec<u8>,
    /// What the next write must name.
    pub version: Version,
}

/// Another worker wrote first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another worker wrote first")]
pub struct CasMismatch;

/// How often a read-modify-write is tried before it is given up. Each failed try means that
/// another worker got its write in, so this many in a row take as many busy workers.
pub(crate) const MAX_TRIES: u32 = 16;

/// A shared value could not be written: other workers were faster [`MAX_TRIES`] times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many workers write the same value")]
pub struct Contended;

/// What a change to a shared value comes to.
pub(crate) enum Change<R> {
    /// The value stays as it is.
    Keep(R),
    /// The value becomes these bytes.
    Write(Vec<u8>, R),
}

/// Reads a value, changes it, and tries again while other workers come in between.
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
