//! envoy.yaml with a test's changes: parsed, edited as a tree and written as JSON, so that the file
//! itself needs no placeholders.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::{Host, Ports};

/// A configuration of Envoy.
#[derive(Debug, Clone)]
pub struct EnvoyConfig {
    tree: Value,
    /// Ports that [`EnvoyConfig::ports`] leaves unchanged.
    kept: Vec<u16>,
    arguments: Vec<String>,
}

impl EnvoyConfig {
    /// The envoy.yaml of the checkout at `root`.
    pub fn shipped(root: &Path) -> Result<Self> {
        Self::read(&root.join("envoy.yaml"))
    }

    /// The deploy/envoy/rate-limit-service.yaml of the checkout at `root`, on these ports. Its filter
    /// waits for the limiter long enough for a busy machine.
    pub fn rate_limit_service(root: &Path, ports: &Ports) -> Result<Self> {
        Self::read(&root.join("deploy/envoy/rate-limit-service.yaml"))?
            .http_filters(|filters| {
                let filter = filters.first_mut();
                let timeout = filter.and_then(|filter| filter.pointer_mut("/typed_config/timeout"));
                if let Some(timeout) = timeout {
                    *timeout = "1s".into();
                }
            })?
            .sockets(|address| match address {
                "0.0.0.0:8080" => Some(ports.envoy),
                "127.0.0.1:9901" => Some(ports.envoy_admin),
                "limiter:8090" => ports.limiters.first().copied(),
                "service:8080" => Some(ports.upstream),
                _ => None,
            })
    }

