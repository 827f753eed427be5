//! The keys of limits, whether or not the limits still exist.

use policy::Name;

use super::{BucketKey, Keys, domain_in_key};

/// A key that belongs to a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitKey {
    /// Its name in the store.
    pub key: String,
    /// What it is.
    pub what: LimitKeyKind,
}

/// What a key is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitKeyKind {
    /// A bucket.
    Bucket(BucketKey),
    /// The overrides of a limit.
    Overrides {
        /// The domain.
        domain: Name,
        /// The limit.
        limit: Name,
    },
}

impl LimitKey {
    /// The domain and the limit.
    pub fn of(&self) -> (&Name, &Name) {
        match &self.what {
            LimitKeyKind::Bucket(bucket) => (&bucket.domain, &bucket.limit),
            LimitKeyKind::Overrides { domain, limit } => (domain, limit),
        }
    }
}

impl Keys {
    /// A key that belongs to a limit; `None` for all others.
    pub fn limit_key(&self, key: String) -> Option<LimitKey> {
        let what = if let Some(bucket) = self.parse_bucket(key.as_bytes()) {
            LimitKeyKind::Bucket(bucket)
        } else {
            let rest = key.strip_prefix(self.prefix())?.strip_prefix('{')?;
            let (domain, rest) = rest.split_once('}')?;
            LimitKeyKind::Overrides {
                domain: domain_in_key(domain)?,
                limit: rest.strip_prefix(":o:")?.parse().ok()?,
            }
        };
        Some(LimitKey { key, what })
    }

    /// A glob for all buckets of a limit and of no other, for operators.
    pub fn buckets_of(&self, domain: &Name, limit: &Name) -> String {
        format!("{}b:{domain}:{limit}:*", self.prefix())
    }
}
