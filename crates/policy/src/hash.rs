//! The one hash that every proxy and limiter, of every version, has to agree on.

mod names;
mod positions;

use std::hash::Hasher;

use documents::Name;
use siphasher::sip::SipHasher13;

use crate::Limit;

pub use names::Names;
pub use positions::Positions;

/// The number of a limit's bucket: SipHash-1-3 with a zero key over the limit's name and the
/// bucket's values, each preceded by its length (and a flag for absence).
///
/// Changing anything here moves users in and out of partly enforced limits.
pub fn bucket_hash<V: AsRef<[u8]>>(limit: &Name, values: &[Option<V>]) -> u64 {
    let mut hasher = SipHasher13::new();
    write(&mut hasher, Some(limit.as_str().as_bytes()));
    write_all(&mut hasher, values);
    hasher.finish()
}

/// A hash of the values of a bucket of one limit, for use within this process.
pub(crate) fn values_hash(values: &[Option<Vec<u8>>]) -> u64 {
    let mut hasher = SipHasher13::new();
    write_all(&mut hasher, values);
    hasher.finish()
}

fn write_all<V: AsRef<[u8]>>(hasher: &mut SipHasher13, values: &[Option<V>]) {
    for value in values {
        write(hasher, value.as_ref().map(AsRef::as_ref));
    }
}

fn write(hasher: &mut SipHasher13, value: Option<&[u8]>) {
    let Some(value) = value else {
        hasher.write(&[0]);
        return;
    };
    hasher.write(&[1]);
    let length = u64::try_from(value.len()).unwrap_or(u64::MAX);
    hasher.write(&length.to_le_bytes());
    hasher.write(value);
}

/// How many proxies a leased bucket distinguishes.
pub const PROXY_MARKS: u8 = algorithms::PROXY_MARKS;

/// The mark of a proxy, one of [`PROXY_MARKS`] numbers, for the buckets that it leases from.
pub fn proxy_mark(proxy: &str) -> u8 {
    let mut hasher = SipHasher13::new();
    hasher.write(proxy.as_bytes());
    let mark = hasher.finish() % u64::from(PROXY_MARKS);
    u8::try_from(mark).unwrap_or(0)
}

/// A digest of a stored record, to distinguish revisions of the same number.
pub fn digest(record: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(record);
    hasher.finish()
}

impl Limit {
    /// Whether a bucket of this limit is enforced (`true`) or only reported. A bucket that is
    /// enforced at a percentage is so at every higher one.
    pub fn enforces<V: AsRef<[u8]>>(&self, values: &[Option<V>]) -> bool {
        match self.enforce_percent {
            0 => false,
            100.. => true,
            percent => bucket_hash(&self.name, values) % 100 < u64::from(percent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_never_changes() {
        let name: Name = "per-user".parse().unwrap();
        let hash = |values: &[Option<&[u8]>]| bucket_hash(&name, values);
        insta::assert_snapshot!(
            format!("{:016x} {:016x} {:016x} {:016x}",
                hash(&[]), hash(&[None]), hash(&[Some(b"")]), hash(&[Some(b"alice"), Some(b"\xff")])),
            @"34f2109633e4488e 3ad97c15eb8f7dda 12ed2b61bb6a992e 0fd71eb41f765edd"
        );
    }
}
