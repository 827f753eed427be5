//! The messages of Envoy's rate limit service and of gRPC's health service.
//!
//! Declared here rather than taken from a crate of Envoy's whole API: the limiter needs ten of its
//! thousand messages. Field numbers are those of `envoy/service/ratelimit/v3/rls.proto`,
//! `envoy/extensions/common/ratelimit/v3/ratelimit.proto` and `grpc/health/v1/health.proto`;
//! decoding skips fields not declared here.

use std::collections::HashMap;

use serde::Deserialize;

use super::scalars::{self, UInt64Value, Unit};

/// `envoy.service.ratelimit.v3.RateLimitRequest`
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RateLimitRequest {
    #[prost(string, tag = "1")]
    pub(super) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) descriptors: Vec<RateLimitDescriptor>,
    #[prost(uint32, tag = "3")]
    #[serde(alias = "hits_addend", deserialize_with = "scalars::number")]
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
    #[serde(alias = "hits_addend", deserialize_with = "scalars::wrapped")]
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
    #[serde(alias = "requests_per_unit", deserialize_with = "scalars::number")]
    pub(super) requests_per_unit: u32,
    #[prost(enumeration = "Unit", tag = "2")]
    #[serde(deserialize_with = "scalars::unit")]
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
    #[prost(message, repeated, tag = "3")]
    pub(super) response_headers_to_add: Vec<HeaderValue>,
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

/// `google.protobuf.Duration`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Duration {
    #[prost(int64, tag = "1")]
    pub(super) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(super) nanos: i32,
}

/// `envoy.config.core.v3.HeaderValue`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct HeaderValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
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
    #[prost(oneof = "Kind", tags = "3, 6")]
    pub(super) kind: Option<Kind>,
}

/// The kind of a [`Value`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Kind {
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
