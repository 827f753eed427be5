//! The names of everything stored in Redis. They appear in this crate and `lua/` only.
//!
//! | key | what |
//! |---|---|
//! | `rl:domains` | SET of the domains that were ever written |
//! | `rl:{D}:policy` | HASH, the record of domain D: revision, the domain's own fields, generations |
//! | `rl:{D}:limits` | HASH, the limits of domain D, a field each |
//! | `rl:{D}:changes` | ZSET, the revision at which each limit and override changed last |
//! | `rl:{D}:o:LIMIT` | HASH, the overrides of one limit, a field each |
//! | `rl:{D}:s:RANDOM` | HASH, staged overrides of an edit; expires |
//! | `rl:{D}:applied` | STRING, what `rlctl apply --watch` applied last of the files of domain D |
//! | `rl:{D}:objects` | STRING, the same of `rlctl controller` and its objects |
//! | `rl:{D}:history` | STREAM of the last edits, newest last |
//! | `rl:{D}:p:LIMIT` | ZSET of the proxies that are active for a limit (`*`: for any), by time |
//! | `rl:fleet:SLOT` | HASH, each limiter's fleet report of a time slot |
//! | `rl:{D}:a:SLOT` | HASH, each limiter's activity report of a time slot |
//! | `rl:b:D:LIMIT:VALUES…` | one bucket; with `partition`, `rl:b:D:LIMIT:{PARTITION…}:VALUES…` |
//! | `rl:r:{BUCKET}` | HASH, the reservations of one bucket, in its cluster slot: BUCKET is the bucket's whole key |
//! | `rl:r:seal` | STRING, random: the key of the seals of reservations; named so that users who may write those may write it |
//! | `rl:p:{BUCKET}` | STRING, the denials of one bucket, where its limit has a penalty; named like reservations |
//! | `rl:sim:{RUN}:BUCKET` | one bucket of a simulation; expires |
//! | `rl:edits` | channel, one message per edit |
//!
//! `rl:` stands for the configurable prefix. The braces in a record's keys are literal: they put
//! all keys of a domain's record into one cluster slot. Buckets have none, so they spread, unless
//! the limit has a `partition`, whose values then choose the slot. In a domain that is not a plain
//! name, other characters are written as `%XX`.

use std::{
    fmt::{self, Write as _},
    str::FromStr,
};

use policy::{Limit, Name};
use ring::digest;

use crate::plan::telemetry::TimeSlot;

/// Builds and reads keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    prefix: String,
}

/// Why a text cannot prefix our keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key prefix is 1 to 64 characters of a-z, A-Z, 0-9, '.', '_', '-', '/' and ':'")]
pub struct PrefixError;

/// A bucket's key, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketKey {
    /// The domain.
    pub domain: Name,
    /// The limit.
    pub limit: Name,
    /// The values that make up the hash tag, in the order of `partition`; empty without one.
    pub partition: Vec<KeyValue>,
    /// The other values, in the order of `per`.
    pub values: Vec<KeyValue>,
}

/// Where limits are kept that are applied to a domain again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Limits files, by `rlctl apply --watch`.
    Files,
    /// Objects in Kubernetes, by `rlctl controller`.
    Objects,
}

impl Default for Keys {
    fn default() -> Self {
        Self {
            prefix: "rl:".to_owned(),
        }
    }
}

impl FromStr for Keys {
    type Err = PrefixError;

    fn from_str(prefix: &str) -> Result<Self, PrefixError> {
        let plain =
            |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'/' | b':');
        if (1..=64).contains(&prefix.len()) && prefix.bytes().all(plain) {
            Ok(Self {
                prefix: prefix.to_owned(),
            })
        } else {
            Err(PrefixError)
        }
    }
}

impl Keys {
    /// What every key starts with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Every domain that was ever written.
    pub fn domains(&self) -> String {
        format!("{}domains", self.prefix)
    }

    /// The key of the seal of reservations, which the first limiter that needs it draws.
    pub fn seal(&self) -> String {
        format!("{}r:seal", self.prefix)
    }

    /// The channel of edits.
    pub fn edits(&self) -> String {
        format!("{}edits", self.prefix)
    }

    /// The record of a domain.
    pub fn policy(&self, domain: &Name) -> String {
        format!("{}{{{}}}:policy", self.prefix, InKey(domain))
    }

    /// The limits of a domain.
    pub fn limits(&self, domain: &Name) -> String {
        format!("{}{{{}}}:limits", self.prefix, InKey(domain))
    }

