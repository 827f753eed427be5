//! The bucket that a Redis key stands for.

use policy::{Limit, Name};
use store::{KeyValue, Keys};

use super::visible;

/// Entries and values of a bucket, in the order of the limit's `per`; `None` is the bucket of the
/// requests without that entry.
pub type Entries = Vec<(String, Option<String>)>;

/// The bucket of a key; `None` if the limit is deleted or has another `per` now.
pub fn entries(keys: &Keys, limit: Option<&Limit>, key: &str) -> Option<Entries> {
    let limit = limit?;
    let bucket = keys.parse_bucket(key.as_bytes())?;
    let values = bucket.arrange(&limit.per, &limit.partition)?;
    let named = limit.per.iter().zip(&values);
    Some(named.map(|(name, value)| entry(name, value)).collect())
}

/// One entry, as people read it.
pub fn entry(name: &Name, value: &KeyValue) -> (String, Option<String>) {
    let value = match value {
        KeyValue::Absent => None,
        KeyValue::Plain(bytes) => Some(visible(bytes)),
        KeyValue::Digest(sha256) => Some(format!("sha256:{sha256}")),
    };
    (name.to_string(), value)
}

/// `user=alice tenant: none`; `(all)` of a limit with one bucket.
pub fn describe(entries: &[(String, Option<String>)]) -> String {
    if entries.is_empty() {
        return "(all)".to_owned();
    }
    let one = |(name, value): &(String, Option<String>)| match value {
        Some(value) => format!("{name}={value}"),
        None => format!("{name}: none"),
    };
    entries.iter().map(one).collect::<Vec<_>>().join(" ")
}
