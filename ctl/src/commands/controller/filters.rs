//! `filter: managed`: the objects that load the filter into the proxies of a domain's Gateways.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::Path,
    time::Duration,
};

use documents::Report;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use kubernetes::{
    Filter, FilterSettings, Gateway, GatewayClass, Key, Loader, MANAGED_BY, Translation,
    controller_name, filter_object_name,
};
use policy::Name;
use store::read_file;
use tokio::time::Instant;

use super::{
    WRITES_AT_ONCE,
    cluster::{in_time, key_of},
    status::Claim,
};
use crate::error::{Error, Exit};

/// When all of them are looked at again although nothing changed: somebody may have edited or deleted one.
const EVERY: Duration = Duration::from_mins(1);
/// The same after something failed.
const RETRY: Duration = Duration::from_secs(5);
/// Bound: bytes of the file of `--filter`. Beyond it, the controller does not start.
const FILE_MAX: u64 = 1 << 20;

/// The objects that load filters.
pub(super) struct Filters {
    /// `None`: the controller loads none.
    settings: Option<FilterSettings>,
    /// Whether the API server has had the kind that Istio prefers: one that starts denies it of every kind.
    has_traffic_extensions: bool,
    managed: Option<Vec<Managed>>,
    again: Instant,
    /// What failed for a `RateLimitDomain`, by its name.
    failures: BTreeMap<String, String>,
    /// What failed last.
    pub(super) failed: Option<String>,
}

/// A domain whose filters the controller loads.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Managed {
    /// The name and the uid of its `RateLimitDomain`.
    object: (String, String),
    domain: Name,
    /// Each with the controller of its class.
    gateways: Vec<(Key, String)>,
}

impl Filters {
    /// By the file of `--filter`.
    pub(super) fn read(path: Option<&Path>) -> Result<Self, Error> {
        Ok(Self {
            settings: path.map(read_settings).transpose()?,
            has_traffic_extensions: false,
            managed: None,
            again: Instant::now(),
            failures: BTreeMap::new(),
            failed: None,
        })
    }

    /// Forgets what was done: another replica acted meanwhile.
    pub(super) fn defer_to_others(&mut self) {
        self.managed = None;
        self.failed = None;
    }

    /// The condition of a `RateLimitDomain` of which this generation is in force.
    pub(super) fn claim(&self, object: &str, generation: i64) -> Claim {
        let (status, reason, message) = match self.failures.get(object) {
            _ if self.settings.is_none() => (
                "False",
                "NotConfigured",
                "the controller runs without --filter, which says what to load".to_owned(),
            ),
            Some(why) => ("False", "NotApplied", why.trim_end().to_owned()),
            None if self.managed.is_none() => (
                "Unknown",
                "Pending",
                "the objects are not written yet".to_owned(),
            ),
            None => ("True", "Applied", String::new()),
        };
        Claim::new(status, reason, message, generation)
    }

    /// Writes the objects of all managed domains, and deletes those of others, if something changed or it is time.
    /// Returns whether it was: until then what failed last still does.
    pub(super) async fn keep(
        &mut self,
        client: &Client,
        translation: &Translation,
        uids: &BTreeMap<String, String>,
        gateways: impl Iterator<Item = (&Gateway, Option<&GatewayClass>)>,
    ) -> bool {
        if self.settings.is_none() {
            return false;
        }
        let classes: BTreeMap<Key, &str> = gateways
            .map(|(gateway, class)| {
                let controller = class.map_or("", |class| class.spec.controller_name.as_str());
                (gateway.metadata.key(), controller)
            })
            .collect();
        let managed = managed(translation, uids, &classes);
        if self.managed.as_ref() == Some(&managed) && Instant::now() < self.again {
            return false;
        }
        let Some(settings) = self.settings.clone() else {
            return false;
        };
        let outcome = self.write(client, &settings, &managed).await;
        self.failed = outcome.err().or_else(|| {
            let (object, why) = self.failures.first_key_value()?;
            Some(format!("the filters of RateLimitDomain {object}: {why}"))
        });
        let pause = if self.failed.is_none() { EVERY } else { RETRY };
        self.again = Instant::now() + pause;
        self.managed = Some(managed);
        true
    }

