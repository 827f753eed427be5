//! What tests run: an API server, a store, a limiter, Envoys as Pods of Gateways, and the controller.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use harness::{
    ApiServer, Client, Envoy, EnvoyConfig, Limiter, LimiterPlan, Ports, Process, Programs, Redis,
    Signal, Upstream, free_port, until,
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Long enough for a busy machine, and for a proxy that is missing for ten seconds.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// The service account of deploy/kubernetes/components/controller.
pub const CONTROLLER: &str = "system:serviceaccount:ratelimit:controller";
/// A user who may write `RateLimit` objects of namespace `shop`, where a test gives it the role.
pub const TENANT: &str = "shop-team";

/// Waits until `probe` returns something.
pub async fn eventually<T>(what: &str, probe: impl AsyncFnMut() -> Option<T>) -> T {
    until(what, PATIENCE, probe).await.unwrap()
}

/// A Gateway of cluster.yaml.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gateway {
    /// Istio's: its Pods are in its namespace.
    Public,
    /// Envoy Gateway's: its Pods are elsewhere.
    Internal,
}

impl Gateway {
    pub fn name(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Internal => "internal",
        }
    }

    /// The namespace of its Pods, their labels and the node id of one.
    fn pod(self, name: &str) -> (&'static str, Value, String) {
        match self {
            Self::Public => (
                "infra",
                json!({"gateway.networking.k8s.io/gateway-name": "public"}),
                format!("router~127.0.0.1~{name}.infra~infra.svc.cluster.local"),
            ),
            Self::Internal => (
                "envoy-gateway-system",
                json!({
                    "gateway.envoyproxy.io/owning-gateway-name": "internal",
                    "gateway.envoyproxy.io/owning-gateway-namespace": "infra",
                }),
                name.to_owned(),
            ),
        }
    }
}

/// All of it.
pub struct Stage {
    pub api: ApiServer,
    pub http: Client,
    pub programs: Programs,
    pub redis: Option<Redis>,
    pub limiter: Option<Limiter>,
    pub limiter_plan: LimiterPlan,
    pub controller: Option<Process>,
    /// Each with its Pod's name.
    pub envoys: Vec<(Gateway, String, Envoy)>,
    pub controller_port: u16,
    /// Further arguments of the controller.
    pub controller_arguments: Vec<String>,
    /// The ports of further listeners of each Envoy.
    pub listeners: Vec<u16>,
    /// The store's URL, as rlctl has it.
    pub store: String,
    upstream: Upstream,
    dir: TempDir,
}

