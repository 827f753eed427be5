//! Between limits files and manifests.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use limits_file::ToNode as _;
use policy::{Name, Node, Place, Policy, Problem};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    Key, Object, Objects, Route, RouteKind, api_version, crds,
    targets::GATEWAY_API,
    translate::{OBJECT_LIMITS_MAX, is_label},
};

/// What a limits file does not say.
#[derive(Clone, Debug)]
pub struct ToObjects {
    /// The Gateway whose proxies request the domain.
    pub gateway: Key,
}

/// Manifests, and what differs from the limits file.
#[derive(Clone, Debug, Default)]
pub struct Manifests {
    /// The objects.
    pub documents: Vec<Node>,
    /// What means something else than before.
    pub changed: Vec<Problem>,
    /// What no object can express.
    pub lost: Vec<Problem>,
}

/// A limits file as objects: a [`RateLimitDomain`](crate::RateLimitDomain), and [`RateLimit`](crate::RateLimit)s on the Gateway, in its namespace.
pub fn from_limits_file(policy: &Policy, options: &ToObjects) -> Manifests {
    let mut made = Manifests::default();
    let domain = label(policy.domain.as_str(), &mut BTreeSet::new());
    let names = names(policy, &mut made);
    made.documents
        .push(domain_manifest(policy, &domain, options));
    let limits: Vec<_> = { policy.limits.iter() }
        .filter(|limit| names.contains_key(&limit.name))
        .collect();
    let several = limits.len() > OBJECT_LIMITS_MAX;
    for (at, limits) in limits.chunks(OBJECT_LIMITS_MAX).enumerate() {
        let here: BTreeSet<&Name> = limits.iter().map(|limit| &limit.name).collect();
        let nodes: Vec<Node> = { limits.iter() }
            .map(|limit| {
                let mut limit = (*limit).clone();
                limit.replaces.retain(|name| {
                    let kept = here.contains(name);
                    if !kept {
                        made.lost.push(problem(
                            &limit.name,
                            "replaces",
                            format!(
                                "`{name}` is in another object, of which nothing can be replaced"
                            ),
                        ));
                    }
                    kept
                });
                for name in &mut limit.replaces {
                    *name = names.get(name).unwrap_or(name).clone();
                }
                limit.name = names.get(&limit.name).unwrap_or(&limit.name).clone();
                long_form(limit.to_node())
            })
            .collect();
        let name = if several {
            format!("{domain}-{}", at + 1)
        } else {
            domain.clone()
        };
        made.documents.push(manifest(
            "RateLimit",
            [
                ("namespace", Node::text(&options.gateway.namespace)),
                ("name", Node::text(name)),
            ],
            Node::map([
                ("targetRefs", Node::list([target(&options.gateway)])),
                ("limits", Node::list(nodes)),
            ]),
        ));
    }
    made
}

fn domain_manifest(policy: &Policy, name: &str, options: &ToObjects) -> Node {
    let gateway = Node::map([
        ("namespace", Node::text(&options.gateway.namespace)),
        ("name", Node::text(&options.gateway.name)),
    ]);
    let mut spec = Node::map([
        ("domain", Node::text(policy.domain.as_str())),
        ("gateways", Node::list([gateway])),
    ]);
    if !policy.exempt.is_empty() {
        let exempt = policy.exempt.iter().map(|one| long_form(one.to_node()));
        spec.set("exempt", Node::list(exempt));
    }
    if let Some(paused) = policy.paused {
        spec.set("paused", paused.to_node());
    }
    manifest("RateLimitDomain", [("name", Node::text(name))], spec)
}

fn manifest<const N: usize>(kind: &str, metadata: [(&str, Node); N], spec: Node) -> Node {
    Node::map([
        ("apiVersion", Node::text(api_version())),
        ("kind", Node::text(kind)),
        ("metadata", Node::map(metadata)),
        ("spec", spec),
    ])
}

fn target(gateway: &Key) -> Node {
    Node::map([
        ("group", Node::text(GATEWAY_API)),
        ("kind", Node::text("Gateway")),
        ("name", Node::text(&gateway.name)),
    ])
}

