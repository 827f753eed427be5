//! The objects that load the filter into the proxies of a Gateway, where a `RateLimitDomain` leaves that to the controller:
//! `filter: managed`.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    Key, api_version,
    targets::{Dialect, GATEWAY_API, filter_descriptors},
};

/// The label of these objects, and its value.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "rl-controller");

/// The kinds of objects that load the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loader {
    /// Istio's since 1.30.
    TrafficExtension,
    /// Istio's before.
    WasmPlugin,
    /// Envoy Gateway's.
    EnvoyExtensionPolicy,
}

impl Loader {
    /// Every kind.
    pub const ALL: [Self; 3] = [
        Self::TrafficExtension,
        Self::WasmPlugin,
        Self::EnvoyExtensionPolicy,
    ];

    /// The kind for a Gateway whose class has this controller; `None` for one that loads no filters.
    pub fn of(controller: &str, has_traffic_extensions: bool) -> Option<Self> {
        match Dialect::of(controller) {
            Dialect::EnvoyGateway => Some(Self::EnvoyExtensionPolicy),
            Dialect::Istio if has_traffic_extensions => Some(Self::TrafficExtension),
            Dialect::Istio => Some(Self::WasmPlugin),
            Dialect::Unknown => None,
        }
    }

    /// The API group, the version, the kind and its plural.
    pub const fn words(self) -> [&'static str; 4] {
        const ISTIO: &str = "extensions.istio.io";
        match self {
            Self::TrafficExtension => [ISTIO, "v1alpha1", "TrafficExtension", "trafficextensions"],
            Self::WasmPlugin => [ISTIO, "v1alpha1", "WasmPlugin", "wasmplugins"],
            Self::EnvoyExtensionPolicy => [
                "gateway.envoyproxy.io",
                "v1alpha1",
                "EnvoyExtensionPolicy",
                "envoyextensionpolicies",
            ],
        }
    }
}

/// What the filters of all Gateways have in common.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct FilterSettings {
    /// The filter's image, without `oci://`.
    pub image: String,
    /// The configuration of filters in Istio's Gateways, but for `domain` and what distinguishes Gateways.
    istio: Option<Map<String, Value>>,
    /// The same for those of Envoy Gateway.
    envoy_gateway: Option<Map<String, Value>>,
}

impl FilterSettings {
    /// The configuration of the filter of a Gateway.
    ///
    /// # Errors
    /// There is none for its implementation.
    pub fn config(&self, loader: Loader, gateway: &Key, domain: &str) -> Result<Value, String> {
        let is_envoy_gateway = loader == Loader::EnvoyExtensionPolicy;
        let (name, common) = if is_envoy_gateway {
            ("envoyGateway", &self.envoy_gateway)
        } else {
            ("istio", &self.istio)
        };
        let mut config = common
            .clone()
            .ok_or_else(|| format!("the file of --filter has no `{name}`"))?;
        config.insert("domain".to_owned(), domain.into());
        let descriptors = config.entry("descriptors").or_insert_with(|| json!([]));
        let Value::Array(descriptors) = descriptors else {
            return Err(format!("`{name}.descriptors` is no list"));
        };
        let Value::Array(own) = filter_descriptors(gateway, is_envoy_gateway) else {
            return Ok(config.into());
        };
        // What the file says of an entry counts, such as a property of another version of Envoy Gateway.
        let missing = |one: &Value| !descriptors.iter().any(|other| other["key"] == one["key"]);
        let missing: Vec<Value> = own.into_iter().filter(missing).collect();
        descriptors.extend(missing);
        Ok(config.into())
    }

    /// The object for a Gateway, which belongs to the `RateLimitDomain` of this name and uid.
    ///
    /// # Errors
    /// See [`Self::config`].
    pub fn object(
        &self,
        loader: Loader,
        gateway: &Key,
        domain: &str,
        owner: (&str, &str),
    ) -> Result<Value, String> {
        let config = self.config(loader, gateway, domain)?;
        let token = config.pointer("/limiter/token_env").cloned();
        let image = &self.image;
        let environment: Vec<Value> = { token.iter() }
            .map(|name| json!({"name": name, "valueFrom": "HOST"}))
            .collect();
        let target = json!({"group": GATEWAY_API, "kind": "Gateway", "name": gateway.name});
        let spec = match loader {
            // After authentication, so that claims are there; before authorization, so that what it refuses counts.
            Loader::TrafficExtension => json!({
                "targetRefs": [target], "match": [{"mode": "CLIENT"}], "phase": "AUTHZ", "priority": 10,
                "wasm": {
                    "url": format!("oci://{image}"), "imagePullPolicy": "IfNotPresent",
                    "failStrategy": "FAIL_RELOAD", "vmConfig": {"env": environment},
                    "pluginConfig": config,
                },
            }),
            Loader::WasmPlugin => json!({
                "targetRefs": [target], "match": [{"mode": "CLIENT"}], "phase": "AUTHZ", "priority": 10,
                "url": format!("oci://{image}"), "imagePullPolicy": "IfNotPresent",
                "failStrategy": "FAIL_RELOAD", "vmConfig": {"env": environment},
                "pluginConfig": config,
            }),
            Loader::EnvoyExtensionPolicy => json!({
                "targetRefs": [target],
                "wasm": [{
                    "name": "ratelimit", "rootID": "ratelimit",
                    "code": {"type": "Image", "image": {"url": image}},
                    "failOpen": true,
                    "env": {"hostKeys": token.into_iter().collect::<Vec<_>>()},
                    "config": config,
                }],
            }),
        };
        let [group, version, kind, _] = loader.words();
        let (name, uid) = owner;
        Ok(json!({
            "apiVersion": format!("{group}/{version}"),
            "kind": kind,
            "metadata": {
                "name": filter_object_name(gateway).name,
                "namespace": gateway.namespace,
                "labels": {MANAGED_BY.0: MANAGED_BY.1},
                // So that it goes with its domain, also while no controller runs.
                "ownerReferences": [
                    {"apiVersion": api_version(), "kind": "RateLimitDomain", "name": name, "uid": uid},
                ],
            },
            "spec": spec,
        }))
    }
}

/// The object that loads the filter into the proxies of a Gateway.
pub fn filter_object_name(gateway: &Key) -> Key {
    Key::new(&gateway.namespace, format!("rl-{}", gateway.name))
}