impl Stage {
    /// Everything but Envoys.
    pub async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let programs = Programs::from_env().unwrap();
        let redis = Redis::start(&programs.redis, free_port().unwrap(), dir.path())
            .await
            .unwrap();
        let store = redis.url();
        let api = api_server(&programs, dir.path()).await;
        let limiter_ports = [free_port().unwrap(), free_port().unwrap()];
        let limiter_plan = LimiterPlan::new(&programs, &store, limiter_ports, dir.path());
        let limiter = limiter_plan.clone().start().await.unwrap();
        let mut stage = Self {
            api,
            http: Client::new(),
            upstream: Upstream::start(0).await.unwrap(),
            programs,
            redis: Some(redis),
            limiter: Some(limiter),
            limiter_plan,
            controller: None,
            envoys: Vec::new(),
            controller_port: free_port().unwrap(),
            controller_arguments: Vec::new(),
            listeners: Vec::new(),
            store,
            dir,
        };
        stage.start_controller().await;
        stage
    }

    /// Starts the controller, as the service account that its manifests have, and waits until it has read everything.
    pub async fn start_controller(&mut self) {
        let port = self.controller_port;
        let mut process = self.another_controller(port);
        let url = format!("http://127.0.0.1:{port}/readyz");
        let http = self.http.clone();
        let ready = async || {
            let reply = http.get(&url).send().await.ok()?;
            (reply.status == 200).then_some(())
        };
        process.ready(ready).await.unwrap();
        self.controller = Some(process);
    }

    /// One more controller.
    pub fn another_controller(&self, port: u16) -> Process {
        let mut command = Command::new(&self.programs.rlctl);
        command
            .args(["controller", "--lease-namespace", "ratelimit"])
            .args(["--metrics-listen", &format!("127.0.0.1:{port}")])
            .args(&self.controller_arguments)
            .env("KUBECONFIG", self.api.kubeconfig(CONTROLLER))
            .env("RLCTL_REDIS", &self.store)
            .env("RLCTL_AUTHOR", "controller");
        Process::start(&format!("controller-{port}"), &mut command, self.dir.path()).unwrap()
    }

    /// Kills the controller.
    pub async fn kill_controller(&mut self) {
        let mut process = self.controller.take().unwrap();
        process.signal(Signal::KILL).unwrap();
        process.ended().await.unwrap();
    }

    /// Starts an Envoy, and makes its Pod, which is Ready.
    pub async fn add_envoy(&mut self, gateway: Gateway, name: &str) {
        self.add_envoy_with(gateway, name, true).await;
    }

    /// The same, with or without the filter.
    pub async fn add_envoy_with(&mut self, gateway: Gateway, name: &str, has_filter: bool) {
        let gateway_of_filter = kubernetes::Key::new("infra", gateway.name());
        let own = kubernetes::filter_descriptors(&gateway_of_filter, gateway == Gateway::Internal);
        let configure = |filter: &mut Value| {
            let descriptors = filter["descriptors"].as_array_mut().unwrap();
            descriptors.extend(own.as_array().unwrap().iter().cloned());
        };
        self.add_envoy_configured(gateway, name, has_filter, configure)
            .await;
    }

    /// The same, without a descriptor of the filter's configuration.
    pub async fn add_envoy_without(&mut self, gateway: Gateway, name: &str, key: &str) {
        let gateway_of_filter = kubernetes::Key::new("infra", gateway.name());
        let own = kubernetes::filter_descriptors(&gateway_of_filter, gateway == Gateway::Internal);
        let configure = |filter: &mut Value| {
            let descriptors = filter["descriptors"].as_array_mut().unwrap();
            descriptors.extend(own.as_array().unwrap().iter().cloned());
            descriptors.retain(|one| one["key"] != key);
        };
        self.add_envoy_configured(gateway, name, true, configure)
            .await;
    }

    /// Starts an Envoy whose filter has the shipped configuration, changed by `configure`, and makes its Pod.
    pub async fn add_envoy_configured(
        &mut self,
        gateway: Gateway,
        name: &str,
        has_filter: bool,
        configure: impl FnOnce(&mut Value),
    ) {
        self.add_pod(gateway, name);
        let (_, _, node) = gateway.pod(name);
        let mut ports = Ports::free().unwrap();
        ports.limiters = [self.limiter_plan.port; 2];
        ports.upstream = self.upstream.port();
        let config = EnvoyConfig::shipped(&self.programs.root).unwrap();
        let config = config.filter_code(&self.programs.filter).unwrap();
        let config = config.limiter_timeout("1s").unwrap();
        let mut limiter = Value::Null;
        let config = config.filter_config(|filter| {
            configure(filter);
            limiter = filter["limiter"]["cluster"].clone();
        });
        let config = config.unwrap().edit(|tree| {
            let clusters = tree["static_resources"]["clusters"].as_array_mut().unwrap();
            let cluster = clusters.iter_mut().find(|one| one["name"] == "limiter");
            cluster.unwrap()["name"] = limiter;
            tree["node"] = json!({"id": node, "cluster": gateway.name()});
            let route = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/route_config/virtual_hosts/0/routes";
            let cluster = json!({"cluster": "upstream", "timeout": "15s"});
            // As the two implementations name routes.
            let name = match gateway {
                Gateway::Public => "shop.checkout.0",
                Gateway::Internal => "httproute/shop/checkout/rule/0/match/0/*",
            };
            // Envoy Gateway's also have metadata.
            let of = json!({"kind": "HTTPRoute", "namespace": "shop", "name": "checkout", "sectionName": "pay"});
            let metadata = match gateway {
                Gateway::Public => json!({}),
                Gateway::Internal => json!({"envoy-gateway": {"resources": [of]}}),
            };
            *tree.pointer_mut(route).unwrap() = json!([
                {
                    "name": name, "match": {"prefix": "/checkout"}, "route": cluster,
                    "metadata": {"filter_metadata": metadata},
                },
                {"name": "other", "match": {"prefix": "/"}, "route": cluster},
            ]);
        });
        let config = config.http_filters(|filters| {
            if !has_filter {
                filters.remove(0);
            }
        });
        let mut config = config.unwrap();
        for port in &self.listeners {
            config = config.keep_port(*port).edit(|tree| {
                let listeners = tree["static_resources"]["listeners"].as_array_mut();
                let listeners = listeners.unwrap();
                let mut another = listeners[0].clone();
                another["name"] = format!("http-{port}").into();
                another["address"]["socket_address"]["port_value"] = (*port).into();
                listeners.push(another);
            });
        }
        let envoy = Envoy::start(&self.programs, config, ports, 2, self.dir.path());
        self.envoys
            .push((gateway, name.to_owned(), envoy.await.unwrap()));
    }

    /// Makes a Ready Pod of a Gateway.
    pub fn add_pod(&self, gateway: Gateway, name: &str) {
        let (namespace, labels, _) = gateway.pod(name);
        self.put_pod(namespace, name, &labels, true);
    }

    /// A folder for files of the test.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A Pod goes, and the Envoy in it.
    pub fn remove_envoy(&mut self, gateway: Gateway, name: &str) {
        let (namespace, ..) = gateway.pod(name);
        self.api
            .kubectl(&["delete", "pod", "-n", namespace, name], "")
            .unwrap();
        self.envoys.retain(|(_, pod, _)| pod != name);
    }

    /// Makes or changes a Pod.
    pub fn put_pod(&self, namespace: &str, name: &str, labels: &Value, ready: bool) {
        let ready = if ready { "True" } else { "False" };
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {"containers": [{"name": "proxy", "image": "proxy"}]},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        });
        self.apply(&pod);
    }

    /// `kubectl apply`.
    pub fn apply(&self, object: &Value) {
        self.api
            .kubectl(&["apply", "-f", "-"], &object.to_string())
            .unwrap();
    }

    /// Writes an object as `kubectl apply --server-side` does; returns its generation.
    pub async fn write(&self, object: &Value) -> anyhow::Result<i64> {
        let (namespace, name) = (
            &object["metadata"]["namespace"],
            &object["metadata"]["name"],
        );
        let path = path_of(namespace.as_str().unwrap(), name.as_str().unwrap());
        let url = self
            .api
            .url(&format!("{path}?fieldManager=test&force=true"));
        let request = self.http.patch(&url, object.to_string());
        let reply = request
            .header("content-type", "application/apply-patch+yaml")
            .send()
            .await?;
        anyhow::ensure!(
            reply.status.is_success(),
            "{}: {}",
            reply.status,
            reply.text()
        );
        Ok(reply.json()?["metadata"]["generation"]
            .as_i64()
            .unwrap_or_default())
    }

    /// Writes a [`rate_limit`] on Gateway `public`; returns its generation.
    pub async fn limit(&self, name: &str, number: u64) -> i64 {
        let object = rate_limit("infra", name, "Gateway", "public", number);
        self.write(&object).await.unwrap()
    }

    /// A `RateLimit`; `Null` if there is none.
    pub async fn read(&self, namespace: &str, name: &str) -> Value {
        let reply = self
            .http
            .get(&self.api.url(&path_of(namespace, name)))
            .send()
            .await;
        let reply = reply.ok().filter(|reply| reply.status == 200);
        reply
            .and_then(|reply| reply.json().ok())
            .unwrap_or(Value::Null)
    }

    /// The `RateLimitDomain`.
    pub async fn domain(&self) -> Value {
        let url = self
            .api
            .url("/apis/rl.example.com/v1alpha1/ratelimitdomains/shop");
        self.http.get(&url).send().await.unwrap().json().unwrap()
    }

    /// Waits until a condition of the `RateLimitDomain` has a reason; returns its message.
    pub async fn domain_has(&self, kind: &str, reason: &str) -> String {
        eventually(&format!("{kind} of the domain is {reason}"), async || {
            let status = self.domain().await["status"].clone();
            let mut conditions = status["conditions"].as_array()?.iter();
            let found = conditions.find(|one| one["type"] == kind && one["reason"] == reason)?;
            found["message"].as_str().map(str::to_owned)
        })
        .await
    }

    /// Deletes a `RateLimit`.
    pub async fn delete(&self, namespace: &str, name: &str) {
        let url = self.api.url(&path_of(namespace, name));
        let reply = self.http.delete(&url).send().await.unwrap();
        assert!(reply.status.is_success(), "{}", reply.text());
    }

    /// Waits until the status of a `RateLimit`, of its newest generation, is as `wanted`.
    pub async fn status(
        &self,
        namespace: &str,
        name: &str,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        let mut last = Value::Null;
        let found = until(what, PATIENCE, async || {
            last = self.read(namespace, name).await;
            wanted(&last["status"]).then(|| last["status"].clone())
        });
        let found = found.await;
        let log = self
            .controller
            .as_ref()
            .map(Process::log)
            .unwrap_or_default();
        found.unwrap_or_else(|error| panic!("{error}: {:#}\n{log}", last["status"]))
    }

    /// Waits until a condition of its first ancestor has a reason; returns the status.
    pub async fn reason(&self, namespace: &str, name: &str, kind: &str, reason: &str) -> Value {
        let what = format!("{kind} of {namespace}/{name} is {reason}");
        let has_it = |status: &Value| condition(status, kind)["reason"] == reason;
        self.status(namespace, name, &what, has_it).await
    }

    /// Waits until a condition is true of a generation; returns the status.
    pub async fn is_true(&self, namespace: &str, name: &str, kind: &str, generation: i64) -> Value {
        let what = format!("{kind} of {namespace}/{name} is true");
        let is_true = |status: &Value| {
            let condition = condition(status, kind);
            condition["status"] == "True" && condition["observedGeneration"] == generation
        };
        self.status(namespace, name, &what, is_true).await
    }

    /// Waits until a generation is enforced; returns the status.
    pub async fn enforced(&self, namespace: &str, name: &str, generation: i64) -> Value {
        self.is_true(namespace, name, "Enforced", generation).await
    }

    /// Waits until the newest generation is in the store; returns the status.
    pub async fn programmed(&self, namespace: &str, name: &str) -> Value {
        let object = self.read(namespace, name).await;
        let generation = object["metadata"]["generation"].as_i64().unwrap();
        self.is_true(namespace, name, "Programmed", generation)
            .await
    }

    /// The number of the limit that answers a request through an Envoy.
    pub async fn answered_by(&self, envoy: &Envoy, path: &str) -> Option<String> {
        let request = envoy.get(path).header("x-user-id", "alice");
        let reply = request.send().await.unwrap();
        reply.header("x-ratelimit-limit").map(str::to_owned)
    }

    /// Runs rlctl on the store.
    pub fn rlctl(&self, arguments: &[&str]) -> String {
        let output = self.run_rlctl(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "rlctl {arguments:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn run_rlctl(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(&self.programs.rlctl);
        command
            .args(arguments)
            .env("KUBECONFIG", self.api.kubeconfig(CONTROLLER))
            .env("RLCTL_REDIS", &self.store);
        command.output().unwrap()
    }

    /// The names of the limits in the store, sorted; none without a domain.
    pub fn limits(&self) -> Vec<String> {
        const NOT_FOUND: i32 = 5;
        let output = self.run_rlctl(&["list-limits", "--domain", "shop", "-o", "name"]);
        assert!(
            [Some(0), Some(NOT_FOUND)].contains(&output.status.code()),
            "{output:?}"
        );
        let names = String::from_utf8(output.stdout).unwrap();
        let mut names: Vec<String> = names.lines().map(str::to_owned).collect();
        names.sort();
        names
    }

    /// Whether a limit in the store has this rate.
    pub fn has_rate(&self, limit: &str, rate: &str) -> bool {
        let limit = self.rlctl(&["get-limit", limit, "--domain", "shop", "-o", "yaml"]);
        limit.contains(&format!("rate: {rate}\n"))
    }

    /// The metrics of the controller.
    pub async fn metrics(&self) -> Option<String> {
        let url = format!("http://127.0.0.1:{}/metrics", self.controller_port);
        Some(self.http.get(&url).send().await.ok()?.text())
    }

    /// A metric of the controller.
    pub async fn metric(&self, line: &str) -> Option<String> {
        let page = self.metrics().await?;
        let value = page.lines().find_map(|one| one.strip_prefix(line));
        value.map(|value| value.trim().to_owned())
    }

    /// Waits until a metric of the controller has a value.
    pub async fn metric_is(&self, line: &str, value: &str) {
        eventually(&format!("{line}is {value}"), async || {
            (self.metric(line).await? == value).then_some(())
        })
        .await;
    }
}

