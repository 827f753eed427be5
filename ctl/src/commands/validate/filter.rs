//! The filter's configuration inside the files that carry it: Envoy's, a WasmPlugin's, or its own.

use filter_config::{Config, Source as EntrySource};
use policy::{
    Alterations, Name, Node, REMOTE_ADDRESS, REQUEST_BODY, REQUEST_BODY_PASSES, Supply, Value,
};

use crate::{error::Error, exit::Exit, input::Source, render::diagnostics};

/// What the filters of some files supply.
#[derive(Debug, Default)]
pub struct Supplied {
    entries: Vec<Name>,
    domains: Vec<Name>,
    alterations: Alterations,
    /// The files, for messages.
    source: String,
    /// Why check streams will not work, a line each.
    pub no_streams: Vec<String>,
}

impl Supplied {
    /// Reads the configurations of the filter in these files; a file without one is an error.
    pub async fn read(paths: &[String]) -> Result<Self, Error> {
        let mut supplied = Self {
            source: paths.join(", "),
            ..Self::default()
        };
        for path in paths {
            let file = Source::read(path).await?;
            let (configs, http1) = configs(&file)?;
            if configs.is_empty() {
                return Err(Error::new(
                    Exit::No,
                    format!("{path} contains no filter configuration"),
                )
                .hint("expected an Envoy configuration, a WasmPlugin, or the filter's own JSON"));
            }
            for (config, waits) in configs {
                let cluster = &config.limiter.cluster;
                if config.limiter.stream && http1.contains(cluster) {
                    supplied.no_streams.push(format!(
                        "{path}: `stream` needs HTTP/2 to the limiters, and the cluster `{cluster}` has no \
                         `http2_protocol_options`: every check goes by a callout"
                    ));
                }
                supplied.add(config, waits);
            }
        }
        Ok(supplied)
    }

    fn add(&mut self, config: Config, waits: Waits) {
        let bodies = config.request_body_max.map(|_| REQUEST_BODY);
        let passes = bodies.and((waits == Waits::No).then_some(REQUEST_BODY_PASSES));
        let names = bodies.into_iter().chain(passes);
        self.entries
            .extend(names.filter_map(|name| name.parse().ok()));
        for (name, source) in config.sources {
            match source {
                EntrySource::RemoteAddress(prefixes) if name.as_str() == REMOTE_ADDRESS => {
                    let lengths = [prefixes.v4, prefixes.v6];
                    self.alterations.prefixes.insert(lengths);
                }
                EntrySource::Hashed(_) => {
                    self.alterations.hashed.insert(name.clone());
                }
                _ => {}
            }
            if !self.entries.contains(&name) {
                self.entries.push(name);
            }
        }
        if !self.domains.contains(&config.domain) {
            self.domains.push(config.domain);
        }
    }

    /// The entries and domains that limits are checked against.
    pub fn supply(&self) -> Supply<'_> {
        Supply {
            entries: &self.entries,
            domains: &self.domains,
            alterations: &self.alterations,
            source: Some(&self.source),
        }
    }
}

/// Whether Envoy holds requests at the filter for their bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    Yes,
    No,
    /// The file is not about Envoy.
    Unknown,
}

impl Waits {
    /// For what is inside a map, which may be a plugin in Envoy's or Istio's form.
    fn within(self, map: &Node) -> Self {
        if map.get("pluginConfig").is_some() {
            return Self::No;
        }
        if map.get("configuration").is_none() {
            return self;
        }
        match map.get(ENVOYS_FLAG).map(|flag| &flag.value) {
            Some(Value::Bool(true)) => Self::Yes,
            _ => Self::No,
        }
    }
}

const ENVOYS_FLAG: &str = "allow_on_headers_stop_iteration";

/// The configurations in a file, which may hold several YAML documents, and the clusters in it that speak
/// HTTP/1.1 only.
fn configs(file: &Source) -> Result<(Vec<(Config, Waits)>, Vec<String>), Error> {
    let text = String::from_utf8_lossy(file.bytes());
    let (mut found, mut http1) = (Vec::new(), Vec::new());
    for document in documents(&text) {
        let node = Node::from_yaml(&file.name, document.as_bytes());
        let node = node.map_err(|problems| {
            let text = diagnostics(&problems);
            Error::new(Exit::No, format!("{} cannot be read\n{text}", file.name))
        })?;
        collect(&node, Waits::Unknown, &mut found);
        http1_clusters(&node, &mut http1);
    }
    let read = |(json, waits): (String, Waits)| {
        let config = Config::from_json(json.as_bytes());
        config.map(|config| (config, waits)).map_err(|problems| {
            let text = diagnostics(&problems);
            let message = format!(
                "the filter's configuration in {} is invalid\n{text}",
                file.name
            );
            Error::new(Exit::No, message)
        })
    };
    let configs: Result<_, Error> = found.into_iter().map(read).collect();
    Ok((configs?, http1))
}

