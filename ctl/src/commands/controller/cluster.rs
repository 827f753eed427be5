//! The cluster: what its objects are, by watches; which replica acts, by a Lease; and the writing of statuses.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures_util::{
    StreamExt as _,
    stream::{BoxStream, SelectAll, select_all},
};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ObjectMeta, Patch, PatchParams, PostParams},
    runtime::watcher::{self, Event, watcher},
};
use kubernetes::{
    GROUP, Gateway, GatewayClass, Key, Namespace, Object, Objects, RateLimit, RateLimitDomain,
    RateLimitDomainStatus, RateLimitStatus, Route, RouteKind, RouteSpec, RouteStatus, Service,
    VERSION, api_version, controller_name,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    enforced::{GATEWAY_LABEL, OWNING_GATEWAY_LABEL, Pod, gateway_of},
    metrics::API_SERVER,
};
use crate::{
    error::{Error, Exit},
    serve::Failures,
};

/// How long the API server may take for one request.
pub(super) const REQUEST_TIME: Duration = Duration::from_secs(10);
/// How long a watch may be silent. The API server sends a bookmark once a minute.
pub(super) const SILENCE: Duration = Duration::from_secs(90);
/// Before a watch that failed begins again: twice as long after each failure in a row, for an API server that has too much
/// to do; and before the same for a kind that the cluster does not have.
const RETRY: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(8);
const RETRY_MISSING: Duration = Duration::from_secs(5);
/// How long a watch counts as failing after an error. While it fails, it has one more often than that; once it goes on, it may
/// have nothing to say.
const FAILS_FOR: Duration = Duration::from_secs(15);
/// How often in a row the API server must say that it has no such kind: one that starts says so of every kind.
const MISSING_TIMES: u8 = 2;

/// What tells this cluster from others whose objects are in the same store: the UID of the namespace that a cluster has
/// for as long as it is there. The controller's own namespace and its Lease are new whenever it is installed again.
pub(super) async fn own_id(client: &Client) -> Result<String, Error> {
    const SYSTEM: &str = "kube-system";
    let api = Api::<DynamicObject>::all_with(client.clone(), &Kind::Namespace.resource());
    let found = in_time(api.get_opt(SYSTEM)).await;
    let failed = |why: String| {
        let message = format!("cannot tell which cluster this is by its namespace {SYSTEM}: {why}");
        Error::new(Exit::Usage, message)
    };
    let found = found.map_err(|error| failed(error.to_string()))?;
    let id = found.and_then(|found| found.metadata.uid);
    id.ok_or_else(|| failed("there is none".to_owned()))
}

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    RateLimit,
    RateLimitDomain,
    Gateway,
    GatewayClass,
    HttpRoute,
    GrpcRoute,
    Service,
    Namespace,
    /// Pods by the label that Istio and others set.
    Pod,
    /// Pods by Envoy Gateway's label.
    EnvoyGatewayPod,
}

const KINDS: [Kind; 10] = [
    Kind::RateLimit,
    Kind::RateLimitDomain,
    Kind::Gateway,
    Kind::GatewayClass,
    Kind::HttpRoute,
    Kind::GrpcRoute,
    Kind::Service,
    Kind::Namespace,
    Kind::Pod,
    Kind::EnvoyGatewayPod,
];

impl Kind {
    /// The API group, the version, the kind and its plural.
    fn words(self) -> (&'static str, &'static str, &'static str, &'static str) {
        const GATEWAY_API: &str = "gateway.networking.k8s.io";
        match self {
            Self::RateLimit => (GROUP, VERSION, "RateLimit", "ratelimits"),
            Self::RateLimitDomain => (GROUP, VERSION, "RateLimitDomain", "ratelimitdomains"),
            Self::Gateway => (GATEWAY_API, "v1", "Gateway", "gateways"),
            Self::GatewayClass => (GATEWAY_API, "v1", "GatewayClass", "gatewayclasses"),
            Self::HttpRoute => (GATEWAY_API, "v1", "HTTPRoute", "httproutes"),
            Self::GrpcRoute => (GATEWAY_API, "v1", "GRPCRoute", "grpcroutes"),
            Self::Service => ("", "v1", "Service", "services"),
            Self::Namespace => ("", "v1", "Namespace", "namespaces"),
            Self::Pod | Self::EnvoyGatewayPod => ("", "v1", "Pod", "pods"),
        }
    }

