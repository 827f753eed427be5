//! Fields of a configuration that this limiter does not read.

use std::{collections::BTreeSet, fmt};

use bytes::{Buf, Bytes};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// The most fields that are named.
const MAX_FIELDS: usize = 20;
/// How deep descriptors are searched; prost decodes no deeper.
const MAX_DEPTH: usize = 100;

/// A message of `rls_conf.proto`, without `RateLimit` before its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Message {
    Config,
    Descriptor,
    Policy,
    Replace,
}

/// A field of a message, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Field {
    message: Message,
    number: u32,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RateLimit{:?} field {}", self.message, self.number)
    }
}

impl Message {
    /// The highest number of its declared fields, as in `messages.rs`.
    const fn known(self) -> u32 {
        match self {
            Self::Config => 3,
            Self::Descriptor => 7,
            Self::Policy => 5,
            Self::Replace => 1,
        }
    }

    /// The message type of a field, if it is one that may contain unknown fields.
    const fn part(self, number: u32) -> Option<Self> {
        match (self, number) {
            (Self::Config, 3) | (Self::Descriptor, 4) => Some(Self::Descriptor),
            (Self::Descriptor, 3) => Some(Self::Policy),
            (Self::Policy, 5) => Some(Self::Replace),
            _ => None,
        }
    }
}

/// Adds the unknown fields of a `RateLimitConfig`. Stops at malformed input, which decoding
/// rejects.
pub(super) fn fields(config: &Bytes, found: &mut BTreeSet<Field>) {
    let _ = look(Message::Config, config.clone(), MAX_DEPTH, found);
}

fn look(
    message: Message,
    mut bytes: Bytes,
    depth: usize,
    found: &mut BTreeSet<Field>,
) -> Option<()> {
    let deeper = depth.checked_sub(1)?;
    while bytes.has_remaining() {
        let (number, wire) = decode_key(&mut bytes).ok()?;
        if number > message.known() && found.len() < MAX_FIELDS {
            found.insert(Field { message, number });
        }
        match message.part(number) {
            Some(part) if wire == WireType::LengthDelimited => {
                let len = usize::try_from(decode_varint(&mut bytes).ok()?).ok()?;
                if len > bytes.remaining() {
                    return None;
                }
                look(part, bytes.split_to(len), deeper, found)?;
            }
            _ => skip_field(wire, number, &mut bytes, DecodeContext::default()).ok()?,
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    /// A later version of the messages.
    #[derive(Clone, PartialEq, prost::Message)]
    struct Config {
        #[prost(string, tag = "2")]
        domain: String,
        #[prost(message, repeated, tag = "3")]
        descriptors: Vec<Descriptor>,
        #[prost(uint32, tag = "9")]
        new: u32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct Descriptor {
        #[prost(string, tag = "1")]
        key: String,
        #[prost(message, repeated, tag = "4")]
        descriptors: Vec<Self>,
        #[prost(bool, tag = "7")]
        quota_mode: bool,
        #[prost(string, tag = "8")]
        new: String,
    }

    fn names(bytes: &[u8]) -> Vec<String> {
        let mut found = BTreeSet::new();
        fields(&Bytes::copy_from_slice(bytes), &mut found);
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn unknown_fields_are_named_at_any_depth_and_known_ones_are_not() {
        let mut inner = Descriptor {
            key: "user".to_owned(),
            quota_mode: true,
            ..Descriptor::default()
        };
        let config = |inner: &Descriptor, new| {
            let outer = Descriptor {
                key: "plan".to_owned(),
                descriptors: vec![inner.clone()],
                ..Descriptor::default()
            };
            Config {
                domain: "shop".to_owned(),
                descriptors: vec![outer],
                new,
            }
            .encode_to_vec()
        };
        assert_eq!(names(&config(&inner, 0)), [] as [&str; 0]);
        inner.new = "x".to_owned();
        assert_eq!(
            names(&config(&inner, 5)),
            ["RateLimitConfig field 9", "RateLimitDescriptor field 8"]
        );
        // Cut anywhere, or filled with any byte: no panic.
        let whole = config(&inner, 5);
        for at in 0..whole.len() {
            names(&whole[..at]);
            let mut wrong = whole.clone();
            wrong[at] = 0xff;
            names(&wrong);
        }
    }
}
