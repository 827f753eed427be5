//! The definitions of the kinds, made from the schema of limits files.
//!
//! A definition's schema must be *structural*: each field has one type, and there is no reference, no recursion and no
//! choice between types. So shorthands of limits files (`per: user` for `per: [user]`) have their long form alone in an
//! object, and a field with several forms (`cost`, `paused`) is left to the controller. Conditions between fields
//! become rules in CEL. What the API server admits may still be invalid; what it refuses always is.

use serde_json::{Map, Value, json};

use crate::{
    ANCESTORS_MAX, GROUP, VERSION,
    translate::{OBJECT_LIMITS_MAX, TARGETS_MAX},
};

/// The schema of limits files.
const LIMITS: &str = include_str!("../../../docs/limits.schema.json");

/// Fields of limits on descriptors of Envoy's rate limit service, which have no target.
const FOREIGN: [&str; 5] = [
    "descriptor",
    "unlimited",
    "share_threshold",
    "quota_mode",
    "charge",
];

/// The definitions of both kinds, as `kubectl apply` takes them.
pub fn crds() -> Vec<Value> {
    let source: Value = serde_json::from_str(LIMITS).unwrap_or_default();
    let limits = Limits { root: &source };
    vec![
        definition(
            &Kind {
                name: "RateLimit",
                plural: "ratelimits",
                short: "rl",
                scope: "Namespaced",
                description: "Limits on the requests of a Gateway, of routes or of Services. The status has an \
                              entry for each Gateway: Accepted (the limits are valid), Programmed (they are in \
                              the store) and Enforced (every live proxy of the Gateway applies them).",
            },
            &rate_limit_spec(&limits),
            &rate_limit_status(),
            &json!([
                column("Target", "string", ".spec.targetRefs[0].name"),
                column("Accepted", "string", ".status.accepted"),
                column("Enforced", "string", ".status.enforced"),
                column("Age", "date", ".metadata.creationTimestamp"),
            ]),
        ),
        definition(
            &Kind {
                name: "RateLimitDomain",
                plural: "ratelimitdomains",
                short: "rld",
                scope: "Cluster",
                description: "A domain of limits: the Gateways whose proxies request it, and the namespaces \
                              whose RateLimits count in it.",
            },
            &domain_spec(&limits),
            &domain_status(),
            &json!([
                column("Domain", "string", ".spec.domain"),
                column(
                    "Accepted",
                    "string",
                    ".status.conditions[?(@.type==\"Accepted\")].status"
                ),
                column("Revision", "integer", ".status.revision"),
                column("Age", "date", ".metadata.creationTimestamp"),
            ]),
        ),
    ]
}

/// [`crds`] as one stream of YAML.
pub fn crds_yaml() -> String {
    let documents = crds().into_iter().map(|crd| {
        let node: policy::Node = serde_json::from_value(crd).unwrap_or(policy::Value::Null.into());
        node.to_yaml()
    });
    let documents: Vec<String> = documents.collect();
    documents.join("---\n")
}

// --- The frame of a definition.

struct Kind {
    name: &'static str,
    plural: &'static str,
    short: &'static str,
    scope: &'static str,
    description: &'static str,
}

fn column(name: &str, kind: &str, path: &str) -> Value {
    json!({"name": name, "type": kind, "jsonPath": path})
}

fn definition(kind: &Kind, spec: &Value, status: &Value, columns: &Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{}.{GROUP}", kind.plural),
            "labels": {"gateway.networking.k8s.io/policy": "Inherited"},
        },
        "spec": {
            "group": GROUP,
            "scope": kind.scope,
            "names": {
                "kind": kind.name,
                "listKind": format!("{}List", kind.name),
                "plural": kind.plural,
                "singular": kind.name.to_ascii_lowercase(),
                "shortNames": [kind.short],
                "categories": ["gateway-api"],
            },
            "versions": [{
                "name": VERSION,
                "served": true,
                "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": columns,
                "schema": {"openAPIV3Schema": {
                    "description": kind.description,
                    "type": "object",
                    "required": ["spec"],
                    "properties": {
                        "apiVersion": text("The version of the kind."),
                        "kind": text("The kind."),
                        "metadata": {"type": "object"},
                        "spec": spec,
                        "status": status,
                    },
                }},
            }],
        },
    })
}

fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

/// A name that the API server admits for objects.
fn object_name(description: &str) -> Value {
    json!({
        "type": "string",
        "description": description,
        "minLength": 1,
        "maxLength": 253,
        "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
    })
}

/// What a field may hold that only the reader of limits files can check.
fn any(description: &str) -> Value {
    json!({"x-kubernetes-preserve-unknown-fields": true, "description": description})
}

fn rule(rule: &str, message: &str) -> Value {
    json!({"rule": rule, "message": message})
}

// --- RateLimit.

fn rate_limit_spec(limits: &Limits<'_>) -> Value {
    json!({
        "description": "What is limited, and how.",
        "type": "object",
        "required": ["targetRefs"],
        "properties": {
            "targetRefs": {
                "description": "What is limited, in the object's own namespace: Gateways; or routes and Services. \
                                All of it shares the buckets: write two objects for two of them.",
                "type": "array",
                "minItems": 1,
                "maxItems": TARGETS_MAX,
                "x-kubernetes-list-type": "atomic",
                "items": target_ref(),
            },
            "limits": limits.list("The limits. All that match a request apply to it, and so do those of other objects."),
            "overrides": {
                "description": "Limits of a Gateway that replace limits of the same name on its routes, whoever wrote them.",
                "type": "object",
                "required": ["limits"],
                "properties": {"limits": limits.list("The limits.")},
            },
        },
        "x-kubernetes-validations": [
            rule("has(self.limits) || has(self.overrides)", "limits or overrides are required"),
            rule(
                "self.targetRefs.all(t, t.kind == 'Gateway') || !self.targetRefs.exists(t, t.kind == 'Gateway')",
                "targetRefs: Gateways and others cannot be in one object",
            ),
            rule(
                "!has(self.overrides) || self.targetRefs.all(t, t.kind == 'Gateway' && !has(t.sectionName))",
                "overrides: only whole Gateways override",
            ),
        ],
    })
}

fn target_ref() -> Value {
    json!({
        "type": "object",
        "required": ["group", "kind", "name"],
        "properties": {
            "group": {
                "description": "gateway.networking.k8s.io; empty for a Service.",
                "type": "string",
                "enum": [crate::targets::GATEWAY_API, ""],
            },
            "kind": {
                "description": "Gateway, HTTPRoute, GRPCRoute or Service.",
                "type": "string",
                "enum": ["Gateway", "HTTPRoute", "GRPCRoute", "Service"],
            },
            "name": object_name("The name."),
            "sectionName": object_name("A rule of a route or a listener of a Gateway, by its name. Absent: the whole."),
        },
        "x-kubernetes-validations": [
            rule(
                "(self.kind == 'Service') == (self.group == '')",
                "group: gateway.networking.k8s.io, and empty for a Service",
            ),
            rule("self.kind != 'Service' || !has(self.sectionName)", "a Service has no sections"),
        ],
    })
}

fn rate_limit_status() -> Value {
    json!({
        "description": "What became of the limits.",
        "type": "object",
        "properties": {
            "accepted": text("True if every ancestor's condition is, else the reason of the first that is not."),
            "enforced": text("As accepted, of Enforced: kubectl wait --for=jsonpath='{.status.enforced}'=True"),
            "inForce": in_force(),
            "ancestors": {
                "description": "An entry for each Gateway.",
                "type": "array",
                "maxItems": ANCESTORS_MAX,
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object",
                    "required": ["ancestorRef", "controllerName"],
                    "properties": {
                        "ancestorRef": {
                            "description": "The Gateway; the target itself, if it is a Service of a mesh or was not found.",
                            "type": "object",
                            "required": ["name"],
                            "properties": {
                                "group": text("The API group."),
                                "kind": text("The kind."),
                                "namespace": text("The namespace."),
                                "name": text("The name."),
                                "sectionName": text("The part that was not found."),
                            },
                        },
                        "controllerName": text("Who wrote the entry."),
                        "domain": text("The domain that has the limits in the store."),
                        "revision": revision(),
                        "conditions": conditions("Accepted, Programmed and Enforced."),
                    },
                },
            },
        },
    })
}

