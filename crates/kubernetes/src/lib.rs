//! Limits as Kubernetes objects.
//!
//! [`RateLimit`] and [`RateLimitDomain`] are the project's own kinds, and [`crds`] their definitions. [`translate`]
//! turns all objects of a cluster into one limits file for each domain, and says what became of each object: no
//! I/O, no clock, the same result whatever the order. [`from_limits_file`] is the way back, for those who move.

mod convert;
mod filter;
mod kinds;
mod schema;
mod targets;
mod translate;

pub use convert::{Manifests, ToObjects, from_limits_file};
pub use filter::{FilterSettings, Loader, MANAGED_BY, filter_object_name};
pub use kinds::{
    ANCESTORS_MAX, Ancestor, AncestorRef, BackendRef, Caps, Condition, Empty, Filter, Gateway,
    GatewayClass, GatewayClassSpec, GatewayRef, GatewaySpec, InForce, Key, LabelSelector,
    LabelSelectorRequirement, Listener, Metadata, Namespace, Object, Overrides, ParentRef,
    RateLimit, RateLimitDomain, RateLimitDomainSpec, RateLimitDomainStatus, RateLimitSpec,
    RateLimitStatus, Route, RouteKind, RouteParentStatus, RouteRule, RouteSpec, RouteStatus,
    Service, TargetRef,
};
pub use schema::{crds, crds_yaml};
pub use targets::{CLUSTER_ENTRY, GATEWAY_ENTRY, RULE_ENTRY, filter_descriptors};
pub use translate::{
    AncestorResult, DomainObjectResult, DomainResult, Finding, ObjectResult, Objects, Translation,
    store_name, translate,
};

/// The API group of the kinds: the environment variable `RL_KUBERNETES_GROUP` of the build, if it was set.
pub const GROUP: &str = match option_env!("RL_KUBERNETES_GROUP") {
    Some(group) => group,
    None => "rl.example.com",
};

/// The version of the kinds.
pub const VERSION: &str = "v1alpha1";

/// The `apiVersion` of the kinds.
pub fn api_version() -> String {
    format!("{GROUP}/{VERSION}")
}

/// The name of the controller in a status, and of its fields in an object.
pub fn controller_name() -> String {
    format!("{GROUP}/controller")
}