    fn plural(self) -> &'static str {
        self.words().3
    }

    fn resource(self) -> ApiResource {
        let (group, version, kind, plural) = self.words();
        let api_version = match group {
            "" => version.to_owned(),
            _ => format!("{group}/{version}"),
        };
        ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version,
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        }
    }

    fn config(self) -> watcher::Config {
        let config = watcher::Config::default();
        match self {
            Self::Pod => config.labels(GATEWAY_LABEL),
            Self::EnvoyGatewayPod => config.labels(OWNING_GATEWAY_LABEL),
            _ => config,
        }
    }

    /// Whether a cluster need not have it.
    fn is_optional(self) -> bool {
        matches!(
            self,
            Self::Gateway | Self::GatewayClass | Self::HttpRoute | Self::GrpcRoute
        )
    }
}

/// What a watch says.
pub(super) struct Said(Kind, Result<Event<DynamicObject>, watcher::Error>);

/// All watches.
pub(super) type Watches = SelectAll<BoxStream<'static, Said>>;

/// Watches everything that a translation, and the status, needs.
pub(super) fn watch_all(client: &Client) -> Watches {
    let one = |kind: Kind| {
        let api = Api::<DynamicObject>::all_with(client.clone(), &kind.resource());
        let events = watcher(api, kind.config());
        let mut pause = RETRY;
        events
            .then(move |event| {
                let before = pause_before(&event, &mut pause);
                async move {
                    if let Some(before) = before {
                        sleep(before).await;
                    }
                    Said(kind, event)
                }
            })
            .boxed()
    };
    select_all(KINDS.map(one))
}

/// How long to wait before a watch goes on; `next` is the pause after the next failure.
fn pause_before<T>(
    event: &Result<Event<T>, watcher::Error>,
    next: &mut Duration,
) -> Option<Duration> {
    match event {
        // It is only about to list, as after each failure.
        Ok(Event::Init) => None,
        Ok(_) => {
            *next = RETRY;
            None
        }
        Err(error) if is_missing(error) => Some(RETRY_MISSING),
        Err(_) => {
            let pause = *next;
            *next = pause.saturating_mul(2).min(RETRY_MAX);
            Some(pause)
        }
    }
}

fn is_missing(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404)
}

/// The objects of one kind.
#[derive(Debug)]
struct Kept<T> {
    objects: BTreeMap<Key, T>,
    /// What a watch that begins again has listed so far: it counts when it is whole.
    fresh: Option<BTreeMap<Key, T>>,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            fresh: None,
        }
    }
}

impl<T: PartialEq> Kept<T> {
    /// Takes an event; returns whether anything differs then.
    fn take(
        &mut self,
        event: Event<DynamicObject>,
        read: impl Fn(&DynamicObject) -> Option<T>,
    ) -> bool {
        match event {
            Event::Init => {
                self.fresh = Some(BTreeMap::new());
                false
            }
            Event::InitApply(object) => {
                if let Some(read) = read(&object) {
                    let fresh = self.fresh.get_or_insert_default();
                    fresh.insert(key_of(&object), read);
                }
                false
            }
            Event::InitDone => {
                let fresh = self.fresh.take().unwrap_or_default();
                let changed = fresh != self.objects;
                self.objects = fresh;
                changed
            }
            Event::Apply(object) => match read(&object) {
                Some(read) => {
                    let old = self.objects.get(&key_of(&object));
                    let changed = old != Some(&read);
                    self.objects.insert(key_of(&object), read);
                    changed
                }
                None => self.objects.remove(&key_of(&object)).is_some(),
            },
            Event::Delete(object) => self.objects.remove(&key_of(&object)).is_some(),
        }
    }