/// The names of the limits in an object; those that cannot be in one are left out.
fn names(policy: &Policy, made: &mut Manifests) -> BTreeMap<Name, Name> {
    let own = policy.limits.iter().map(|limit| limit.name.as_str());
    let mut taken: BTreeSet<String> = own
        .filter(|name| is_label(name))
        .map(str::to_owned)
        .collect();
    let mut names = BTreeMap::new();
    for limit in &policy.limits {
        if limit.descriptor.is_some() {
            let message = "a limit on descriptors of Envoy's rate limit service has no target";
            made.lost
                .push(problem(&limit.name, "descriptor", message.to_owned()));
            continue;
        }
        let mut name = limit.name.clone();
        if !is_label(name.as_str()) {
            let other = label(name.as_str(), &mut taken);
            let message = format!(
                "renamed to `{other}`, since names in an object have no dot and no underscore"
            );
            made.changed.push(problem(&name, "name", message));
            name = other.parse().unwrap_or(name);
        }
        names.insert(limit.name.clone(), name);
    }
    names
}

/// A DNS label close to a name, that is not taken yet.
fn label(name: &str, taken: &mut BTreeSet<String>) -> String {
    let plain: String = { name.chars() }
        .map(|c| {
            if c.is_ascii_lowercase() || c.is_ascii_digit() {
                c
            } else {
                '-'
            }
        })
        .take(58)
        .collect();
    let plain = plain.trim_matches('-');
    let plain = if plain.is_empty() { "limit" } else { plain };
    let mut found = plain.to_owned();
    for number in 2_u32.. {
        if taken.insert(found.clone()) {
            break;
        }
        found = format!("{plain}-{number}");
    }
    found
}

fn problem(limit: &Name, field: &str, message: String) -> Problem {
    let mut problem = Problem::new(field, None, message);
    problem.limit = Some(limit.to_string());
    problem
}

/// Every list of patterns as a list: a field of an object has one type.
fn long_form(mut node: Node) -> Node {
    if let policy::Value::Map(fields) = &mut node.value {
        for field in fields.iter_mut().filter(|field| field.key == "match") {
            if let policy::Value::Map(entries) = &mut field.value.value {
                for entry in entries
                    .iter_mut()
                    .filter(|entry| entry.value.as_text().is_some())
                {
                    entry.value = Node::list([entry.value.clone()]);
                }
            }
        }
    }
    node
}

// --- Manifests as objects.

impl Objects {
    /// Adds the object that a manifest describes, or those in its list. Kinds that a translation does not use are left
    /// out. Returns the fields that the project's own kinds do not have, which the API server drops.
    ///
    /// # Errors
    /// A field has another type, or the project has no such kind, with the place of the object.
    pub fn read(&mut self, document: &Node) -> Result<Vec<Problem>, Problem> {
        let list = document
            .get("items")
            .filter(|_| kind(document).ends_with("List"));
        let items = list.map_or(std::slice::from_ref(document), Node::items);
        let mut unknown = Vec::new();
        for item in items {
            read_one(item, self)?;
            unknown.append(&mut unknown_fields(item));
        }
        Ok(unknown)
    }

    /// Adds Gateways and Services that are only referred to: manifests of a whole cluster are rarely at hand.
    pub fn add_implied(&mut self) {
        let gateways = self.domains.iter().flat_map(|domain| &domain.spec.gateways);
        let gateways = gateways
            .map(|of| Key::new(&of.namespace, &of.name))
            .collect();
        let services = self.rate_limits.iter().flat_map(|object| {
            let targets = object.spec.target_refs.iter();
            let services = targets.filter(|target| target.kind == "Service");
            services.map(|target| Key::new(&object.metadata.namespace, &target.name))
        });
        let services = services.collect();
        add_missing(&mut self.gateways, gateways);
        add_missing(&mut self.services, services);
    }
}

fn add_missing<S: Default, T: Default>(known: &mut Vec<Object<S, T>>, mut keys: BTreeSet<Key>) {
    for object in known.iter() {
        keys.remove(&object.metadata.key());
    }
    known.extend(keys.iter().map(implied));
}

fn implied<S: Default, T: Default>(key: &Key) -> Object<S, T> {
    let mut object = Object::<S, T>::default();
    object.metadata.namespace.clone_from(&key.namespace);
    object.metadata.name.clone_from(&key.name);
    object
}