    /// A configuration read from another file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let tree = serde_saphyr::from_str(&text).with_context(|| path.display().to_string())?;
        Ok(Self {
            tree,
            kept: Vec::new(),
            arguments: Vec::new(),
        })
    }

    /// Edits the whole tree.
    #[must_use]
    pub fn edit(mut self, edit: impl FnOnce(&mut Value)) -> Self {
        edit(&mut self.tree);
        self
    }

    /// Redirects every socket address, given as `host:port`, to a port of 127.0.0.1.
    pub fn sockets(mut self, mut to: impl FnMut(&str) -> Option<u16>) -> Result<Self> {
        replace_sockets(&mut self.tree, &mut to)?;
        Ok(self)
    }

    /// Replaces the documented ports.
    pub fn ports(mut self, ports: &Ports) -> Result<Self> {
        replace_ports(&mut self.tree, &|shipped| {
            let kept = self.kept.iter().find(|kept| u64::from(**kept) == shipped);
            kept.copied().or_else(|| ports.in_place_of(shipped))
        })?;
        Ok(self)
    }

    /// Makes [`EnvoyConfig::ports`] leave this port unchanged.
    #[must_use]
    pub fn keep_port(mut self, port: u16) -> Self {
        self.kept.push(port);
        self
    }

    /// Adds arguments to Envoy's command line.
    #[must_use]
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        let more = arguments.iter().map(|&argument| argument.to_owned());
        self.arguments.extend(more);
        self
    }

    /// Envoy's arguments besides the file.
    pub(crate) fn more_arguments(&self) -> Vec<String> {
        let mut arguments = self.arguments.clone();
        let node = self.tree.pointer("/node/id").and_then(Value::as_str);
        if let Some(node) = node.filter(|_| Host::is_module()) {
            // The module cannot read it elsewhere.
            arguments.extend(["--service-node", node].map(str::to_owned));
        }
        arguments
    }

    /// Loads the filter from another file.
    pub fn filter_code(mut self, path: &Path) -> Result<Self> {
        let code = self
            .filter()?
            .pointer_mut("/typed_config/config/vm_config/code");
        *code.context("the filter names no code")? = json!({"local": {"filename": path}});
        Ok(self)
    }

    /// Loads every wasm filter from another file.
    #[must_use]
    pub fn filter_code_everywhere(mut self, path: &Path) -> Self {
        replace_code(&mut self.tree, path);
        self
    }

    /// Puts the dynamic module in place of the wasm filter, with its configuration.
    pub fn module(mut self, module: &Path) -> Result<Self> {
        replace_filters(&mut self.tree, module)?;
        Ok(self)
    }

    /// Edits the filter's own configuration.
    pub fn filter_config(mut self, edit: impl FnOnce(&mut Value)) -> Result<Self> {
        let filter = self.filter()?;
        let value = filter
            .pointer_mut("/typed_config/config/configuration/value")
            .context("the filter has no configuration")?;
        let mut config = serde_json::from_str(value.as_str().context("it is not a string")?)
            .context("the filter's configuration in envoy.yaml")?;
        edit(&mut config);
        *value = Value::String(config.to_string());
        Ok(self)
    }

    /// Sets a longer timeout for the limiter, such as `1s`, and for connections to it. With the
    /// shipped 20 ms a busy machine sometimes causes fallbacks, which is correct, but not what most
    /// tests are about.
    pub fn limiter_timeout(self, timeout: &str) -> Result<Self> {
        let mut config = self.filter_config(|filter| {
            if let Some(limiter) = filter.get_mut("limiter").and_then(Value::as_object_mut) {
                limiter.insert("timeout".to_owned(), json!(timeout));
            }
        })?;
        config.limiters()?["connect_timeout"] = json!("1s");
        Ok(config)
    }

    /// Removes fields from the limiters' cluster, which must have them.
    pub fn without(mut self, fields: &[&str]) -> Result<Self> {
        let cluster = self.limiters()?.as_object_mut().context("no cluster")?;
        for field in fields {
            cluster
                .remove(*field)
                .with_context(|| format!("no {field}"))?;
        }
        Ok(self)
    }

    /// Sends checks over check streams, for which the limiters' cluster needs HTTP/2.
    pub fn check_streams(self) -> Result<Self> {
        const PROTOCOL: &str = "/typed_extension_protocol_options/envoy.extensions.upstreams.http.v3.HttpProtocolOptions/explicit_http_config";
        let mut config = self.filter_config(|filter| {
            if let Some(limiter) = filter.get_mut("limiter").and_then(Value::as_object_mut) {
                limiter.insert("stream".to_owned(), json!(true));
            }
        })?;
        let protocol = config.limiters()?.pointer_mut(PROTOCOL);
        let protocol = protocol.context("the cluster names no protocol")?;
        *protocol = json!({"http2_protocol_options": {}});
        Ok(config)
    }

    /// Sets one address as the only limiter.
    pub fn limiter_at(mut self, port: u16) -> Result<Self> {
        let endpoints = "/static_resources/clusters/0/load_assignment/endpoints/0/lb_endpoints";
        let endpoints = self.tree.pointer_mut(endpoints).context("no limiters")?;
        let socket = json!({"address": "127.0.0.1", "port_value": port});
        *endpoints = json!([{"endpoint": {"address": {"socket_address": socket}}}]);
        Ok(self)
    }

    /// Edits the list of HTTP filters; the rate limit filter is the first.
    pub fn http_filters(mut self, edit: impl FnOnce(&mut Vec<Value>)) -> Result<Self> {
        edit(
            self.manager()?
                .get_mut("http_filters")
                .and_then(Value::as_array_mut)
                .context("no filters")?,
        );
        Ok(self)
    }

    /// Edits the connection manager.
    pub fn manager_edit(mut self, edit: impl FnOnce(&mut Value)) -> Result<Self> {
        edit(self.manager()?);
        Ok(self)
    }

    /// Makes Envoy log each request: status and response details.
    pub fn access_log(mut self) -> Result<Self> {
        let format = "access %RESPONSE_CODE% %RESPONSE_CODE_DETAILS% %REQ(:PATH)%\n";
        self.manager()?["access_log"] = json!([{
            "name": "stdout",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
                "log_format": {"text_format_source": {"inline_string": format}}
            }
        }]);
        Ok(self)
    }

    /// The first listener.
    pub fn listener(&self) -> Result<Value> {
        let listener = self.tree.pointer("/static_resources/listeners/0");
        listener.cloned().context("no listener")
    }

    /// Has Envoy read listeners from a file ([`put_listeners`]) in place of its own.
    #[must_use]
    pub fn listeners_in(self, file: &Path) -> Self {
        self.edit(|tree| {
            { tree.pointer_mut("/static_resources/listeners") }.map(Value::take);
            tree["node"] = json!({"id": "test", "cluster": "test"});
            let source =
                json!({"path_config_source": {"path": file}, "resource_api_version": "V3"});
            tree["dynamic_resources"] = json!({"lds_config": source});
        })
    }

    /// Writes the configuration for Envoy; the name must end in `.json`. Where the tests run with the
    /// dynamic module ([`Host`]), it is in place of every wasm filter.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut tree = self.tree.clone();
        put_host(&mut tree)?;
        std::fs::write(path, format!("{tree:#}\n"))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// The tree itself.
    pub fn tree(&self) -> &Value {
        &self.tree
    }

    fn manager(&mut self) -> Result<&mut Value> {
        self.tree
            .pointer_mut("/static_resources/listeners/0/filter_chains/0/filters/0/typed_config")
            .context("envoy.yaml has no HTTP connection manager where it is expected")
    }

    /// The limiters' cluster.
    fn limiters(&mut self) -> Result<&mut Value> {
        let cluster = self.tree.pointer_mut("/static_resources/clusters/0");
        cluster.context("envoy.yaml has no clusters")
    }

    fn filter(&mut self) -> Result<&mut Value> {
        self.manager()?
            .pointer_mut("/http_filters/0")
            .context("envoy.yaml has no HTTP filter")
    }
}