    fn all(&self) -> impl Iterator<Item = &T> {
        self.objects.values()
    }
}

pub(super) fn key_of(object: &DynamicObject) -> Key {
    let metadata = &object.metadata;
    Key::new(
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
    )
}

/// An object as the translation reads it. One that cannot be read counts as absent; the definition of its kind keeps it
/// from being stored.
fn read<T: DeserializeOwned>(object: &DynamicObject) -> Option<T> {
    serde_json::from_value(serde_json::to_value(object).ok()?).ok()
}

/// An object of the project's own kinds.
#[derive(Clone, Debug)]
struct Own<S, T> {
    /// Its status is the one that this replica wrote last, if it wrote one: the watch lags behind, and what others write
    /// there is not true.
    object: Object<S, T>,
    /// Which object of that name.
    uid: String,
    /// The version of the object that has the status that this replica wrote.
    written: Option<String>,
    /// Whether a later version has another one.
    is_overwritten: bool,
}

impl<S, T: Clone + PartialEq> Own<S, T> {
    /// Takes over what this replica wrote onto an earlier version of the object.
    fn follow(&mut self, before: &Self, version: &str) {
        let Some(written) = before.written.as_deref().filter(|_| before.uid == self.uid) else {
            return;
        };
        self.is_overwritten = if is_later(version, written) {
            self.object.status != before.object.status
        } else {
            before.is_overwritten
        };
        self.object.status = before.object.status.clone();
        self.written = Some(written.to_owned());
    }
}

/// Whether a resource version is later than another. Those of one kind are numbers that grow.
fn is_later(version: &str, than: &str) -> bool {
    let number = |version: &str| version.parse::<u64>().ok();
    number(version)
        .zip(number(than))
        .is_some_and(|(version, than)| version > than)
}

// What this replica writes is no change.
impl<S: PartialEq, T> PartialEq for Own<S, T> {
    fn eq(&self, other: &Self) -> bool {
        self.uid == other.uid
            && self.object.metadata == other.object.metadata
            && self.object.spec == other.object.spec
    }
}

type Owns<S, T> = Kept<Own<S, T>>;

impl<S, T> Owns<S, T>
where
    S: PartialEq + Clone + Default + DeserializeOwned,
    T: PartialEq + Clone + Default + DeserializeOwned,
{
    fn take_own(&mut self, event: Event<DynamicObject>) -> bool {
        let before = match &event {
            Event::Apply(object) | Event::InitApply(object) => self.objects.get(&key_of(object)),
            Event::Init | Event::InitDone | Event::Delete(_) => None,
        };
        let before = before.cloned();
        self.take(event, |object| {
            let mut own = Own {
                object: read(object)?,
                uid: object.metadata.uid.clone().unwrap_or_default(),
                written: None,
                is_overwritten: false,
            };
            if let Some(before) = &before {
                own.follow(before, object.metadata.resource_version.as_deref()?);
            }
            Some(own)
        })
    }

    fn wrote(&mut self, key: &Key, uid: &str, status: T, version: String) {
        if let Some(own) = self.objects.get_mut(key).filter(|own| own.uid == uid) {
            own.object.status = status;
            (own.written, own.is_overwritten) = (Some(version), false);
        }
    }

    fn defer_to_others(&mut self) {
        for own in self.objects.values_mut() {
            (own.written, own.is_overwritten) = (None, false);
        }
    }
}

/// An object of the project's own kinds, as the controller looks at it.
pub(super) struct Seen<'s, O> {
    pub(super) object: &'s O,
    pub(super) uid: &'s str,
    /// Whether somebody else has written another status than this replica.
    pub(super) is_overwritten: bool,
}

impl<'s, S, T> From<&'s Own<S, T>> for Seen<'s, Object<S, T>> {
    fn from(own: &'s Own<S, T>) -> Self {
        Self {
            object: &own.object,
            uid: &own.uid,
            is_overwritten: own.is_overwritten,
        }
    }
}