fn in_force() -> Value {
    json!({
        "description": "The version that is in force: the last one that was accepted.",
        "type": "object",
        // Written as a whole, so that nothing stays of what others write into it.
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "generation": {"type": "integer", "format": "int64", "description": "Its generation."},
            "spec": {
                "type": "object",
                "description": "Its spec.",
                "x-kubernetes-preserve-unknown-fields": true,
            },
        },
    })
}

fn revision() -> Value {
    json!({"type": "integer", "format": "int64", "description": "The revision of the domain that has them."})
}

fn conditions(description: &str) -> Value {
    json!({
        "description": description,
        "type": "array",
        "maxItems": 8,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
            "properties": {
                "type": text("What it is about."),
                "status": {
                    "type": "string",
                    "enum": ["True", "False", "Unknown"],
                    "description": "Whether it is the case.",
                },
                "reason": text("Why, in one word."),
                "message": text("Why."),
                "observedGeneration": {
                    "type": "integer",
                    "format": "int64",
                    "description": "The version of the spec that it is about.",
                },
                "lastTransitionTime": {
                    "type": "string",
                    "format": "date-time",
                    "description": "When the status changed.",
                },
            },
        },
    })
}

// --- RateLimitDomain.

fn domain_spec(limits: &Limits<'_>) -> Value {
    json!({
        "description": "What the domain is of, and who may use it.",
        "type": "object",
        "required": ["domain"],
        "properties": {
            "domain": limits.field("/$defs/name", "The domain, as in the filter's configuration."),
            "gateways": {
                "description": "The Gateways whose proxies request the domain. A Gateway is in one domain.",
                "type": "array",
                "maxItems": 1024,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["namespace", "name"],
                "items": {
                    "type": "object",
                    "required": ["namespace", "name"],
                    "properties": {
                        "namespace": object_name("The namespace."),
                        "name": object_name("The name."),
                    },
                },
            },
            "mesh": {
                "type": "boolean",
                "description": "Whether sidecars and waypoints of a mesh request the domain.",
            },
            "namespaces": selector("The namespaces whose RateLimits count, by their labels. Absent: all."),
            "caps": caps(),
            "filter": {
                "description": "Who loads the filter into the proxies: the administrator (none, the default) or the \
                                controller (managed).",
                "type": "string",
                "enum": ["none", "managed"],
            },
            "exempt": limits.field("/properties/exempt", "Requests that no limit of the domain applies to."),
            "paused": any("true, or {until: 2026-12-01T00:00Z}: no limit of the domain is in force."),
        },
    })
}

/// A selection by labels, as elsewhere in Kubernetes.
fn selector(description: &str) -> Value {
    json!({
        "description": description,
        "type": "object",
        "properties": {
            "matchLabels": {
                "description": "Each of these labels has this value.",
                "type": "object",
                "additionalProperties": {"type": "string"},
            },
            "matchExpressions": {
                "description": "Each of these holds.",
                "type": "array",
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": text("The label."),
                        "operator": {
                            "description": "How it is compared.",
                            "type": "string",
                            "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
                        },
                        "values": {
                            "description": "The values of In and NotIn.",
                            "type": "array",
                            "x-kubernetes-list-type": "atomic",
                            "items": {"type": "string"},
                        },
                    },
                },
            },
        },
    })
}

fn caps() -> Value {
    json!({
        "description": "How much of the domain a namespace may use.",
        "type": "object",
        "properties": {
            "limitsPerNamespace": {
                "description": "The most limits of all RateLimits of a namespace. Absent: as many as fit.",
                "type": "integer",
                "format": "int64",
                "minimum": 0,
                "maximum": limits_file::LIMITS_MAX,
            },
        },
    })
}

fn domain_status() -> Value {
    json!({
        "description": "What became of the domain.",
        "type": "object",
        "properties": {
            "revision": revision(),
            "inForce": in_force(),
            "conditions": conditions("Accepted."),
        },
    })
}

// --- Limits, from the schema of limits files.

struct Limits<'s> {
    root: &'s Value,
}