    async fn write(
        &mut self,
        client: &Client,
        settings: &FilterSettings,
        managed: &[Managed],
    ) -> Result<(), String> {
        let listed = list(client).await.inspect_err(|why| {
            let of = managed
                .iter()
                .map(|one| (one.object.0.clone(), why.clone()));
            self.failures = of.collect();
        })?;
        self.has_traffic_extensions |= listed.served.contains(&Loader::TrafficExtension);
        self.failures.clear();
        let (listed, has) = (&listed, self.has_traffic_extensions);
        let all = managed.iter().flat_map(|one| {
            let gateways = one.gateways.iter();
            gateways.map(move |(gateway, controller)| (one, gateway, controller))
        });
        let applied = stream::iter(all).map(|(one, gateway, controller)| async move {
            let loader = Loader::of(controller, has);
            let applied = apply(client, settings, one, gateway, loader, listed).await;
            (one, gateway, applied)
        });
        let applied: Vec<_> = applied.buffered(WRITES_AT_ONCE).collect().await;
        let (mut written, mut failed) = (BTreeSet::new(), BTreeSet::new());
        for (one, gateway, applied) in applied {
            let key = filter_object_name(gateway);
            match applied {
                Ok(loader) => drop(written.insert((loader, key))),
                Err(why) => {
                    let failures = self.failures.entry(one.object.0.clone()).or_default();
                    // Writing to a string does not fail.
                    let _ = write!(failures, "Gateway {gateway}: {why}. ");
                    failed.insert(key);
                }
            }
        }
        // What could not be written stays as it is: without it requests would pass unlimited.
        let others = listed.there.difference(&written);
        let others = others.filter(|(_, key)| !failed.contains(key));
        stream::iter(others.map(Ok))
            .try_for_each_concurrent(WRITES_AT_ONCE, |(loader, key)| delete(client, *loader, key))
            .await
    }
}

async fn delete(client: &Client, loader: Loader, key: &Key) -> Result<(), String> {
    let api = api(client, loader, &key.namespace);
    match in_time(api.delete(&key.name, &DeleteParams::default())).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => {
            let [_, _, kind, _] = loader.words();
            Err(format!("cannot delete {kind} {key}: {error}"))
        }
    }
}

/// The kinds that the cluster has, and the controller's objects of these.
struct Listed {
    served: BTreeSet<Loader>,
    there: BTreeSet<(Loader, Key)>,
}