    /// What changed in a domain, by revision.
    pub fn changes(&self, domain: &Name) -> String {
        format!("{}{{{}}}:changes", self.prefix, InKey(domain))
    }

    /// The edits of a domain.
    pub fn history(&self, domain: &Name) -> String {
        format!("{}{{{}}}:history", self.prefix, InKey(domain))
    }

    /// What was applied last of a domain's limits that are kept elsewhere.
    pub fn applied(&self, domain: &Name, origin: Origin) -> String {
        let of = match origin {
            Origin::Files => "applied",
            Origin::Objects => "objects",
        };
        format!("{}{{{}}}:{of}", self.prefix, InKey(domain))
    }

    /// The overrides of one limit.
    pub fn overrides(&self, domain: &Name, limit: &Name) -> String {
        format!("{}{{{}}}:o:{limit}", self.prefix, InKey(domain))
    }

    /// Staged overrides of an edit.
    pub fn staged(&self, domain: &Name, random: u64) -> String {
        format!("{}{{{}}}:s:{random:016x}", self.prefix, InKey(domain))
    }

    /// The proxies that are active for a limit; `None`: for anything in the domain.
    pub fn proxies(&self, domain: &Name, limit: Option<&Name>) -> String {
        let limit = limit.map_or("*", Name::as_str);
        format!("{}{{{}}}:p:{limit}", self.prefix, InKey(domain))
    }

    /// The fleet reports of a time slot, by its number.
    pub fn fleet(&self, slot: u64) -> String {
        format!("{}fleet:{slot}", self.prefix)
    }

    /// The activity reports of a time slot.
    pub fn activity(&self, domain: &Name, slot: TimeSlot) -> String {
        let (letter, number) = (slot.resolution.letter(), slot.number);
        format!("{}{{{}}}:a:{letter}{number}", self.prefix, InKey(domain))
    }

    /// A bucket of a simulation, with a name of the author's choice.
    pub fn simulated(&self, run: u64, bucket: &str) -> String {
        format!("{}sim:{{{run:016x}}}:{bucket}", self.prefix)
    }

    /// The field of an override: its values in the order of `per`.
    pub fn override_field(values: &[Option<Vec<u8>>]) -> String {
        let mut field = String::new();
        for (i, value) in values.iter().enumerate() {
            if i > 0 {
                field.push(':');
            }
            push_value(&mut field, value.as_deref());
        }
        field
    }

    /// The values of an override's field; `None` if one of them is only known by its digest.
    pub fn override_values(field: &str) -> Option<Vec<Option<Vec<u8>>>> {
        let values = field.split(':').map(|text| match KeyValue::parse(text)? {
            KeyValue::Absent => Some(None),
            KeyValue::Plain(value) => Some(Some(value)),
            KeyValue::Digest(_) => None,
        });
        values.collect()
    }

    /// The key of a limit's bucket; `values` in the order of its `per`.
    pub fn bucket_of(
        &self,
        domain: &Name,
        limit: &Limit,
        values: &[Option<impl AsRef<[u8]>>],
    ) -> String {
        self.bucket(domain, &limit.name, &limit.per, &limit.partition, values)
    }

    /// The key of a bucket's reservations, in the same cluster slot.
    pub fn reservations_of(&self, bucket: &str) -> String {
        self.beside('r', bucket)
    }

    /// The key of a bucket's denials, in the same cluster slot.
    pub fn denials_of(&self, bucket: &str) -> String {
        self.beside('p', bucket)
    }

    /// Takes the key of a bucket's denials apart; `None` if it is not one of ours.
    pub fn parse_denials(&self, key: &str) -> Option<BucketKey> {
        let bucket = key.strip_prefix(self.prefix.as_str())?.strip_prefix("p:")?;
        let braced = bucket.strip_prefix('{').and_then(|b| b.strip_suffix('}'));
        self.parse_bucket(braced.unwrap_or(bucket).as_bytes())
    }

    /// A glob for SCAN: the denials of a limit's buckets.
    pub fn denials_glob(&self, domain: &Name, limit: &Name) -> String {
        format!(
            "{}p:*{}",
            self.prefix,
            self.bucket_glob(domain, Some(limit))
        )
    }

    fn beside(&self, letter: char, bucket: &str) -> String {
        if bucket.contains('{') {
            format!("{}{letter}:{bucket}", self.prefix)
        } else {
            format!("{}{letter}:{{{bucket}}}", self.prefix)
        }
    }

