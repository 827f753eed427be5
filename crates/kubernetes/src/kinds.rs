//! The kinds: the project's own with their status, and as much as is read of others'.
//!
//! A limit in an object is a [`Node`]: its fields are those of limits files, and their reader alone interprets them.
//! Fields that are not here are ignored, as the API server of another version may have more.

use std::{collections::BTreeMap, fmt};

use policy::Node;
use serde::{Deserialize, Serialize};

// --- What every object has.

/// What a translation needs to know of an object beside its spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    /// The name, unique for a kind and namespace.
    pub name: String,
    /// The namespace; empty for an object of the whole cluster.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The version of the spec. 0 in a manifest.
    #[serde(skip_serializing_if = "is_zero")]
    pub generation: i64,
    /// When it was created, RFC 3339 in UTC. The API server writes it, and all in the same form, so texts compare as
    /// times do. Of two objects that want the same, the older one has it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub creation_timestamp: String,
    /// When its deletion was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<String>,
    /// The labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes the field by reference"
)]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

impl Metadata {
    /// Namespace and name.
    pub fn key(&self) -> Key {
        Key {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }
}

/// An object, of which `apiVersion` and `kind` are known from the list that it is in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    default,
    bound(deserialize = "S: Default + Deserialize<'de>, T: Default + Deserialize<'de>")
)]
pub struct Object<S, T = Empty> {
    /// Its name and the like.
    pub metadata: Metadata,
    /// What is wanted.
    pub spec: S,
    /// What is the case.
    pub status: T,
}

/// A spec or a status that nothing is read of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

/// Which object of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The namespace; empty for an object of the whole cluster.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl Key {
    /// A key of these parts.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

// --- RateLimit.

/// Limits on what `targetRefs` name.
pub type RateLimit = Object<RateLimitSpec, RateLimitStatus>;

/// The spec of a [`RateLimit`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RateLimitSpec {
    /// What is limited, in the object's own namespace. All of it shares the buckets.
    pub target_refs: Vec<TargetRef>,
    /// The limits, with the fields of limits files.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Node>,
    /// Limits of a Gateway that replace those of the same name on its routes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overrides: Option<Overrides>,
}

impl RateLimitSpec {
    /// The limits of `overrides`.
    pub fn overriding(&self) -> &[Node] {
        self.overrides.as_ref().map_or(&[], |found| &found.limits)
    }
}

/// The limits of a Gateway that replace others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Overrides {
    /// As [`RateLimitSpec::limits`].
    pub limits: Vec<Node>,
}

/// One of the things that are limited.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TargetRef {
    /// The API group; empty for a Service.
    pub group: String,
    /// `Gateway`, `HTTPRoute`, `GRPCRoute` or `Service`.
    pub kind: String,
    /// The name.
    pub name: String,
    /// A rule of a route or a listener of a Gateway, by its name; `None`: the whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
}

/// The status of a [`RateLimit`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RateLimitStatus {
    /// `True` if every ancestor's condition is, else the reason of the first that is not.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub accepted: String,
    /// As `accepted`, for `Enforced`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub enforced: String,
    /// The version that is in force: the last one that was accepted. It is stored here, so that a restart does not
    /// lose it, and its rules are found again when routes change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_force: Option<InForce<RateLimitSpec>>,
    /// One entry for each Gateway; at most [`ANCESTORS_MAX`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ancestors: Vec<Ancestor>,
}

/// The most entries of a status; Gateway API has the same bound.
pub const ANCESTORS_MAX: usize = 16;

/// A spec, and which version of it that is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, bound(deserialize = "S: Default + Deserialize<'de>"))]
pub struct InForce<S> {
    /// The generation.
    pub generation: i64,
    /// The spec.
    pub spec: S,
}

/// What became of an object at one Gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Ancestor {
    /// The Gateway; the target itself, if it is a Service of a mesh or was not found.
    pub ancestor_ref: AncestorRef,
    /// See [`controller_name`](crate::controller_name).
    pub controller_name: String,
    /// The domain whose limits these are in the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The revision of the domain that has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// `Accepted`, `Programmed` and `Enforced`.
    pub conditions: Vec<Condition>,
}

/// A reference to an ancestor.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AncestorRef {
    /// The API group.
    pub group: String,
    /// The kind.
    pub kind: String,
    /// The namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
    /// The part of a target that was not found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
}

/// A condition as Kubernetes has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Condition {
    /// What it is about, such as `Accepted`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why, in one word.
    pub reason: String,
    /// Why, for people.
    pub message: String,
    /// The generation that it is about.
    pub observed_generation: i64,
    /// When `status` changed, RFC 3339.
    pub last_transition_time: String,
}

// --- RateLimitDomain.