/// The clusters of an Envoy configuration that speak HTTP/1.1 only, by name.
fn http1_clusters(node: &Node, found: &mut Vec<String>) {
    /// One of these is in every cluster, and in nothing else that has a name.
    const OF_CLUSTERS: [&str; 3] = ["load_assignment", "eds_cluster_config", "lb_policy"];
    const OF_HTTP2: [&str; 4] = [
        "http2_protocol_options",
        "http3_protocol_options",
        "auto_config",
        "use_downstream_protocol_config",
    ];
    let name = node.get("name").and_then(Node::as_text);
    if let Some(name) = name.filter(|_| OF_CLUSTERS.iter().any(|field| node.get(field).is_some())) {
        if !OF_HTTP2.iter().any(|field| has_field(node, field)) {
            found.push(name.to_owned());
        }
        return;
    }
    children(node).for_each(|child| http1_clusters(child, found));
}

/// Whether a field of this name is anywhere in a tree.
fn has_field(node: &Node, field: &str) -> bool {
    node.get(field).is_some() || children(node).any(|child| has_field(child, field))
}

fn children(node: &Node) -> impl Iterator<Item = &Node> {
    let (items, entries) = match &node.value {
        Value::List(items) => (&items[..], &[][..]),
        Value::Map(entries) => (&[][..], &entries[..]),
        _ => (&[][..], &[][..]),
    };
    items.iter().chain(entries.iter().map(|entry| &entry.value))
}

/// The documents of a YAML file, each with its original line numbers.
fn documents(text: &str) -> Vec<String> {
    let mut documents = vec![String::new()];
    for (lines_before, line) in text.lines().enumerate() {
        let ends = line == "---" || line.starts_with("--- ");
        if ends {
            documents.push("\n".repeat(lines_before + 1));
        } else if let Some(document) = documents.last_mut() {
            document.push_str(line);
            document.push('\n');
        }
    }
    documents.retain(|document| !document.trim().is_empty());
    documents
}

/// Every configuration of the filter in a tree, as JSON.
fn collect(node: &Node, waits: Waits, found: &mut Vec<(String, Waits)>) {
    if let Some(json) = config(node) {
        return found.push((json, waits));
    }
    let waits = waits.within(node);
    children(node).for_each(|child| collect(child, waits, found));
}

/// A configuration is a map with a domain and a limiter; Envoy's files have it as JSON in a text.
fn config(node: &Node) -> Option<String> {
    match &node.value {
        Value::Map(_) if is_config(node) => serde_json::to_string(node).ok(),
        Value::Text(text) if text.trim_start().starts_with('{') => {
            let inner: Node = serde_json::from_str(text).ok()?;
            is_config(&inner).then(|| text.clone())
        }
        _ => None,
    }
}

fn is_config(node: &Node) -> bool {
    let limiter = node.get("limiter");
    node.get("domain").is_some() && limiter.is_some_and(|limiter| limiter.get("cluster").is_some())
}

#[cfg(test)]
mod tests {
    use policy::BUILT_IN;

    use super::*;

    #[test]
    fn documents_keep_their_lines() {
        let found = documents("a: 1\n---\nb: 2\n");
        assert_eq!(found, ["a: 1\n", "\n\nb: 2\n"]);
        assert_eq!(documents("---\na: 1\n"), ["\na: 1\n"]);
    }

    #[test]
    fn a_plugin_waits_for_bodies_as_envoys_flag_says() {
        let waits = |plugin: &str| {
            let node = Node::from_yaml("test", plugin.as_bytes()).unwrap();
            let mut found = Vec::new();
            collect(&node, Waits::Unknown, &mut found);
            found.pop().unwrap().1
        };
        let config = "{domain: shop, limiter: {cluster: l}}";
        assert_eq!(waits(config), Waits::Unknown);
        let envoy = format!("config: {{configuration: {config}");
        assert_eq!(waits(&format!("{envoy}}}")), Waits::No);
        let flagged = |value| format!("{envoy}, {ENVOYS_FLAG}: {value}}}");
        assert_eq!(waits(&flagged("true")), Waits::Yes);
        assert_eq!(waits(&flagged("false")), Waits::No);
        assert_eq!(
            waits(&format!("spec: {{pluginConfig: {config}}}")),
            Waits::No
        );
    }

    #[test]
    fn a_cluster_without_http2_is_found() {
        let http1 = |clusters: &str| {
            let file = format!("static_resources: {{clusters: [{clusters}]}}");
            let mut found = Vec::new();
            let node = Node::from_yaml("test", file.as_bytes()).unwrap();
            http1_clusters(&node, &mut found);
            found
        };
        let plain = "{name: a, load_assignment: {cluster_name: a}}";
        assert_eq!(http1(plain), ["a"]);
        let options = "{explicit_http_config: {http2_protocol_options: {}}}";
        let http2 = format!(
            "{{name: b, lb_policy: RANDOM, typed_extension_protocol_options: {{x: {options}}}}}"
        );
        assert_eq!(http1(&format!("{http2}, {plain}")), ["a"]);
        assert_eq!(http1("{name: a, address: x}"), [""; 0]);
    }

    #[test]
    fn a_filter_supplies_at_least_what_is_built_in() {
        let json = r#"{"domain":"shop","limiter":{"cluster":"l"},"descriptors":[{"key":"user","header":"x"}]}"#;
        let config = Config::from_json(json.as_bytes()).unwrap();
        let mut supplied = Supplied::default();
        supplied.add(config, Waits::Unknown);
        for name in BUILT_IN.iter().chain(&["user"]) {
            assert!(
                supplied.entries.iter().any(|known| known.as_str() == *name),
                "{name}"
            );
        }
        assert_eq!(supplied.alterations.longest_prefixes(), [32, 64]);
    }
}