/// What the watches have seen.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    rate_limits: Owns<kubernetes::RateLimitSpec, RateLimitStatus>,
    domains: Owns<kubernetes::RateLimitDomainSpec, RateLimitDomainStatus>,
    gateways: Kept<Gateway>,
    classes: Kept<GatewayClass>,
    routes: [Kept<Route>; 2],
    services: Kept<Service>,
    namespaces: Kept<Namespace>,
    pods: [Kept<Pod>; 2],
    /// The kinds that were listed once, or that the cluster does not have.
    synced: BTreeSet<Kind>,
    /// How often in a row the API server said that it has no such kind.
    missing: BTreeMap<Kind, u8>,
    /// The last error of a watch that no event has followed, and when.
    errors: BTreeMap<Kind, (String, Instant)>,
}

/// Whether the cluster lacks a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    No,
    SinceNow,
    Still,
}

/// What changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    /// Something that the translation reads.
    pub(super) objects: bool,
    /// The Pods.
    pub(super) pods: bool,
    /// Nothing: a watch has failed.
    pub(super) has_failed: bool,
}

impl Cluster {
    /// Takes what a watch said.
    pub(super) fn take(&mut self, Said(kind, event): Said) -> Changed {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                let missing = self.note_missing(kind, &error);
                if missing == Missing::No {
                    let error = (error.to_string(), Instant::now());
                    self.errors.insert(kind, error);
                } else {
                    self.errors.remove(&kind);
                }
                return Changed {
                    objects: missing == Missing::SinceNow,
                    has_failed: missing == Missing::No,
                    ..Changed::default()
                };
            }
        };
        if !matches!(event, Event::Init) {
            self.errors.remove(&kind);
        }
        let mut is_first = false;
        if matches!(event, Event::InitDone) {
            is_first = self.synced.insert(kind);
            self.missing.remove(&kind);
        }
        let [http, grpc] = &mut self.routes;
        let [pods, envoy_gateway_pods] = &mut self.pods;
        let changed = match kind {
            Kind::RateLimit => self.rate_limits.take_own(event),
            Kind::RateLimitDomain => self.domains.take_own(event),
            Kind::Gateway => self.gateways.take(event, read),
            Kind::GatewayClass => self.classes.take(event, read),
            Kind::HttpRoute => http.take(event, |object| read_route(object, RouteKind::Http)),
            Kind::GrpcRoute => grpc.take(event, |object| read_route(object, RouteKind::Grpc)),
            Kind::Service => self.services.take(event, read),
            Kind::Namespace => self.namespaces.take(event, read),
            Kind::Pod => pods.take(event, |object| Some(read_pod(object))),
            Kind::EnvoyGatewayPod => {
                envoy_gateway_pods.take(event, |object| Some(read_pod(object)))
            }
        };
        let changed = changed || is_first;
        let is_pod = matches!(kind, Kind::Pod | Kind::EnvoyGatewayPod);
        Changed {
            objects: changed && !is_pod,
            pods: changed && is_pod,
            has_failed: false,
        }
    }

    /// Counts how often the API server said that it has no such kind. That is believed of a kind that need not exist,
    /// and never of one that was listed, which an API server that starts may not serve yet.
    fn note_missing(&mut self, kind: Kind, error: &watcher::Error) -> Missing {
        let was_listed = self.synced.contains(&kind) && !self.missing.contains_key(&kind);
        if !kind.is_optional() || !is_missing(error) || was_listed {
            return Missing::No;
        }
        let times = self.missing.entry(kind).or_default();
        *times = times.saturating_add(1);
        match () {
            () if *times < MISSING_TIMES => Missing::No,
            () if self.synced.insert(kind) => Missing::SinceNow,
            () => Missing::Still,
        }
    }

    /// Which watches fail, and why one does. The objects are then what they were.
    pub(super) fn failing(&self) -> Option<String> {
        let mut failing = { self.errors.iter() }.filter(|(_, (_, at))| at.elapsed() < FAILS_FOR);
        let mut names: Vec<_> = failing.clone().map(|(kind, _)| kind.plural()).collect();
        names.dedup();
        let (_, (why, _)) = failing.next()?;
        Some(format!("cannot watch {}: {why}", names.join(", ")))
    }

    /// The kinds that are not listed yet.
    pub(super) fn unsynced(&self) -> Vec<&'static str> {
        let unsynced = KINDS.iter().filter(|kind| !self.synced.contains(kind));
        let mut names: Vec<_> = unsynced.map(|kind| kind.plural()).collect();
        // Two watches are of Pods.
        names.dedup();
        names
    }

    /// What a translation reads, but for what proxies supply.
    pub(super) fn objects(&self, cluster_domain: &str) -> Objects {
        let own = |own: &Own<_, _>| own.object.clone();
        let [http, grpc] = &self.routes;
        Objects {
            rate_limits: self.rate_limits.all().map(own).collect(),
            domains: self.domains.all().map(|own| own.object.clone()).collect(),
            gateways: self.gateways.all().cloned().collect(),
            classes: self.classes.all().cloned().collect(),
            routes: http.all().chain(grpc.all()).cloned().collect(),
            services: self.services.all().cloned().collect(),
            namespaces: self.namespaces.all().cloned().collect(),
            supply: BTreeMap::new(),
            by_rule_name: BTreeSet::new(),
            cluster_domain: cluster_domain.to_owned(),
        }
    }

    /// Every `RateLimit`.
    pub(super) fn all_rate_limits(&self) -> impl Iterator<Item = Seen<'_, RateLimit>> {
        self.rate_limits.all().map(Seen::from)
    }

    /// Every `RateLimitDomain`.
    pub(super) fn all_domains(&self) -> impl Iterator<Item = Seen<'_, RateLimitDomain>> {
        self.domains.all().map(Seen::from)
    }

    /// Every Gateway, with its class.
    pub(super) fn all_gateways(&self) -> impl Iterator<Item = (&Gateway, Option<&GatewayClass>)> {
        let class = |gateway: &Gateway| {
            let key = Key::new("", &gateway.spec.gateway_class_name);
            self.classes.objects.get(&key)
        };
        self.gateways
            .all()
            .map(move |gateway| (gateway, class(gateway)))
    }

    /// The Pods that are proxies of Gateways.
    pub(super) fn pods(&self) -> BTreeMap<&Key, &Pod> {
        let pods = self.pods.iter().flat_map(Kept::all);
        pods.map(|pod| (&pod.key, pod)).collect()
    }

    /// Keeps the status that was written of a `RateLimit`, and which version of the object has it. Returns whether another
    /// version of the spec is in force since.
    pub(super) fn wrote_rate_limit(
        &mut self,
        key: &Key,
        uid: &str,
        status: RateLimitStatus,
        version: String,
    ) -> bool {
        let before = self.rate_limits.objects.get(key);
        let is_news = before.is_some_and(|own| own.object.status.in_force != status.in_force);
        self.rate_limits.wrote(key, uid, status, version);
        is_news
    }

    /// The same of a `RateLimitDomain`.
    pub(super) fn wrote_domain(
        &mut self,
        key: &Key,
        uid: &str,
        status: RateLimitDomainStatus,
        version: String,
    ) {
        self.domains.wrote(key, uid, status, version);
    }

    /// Forgets what this replica wrote: another one writes from now on.
    pub(super) fn defer_to_others(&mut self) {
        self.rate_limits.defer_to_others();
        self.domains.defer_to_others();
    }
}