/// An API server with all definitions, cluster.yaml and the controller's roles. Applying them takes seconds, so the first
/// test does that, and the others copy its data.
async fn api_server(programs: &Programs, dir: &Path) -> ApiServer {
    const USERS: [&str; 2] = [CONTROLLER, TENANT];
    let manifests = manifests(programs);
    let mut hasher = DefaultHasher::new();
    (
        &manifests,
        std::env::var_os("RL_TEST_API_SERVER"),
        std::env::var_os("RL_TEST_ETCD"),
    )
        .hash(&mut hasher);
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let kept = tmp.join("kubernetes");
    let id = format!("{:x}", hasher.finish());
    let lock = fs::File::create(tmp.join("kubernetes.lock")).unwrap();
    lock.lock().unwrap();
    if fs::read_to_string(kept.join("id")).ok().as_ref() != Some(&id) {
        let _ = fs::remove_dir_all(&kept);
        let new = tempfile::tempdir().unwrap();
        let api = ApiServer::start(new.path(), &USERS).await.unwrap();
        for manifest in &manifests {
            // What is applied with --server-side needs no annotation, which the real definitions are too large for.
            let how = ["-f", "-", "--server-side"];
            let how = if manifest.contains("kind: CustomResourceDefinition") {
                &how[..]
            } else {
                &how[..2]
            };
            eventually("the kinds are served", async || {
                api.kubectl(&[&["apply"], how].concat(), manifest).ok()
            })
            .await;
        }
        let established = ["wait", "--for=condition=Established", "crd", "--all"];
        api.kubectl(&established, "").unwrap();
        api.stop().await.unwrap();
        copy(&new.path().join("etcd"), &kept);
        fs::write(kept.join("id"), id).unwrap();
    }
    copy(&kept, &dir.join("etcd"));
    drop(lock);
    ApiServer::start(dir, &USERS).await.unwrap()
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-r").args([from, to]).status();
    assert!(copied.unwrap().success());
}

