//! The values that the poller stores in shared data for the other workers.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use crate::codec::{Put, Reader};

/// A short value that shows workers whether anything is new.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Notice {
    /// The version of the snapshot; counts up.
    pub(crate) version: u64,
    /// The number of proxies for each limit, by the limiters' last answers.
    pub(crate) proxies: Vec<u8>,
}

impl Notice {
    pub(crate) fn read(bytes: &[u8]) -> Self {
        match bytes.split_first_chunk() {
            Some((version, proxies)) => Self {
                version: u64::from_le_bytes(*version),
                proxies: proxies.to_vec(),
            },
            None => Self::default(),
        }
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        [&self.version.to_le_bytes(), self.proxies.as_slice()].concat()
    }
}

/// A domain's limits from a poll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// The limiter's entity tag.
    pub(crate) etag: Vec<u8>,
    /// The limits.
    pub(crate) body: SnapshotBody,
}

/// A limiter's answer about a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotBody {
    /// It has no such domain: there are no limits.
    Unknown,
    /// These are its limits, as the limiter sent them.
    Limits(Vec<u8>),
}

/// The layout's number, after the version; each layout has its own.
const FORMAT: u8 = 2;

/// A checksum. Without it, other bytes could be read as a snapshot that limits nothing.
fn digest(version: u64, content: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write_u64(version);
    hasher.write(content);
    hasher.finish()
}

impl Snapshot {
    /// Reads a snapshot and its version; `None` if the bytes are not one.
    pub(crate) fn read(bytes: &[u8]) -> Option<(u64, Self)> {
        let mut reader = Reader::new(bytes);
        let version = reader.u64()?;
        if reader.u8()? != FORMAT || reader.u64()? != digest(version, reader.rest()) {
            return None;
        }
        let known = reader.u8()?;
        let etag_len = usize::try_from(reader.u32()?).ok()?;
        let etag = reader.take(etag_len)?.to_vec();
        let body = match known {
            0 if reader.is_empty() => SnapshotBody::Unknown,
            1 => SnapshotBody::Limits(reader.rest().to_vec()),
            _ => return None,
        };
        Some((version, Self { etag, body }))
    }

    pub(crate) fn write(&self, version: u64) -> Vec<u8> {
        let (known, body) = match &self.body {
            SnapshotBody::Unknown => (0, &[][..]),
            SnapshotBody::Limits(body) => (1, body.as_slice()),
        };
        let mut content = Vec::with_capacity(5 + self.etag.len() + body.len());
        content.put_u8(known);
        content.put_u32(u32::try_from(self.etag.len()).unwrap_or(u32::MAX));
        content.extend_from_slice(&self.etag);
        content.extend_from_slice(body);
        let mut out = Vec::with_capacity(17 + content.len());
        out.put_u64(version);
        out.put_u8(FORMAT);
        out.put_u64(digest(version, &content));
        out.extend_from_slice(&content);
        out
    }
}

/// The lease of the worker that polls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PollerLease {
    pub(crate) worker: u64,
    pub(crate) until_us: u64,
}

impl PollerLease {
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let mut reader = Reader::new(bytes);
        match (reader.u64(), reader.u64()) {
            (Some(worker), Some(until_us)) => Self { worker, until_us },
            _ => Self::default(),
        }
    }

    pub(crate) fn write(self) -> Vec<u8> {
        [self.worker.to_le_bytes(), self.until_us.to_le_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_snapshot_entry_is_rejected() {
        let snapshot = Snapshot {
            etag: b"\"7\"".to_vec(),
            body: SnapshotBody::Limits(b"{}".to_vec()),
        };
        let bytes = snapshot.write(3);
        assert_eq!(Snapshot::read(&bytes), Some((3, snapshot)));
        let unknown = Snapshot {
            etag: Vec::new(),
            body: SnapshotBody::Unknown,
        };
        assert_eq!(Snapshot::read(&unknown.write(4)), Some((4, unknown)));
        for at in 0..bytes.len() {
            let mut garbage = bytes.clone();
            garbage[at] ^= 1;
            assert_eq!(Snapshot::read(&garbage), None, "byte {at}");
            assert_eq!(Snapshot::read(&bytes[..at]), None, "cut at {at}");
        }
        for len in 0..64 {
            assert_eq!(Snapshot::read(&vec![0; len]), None, "{len} zeros");
        }
    }
}