fn read_route(object: &DynamicObject, kind: RouteKind) -> Option<Route> {
    let object = read::<Object<RouteSpec, RouteStatus>>(object)?;
    Some(Route { kind, object })
}

fn read_pod(object: &DynamicObject) -> Pod {
    let conditions = object.data.pointer("/status/conditions");
    let conditions = conditions.and_then(Value::as_array).into_iter().flatten();
    let is_ready = conditions.into_iter().any(|one| {
        one.get("type").and_then(Value::as_str) == Some("Ready")
            && one.get("status").and_then(Value::as_str) == Some("True")
    });
    let key = key_of(object);
    let labels = object.metadata.labels.clone().unwrap_or_default();
    Pod {
        is_ready,
        is_ending: object.metadata.deletion_timestamp.is_some(),
        gateway: gateway_of(&key.namespace, &labels),
        key,
    }
}

// --- Requests.

/// A request, which fails once it takes longer than [`REQUEST_TIME`].
pub(super) async fn in_time<T>(
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, kube::Error> {
    match timeout(REQUEST_TIME, request).await {
        Ok(answer) => answer,
        Err(late) => Err(kube::Error::Service(late.into())),
    }
}

/// What became of writing a status.
pub(super) enum Wrote {
    /// The version of the object that has it.
    Done(String),
    /// The object is another one by now, or gone.
    Gone,
    /// It was not done, for a reason that may concern this object alone, or all for long: a missing role, say.
    Refused(String),
    /// The API server is away, or has too much to do.
    Failed(String),
}

/// Writes the status of a `RateLimit`, or without a namespace of a `RateLimitDomain`.
pub(super) async fn write_status(
    client: &Client,
    key: &Key,
    uid: &str,
    status: &impl Serialize,
) -> Wrote {
    let (kind, api);
    if key.namespace.is_empty() {
        kind = Kind::RateLimitDomain.resource();
        api = Api::<DynamicObject>::all_with(client.clone(), &kind);
    } else {
        kind = Kind::RateLimit.resource();
        api = Api::namespaced_with(client.clone(), &key.namespace, &kind);
    }
    let patch = json!({
        "apiVersion": api_version(),
        "kind": kind.kind,
        // Not onto another object of that name.
        "metadata": {"name": key.name, "uid": uid},
        "status": status,
    });
    let parameters = PatchParams::apply(&controller_name()).force();
    match in_time(api.patch_status(&key.name, &parameters, &Patch::Apply(patch))).await {
        Ok(written) => Wrote::Done(written.metadata.resource_version.unwrap_or_default()),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Wrote::Gone,
        Err(kube::Error::Api(status))
            if (400..500).contains(&status.code) && status.code != 429 =>
        {
            Wrote::Refused(status.to_string())
        }
        Err(error) => Wrote::Failed(error.to_string()),
    }
}

// --- Which of several replicas acts.

/// How long others wait for a replica that renews the Lease no more, and how often one renews it.
const LEASE: Duration = Duration::from_secs(15);
const RENEW: Duration = Duration::from_secs(2);

/// The Lease by which replicas agree on one that acts. It spares work: two that act at once would do no harm, because each
/// edit is based on a revision.
pub(super) struct Election {
    api: Api<Lease>,
    namespace: String,
    name: String,
    identity: String,
    /// The version of the Lease that another replica holds, and since when.
    seen: Option<(String, Instant)>,
    elected: Arc<watch::Sender<Elected>>,
    failures: Failures,
}

/// What this replica does.
#[derive(Clone, Debug, Default)]
pub(super) struct Elected {
    /// Whether it acts.
    pub(super) acts: bool,
    /// Why it can neither take the Lease nor see who has it. With nobody who can, no replica acts.
    pub(super) why: Option<String>,
}

impl Election {
    pub(super) fn new(
        client: Client,
        namespace: &str,
        name: &str,
        identity: String,
        failures: Failures,
    ) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity,
            seen: None,
            elected: Arc::default(),
            failures,
        }
    }

    /// What this replica does.
    pub(super) fn elected(&self) -> watch::Receiver<Elected> {
        self.elected.subscribe()
    }

    /// Takes part until the end.
    pub(super) async fn run(mut self) {
        let elected = Arc::clone(&self.elected);
        let failures = self.failures.clone();
        let lease = Key::new(&self.namespace, &self.name);
        let stop = || elected.send_modify(|elected| elected.acts = false);
        let mut until = Instant::now();
        loop {
            // The Lease is held from when the request is sent, not from when the answer is here.
            let sent = Instant::now();
            let mut renewed = pin!(in_time(self.renew()));
            let renewed = tokio::select! {
                biased;
                renewed = &mut renewed => renewed,
                () = sleep_until(until) => {
                    stop();
                    renewed.await
                }
            };
            let mut why = None;
            match renewed {
                Ok(true) => {
                    until = sent + LEASE - RENEW;
                    // One whose answer came too late stays out until the next.
                    if Instant::now() < until {
                        elected.send_modify(|elected| elected.acts = true);
                    }
                }
                Ok(false) => stop(),
                Err(error) => {
                    if Instant::now() >= until {
                        stop();
                    }
                    failures.count(API_SERVER);
                    why = Some(format!("cannot take the Lease {lease}: {error}"));
                }
            }
            elected.send_modify(|elected| elected.why = why);
            sleep(RENEW).await;
        }
    }

    /// Takes the Lease, or keeps it; returns whether this replica has it.
    async fn renew(&mut self) -> kube::Result<bool> {
        let Some(mut lease) = self.api.get_opt(&self.name).await? else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(self.name.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.held(None)),
            };
            return match self.api.create(&PostParams::default(), &lease).await {
                Ok(_) => Ok(true),
                Err(error) if is_conflict(&error) => Ok(false),
                Err(error) => Err(error),
            };
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        if holder != self.identity && !holder.is_empty() {
            // By this machine's clock alone: those of others may be wrong.
            let version = lease.metadata.resource_version.clone().unwrap_or_default();
            match &self.seen {
                Some((seen, since)) if *seen == version => {
                    if since.elapsed() < LEASE {
                        return Ok(false);
                    }
                }
                _ => {
                    self.seen = Some((version, Instant::now()));
                    return Ok(false);
                }
            }
        }
        lease.spec = Some(self.held(Some(&spec)));
        match self
            .api
            .replace(&self.name, &PostParams::default(), &lease)
            .await
        {
            Ok(_) => Ok(true),
            Err(error) if is_conflict(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn held(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let same = before.filter(|before| before.holder_identity.as_ref() == Some(&self.identity));
        let transitions = before
            .and_then(|before| before.lease_transitions)
            .unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(LEASE.as_secs()).ok(),
            acquire_time: same.map_or(Some(now.clone()), |same| same.acquire_time.clone()),
            renew_time: Some(now),
            lease_transitions: Some(match same {
                None if before.is_some() => transitions.saturating_add(1),
                _ => transitions,
            }),
            ..LeaseSpec::default()
        }
    }
}