/// What every test's cluster has.
fn manifests(programs: &Programs) -> Vec<String> {
    let mut manifests = vec![kubernetes::crds_yaml()];
    match std::env::var_os("RL_TEST_CRDS") {
        Some(folder) => {
            for file in ["gateway-api-standard", "istio", "envoy-gateway"] {
                let path = Path::new(&folder).join(format!("{file}.yaml"));
                manifests.push(fs::read_to_string(path).unwrap());
            }
        }
        None => manifests.push(include_str!("crds.yaml").to_owned()),
    }
    manifests.push(include_str!("cluster.yaml").to_owned());
    for component in ["controller", "controller-filter"] {
        let role = format!("deploy/kubernetes/components/{component}/rbac.yaml");
        manifests.push(fs::read_to_string(programs.root.join(role)).unwrap());
    }
    manifests
}

fn path_of(namespace: &str, name: &str) -> String {
    format!("/apis/rl.example.com/v1alpha1/namespaces/{namespace}/ratelimits/{name}")
}

/// A condition of the first ancestor.
pub fn condition<'s>(status: &'s Value, kind: &str) -> &'s Value {
    condition_at(status, 0, kind)
}

/// The message of a condition of the first ancestor.
pub fn message<'s>(status: &'s Value, kind: &str) -> &'s str {
    condition(status, kind)["message"]
        .as_str()
        .unwrap_or_default()
}

/// A condition of an ancestor.
pub fn condition_at<'s>(status: &'s Value, ancestor: usize, kind: &str) -> &'s Value {
    let conditions = status["ancestors"][ancestor]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions
        .find(|one| one["type"] == kind)
        .unwrap_or(&Value::Null)
}

/// A `RateLimit` in a namespace on a target of it, whose only limit is decided in each proxy, so that an answer shows
/// which version of it that proxy has: its number.
pub fn rate_limit(namespace: &str, name: &str, kind: &str, target: &str, number: u64) -> Value {
    let limit = json!({"name": "all", "scope": "proxy", "rate": format!("{number}/1h")});
    with_limits(namespace, name, kind, target, &json!([limit]))
}

/// A `RateLimit` with these limits.
pub fn with_limits(namespace: &str, name: &str, kind: &str, target: &str, limits: &Value) -> Value {
    let group = if kind == "Service" {
        ""
    } else {
        "gateway.networking.k8s.io"
    };
    json!({
        "apiVersion": "rl.example.com/v1alpha1", "kind": "RateLimit",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"targetRefs": [{"group": group, "kind": kind, "name": target}], "limits": limits},
    })
}