impl Limits<'_> {
    /// A list of limits, each with its own owner in server-side apply.
    fn list(&self, description: &str) -> Value {
        json!({
            "description": description,
            "type": "array",
            "minItems": 1,
            "maxItems": OBJECT_LIMITS_MAX,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": self.limit(),
        })
    }

    fn limit(&self) -> Value {
        let schema = self.at("/$defs/limit");
        let mut limit = self.structural(schema);
        if let Some(fields) = limit.get_mut("properties").and_then(Value::as_object_mut) {
            fields.retain(|name, _| !FOREIGN.contains(&name.as_str()));
            fields.insert(
                "name".to_owned(),
                json!({
                    "description": "Unique in the object.",
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 63,
                    "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
                }),
            );
        }
        let fields = limit.get("properties").and_then(Value::as_object);
        let untyped = fields
            .into_iter()
            .flatten()
            .filter(|(_, field)| field.get("type").is_none());
        let untyped: Vec<String> = untyped.map(|(name, _)| name.clone()).collect();
        let mut rules = vec![rule(
            "has(self.rate) || has(self.limit)",
            "a limit needs a rate, or a limit of requests in flight",
        )];
        for one in schema
            .pointer("/allOf")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            let part = |name| {
                one.get(name)
                    .map(|part| cel(part, &untyped))
                    .unwrap_or_default()
            };
            let message = one.get("description").and_then(Value::as_str);
            let text = format!("!({}) || ({})", part("if"), part("then"));
            rules.push(rule(&text, message.unwrap_or_default()));
        }
        with(limit, "x-kubernetes-validations", Value::Array(rules))
    }

    fn field(&self, pointer: &str, description: &str) -> Value {
        with(
            self.structural(self.at(pointer)),
            "description",
            description.into(),
        )
    }

    fn at(&self, pointer: &str) -> &Value {
        self.root.pointer(pointer).unwrap_or(&Value::Null)
    }

    /// What a schema refers to, with what it says itself.
    fn resolved(&self, schema: &Value) -> Map<String, Value> {
        let mut own = schema.as_object().cloned().unwrap_or_default();
        let target = own.remove("$ref");
        let target = target.as_ref().and_then(Value::as_str);
        let Some(target) = target.and_then(|target| target.strip_prefix('#')) else {
            return own;
        };
        let mut whole = self.resolved(self.at(target));
        whole.append(&mut own);
        whole
    }

    /// Of several forms the long one, a list where there is one; `made` has the description.
    fn one_form(&self, options: &[Value], mut made: Map<String, Value>) -> Value {
        let options: Vec<_> = options.iter().map(|option| self.resolved(option)).collect();
        let is_list = |option: &&Map<String, Value>| option.get("type") == Some(&json!("array"));
        let Some(list) = options.iter().find(is_list) else {
            made.insert(
                "x-kubernetes-preserve-unknown-fields".to_owned(),
                true.into(),
            );
            if options
                .iter()
                .any(|option| option.get("type").is_some_and(may_be_null))
            {
                made.insert("nullable".to_owned(), true.into());
            }
            return Value::Object(made);
        };
        let mut list = self.structural(&Value::Object(list.clone()));
        if let Some(list) = list.as_object_mut() {
            list.append(&mut made);
        }
        list
    }

    fn structural(&self, schema: &Value) -> Value {
        let schema = self.resolved(schema);
        let mut made = Map::new();
        if let Some(description) = description(&schema) {
            made.insert("description".to_owned(), description.into());
        }
        let choice = schema.get("oneOf").or_else(|| schema.get("anyOf"));
        let choice = choice
            .and_then(Value::as_array)
            .filter(|_| !schema.contains_key("properties"));
        if let Some(options) = choice {
            return self.one_form(options, made);
        }
        for (keyword, argument) in &schema {
            let made_of = match keyword.as_str() {
                "type" => one_type(argument),
                "properties" => {
                    let fields = argument.as_object().into_iter().flatten();
                    let fields = fields.map(|(name, field)| (name.clone(), self.structural(field)));
                    Value::Object(fields.collect())
                }
                // The API server bounds what a rule may cost, so the keys need a bound.
                "propertyNames" if schema.contains_key("maxProperties") => {
                    let pattern = self.resolved(argument).remove("pattern");
                    let pattern = pattern.as_ref().and_then(Value::as_str).unwrap_or_default();
                    let keys = format!("self.all(key, key.matches('{pattern}'))");
                    let rules = json!([rule(&keys, "a name is 1 to 63 of a-z 0-9 . _ -")]);
                    made.insert("x-kubernetes-validations".to_owned(), rules);
                    continue;
                }
                // The API server drops unknown fields, and kubectl reports them.
                "additionalProperties" if argument.is_boolean() => continue,
                "items" | "additionalProperties" => self.structural(argument),
                "required" | "enum" | "pattern" | "minimum" | "maximum" | "minLength"
                | "maxLength" | "minItems" | "maxItems" | "maxProperties" => argument.clone(),
                _ => continue,
            };
            made.insert(keyword.clone(), made_of);
        }
        let (keyword, argument) = match made.get("type").and_then(Value::as_str) {
            Some("integer") => ("format", "int64".into()),
            Some("array") => ("x-kubernetes-list-type", "atomic".into()),
            None if made.contains_key("enum") => ("type", "string".into()),
            None => ("x-kubernetes-preserve-unknown-fields", true.into()),
            Some(_) => return Value::Object(made),
        };
        made.insert(keyword.to_owned(), argument);
        Value::Object(made)
    }
}