/// The administrator's part: which proxies request the limits of a domain, and who may add to them.
pub type RateLimitDomain = Object<RateLimitDomainSpec, RateLimitDomainStatus>;

/// The spec of a [`RateLimitDomain`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RateLimitDomainSpec {
    /// The domain, as in the filter's configuration.
    pub domain: String,
    /// The Gateways whose proxies request the domain. A Gateway is in one domain.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<GatewayRef>,
    /// Whether sidecars and waypoints of a mesh request it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mesh: bool,
    /// The namespaces whose objects count; `None`: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<LabelSelector>,
    /// How much of the domain a namespace may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caps: Option<Caps>,
    /// Who loads the filter into the proxies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<Filter>,
    /// Requests that no limit of the domain applies to, as in limits files.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exempt: Vec<Node>,
    /// A pause of the whole domain, as in limits files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<Node>,
}

/// A Gateway in any namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct GatewayRef {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// How much of a domain a namespace may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Caps {
    /// The most limits of all objects of a namespace; `None`: as many as fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits_per_namespace: Option<u32>,
}

/// Who loads the filter into the proxies of a domain's Gateways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Filter {
    /// The administrator.
    #[default]
    None,
    /// The controller.
    Managed,
}

/// A selection by labels, as elsewhere in Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LabelSelector {
    /// Each of these labels has this value.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Each of these holds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<LabelSelectorRequirement>,
}

/// A condition on one label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LabelSelectorRequirement {
    /// The label.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// The values, for the first two.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

impl LabelSelector {
    /// Whether it selects something with these labels. An unknown operator selects nothing.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        let equal = |(key, value): (&String, &String)| labels.get(key) == Some(value);
        let holds = |one: &LabelSelectorRequirement| {
            let value = labels.get(&one.key);
            let listed = value.is_some_and(|value| one.values.contains(value));
            match one.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        };
        self.match_labels.iter().all(equal) && self.match_expressions.iter().all(holds)
    }
}

/// The status of a [`RateLimitDomain`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RateLimitDomainStatus {
    /// The revision of the domain in the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// The version that is in force: the last one that was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_force: Option<InForce<RateLimitDomainSpec>>,
    /// `Accepted`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

// --- What is read of Gateway API and of Kubernetes itself.

/// A Gateway.
pub type Gateway = Object<GatewaySpec>;

/// What is read of a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewaySpec {
    /// Its class.
    pub gateway_class_name: String,
    /// Its listeners.
    pub listeners: Vec<Listener>,
}

/// A listener of a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Listener {
    /// Its name.
    pub name: String,
    /// The host names of its requests; `None`: all.
    pub hostname: Option<String>,
}

/// A class of Gateways.
pub type GatewayClass = Object<GatewayClassSpec>;

/// What is read of a class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewayClassSpec {
    /// Whose class it is: it decides how routes are named in Envoy.
    pub controller_name: String,
}

/// An `HTTPRoute` or a `GRPCRoute`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// Which of the two.
    pub kind: RouteKind,
    /// The object.
    pub object: Object<RouteSpec, RouteStatus>,
}

/// The kinds of routes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteKind {
    /// `HTTPRoute`.
    #[default]
    Http,
    /// `GRPCRoute`.
    Grpc,
}

impl RouteKind {
    /// The kind as objects name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "HTTPRoute",
            Self::Grpc => "GRPCRoute",
        }
    }
}

/// What is read of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RouteSpec {
    /// The Gateways that it is for.
    pub parent_refs: Vec<ParentRef>,
    /// Its rules, whose order Envoy's route names count.
    pub rules: Vec<RouteRule>,
}

/// A Gateway, or a Service of a mesh, that a route is for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ParentRef {
    /// The API group; `None`: Gateway API's.
    pub group: Option<String>,
    /// The kind; `None`: `Gateway`.
    pub kind: Option<String>,
    /// The namespace; `None`: the route's.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
}

/// A rule of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RouteRule {
    /// Its name, by which a `sectionName` finds it.
    pub name: Option<String>,
    /// Where its requests go.
    pub backend_refs: Vec<BackendRef>,
}

/// Where requests go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BackendRef {
    /// The API group; `None` or empty: a Service's.
    pub group: Option<String>,
    /// The kind; `None`: `Service`.
    pub kind: Option<String>,
    /// The namespace; `None`: the route's.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
}

/// What is read of a route's status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RouteStatus {
    /// What each Gateway's controller says.
    pub parents: Vec<RouteParentStatus>,
}

/// What the controller of a Gateway says of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RouteParentStatus {
    /// The Gateway.
    pub parent_ref: ParentRef,
    /// `Accepted` and others.
    pub conditions: Vec<Condition>,
}

/// A Service, of which only the name is read.
pub type Service = Object<Empty>;

/// A namespace, of which only the labels are read.
pub type Namespace = Object<Empty>;