async fn list(client: &Client) -> Result<Listed, String> {
    let (mut served, mut there) = (BTreeSet::new(), BTreeSet::new());
    let own = ListParams::default().labels(&format!("{}={}", MANAGED_BY.0, MANAGED_BY.1));
    for loader in Loader::ALL {
        let api = Api::<DynamicObject>::all_with(client.clone(), &resource(loader));
        match in_time(api.list(&own)).await {
            Ok(list) => {
                served.insert(loader);
                there.extend(list.items.iter().map(|object| (loader, key_of(object))));
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(format!("cannot list {}: {error}", loader.words()[3])),
        }
    }
    Ok(Listed { served, there })
}

/// The domains that are managed, as far as their Gateways exist.
fn managed(
    translation: &Translation,
    uids: &BTreeMap<String, String>,
    classes: &BTreeMap<Key, &str>,
) -> Vec<Managed> {
    let objects = translation
        .domain_objects
        .iter()
        .filter_map(|(object, result)| {
            let in_force = result.in_force.as_ref()?;
            let is_managed = in_force.spec.filter == Some(Filter::Managed);
            let domain = result.domain.as_ref().filter(|_| is_managed)?;
            let gateways = translation.domains.get(domain)?.gateways.iter();
            let gateways =
                gateways.filter_map(|key| Some((key.clone(), (*classes.get(key)?).to_owned())));
            Some(Managed {
                object: (object.clone(), uids.get(object)?.clone()),
                domain: domain.clone(),
                gateways: gateways.collect(),
            })
        });
    objects.collect()
}

/// Returns what it is loaded by.
async fn apply(
    client: &Client,
    settings: &FilterSettings,
    managed: &Managed,
    gateway: &Key,
    loader: Option<Loader>,
    listed: &Listed,
) -> Result<Loader, String> {
    let loader = loader.ok_or("its class is neither Istio's nor Envoy Gateway's")?;
    let [_, _, kind, _] = loader.words();
    if !listed.served.contains(&loader) {
        return Err(format!("the cluster has no {kind}"));
    }
    let (name, uid) = &managed.object;
    let object = settings.object(loader, gateway, managed.domain.as_str(), (name, uid))?;
    let key = filter_object_name(gateway);
    let is_own = listed.there.contains(&(loader, key.clone()));
    let api = api(client, loader, &key.namespace);
    let text = |error: kube::Error| format!("{kind} {key}: {error}");
    if !is_own
        && in_time(api.get_opt(&key.name))
            .await
            .map_err(text)?
            .is_some()
    {
        return Err(format!(
            "{kind} {key} is there, and is not the controller's"
        ));
    }
    // Not by force: what somebody else has written into it is a conflict, which the status shows.
    let parameters = PatchParams::apply(&controller_name());
    let patch = Patch::Apply(object);
    let applied = in_time(api.patch(&key.name, &parameters, &patch)).await;
    applied.map(|_| loader).map_err(text)
}

fn resource(loader: Loader) -> ApiResource {
    let [group, version, kind, plural] = loader.words();
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: format!("{group}/{version}"),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

fn api(client: &Client, loader: Loader, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &resource(loader))
}

/// Reads the file of `--filter`, and tries each configuration as a filter would.
fn read_settings(path: &Path) -> Result<FilterSettings, Error> {
    let wrong =
        |why: String| Error::new(Exit::Usage, format!("--filter {}: {why}", path.display()));
    let text = read_file(path, FILE_MAX).map_err(|error| wrong(error.to_string()))?;
    let text = String::from_utf8(text).map_err(|error| wrong(error.to_string()))?;
    let mut report = Report::default();
    let node = limits_file::yaml::load(&text, &mut report);
    if let Some(problem) = report.problems.first() {
        return Err(wrong(problem.to_string()));
    }
    let value = serde_json::to_value(node).map_err(|error| wrong(error.to_string()))?;
    let settings: FilterSettings =
        serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
    let mut any = false;
    for loader in [Loader::TrafficExtension, Loader::EnvoyExtensionPolicy] {
        let Ok(config) = settings.config(loader, &Key::new("namespace", "gateway"), "domain")
        else {
            continue;
        };
        any = true;
        filter_config::Config::from_json(config.to_string().as_bytes()).map_err(|problems| {
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            wrong(format!("{}: {}", loader.words()[2], problems.join("; ")))
        })?;
    }
    if any {
        return Ok(settings);
    }
    Err(wrong(
        "it needs `istio` or `envoyGateway`, a filter's configuration".to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::Arc};

    use http_body_util::{BodyExt as _, Full};
    use hyper::{
        Method, Request, Response, body::Incoming, server::conn::http1, service::service_fn,
    };
    use hyper_util::rt::TokioIo;
    use serde_json::json;
    use tokio::{net::TcpListener, sync::Barrier, time::timeout};

    use super::*;

    /// An API server that has no objects, and answers no write before so many came at once.
    async fn server(writes: usize) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let together = Arc::new(Barrier::new(writes));
        let answer = move |request: Request<Incoming>| {
            let together = Arc::clone(&together);
            async move {
                let is_list = !request.uri().path().contains("/namespaces/");
                let is_write = request.method() == Method::PATCH;
                request.into_body().collect().await.unwrap();
                if is_write {
                    together.wait().await;
                }
                let (status, body) = if is_list {
                    (
                        200,
                        json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": []}),
                    )
                } else if is_write {
                    (
                        200,
                        json!({"apiVersion": "v1", "kind": "Any", "metadata": {"name": "any"}}),
                    )
                } else {
                    (
                        404,
                        json!({"status": "Failure", "message": "", "reason": "NotFound", "code": 404}),
                    )
                };
                let response = Response::builder().status(status);
                let body = Full::new(hyper::body::Bytes::from(body.to_string()));
                Ok::<_, Infallible>(response.body(body).unwrap())
            }
        };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let answer = service_fn(answer.clone());
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap()
    }

    #[tokio::test]
    async fn filters_are_written_several_at_once() {
        let client = server(WRITES_AT_ONCE).await;
        let settings = json!({"image": "filter:1", "istio": {}});
        let settings: FilterSettings = serde_json::from_value(settings).unwrap();
        let gateway = |at: usize| {
            let key = Key::new("infra", at.to_string());
            (key, "istio.io/gateway-controller".to_owned())
        };
        let managed = Managed {
            object: ("shop".to_owned(), "uid".to_owned()),
            domain: "shop".parse().unwrap(),
            gateways: (0..2 * WRITES_AT_ONCE).map(gateway).collect(),
        };
        let mut filters = Filters::read(None).unwrap();
        let write = filters.write(&client, &settings, std::slice::from_ref(&managed));
        let written = timeout(Duration::from_secs(20), write).await;
        assert_eq!(written, Ok(Ok(())));
        assert_eq!(filters.failures, BTreeMap::new());
    }
}