fn may_be_null(types: &Value) -> bool {
    types
        .as_array()
        .is_some_and(|types| types.contains(&json!("null")))
}

fn with(mut schema: Value, keyword: &str, argument: Value) -> Value {
    if let Some(keywords) = schema.as_object_mut() {
        keywords.insert(keyword.to_owned(), argument);
    }
    schema
}

/// In a limits file an unquoted number may stand for text; in an object it may not.
fn one_type(types: &Value) -> Value {
    match types.as_array() {
        Some(_) => "string".into(),
        None => types.clone(),
    }
}

/// A default is described only: set by the API server, it would be a field that does not go with others.
fn description(schema: &Map<String, Value>) -> Option<String> {
    let text = schema.get("description").and_then(Value::as_str);
    let default = schema.get("default").map(|default| match default {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    });
    match (text, default) {
        (Some(text), Some(default)) => Some(format!("{text} Default: {default}.")),
        (None, Some(default)) => Some(format!("Default: {default}.")),
        (text, None) => text.map(str::to_owned),
    }
}

/// A condition on the fields of an object, as CEL, which does not know fields without a type: of several conditions
/// those on such a field are left out.
fn cel(schema: &Value, untyped: &[String]) -> String {
    let Some(schema) = schema.as_object() else {
        return "true".to_owned();
    };
    let names = |value: &Value| -> Vec<String> {
        let names = value
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        names.map(str::to_owned).collect()
    };
    let required = schema.get("required").map(names).unwrap_or_default();
    let mut parts: Vec<String> = required
        .iter()
        .map(|name| format!("has(self.{name})"))
        .collect();
    for (name, field) in schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let words = match (field.get("const"), field.get("enum")) {
            (Some(word), _) => vec![word.as_str().unwrap_or_default().to_owned()],
            (_, words) => words.map(names).unwrap_or_default(),
        };
        let words: Vec<String> = words
            .iter()
            .map(|word| format!("self.{name} == '{word}'"))
            .collect();
        let absent = format!("!has(self.{name})");
        let absent = Some(absent).filter(|_| !required.contains(name));
        let any: Vec<String> = absent.into_iter().chain(words).collect();
        parts.push(format!("({})", any.join(" || ")));
    }
    if let Some(not) = schema.get("not") {
        parts.push(format!("!({})", cel(not, untyped)));
    }
    if let Some(options) = schema.get("anyOf").and_then(Value::as_array) {
        let options: Vec<String> = { options.iter() }
            .filter(|option| {
                let required = option.get("required").map(names).unwrap_or_default();
                !required.iter().any(|name| untyped.contains(name))
            })
            .map(|option| cel(option, untyped))
            .collect();
        parts.push(format!("({})", options.join(" || ")));
    }
    parts.join(" && ")
}
