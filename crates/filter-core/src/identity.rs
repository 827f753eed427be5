//! The identity of this Envoy process, shared by its workers.

use crate::{
    codec::Reader,
    host::{Contended, Host, MAX_TRIES, Version},
};

/// The key in shared data.
const KEY: &[u8] = b"rl1:identity";

/// Random numbers of one Envoy process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The id of the process in calls to limiters.
    pub(crate) proxy: u128,
    /// The key of the hash that places buckets in the table.
    pub(crate) hash_key: [u8; 16],
}

impl Identity {
    /// Reads the identity that another worker stored, or stores one made of `random`.
    pub(crate) fn join(host: &impl Host, random: [u8; 32]) -> Result<Self, Contended> {
        for _ in 0..MAX_TRIES {
            let read = host.load(KEY);
            if let Some(identity) = read.as_ref().and_then(|read| Self::parse(&read.bytes)) {
                return Ok(identity);
            }
            // Absent, or overwritten by another plugin.
            let expected = read.map_or(Version::ABSENT, |read| read.version);
            // Whichever worker wins, the next read returns its value.
            let _ = host.swap(KEY, &random, expected);
        }
        Err(Contended)
    }

    /// An identity that is not shared.
    pub(crate) fn of(random: [u8; 32]) -> Self {
        let (proxy, hash_key) = random.split_at(16);
        Self {
            proxy: u128::from_le_bytes(proxy.try_into().unwrap_or_default()),
            hash_key: hash_key.try_into().unwrap_or_default(),
        }
    }

    /// The name of the process in calls to limiters.
    pub(crate) fn proxy_name(&self) -> String {
        format!("{:032x}", self.proxy)
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let identity = Self {
            proxy: u128::from_le_bytes(reader.array()?),
            hash_key: reader.array()?,
        };
        reader.is_empty().then_some(identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::SharedData;

    #[test]
    fn all_workers_of_a_process_are_one_proxy() {
        let host = SharedData::default();
        let first = Identity::join(&host, [1; 32]).unwrap();
        let second = Identity::join(&host, [2; 32]).unwrap();
        assert_eq!(first, second);
        assert_eq!(first.proxy_name(), "01".repeat(16));
    }

    #[test]
    fn an_invalid_stored_identity_is_replaced() {
        let host = SharedData::default();
        host.overwrite(KEY, b"something else");
        assert_eq!(Identity::join(&host, [3; 32]).unwrap().hash_key, [3; 16]);
    }
}