fn kind(document: &Node) -> &str {
    document
        .get("kind")
        .and_then(Node::as_text)
        .unwrap_or_default()
}

fn group(document: &Node) -> &str {
    let version = document.get("apiVersion").and_then(Node::as_text);
    let parts = version.and_then(|version| version.split_once('/'));
    parts.map_or("", |(group, _)| group)
}

fn read_one(document: &Node, objects: &mut Objects) -> Result<(), Problem> {
    match (group(document), kind(document)) {
        (crate::GROUP, "RateLimit") => objects.rate_limits.push(read(document)?),
        (crate::GROUP, "RateLimitDomain") => objects.domains.push(read(document)?),
        (crate::GROUP, other) => {
            let message = format!("{} has no kind `{other}`", crate::GROUP);
            return Err(Problem::new("kind", document.place, message));
        }
        (GATEWAY_API, "Gateway") => objects.gateways.push(read(document)?),
        (GATEWAY_API, "GatewayClass") => objects.classes.push(read(document)?),
        (GATEWAY_API, "HTTPRoute") => objects.routes.push(Route {
            kind: RouteKind::Http,
            object: read(document)?,
        }),
        (GATEWAY_API, "GRPCRoute") => objects.routes.push(Route {
            kind: RouteKind::Grpc,
            object: read(document)?,
        }),
        ("", "Service") => objects.services.push(read(document)?),
        ("", "Namespace") => objects.namespaces.push(read(document)?),
        _ => {}
    }
    Ok(())
}

fn unknown_fields(document: &Node) -> Vec<Problem> {
    static KINDS: LazyLock<Vec<Value>> = LazyLock::new(crds);
    let mut unknown = Vec::new();
    let name = Some(kind(document)).filter(|_| group(document) == crate::GROUP);
    let mut kinds = KINDS.iter();
    let its = kinds.find(|its| its.pointer("/spec/names/kind").and_then(Value::as_str) == name);
    let schema =
        its.and_then(|its| its.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec"));
    if let (Some(schema), Some(spec)) = (schema, document.get("spec")) {
        note_unknown(spec, schema, "spec", &mut unknown);
    }
    unknown
}

fn note_unknown(node: &Node, schema: &Value, path: &str, unknown: &mut Vec<Problem>) {
    if let Some(schema) = schema.get("items") {
        for item in node.items() {
            note_unknown(item, schema, path, unknown);
        }
    }
    let known = schema.get("properties").and_then(Value::as_object);
    let (Some(known), policy::Value::Map(entries)) = (known, &node.value) else {
        return;
    };
    for entry in entries {
        let path = format!("{path}.{}", entry.key);
        match known.get(&entry.key) {
            // The reader of limits files knows their fields.
            Some(_) if matches!(entry.key.as_str(), "limits" | "exempt") => {}
            Some(schema) => note_unknown(&entry.value, schema, &path, unknown),
            None => unknown.push(Problem::new(path, entry.place, "there is no such field")),
        }
    }
}

fn read<T: DeserializeOwned>(document: &Node) -> Result<T, Problem> {
    let name = document
        .get("metadata")
        .and_then(|metadata| metadata.get("name"));
    let place: Option<Place> = name.or(Some(document)).and_then(|node| node.place);
    let wrong = |error: serde_json::Error| {
        let name = name.and_then(Node::as_text).unwrap_or_default();
        Problem::new("", place, format!("{} {name}: {error}", kind(document)))
    };
    // A field that is written without a value is absent.
    let mut json = serde_json::to_value(document).map_err(wrong)?;
    drop_nulls(&mut json);
    serde_json::from_value(json).map_err(wrong)
}

/// Manifests that were exported have `creationTimestamp: null`. Within limits, `null` is a value.
fn drop_nulls(json: &mut Value) {
    let Some(fields) = json.as_object_mut() else {
        return;
    };
    for part in ["metadata", "status"] {
        if let Some(part) = fields.get_mut(part).and_then(|part| part.as_object_mut()) {
            part.retain(|_, value| !value.is_null());
        }
    }
    fields.retain(|_, value| !value.is_null());
}
