//! What the workers leave each other.

use crate::codec::{Put, Reader};

/// The short value that says whether there is anything new.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Notice {
    /// Of the snapshot; counts up.
    pub(super) version: u64,
    /// What limiters last said of the number of proxies per limit.
    pub(super) proxies: Vec<u8>,
}

impl Notice {
    pub(super) fn read(bytes: &[u8]) -> Self {
        match bytes.split_first_chunk() {
            Some((version, proxies)) => Self {
                version: u64::from_le_bytes(*version),
                proxies: proxies.to_vec(),
            },
            None => Self::default(),
        }
    }

    pub(super) fn write(&self) -> Vec<u8> {
        [&self.version.to_le_bytes(), self.proxies.as_slice()].concat()
    }
}

/// A domain's limits as polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// The limiter's name for it.
    pub(crate) etag: Vec<u8>,
    /// What it says.
    pub(crate) body: SnapshotBody,
}

/// What a limiter says of a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotBody {
    /// It does not know the domain: there are no limits.
    Unknown,
    /// These are its limits, as JSON.
    Limits(Vec<u8>),
}

impl Snapshot {
    /// Reads a snapshot and its version; `None` if this is not one.
    pub(super) fn read(bytes: &[u8]) -> Option<(u64, Self)> {
        let mut reader = Reader::new(bytes);
        let version = reader.u64()?;
        let known = reader.u8()?;
        let etag_len = usize::try_from(reader.u32()?).ok()?;
        let etag = reader.take(etag_len)?.to_vec();
        let body = match known {
            0 => SnapshotBody::Unknown,
            1 => SnapshotBody::Limits(reader.rest().to_vec()),
            _ => return None,
        };
        Some((version, Self { etag, body }))
    }

    pub(super) fn write(&self, version: u64) -> Vec<u8> {
        let (known, body) = match &self.body {
            SnapshotBody::Unknown => (0, &[][..]),
            SnapshotBody::Limits(body) => (1, body.as_slice()),
        };
        let mut out = Vec::with_capacity(16 + self.etag.len() + body.len());
        out.put_u64(version);
        out.put_u8(known);
        out.put_u32(u32::try_from(self.etag.len()).unwrap_or(u32::MAX));
        out.extend_from_slice(&self.etag);
        out.extend_from_slice(body);
        out
    }
}

/// Who polls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Poller {
    pub(super) worker: u64,
    pub(super) until_us: u64,
}

impl Poller {
    pub(super) fn read(bytes: &[u8]) -> Self {
        let mut reader = Reader::new(bytes);
        match (reader.u64(), reader.u64()) {
            (Some(worker), Some(until_us)) => Self { worker, until_us },
            _ => Self::default(),
        }
    }

    pub(super) fn write(self) -> Vec<u8> {
        [self.worker.to_le_bytes(), self.until_us.to_le_bytes()].concat()
    }
}
