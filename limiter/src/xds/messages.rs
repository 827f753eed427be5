//! The messages of xDS and of envoyproxy/ratelimit's configuration, as far as the limiter uses
//! them.
//!
//! Field numbers are those of `envoy/service/discovery/v3/discovery.proto` and
//! `ratelimit/config/ratelimit/v3/rls_conf.proto`. Decoding skips fields not declared here;
//! [`super::content`] has the declared numbers of a configuration and reports others.

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
    pub(super) value: bytes::Bytes,
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
    pub(super) detailed_metric: bool,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_xds_configuration_equals_its_file_form() {
        let limit = RateLimitPolicy {
            unit: 4,
            requests_per_unit: 7,
            name: "users".to_owned(),
            replaces: vec![RateLimitReplace {
                name: "all".to_owned(),
            }],
            ..RateLimitPolicy::default()
        };
        let user = RateLimitDescriptor {
            key: "user".to_owned(),
            rate_limit: Some(limit),
            shadow_mode: true,
            quota_mode: true,
            detailed_metric: true,
            ..RateLimitDescriptor::default()
        };
        let free = RateLimitDescriptor {
            key: "plan".to_owned(),
            value: "free: *".to_owned(),
            rate_limit: Some(RateLimitPolicy {
                unlimited: true,
                ..RateLimitPolicy::default()
            }),
            descriptors: vec![user],
            ..RateLimitDescriptor::default()
        };
        let config = RateLimitConfig {
            name: "x".to_owned(),
            domain: "shop/http".to_owned(),
            descriptors: vec![free],
        };
        let expected = json!({"domain": "shop/http", "descriptors": [{
            "key": "plan", "value": "free: *", "rate_limit": {"unlimited": true},
            "descriptors": [{
                "key": "user", "shadow_mode": true, "quota_mode": true, "detailed_metric": true,
                "rate_limit": {
                    "unit": "day", "requests_per_unit": 7, "name": "users", "replaces": [{"name": "all"}]
                }
            }]
        }]});
        assert_eq!(config.file(), expected);
    }
}