    /// `per` and `values` go together; of `partition`, the names that are in `per` count.
    fn bucket(
        &self,
        domain: &Name,
        limit: &Name,
        per: &[Name],
        partition: &[Name],
        values: &[Option<impl AsRef<[u8]>>],
    ) -> String {
        let texts = [self.prefix.as_str(), domain.as_str(), limit.as_str()];
        let values_bytes = { values.iter().flatten() }.map(|value| value.as_ref().len() + 1);
        let bytes =
            texts.iter().map(|text| text.len()).sum::<usize>() + values_bytes.sum::<usize>();
        // Room for what is escaped, a tag and values that are absent: to grow costs more than to write.
        let mut key = String::with_capacity(bytes + 24);
        key.push_str(&self.prefix);
        key.push_str("b:");
        let _ = write!(key, "{}", InKey(domain));
        key.push(':');
        key.push_str(limit.as_str());
        let value_of = |name: &Name| {
            let at = per.iter().position(|p| p == name)?;
            values.get(at).map(|v| v.as_ref().map(AsRef::as_ref))
        };
        let mut tag = partition.iter().filter_map(value_of).peekable();
        if tag.peek().is_some() {
            key.push_str(":{");
            for (i, value) in tag.enumerate() {
                if i > 0 {
                    key.push(':');
                }
                push_value(&mut key, value);
            }
            key.push('}');
        }
        for (name, value) in per.iter().zip(values) {
            if !partition.contains(name) {
                key.push(':');
                push_value(&mut key, value.as_ref().map(AsRef::as_ref));
            }
        }
        key
    }

    /// Takes a bucket's key apart; `None` if it is not one of ours.
    pub fn parse_bucket(&self, key: &[u8]) -> Option<BucketKey> {
        let key = std::str::from_utf8(key).ok()?;
        let rest = key.strip_prefix(self.prefix.as_str())?.strip_prefix("b:")?;
        let (domain, rest) = rest.split_once(':')?;
        let (limit, rest) = match rest.split_once(':') {
            Some((limit, rest)) => (limit, Some(rest)),
            None => (rest, None),
        };
        let (tag, rest) = match rest.and_then(|r| r.strip_prefix('{')) {
            Some(tagged) => {
                let (tag, rest) = tagged.split_once('}')?;
                let rest = match rest {
                    "" => None,
                    _ => Some(rest.strip_prefix(':')?),
                };
                (Some(tag), rest)
            }
            None => (None, rest),
        };
        let values = |text: Option<&str>| match text {
            Some(text) => text.split(':').map(KeyValue::parse).collect(),
            None => Some(Vec::new()),
        };
        Some(BucketKey {
            domain: domain_in_key(domain)?,
            limit: limit.parse().ok()?,
            partition: values(tag)?,
            values: values(rest)?,
        })
    }

    /// A glob for SCAN: the buckets of a domain, or of one of its limits.
    pub fn bucket_glob(&self, domain: &Name, limit: Option<&Name>) -> String {
        // Neither a prefix nor a name holds a character that is special in a glob, nor a domain as
        // it is written in keys.
        match limit {
            Some(limit) => format!("{}b:{}:{limit}*", self.prefix, InKey(domain)),
            None => format!("{}b:{}:*", self.prefix, InKey(domain)),
        }
    }
}

impl BucketKey {
    /// The values in the order of `per`, for the `per` and `partition` that made the key;
    /// `None` if their number does not fit.
    pub fn arrange(&self, per: &[Name], partition: &[Name]) -> Option<Vec<KeyValue>> {
        let used: Vec<&Name> = partition.iter().filter(|p| per.contains(p)).collect();
        if used.len() != self.partition.len()
            || per.len() != self.partition.len() + self.values.len()
        {
            return None;
        }
        let mut rest = self.values.iter();
        per.iter()
            .map(|name| match used.iter().position(|u| *u == name) {
                Some(at) => self.partition.get(at).cloned(),
                None => rest.next().cloned(),
            })
            .collect()
    }
}

// ---- Descriptor values inside keys: readable, reversible, and unable to pose as anything else.
//
// | value | in the key |
// |---|---|
// | absent | `%-` |
// | empty | `%0` |
// | up to 128 bytes | itself, with `: { } %`, control and non-ASCII bytes as `%XX` |
// | longer | `%~` and its SHA-256 in hexadecimal |
//
// A `%` of a value is always written `%25`, so no value can look like a marker, close a hash tag
// or add a field. Two values share a key only if their SHA-256 collides.

