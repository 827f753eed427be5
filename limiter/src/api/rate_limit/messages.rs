//! The messages of Envoy's rate limit service and of gRPC's health service.
//!
//! Declared here rather than taken from a crate of Envoy's whole API: the limiter needs ten of its
//! thousand messages. Field numbers are those of `envoy/service/ratelimit/v3/rls.proto`,
//! `envoy/extensions/common/ratelimit/v3/ratelimit.proto` and `grpc/health/v1/health.proto`;
//! decoding skips fields not declared here.

use std::{borrow::Cow, collections::HashMap};

use serde::{Deserialize, Deserializer, de::Error};
use serde_json::{Map, Value as Json};

/// `envoy.service.ratelimit.v3.RateLimitRequest`
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RateLimitRequest {
    #[prost(string, tag = "1")]
    pub(super) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) descriptors: Vec<RateLimitDescriptor>,
    #[prost(uint32, tag = "3")]
    #[serde(alias = "hits_addend", deserialize_with = "number")]
    pub(super) hits_addend: u32,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor`
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub(super) entries: Vec<Entry>,
    #[prost(message, optional, tag = "2")]
    pub(super) limit: Option<RateLimitOverride>,
    #[prost(message, optional, tag = "3")]
    #[serde(alias = "hits_addend", deserialize_with = "wrapped")]
    pub(super) hits_addend: Option<UInt64Value>,
    #[prost(bool, tag = "4")]
    #[serde(alias = "is_negative_hits")]
    pub(super) is_negative_hits: bool,
}

/// `RateLimitDescriptor.Entry`
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Entry {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

/// `RateLimitDescriptor.RateLimitOverride`
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RateLimitOverride {
    #[prost(uint32, tag = "1")]
    #[serde(alias = "requests_per_unit", deserialize_with = "number")]
    pub(super) requests_per_unit: u32,
    #[prost(enumeration = "Unit", tag = "2")]
    #[serde(deserialize_with = "unit")]
    pub(super) unit: i32,
}

/// `RateLimitResponse.Code`
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum Code {
    Unknown = 0,
    Ok = 1,
    OverLimit = 2,
}

/// `envoy.service.ratelimit.v3.RateLimitResponse`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RateLimitResponse {
    #[prost(enumeration = "Code", tag = "1")]
    pub(super) overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub(super) statuses: Vec<DescriptorStatus>,
    #[prost(message, optional, tag = "6")]
    pub(super) dynamic_metadata: Option<Struct>,
}

/// `RateLimitResponse.DescriptorStatus`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct DescriptorStatus {
    #[prost(enumeration = "Code", tag = "1")]
    pub(super) code: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) current_limit: Option<CurrentLimit>,
    #[prost(uint32, tag = "3")]
    pub(super) limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub(super) duration_until_reset: Option<Duration>,
}

/// `RateLimitResponse.RateLimit`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CurrentLimit {
    #[prost(uint32, tag = "1")]
    pub(super) requests_per_unit: u32,
    #[prost(enumeration = "Unit", tag = "2")]
    pub(super) unit: i32,
    #[prost(string, tag = "3")]
    pub(super) name: String,
}

/// `google.protobuf.Duration`, in whole seconds.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Duration {
    #[prost(int64, tag = "1")]
    pub(super) seconds: i64,
}

/// `google.protobuf.Struct`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Struct {
    #[prost(map = "string, message", tag = "1")]
    pub(super) fields: HashMap<String, Value>,
}

/// `google.protobuf.Value`, only the kinds used here.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Value {
    #[prost(oneof = "Kind", tags = "2, 3, 6")]
    pub(super) kind: Option<Kind>,
}

/// The kind of a [`Value`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Kind {
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(message, tag = "6")]
    List(ListValue),
}

/// `google.protobuf.ListValue`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ListValue {
    #[prost(message, repeated, tag = "1")]
    pub(super) values: Vec<Value>,
}

/// `grpc.health.v1.HealthCheckRequest`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub(super) service: String,
}

/// `grpc.health.v1.HealthCheckResponse`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct HealthCheckResponse {
    #[prost(enumeration = "Health", tag = "1")]
    pub(super) status: i32,
}

/// `HealthCheckResponse.ServingStatus`
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum Health {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self {
            kind: Some(Kind::Text(text.to_owned())),
        }
    }
}

// --- Numbers and units in these messages, also as proto3's JSON writes them

/// `google.protobuf.UInt64Value`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct UInt64Value {
    #[prost(uint64, tag = "1")]
    pub(super) value: u64,
}

/// `envoy.type.v3.RateLimitUnit`, and with the same numbers `RateLimitResponse.RateLimit.Unit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum Unit {
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Month = 5,
    Year = 6,
    Week = 7,
}

