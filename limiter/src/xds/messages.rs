//! The messages of xDS and of envoyproxy/ratelimit's configuration, as far as the limiter uses
//! them.
//!
//! Field numbers are those of `envoy/service/discovery/v3/discovery.proto` and
//! `ratelimit/config/ratelimit/v3/rls_conf.proto`. Decoding skips fields not declared here;
//! [`Content`] has the declared numbers of a configuration and reports others.

use std::{collections::BTreeSet, fmt};

use bytes::{Buf, Bytes};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use serde_json::{Map, Value, json};

/// `envoy.service.discovery.v3.DiscoveryRequest`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct DiscoveryRequest {
    #[prost(string, tag = "1")]
    pub(super) version_info: String,
    #[prost(message, optional, tag = "2")]
    pub(super) node: Option<Node>,
    #[prost(string, tag = "4")]
    pub(super) type_url: String,
    #[prost(string, tag = "5")]
    pub(super) response_nonce: String,
    #[prost(message, optional, tag = "6")]
    pub(super) error_detail: Option<Status>,
}

/// `envoy.config.core.v3.Node`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Node {
    #[prost(string, tag = "1")]
    pub(super) id: String,
}

/// `google.rpc.Status`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Status {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    #[prost(string, tag = "2")]
    pub(super) message: String,
}

/// `envoy.service.discovery.v3.DiscoveryResponse`, as far as the answer to it needs it.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ResponseHead {
    #[prost(string, tag = "1")]
    pub(super) version_info: String,
    #[prost(string, tag = "5")]
    pub(super) nonce: String,
}

/// What a `DiscoveryResponse` contains.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Resources {
    #[prost(message, repeated, tag = "2")]
    pub(super) all: Vec<Any>,
}

/// `google.protobuf.Any`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Any {
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) value: Bytes,
}

/// `ratelimit.config.ratelimit.v3.RateLimitConfig`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RateLimitConfig {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) domain: String,
    #[prost(message, repeated, tag = "3")]
    pub(super) descriptors: Vec<RateLimitDescriptor>,
}

/// `RateLimitDescriptor`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RateLimitDescriptor {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
    #[prost(message, optional, tag = "3")]
    pub(super) rate_limit: Option<RateLimitPolicy>,
    #[prost(message, repeated, tag = "4")]
    pub(super) descriptors: Vec<Self>,
    #[prost(bool, tag = "5")]
    pub(super) shadow_mode: bool,
    #[prost(bool, tag = "6")]
    detailed_metric: bool,
    #[prost(bool, tag = "7")]
    pub(super) quota_mode: bool,
}

/// `RateLimitPolicy`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RateLimitPolicy {
    #[prost(int32, tag = "1")]
    pub(super) unit: i32,
    #[prost(uint32, tag = "2")]
    pub(super) requests_per_unit: u32,
    #[prost(bool, tag = "3")]
    pub(super) unlimited: bool,
    #[prost(string, tag = "4")]
    pub(super) name: String,
    #[prost(message, repeated, tag = "5")]
    pub(super) replaces: Vec<RateLimitReplace>,
}

/// `RateLimitReplace`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RateLimitReplace {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}

/// The names of `RateLimitUnit`, by number. A number not listed here is an error of the
/// configuration, as 0 is.
const UNITS: [&str; 8] = [
    "unknown", "second", "minute", "hour", "day", "month", "year", "week",
];

impl RateLimitConfig {
    /// The same as a file of envoyproxy/ratelimit.
    pub(super) fn file(&self) -> Value {
        json!({"domain": self.domain, "descriptors": descriptors(&self.descriptors)})
    }
}

fn descriptors(all: &[RateLimitDescriptor]) -> Value {
    all.iter().map(RateLimitDescriptor::fields).collect()
}

impl RateLimitDescriptor {
    fn fields(&self) -> Value {
        let mut fields = Map::new();
        fields.insert("key".to_owned(), self.key.as_str().into());
        if !self.value.is_empty() {
            fields.insert("value".to_owned(), self.value.as_str().into());
        }
        if let Some(limit) = &self.rate_limit {
            fields.insert("rate_limit".to_owned(), limit.fields());
        }
        if !self.descriptors.is_empty() {
            fields.insert("descriptors".to_owned(), descriptors(&self.descriptors));
        }
        for (name, flag) in [
            ("shadow_mode", self.shadow_mode),
            ("detailed_metric", self.detailed_metric),
            ("quota_mode", self.quota_mode),
        ] {
            if flag {
                fields.insert(name.to_owned(), true.into());
            }
        }
        Value::Object(fields)
    }
}

impl RateLimitPolicy {
    fn fields(&self) -> Value {
        let mut fields = Map::new();
        if self.unlimited {
            fields.insert("unlimited".to_owned(), true.into());
        } else {
            let unit = usize::try_from(self.unit).ok().and_then(|at| UNITS.get(at));
            let unit = unit.map_or_else(|| self.unit.to_string(), |name| (*name).to_owned());
            fields.insert("unit".to_owned(), unit.into());
            fields.insert(
                "requests_per_unit".to_owned(),
                self.requests_per_unit.into(),
            );
        }
        if !self.name.is_empty() {
            fields.insert("name".to_owned(), self.name.as_str().into());
        }
        if !self.replaces.is_empty() {
            let replaces = self
                .replaces
                .iter()
                .map(|other| json!({"name": other.name}));
            fields.insert("replaces".to_owned(), replaces.collect());
        }
        Value::Object(fields)
    }
}

// --- What a response contains, found out before any of it is decoded: how much it would become, and
// which fields of its configurations this limiter does not read.

/// Bound: messages in the resources of such a response. Beyond it, an error; the last good limits
/// stay.
///
/// A message of two bytes becomes a thousand.
const MAX_MESSAGES: usize = 25_000;
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
enum Kind {
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
    message: Kind,
    number: u32,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RateLimit{:?} field {}", self.message, self.number)
    }
}

impl Kind {
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
const TYPE_FIELD: (Kind, u32, WireType) = (Kind::Resource, 1, WireType::LengthDelimited);

impl Content {
    /// Looks through a `DiscoveryResponse`. Stops at malformed input, which decoding rejects.
    ///
    /// # Errors
    /// It contains more than [`MAX_MESSAGES`], or a resource of another type than `type_url`.
    pub(super) fn new(response: &Bytes, type_url: &str) -> Result<Self, String> {
        let mut content = Self::default();
        let _ = content.look(Kind::Response, response.clone(), MAX_DEPTH);
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

    fn look(&mut self, message: Kind, mut bytes: Bytes, depth: usize) -> Option<()> {
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
mod tests;

#[cfg(test)]
mod content_tests;