/// The longest value that is kept readable, in bytes.
const READABLE_MAX: usize = 128;
const ABSENT: &str = "%-";
const EMPTY: &str = "%0";
const DIGEST: &str = "%~";

/// A value as found in a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyValue {
    /// The requests that have no such entry.
    Absent,
    /// The value.
    Plain(Vec<u8>),
    /// A value too long for a key: its SHA-256, in lower-case hexadecimal.
    Digest(String),
}

impl KeyValue {
    /// What a request's value becomes in a key.
    pub fn new(value: Option<&[u8]>) -> Self {
        match value {
            None => Self::Absent,
            Some(value) if value.len() > READABLE_MAX => Self::Digest(sha256(value)),
            Some(value) => Self::Plain(value.to_vec()),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        if text == ABSENT {
            return Some(Self::Absent);
        }
        if text == EMPTY {
            return Some(Self::Plain(Vec::new()));
        }
        if let Some(hex) = text.strip_prefix(DIGEST) {
            let lower_hex = |b: u8| b.is_ascii_digit() || matches!(b, b'a'..=b'f');
            return (hex.len() == 64 && hex.bytes().all(lower_hex))
                .then(|| Self::Digest(hex.to_owned()));
        }
        let plain = unescape(text)?;
        // Only what `push_value` writes is a value: one spelling for each.
        let mut again = String::with_capacity(text.len());
        push_value(&mut again, Some(&plain));
        (again == text).then_some(Self::Plain(plain))
    }
}

/// Appends a value to a key.
fn push_value(key: &mut String, value: Option<&[u8]>) {
    match value {
        None => key.push_str(ABSENT),
        Some([]) => key.push_str(EMPTY),
        Some(value) if value.len() > READABLE_MAX => {
            key.push_str(DIGEST);
            key.push_str(&sha256(value));
        }
        Some(value) => match std::str::from_utf8(value) {
            Ok(text) if value.iter().all(|byte| is_plain(*byte)) => key.push_str(text),
            _ => value.iter().for_each(|byte| push_byte(key, *byte)),
        },
    }
}

/// A domain as written in keys: a name as it is; in other texts, everything that has a meaning in
/// keys or globs as `%XX`.
struct InKey<'d>(pub(crate) &'d Name);

impl fmt::Display for InKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'/');
        if self.0.as_str().bytes().all(plain) {
            return f.write_str(self.0.as_str());
        }
        for byte in self.0.as_str().bytes() {
            if plain(byte) {
                f.write_char(char::from(byte))?;
            } else {
                write!(f, "%{byte:02X}")?;
            }
        }
        Ok(())
    }
}

/// The domain that [`InKey`] wrote.
fn domain_in_key(text: &str) -> Option<Name> {
    let domain = String::from_utf8(unescape(text)?).ok()?;
    let domain = Name::domain(&domain).ok()?;
    (InKey(&domain).to_string() == text).then_some(domain)
}

/// Whether a byte of a value stands for itself in a key.
fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && !matches!(byte, b':' | b'{' | b'}' | b'%')
}

fn push_byte(key: &mut String, byte: u8) {
    const HEX: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F',
    ];
    let nibble = |n: u8| HEX.get(usize::from(n)).copied().unwrap_or_default();
    if is_plain(byte) {
        key.push(char::from(byte));
    } else {
        key.push('%');
        key.push(nibble(byte >> 4));
        key.push(nibble(byte & 0xf));
    }
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut value = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let high = char::from(bytes.next()?).to_digit(16)?;
            let low = char::from(bytes.next()?).to_digit(16)?;
            value.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            value.push(byte);
        }
    }
    Some(value)
}

fn sha256(value: &[u8]) -> String {
    let mut hex = String::with_capacity(64);
    for byte in digest::digest(&digest::SHA256, value).as_ref() {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

// ---- The keys of limits, whether or not the limits still exist.

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

    /// The bucket of a limit without `per`, for operators. The other buckets of the limit, and no others, have
    /// a colon after it. Nothing in it is special in a glob or in a shell.
    pub fn bare_bucket(&self, domain: &Name, limit: &Name) -> String {
        self.bucket(domain, limit, &[], &[], &[None::<&[u8]>; 0])
    }
}

#[cfg(test)]
mod tests;