fn replace_ports(value: &mut Value, to: &impl Fn(u64) -> Option<u16>) -> Result<()> {
    match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                if key != "port_value" {
                    replace_ports(value, to)?;
                    continue;
                }
                match value.as_u64().and_then(to) {
                    Some(port) => *value = json!(port),
                    None => bail!("envoy.yaml names port {value}, which is not documented"),
                }
            }
            Ok(())
        }
        Value::Array(items) => items
            .iter_mut()
            .try_for_each(|item| replace_ports(item, to)),
        _ => Ok(()),
    }
}

fn replace_sockets(value: &mut Value, to: &mut impl FnMut(&str) -> Option<u16>) -> Result<()> {
    if let Some(socket) = value.get_mut("socket_address") {
        let name = format!(
            "{}:{}",
            socket["address"].as_str().context("no address")?,
            socket["port_value"]
        );
        let port = to(&name).with_context(|| format!("nobody is at {name}"))?;
        *socket = json!({"address": "127.0.0.1", "port_value": port});
        return Ok(());
    }
    match value {
        Value::Object(entries) => entries
            .values_mut()
            .try_for_each(|value| replace_sockets(value, to)),
        Value::Array(items) => items
            .iter_mut()
            .try_for_each(|value| replace_sockets(value, to)),
        _ => Ok(()),
    }
}

/// Replaces the listeners in a file that Envoy reads, atomically, which is the event that Envoy watches for: these, on
/// these ports.
pub fn put_listeners(file: &Path, mut listeners: Vec<(Value, u16)>) -> Result<()> {
    for (listener, port) in &mut listeners {
        listener["@type"] = json!("type.googleapis.com/envoy.config.listener.v3.Listener");
        listener["name"] = json!(port.to_string());
        let socket = json!({"address": "127.0.0.1", "port_value": port});
        listener["address"] = json!({"socket_address": socket});
        put_host(listener)?;
    }
    let listeners: Vec<Value> = { listeners.into_iter() }
        .map(|(listener, _)| listener)
        .collect();
    let fresh = file.with_extension("fresh");
    std::fs::write(&fresh, json!({"resources": listeners}).to_string())?;
    Ok(std::fs::rename(fresh, file)?)
}

/// Puts what the tests run with ([`Host`]) in place of the wasm filters in a part of Envoy's configuration.
pub fn put_host(tree: &mut Value) -> Result<()> {
    match Host::from_env() {
        Host::Wasm => Ok(()),
        Host::Module(module) => replace_filters(tree, &module),
    }
}

/// The dynamic module in place of each wasm filter, with its configuration.
fn replace_filters(value: &mut Value, module: &Path) -> Result<()> {
    const WASM: &str = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm";
    match value {
        Value::Object(entries) if entries.get("@type").is_some_and(|of| of == WASM) => {
            let config = entries.get("config").context("a filter without `config`")?;
            *value = json!({
                "@type": "type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter",
                "dynamic_module_config": {"module": {"local": {"filename": module}}},
                "filter_name": config["name"],
                "filter_config": config["configuration"],
            });
            Ok(())
        }
        Value::Object(entries) => entries
            .values_mut()
            .try_for_each(|value| replace_filters(value, module)),
        Value::Array(items) => items
            .iter_mut()
            .try_for_each(|value| replace_filters(value, module)),
        _ => Ok(()),
    }
}

fn replace_code(value: &mut Value, path: &Path) {
    if let Some(code) = value.pointer_mut("/vm_config/code") {
        *code = json!({"local": {"filename": path}});
    }
    match value {
        Value::Object(entries) => {
            for value in entries.values_mut() {
                replace_code(value, path);
            }
        }
        Value::Array(items) => {
            for item in items {
                replace_code(item, path);
            }
        }
        _ => {}
    }
}