/// The units with their names in JSON and their lengths in milliseconds.
pub(super) const UNITS: [(Unit, &str, u64); 7] = [
    (Unit::Second, "SECOND", 1000),
    (Unit::Minute, "MINUTE", 60_000),
    (Unit::Hour, "HOUR", 3_600_000),
    (Unit::Day, "DAY", 86_400_000),
    (Unit::Week, "WEEK", 7 * 86_400_000),
    (Unit::Month, "MONTH", 30 * 86_400_000),
    (Unit::Year, "YEAR", 365 * 86_400_000),
];

/// A number, or a number as text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number<'t> {
    Number(u64),
    #[serde(borrow)]
    Text(Cow<'t, str>),
}

impl Number<'_> {
    fn value(&self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(text) => text.parse().ok(),
        }
    }
}

/// A `uint32`.
pub(super) fn number<'d, D: Deserializer<'d>>(from: D) -> Result<u32, D::Error> {
    let value = Number::deserialize(from)?.value();
    let value = value.and_then(|value| u32::try_from(value).ok());
    value.ok_or_else(|| D::Error::custom("expected a number from 0 to 4294967295"))
}

/// A `google.protobuf.UInt64Value`; null means absent.
fn wrapped<'d, D: Deserializer<'d>>(from: D) -> Result<Option<UInt64Value>, D::Error> {
    let Some(number) = Option::<Number<'_>>::deserialize(from)? else {
        return Ok(None);
    };
    let value = number.value();
    let value = value.ok_or_else(|| D::Error::custom("expected a number, or a text of one"))?;
    Ok(Some(UInt64Value { value }))
}

/// A unit by its name or number.
pub(super) fn unit<'d, D: Deserializer<'d>>(from: D) -> Result<i32, D::Error> {
    let number = match Number::deserialize(from)? {
        Number::Number(number) => i32::try_from(number).ok(),
        Number::Text(text) => {
            let mut units = UNITS.iter();
            let found = units.find(|(_, name, _)| *name == text);
            found.map(|(unit, ..)| i32::from(*unit))
        }
    };
    number
        .ok_or_else(|| D::Error::custom("expected SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR"))
}

// --- Requests and answers of `POST /json`, as proto3's JSON writes them

fn code_name(code: i32) -> &'static str {
    match Code::try_from(code) {
        Ok(Code::Ok) => "OK",
        Ok(Code::OverLimit) => "OVER_LIMIT",
        Ok(Code::Unknown) | Err(_) => "UNKNOWN",
    }
}

/// The answer as JSON; fields at their defaults are left out.
pub(super) fn to_json(response: &RateLimitResponse) -> Json {
    let mut answer = Map::new();
    answer.insert(
        "overallCode".to_owned(),
        code_name(response.overall_code).into(),
    );
    let statuses = response.statuses.iter().map(|status| {
        let mut fields = Map::new();
        fields.insert("code".to_owned(), code_name(status.code).into());
        if let Some(limit) = &status.current_limit {
            let unit = Unit::try_from(limit.unit).unwrap_or(Unit::Unknown);
            let mut units = UNITS.iter();
            let name = units
                .find(|(known, ..)| *known == unit)
                .map(|(_, name, _)| *name);
            let mut current = Map::new();
            current.insert("name".to_owned(), limit.name.as_str().into());
            current.insert("requestsPerUnit".to_owned(), limit.requests_per_unit.into());
            if let Some(name) = name {
                current.insert("unit".to_owned(), name.into());
            }
            fields.insert("currentLimit".to_owned(), current.into());
        }
        if status.limit_remaining > 0 {
            fields.insert("limitRemaining".to_owned(), status.limit_remaining.into());
        }
        if let Some(reset) = &status.duration_until_reset {
            let text = format!("{}s", reset.seconds);
            fields.insert("durationUntilReset".to_owned(), text.into());
        }
        Json::Object(fields)
    });
    let statuses: Vec<Json> = statuses.collect();
    if !statuses.is_empty() {
        answer.insert("statuses".to_owned(), statuses.into());
    }
    if let Some(metadata) = &response.dynamic_metadata {
        answer.insert("dynamicMetadata".to_owned(), struct_to_json(metadata));
    }
    Json::Object(answer)
}

fn struct_to_json(fields: &Struct) -> Json {
    let fields = fields.fields.iter();
    let fields = fields.map(|(key, value)| (key.clone(), kind_to_json(value.kind.as_ref())));
    Json::Object(fields.collect())
}

fn kind_to_json(kind: Option<&Kind>) -> Json {
    match kind {
        Some(Kind::Number(number)) => (*number).into(),
        Some(Kind::Text(text)) => text.as_str().into(),
        Some(Kind::List(list)) => {
            let values = list.values.iter();
            values
                .map(|value| kind_to_json(value.kind.as_ref()))
                .collect()
        }
        None => Json::Null,
    }
}
