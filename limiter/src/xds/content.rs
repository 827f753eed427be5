//! What a response contains, found out before any of it is decoded: how much it would become, and
//! which fields of its configurations this limiter does not read.

use std::{collections::BTreeSet, fmt};

use bytes::{Buf, Bytes};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// The most resources, descriptors, limits and names in `replaces` of one response. A message of two
/// bytes becomes a thousand.
pub(super) const MAX_MESSAGES: usize = 25_000;
/// The most unknown fields that are named.
const MAX_FIELDS: usize = 20;
/// How much of an unknown type is shown, in bytes.
const TYPE_SHOWN: usize = 200;
/// How deep descriptors are searched; prost decodes no deeper.
const MAX_DEPTH: usize = 100;

/// What a response contains.
#[derive(Debug, Default)]
pub(super) struct Content {
    /// The messages of `rls_conf.proto`, and the resources that hold them.
    messages: usize,
    /// The types of the resources.
    types: Vec<Bytes>,
    /// Unknown fields.
    pub(super) unknown: BTreeSet<Field>,
}

/// A message; of `rls_conf.proto` without `RateLimit` before its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Message {
    Response,
    Resource,
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
            // Of other protocols than that of rate limits, which say more than is used here.
            Self::Response | Self::Resource => u32::MAX,
            Self::Config => 3,
            Self::Descriptor => 7,
            Self::Policy => 5,
            Self::Replace => 1,
        }
    }

    /// The message type of a field, if it is one that is looked into.
    const fn part(self, number: u32) -> Option<Self> {
        match (self, number) {
            (Self::Response, 2) => Some(Self::Resource),
            (Self::Resource, 2) => Some(Self::Config),
            (Self::Config, 3) | (Self::Descriptor, 4) => Some(Self::Descriptor),
            (Self::Descriptor, 3) => Some(Self::Policy),
            (Self::Policy, 5) => Some(Self::Replace),
            _ => None,
        }
    }
}

/// The type of a resource.
const TYPE_FIELD: (Message, u32, WireType) = (Message::Resource, 1, WireType::LengthDelimited);

impl Content {
    /// Looks through a `DiscoveryResponse`. Stops at malformed input, which decoding rejects.
    ///
    /// # Errors
    /// It contains more than [`MAX_MESSAGES`], or a resource of another type than `type_url`.
    pub(super) fn of(response: &Bytes, type_url: &str) -> Result<Self, String> {
        let mut content = Self::default();
        let _ = content.look(Message::Response, response.clone(), MAX_DEPTH);
        let mut types = content.types.iter();
        if let Some(other) = types.find(|found| **found != type_url) {
            let start = other.get(..TYPE_SHOWN).unwrap_or(other);
            let start = String::from_utf8_lossy(start);
            return Err(format!("a resource of another type: {start}"));
        }
        if content.messages > MAX_MESSAGES {
            return Err(format!(
                "more than {MAX_MESSAGES} resources, descriptors, limits and names that they replace"
            ));
        }
        Ok(content)
    }

    /// How many resources say their type.
    pub(super) fn typed(&self) -> usize {
        self.types.len()
    }

    fn look(&mut self, message: Message, mut bytes: Bytes, depth: usize) -> Option<()> {
        let deeper = depth.checked_sub(1)?;
        while bytes.has_remaining() {
            let (number, wire) = decode_key(&mut bytes).ok()?;
            if number > message.known() && self.unknown.len() < MAX_FIELDS {
                self.unknown.insert(Field { message, number });
            }
            match message.part(number) {
                Some(part) if wire == WireType::LengthDelimited => {
                    let len = usize::try_from(decode_varint(&mut bytes).ok()?).ok()?;
                    if len > bytes.remaining() {
                        return None;
                    }
                    self.messages += 1;
                    if self.messages > MAX_MESSAGES {
                        return None;
                    }
                    self.look(part, bytes.split_to(len), deeper)?;
                }
                _ if (message, number, wire) == TYPE_FIELD => {
                    let len = usize::try_from(decode_varint(&mut bytes).ok()?).ok()?;
                    if len > bytes.remaining() {
                        return None;
                    }
                    self.types.push(bytes.split_to(len));
                }
                _ => skip_field(wire, number, &mut bytes, DecodeContext::default()).ok()?,
            }
        }
        Some(())
    }
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

    /// A response of one resource.
    fn response(config: &[u8]) -> Bytes {
        let field = |number: u8, value: &[u8]| {
            let mut out = vec![number << 3 | 2];
            prost::encoding::encode_varint(u64::try_from(value.len()).unwrap(), &mut out);
            out.extend(value);
            out
        };
        field(2, &field(2, config)).into()
    }

    fn names(config: &[u8]) -> Vec<String> {
        let content = Content::of(&response(config), "").unwrap();
        content.unknown.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn messages_are_counted_wherever_they_are() {
        // Of two bytes each: a descriptor at the top, and one below another.
        let flat = |count: usize| [0x1a, 0].repeat(count);
        let nested = |count: usize| {
            let below = [0x22, 0].repeat(count);
            let mut above = vec![0x1a];
            prost::encoding::encode_varint(u64::try_from(below.len()).unwrap(), &mut above);
            [above, below].concat()
        };
        // Beside the resource, its configuration and the descriptor above.
        for fitting in [flat(MAX_MESSAGES - 2), nested(MAX_MESSAGES - 3)] {
            let counted = Content::of(&response(&fitting), "").map(|content| content.messages);
            assert_eq!(counted, Ok(MAX_MESSAGES));
        }
        for too_many in [flat(MAX_MESSAGES - 1), nested(MAX_MESSAGES - 2)] {
            let error = Content::of(&response(&too_many), "").unwrap_err();
            assert!(error.starts_with("more than 25000"), "{error}");
        }
        let resources = Bytes::from([0x12, 0].repeat(MAX_MESSAGES + 1));
        assert!(Content::of(&resources, "").is_err());
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