/// Gives the Lease up, so that another replica need not wait.
pub(super) async fn resign(client: &Client, namespace: &str, name: &str, identity: &str) {
    let api = Api::<Lease>::namespaced(client.clone(), namespace);
    let Ok(Some(mut lease)) = in_time(api.get_opt(name)).await else {
        return;
    };
    let holder = lease
        .spec
        .as_ref()
        .and_then(|spec| spec.holder_identity.as_deref());
    if holder == Some(identity) {
        lease.spec.get_or_insert_default().holder_identity = None;
        // Otherwise it expires.
        let _ = in_time(api.replace(name, &PostParams::default(), &lease)).await;
    }
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_that_fails_again_and_again_begins_ever_later() {
        let failed = || Err(watcher::Error::NoResourceVersion);
        let mut next = RETRY;
        let mut pauses = Vec::new();
        for event in [failed(), failed(), Ok(Event::Init), failed()] {
            pauses.extend(pause_before::<()>(&event, &mut next));
        }
        assert_eq!(pauses, [RETRY, RETRY * 2, RETRY * 4]);
        for _ in 0..10 {
            pauses.extend(pause_before::<()>(&failed(), &mut next));
        }
        assert_eq!(pauses.last(), Some(&RETRY_MAX));
        // Else it would count as well between two failures.
        assert!(RETRY_MAX < FAILS_FOR);
        assert_eq!(pause_before(&Ok(Event::Apply(())), &mut next), None);
        assert_eq!(pause_before::<()>(&failed(), &mut next), Some(RETRY));
    }
}
