//! `rlctl controller`: limits as Kubernetes objects, brought to the store, with a status that says where they are in
//! force.
//!
//! One task does it all: it takes what the watches say, translates all objects ([`kubernetes::translate`]), brings
//! each domain to the result by the edits of `apply --watch`, looks at the fleet, and writes the statuses that
//! changed. Nothing is remembered beside the objects and the store, so that it may end at any time.

mod client;
mod cluster;
mod domains;
mod enforced;
mod filters;
mod metrics;
mod status;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};

use clap::{Args, ValueEnum};
use futures_util::{StreamExt as _, stream};
use insight::LiveEntries;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kubernetes::{
    AncestorRef, AncestorResult, Condition, Filter, Key, RULE_ENTRY, RateLimitDomainStatus,
    RateLimitStatus, Translation, translate,
};
use policy::Name;
use store::{Fleet, Origin, ProxyStatus};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{Instant, sleep_until},
};

use crate::{
    cli::{Global, examples},
    commands::apply::writer::Writer,
    edit::EditArgs,
    error::{Error, Exit},
    printer::Printer,
    render::truncated_list,
    serve::{DomainLabels, serve},
    session::Session,
};
use cluster::{Changed, Cluster, Elected, Election, Watches, Wrote};
use domains::{Again, Domains};
use enforced::{Needed, Pod, Reports, Verdict};
use filters::Filters;
use metrics::Metrics;
use status::{Claim, Held, Judged};

/// Further events are waited for this long after one, so that what is applied together becomes one edit; and so long
/// at most.
const DEBOUNCE: Duration = Duration::from_millis(50);
const DEBOUNCE_MAX: Duration = Duration::from_millis(300);
/// The time between two looks at the fleet while something is not in force yet, and else.
const LOOK: Duration = Duration::from_millis(200);
const IDLE: Duration = Duration::from_secs(1);
/// Of something that stays so, the fleet is looked at as often as when idle.
const URGENT_FOR: Duration = Duration::from_secs(10);
/// Statuses that are written at once.
const WRITES_AT_ONCE: usize = 8;
/// How long a turn writes statuses. The others come in the next: an API server that does not answer must not keep this one
/// from saying that it is alive.
const WRITES_END: Duration = Duration::from_secs(5);

/// Apply limits that are Kubernetes objects, and write their status.
///
/// It watches RateLimit and RateLimitDomain objects and the Gateways, routes and Services that they name, applies
/// them as `apply --watch` applies files, and writes their status. `Enforced` is True once every live limiter and
/// every Ready proxy Pod of a Gateway has the limits. What rlctl edits meanwhile stays, and counts as drift, until the
/// object changes. A limit whose object is gone is deleted, also if that happened while no controller ran.
///
/// Several replicas agree by a Lease on one that acts. Without a cluster's service account, KUBECONFIG names the cluster.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl controller --metrics-listen 0.0.0.0:8095"
    "rlctl controller --release keep     # its limits are nobody's then, for files to take over"
    "rlctl controller --release delete"
))]
pub struct Controller {
    /// Where /metrics, /healthz and /readyz are served.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = crate::serve::address)]
    metrics_listen: Option<SocketAddr>,

    /// The namespace of the Lease [default: that of the service account].
    #[arg(long, value_name = "NAME")]
    lease_namespace: Option<String>,

    /// The cluster's DNS domain, by which meshes name Services.
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    cluster_domain: String,

    /// A namespace whose Pods may be proxies of Gateways of other namespaces, by the labels of Envoy Gateway; may be
    /// repeated.
    #[arg(long, value_name = "NAMESPACE", default_value = "envoy-gateway-system")]
    proxy_namespace: Vec<String>,

    /// What to load into the Gateways of domains with `filter: managed`: a file with the filter's `image`, and its
    /// configuration as `istio`, `envoyGateway` or both.
    #[arg(long, value_name = "FILE")]
    filter: Option<PathBuf>,

    /// Do not run: delete all limits of objects from the store, or keep them there as if made by hand. Stop every
    /// controller first; one that runs applies the objects again.
    #[arg(long, value_name = "WHAT", value_enum)]
    release: Option<Release>,

    /// Whose limits to release: those of the cluster whose namespace kube-system has this UID, such as one that is
    /// gone [default: the cluster of KUBECONFIG or of the service account].
    #[arg(long, value_name = "UID", requires = "release")]
    cluster: Option<String>,

    #[command(flatten)]
    edit: EditArgs,
}

/// What becomes of the limits of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Release {
    /// They are deleted.
    Delete,
    /// They stay.
    Keep,
}

/// Domains that one message names.
const NAMED_MAX: usize = 10;
/// The Lease's name.
const LEASE_NAME: &str = "rl-controller";

impl Controller {
    /// Runs until SIGTERM.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let mut writer = Writer {
            session: &session,
            edit: &self.edit,
            origin: Origin::Objects,
            // Which cluster this is, its API server says.
            owner: self.cluster.clone(),
            prune: true,
            // Whoever deletes an object means it.
            prune_max: None,
        };
        if let Some(release) = self.release {
            if writer.owner.is_none() {
                writer.owner = Some(cluster::own_id(&client::connect().await?).await?);
            }
            return end(&writer, release).await;
        }
        let filters = Filters::read(self.filter.as_deref())?;
        let cannot = |error| Error::new(Exit::Usage, format!("cannot wait for signals: {error}"));
        let terminate = signal(SignalKind::terminate()).map_err(cannot)?;
        let client = client::connect().await?;
        let metrics = Metrics::new();
        serve(self.metrics_listen, &metrics.pages, printer).await?;
        let namespace = self.lease_namespace.as_deref();
        let namespace = namespace.unwrap_or(client.default_namespace()).to_owned();
        let identity = identity();
        let failures = metrics.failures.clone();
        let id = identity.clone();
        let election = Election::new(client.clone(), &namespace, LEASE_NAME, id, failures);
        let acts = election.elected();
        let elected = tokio::spawn(election.run());
        let mut control = Control {
            arguments: self,
            session: &session,
            watches: cluster::watch_all(&client),
            client: client.clone(),
            metrics,
            cluster: Cluster::default(),
            domains: Domains::new(writer.clone()),
            writer,
            filters,
            translation: Translation::default(),
            supply: Supply::default(),
            held: BTreeMap::new(),
            urgent_until: Instant::now(),
            has_room: false,
            first_written: 0,
            refused: BTreeMap::new(),
            failure: None,
        };
        tokio::select! {
            biased;
            () = until_ended(terminate, printer) => {}
            () = control.turns(acts) => {}
        }
        elected.abort();
        cluster::resign(&client, &namespace, LEASE_NAME, &identity).await;
        printer.note("stopped");
        Ok(Exit::Done)
    }
}

/// Until SIGTERM, or until the cluster has another certificate authority.
async fn until_ended(mut terminate: Signal, printer: &Printer) {
    tokio::select! {
        _ = terminate.recv() => {}
        () = client::changed(Path::new(client::AUTHORITY)) => printer.warn(
            "the cluster has another certificate authority: ends, so that Kubernetes starts it with that one",
        ),
    }
}

/// What the Lease calls this process.
fn identity() -> String {
    let host = gethostname::gethostname();
    let (process, now_ms) = (std::process::id(), crate::now_ms());
    format!("{}-{process}-{now_ms}", host.to_string_lossy())
}

/// Carries out `--release`.
async fn end(writer: &Writer<'_>, release: Release) -> Result<Exit, Error> {
    let printer = writer.session.printer;
    let [released, unreadable] = domains::release_all(writer, release == Release::Delete).await?;
    let what = match release {
        Release::Delete => "has no limits of objects any more",
        Release::Keep => "keeps its limits, which are no objects' any more",
    };
    for domain in &released {
        printer.note(format_args!("{domain} {what}"));
    }
    if !unreadable.is_empty() {
        let names = truncated_list(&unreadable, NAMED_MAX);
        let message = format!("the limits of {names} are not deleted: the record cannot be read");
        let hint = "`rlctl doctor` says why; then run this again";
        return Err(Error::new(Exit::Refused, message).hint(hint));
    }
    if released.is_empty() {
        printer.note("no domain has limits of objects");
    }
    Ok(Exit::Done)
}

/// All state of the running controller.
struct Control<'c> {
    arguments: &'c Controller,
    session: &'c Session<'c>,
    client: Client,
    watches: Watches,
    metrics: Metrics,
    cluster: Cluster,
    writer: Writer<'c>,
    domains: Domains<'c>,
    filters: Filters,
    translation: Translation,
    supply: Supply,
    /// What was said last, by object and Gateway.
    held: BTreeMap<(Key, AncestorRef), Held>,
    /// Until when the fleet is looked at often.
    urgent_until: Instant,
    /// Whether an object has room since another one's new version is in force.
    has_room: bool,
    /// Where the next statuses to write begin, since not all were written in time.
    first_written: usize,
    /// The statuses that were refused.
    refused: BTreeMap<Key, Refused>,
    /// The last failure, which is printed once.
    failure: Option<String>,
}

/// A status that was refused. One that nobody may write is not sent again in every turn.
struct Refused {
    /// The generation that it is about.
    generation: i64,
    why: String,
    again: Again,
}

/// The entries that live proxies supply, as of the last look at the fleet by which all of them were known. So a proxy that has
/// just started changes nothing before it has said what it supplies.
#[derive(Debug, Default, PartialEq, Eq)]
struct Supply {
    by_domain: BTreeMap<Name, BTreeSet<Name>>,
    by_rule_name: BTreeSet<Name>,
}

impl Supply {
    /// Takes a look at the fleet; returns whether anything differs then.
    fn take(&mut self, fleet: &Fleet) -> bool {
        let live = LiveEntries::from_fleet(fleet);
        let mut new = Self::default();
        for (domain, proxies) in &fleet.proxies {
            let (entries, has_rules) = if let Some(supply) = live.supply(domain) {
                let all = |proxy: &ProxyStatus| {
                    { proxy.supplies.as_ref() }.is_some_and(|has| has.contains(RULE_ENTRY))
                };
                let entries = supply.entries.iter().cloned().collect();
                (entries, proxies.iter().all(all))
            } else if let Some(before) = self.by_domain.get(domain) {
                (before.clone(), self.by_rule_name.contains(domain))
            } else {
                continue;
            };
            new.by_domain.insert(domain.clone(), entries);
            if has_rules {
                new.by_rule_name.insert(domain.clone());
            }
        }
        std::mem::replace(self, new) != *self
    }
}

/// What the next turn has to do beside its usual look.
#[derive(Clone, Copy, Debug, Default)]
struct Due {
    objects: bool,
    pods: bool,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Due {
    fn add(&mut self, changed: Changed) {
        if !changed.objects && !changed.pods {
            return;
        }
        let now = Instant::now();
        self.objects |= changed.objects;
        self.pods |= changed.pods;
        self.first.get_or_insert(now);
        self.last = Some(now);
    }

    /// What is due after a turn, which did it all if it was `done`. Objects that were not translated stay due.
    fn after(self, done: bool) -> Self {
        Self {
            objects: self.objects && !done,
            ..Self::default()
        }
    }

    /// When the turn begins, if the usual look is at `next`.
    fn at(&self, next: Instant) -> Instant {
        match (self.first, self.last) {
            (Some(first), Some(last)) => (last + DEBOUNCE).min(first + DEBOUNCE_MAX).min(next),
            _ => next,
        }
    }
}

impl Control<'_> {
    async fn turns(&mut self, elected: tokio::sync::watch::Receiver<Elected>) {
        let printer = self.session.printer;
        let mut due = Due::default();
        let mut next = Instant::now();
        let mut acted = false;
        loop {
            tokio::select! {
                biased;
                Some(said) = self.watches.next() => {
                    let changed = self.cluster.take(said);
                    if changed.has_failed {
                        self.metrics.failures.count(metrics::WATCH);
                    }
                    due.add(changed);
                    continue;
                }
                () = sleep_until(due.at(next)) => {}
            }
            let unsynced = self.cluster.unsynced();
            let Elected {
                acts: now_acts,
                why: not_elected,
            } = elected.borrow().clone();
            if now_acts != acted {
                printer.note(if now_acts {
                    "this replica acts"
                } else {
                    "another replica acts; this one stands by"
                });
                acted = now_acts;
                self.metrics.acts.set(i64::from(acted));
                // Of what another replica sees now, this one would repeat what it saw last.
                self.metrics.policies.clear();
                self.metrics.domains.clear();
                self.metrics.drift.clear();
                // What another replica did since is in the store and in the statuses.
                self.cluster.defer_to_others();
                self.domains = Domains::new(self.writer.clone());
                self.filters.defer_to_others();
                self.held.clear();
                due.objects = true;
            }
            // What a watch has listed in part would delete the rest.
            let acts_now = acted && unsynced.is_empty();
            let (why, is_done) = match self.find_owner(acts_now).await {
                Err(why) => (Some(why), false),
                Ok(()) if acts_now => (self.turn(&due).await, true),
                Ok(()) => (None, false),
            };
            self.end_turn(why.or(not_elected), &unsynced);
            due = due.after(is_done);
            let pause = if Instant::now() < self.urgent_until {
                LOOK
            } else {
                IDLE
            };
            next = Instant::now() + pause;
        }
    }

    /// Finds out which cluster this is, before the first turn; else the limits of another one's objects, in the same
    /// store, would look like those of objects that are gone.
    async fn find_owner(&mut self, acts: bool) -> Result<(), String> {
        if !acts || self.writer.owner.is_some() {
            return Ok(());
        }
        let id = cluster::own_id(&self.client).await.map_err(|error| {
            self.metrics.failures.count(metrics::API_SERVER);
            error.plain()
        })?;
        self.writer.owner = Some(id);
        self.domains = Domains::new(self.writer.clone());
        Ok(())
    }

    /// Says what failed, once.
    fn end_turn(&mut self, why: Option<String>, unsynced: &[&str]) {
        let failing = self.cluster.failing();
        // Kinds that are being listed are no failure.
        let is_news = unsynced.is_empty() || failing.is_some();
        let why = why.or(failing).or_else(|| {
            let kinds = unsynced.join(", ");
            (!kinds.is_empty()).then(|| format!("not listed yet: {kinds}"))
        });
        if is_news && why != self.failure {
            let printer = self.session.printer;
            match &why {
                Some(message) => printer.warn(format_args!("{message}; trying again")),
                None => printer.note("all is well again"),
            }
            self.failure.clone_from(&why);
        }
        self.metrics.pages.turned(why);
    }

    /// Does what there is to do; returns why not all of it was possible.
    async fn turn(&mut self, due: &Due) -> Option<String> {
        let fleet = self.session.call(self.session.store.fleet()).await;
        // While the store is away, limits are checked against what was known last.
        let supplied = fleet.as_ref().is_ok_and(|fleet| self.supply.take(fleet));
        if due.objects || supplied || self.has_room {
            self.translate();
        }
        let (edited, mut result) = self.domains.bring_all().await;
        for domain in &edited {
            self.metrics
                .edits
                .get_or_create(&DomainLabels::of(domain))
                .inc();
        }
        // Those of domains that are gone go with them.
        self.metrics.drift.clear();
        for (name, domain) in self.domains.iter() {
            let drift = i64::try_from(domain.drift().len()).unwrap_or(i64::MAX);
            self.metrics
                .drift
                .get_or_create(&DomainLabels::of(name))
                .set(drift);
        }
        if let (Ok(()), Err(error)) = (&result, &fleet) {
            result = Err(Error::new(error.exit(), error.plain()));
        }
        if !edited.is_empty() || due.objects || due.pods {
            self.urgent_until = Instant::now() + URGENT_FOR;
        }
        let unwritten = self.write_statuses(fleet.ok().as_ref()).await;
        let not_loaded = self.keep_filters().await;
        let failed = result.err().map(|error| {
            self.metrics.failures.count(metrics::STORE);
            error.plain()
        });
        failed.or(unwritten).or(not_loaded)
    }

    /// Loads the filter where that is the controller's; returns what failed. The statuses say so in the next turn.
    async fn keep_filters(&mut self) -> Option<String> {
        let domains = self.cluster.all_domains();
        let uids = domains.map(|one| (one.object.metadata.name.clone(), one.uid.to_owned()));
        let (uids, gateways) = (uids.collect(), self.cluster.all_gateways());
        let kept = self
            .filters
            .keep(&self.client, &self.translation, &uids, gateways);
        let was_tried = kept.await;
        let failed = self.filters.failed.clone();
        if was_tried && failed.is_some() {
            self.metrics.failures.count(metrics::API_SERVER);
        }
        failed
    }

    fn translate(&mut self) {
        let mut objects = self.cluster.objects(&self.arguments.cluster_domain);
        objects.supply.clone_from(&self.supply.by_domain);
        objects.by_rule_name.clone_from(&self.supply.by_rule_name);
        self.translation = translate(&objects);
        self.has_room = false;
        self.domains.want(&self.translation);
        let translation = &self.translation;
        self.held
            .retain(|(key, _), _| translation.objects.contains_key(key));
    }

    /// Writes the statuses that changed; returns what failed.
    async fn write_statuses(&mut self, fleet: Option<&Fleet>) -> Option<String> {
        // Whole seconds, as Kubernetes has them.
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let mut limits = self.rate_limits_to_write(fleet, &now);
        let mut all = self.domains_to_write(&now);
        self.leave_out_refused(&mut limits, &mut all);
        let wanted = limits.len() + all.len();
        // Else those that are not answered would keep the others waiting.
        let first = self.first_written.checked_rem(limits.len()).unwrap_or(0);
        limits.rotate_left(first);
        let (client, metrics) = (&self.client, &self.metrics);
        let until = Instant::now() + WRITES_END;
        let (limits, all) = tokio::join!(
            write_all(client, metrics, limits, until),
            write_all(client, metrics, all, until),
        );
        let mut failed = None;
        let (written, unwritten) = (limits.len() + all.len(), wanted - limits.len() - all.len());
        if unwritten > 0 {
            self.first_written = self.first_written.wrapping_add(written + WRITES_AT_ONCE);
            metrics.failures.count(metrics::API_SERVER);
            failed = Some(format!("{unwritten} statuses were not written in time"));
        }
        for (write, status, outcome) in limits {
            let key = write.key.clone();
            if let Some((uid, version)) =
                self.note_written(write, "RateLimit", outcome, &mut failed)
            {
                let is_news = self.cluster.wrote_rate_limit(&key, &uid, status, version);
                self.has_room |= is_news && self.translation.waits_for_room();
            }
        }
        for (write, status, outcome) in all {
            let key = write.key.clone();
            let kind = "RateLimitDomain";
            if let Some((uid, version)) = self.note_written(write, kind, outcome, &mut failed) {
                self.cluster.wrote_domain(&key, &uid, status, version);
            }
        }
        failed.or_else(|| {
            let (_, first) = self.refused.first_key_value()?;
            let more = self.refused.len() - 1;
            let others = if more > 0 {
                format!("; {more} more")
            } else {
                String::new()
            };
            Some(format!("{}{others}", first.why))
        })
    }

    /// Takes those away that were refused a moment ago, of the same version of the object.
    fn leave_out_refused(
        &mut self,
        limits: &mut Vec<(Write, RateLimitStatus)>,
        all: &mut Vec<(Write, RateLimitDomainStatus)>,
    ) {
        let wanted: BTreeMap<&Key, i64> = { limits.iter().map(|(write, _)| write) }
            .chain(all.iter().map(|(write, _)| write))
            .map(|write| (&write.key, write.generation))
            .collect();
        self.refused
            .retain(|key, refused| wanted.get(key) == Some(&refused.generation));
        let now = Instant::now();
        let is_due = |write: &Write| {
            let refused = self.refused.get(&write.key);
            refused.is_none_or(|refused| refused.again.at <= now)
        };
        limits.retain(|(write, _)| is_due(write));
        all.retain(|(write, _)| is_due(write));
    }

    /// Takes what became of a status; returns the uid of the object and the version that has it, if it was written.
    fn note_written(
        &mut self,
        write: Write,
        kind: &str,
        outcome: Wrote,
        failed: &mut Option<String>,
    ) -> Option<(String, String)> {
        let Write {
            key,
            uid,
            generation,
        } = write;
        let before = self.refused.remove(&key);
        match outcome {
            Wrote::Done(version) => Some((uid, version)),
            // The watch brings what is there instead.
            Wrote::Gone => None,
            Wrote::Refused(why) => {
                let again = Again::after(before.map(|before| before.again), Instant::now());
                let why = format!("the status of {kind} {key}: {why}");
                let refused = Refused {
                    generation,
                    why,
                    again,
                };
                self.refused.insert(key, refused);
                None
            }
            Wrote::Failed(why) => {
                *failed = Some(format!("the status of {kind} {key}: {why}"));
                None
            }
        }
    }

    /// The statuses of `RateLimits` that changed.
    fn rate_limits_to_write(
        &mut self,
        fleet: Option<&Fleet>,
        now: &str,
    ) -> Vec<(Write, RateLimitStatus)> {
        let reports = fleet.map(Reports::new);
        let trusted = &self.arguments.proxy_namespace;
        let pods = self.cluster.pods().into_values();
        let pods: Vec<&Pod> = { pods }.filter(|pod| pod.is_believed(trusted)).collect();
        let (names, nodes) = names_of(&pods, &self.translation.gateways);
        let mut look = Look {
            reports: reports.as_ref(),
            domains: &self.domains,
            pods,
            names,
            nodes,
            held: &mut self.held,
            now: Instant::now(),
            starting: 0,
        };
        let mut changed = Vec::new();
        let mut counts: BTreeMap<String, i64> = BTreeMap::new();
        for seen in self.cluster.all_rate_limits() {
            let object = seen.object;
            let key = object.metadata.key();
            let generation = object.metadata.generation;
            let made = match self.translation.objects.get(&key) {
                Some(result) => {
                    let in_force = result.in_force.as_ref().map_or(0, |one| one.generation);
                    let judge = |found: &AncestorResult, before: Option<&Condition>| {
                        look.judge(&key, found, in_force, before)
                    };
                    status::of_rate_limit(&object.status, result, generation, now, judge)
                }
                None if object.metadata.deletion_timestamp.is_some() => {
                    status::of_ending_rate_limit(&object.status, generation, now)
                }
                None => continue,
            };
            *counts.entry(made.enforced.clone()).or_default() += 1;
            if made != object.status || seen.is_overwritten {
                changed.push((Write::new(key, seen.uid, generation), made));
            }
        }
        self.metrics.starting.set(look.starting);
        self.metrics.policies.clear();
        for (enforced, count) in counts {
            let labels = metrics::StateLabels { enforced };
            self.metrics.policies.get_or_create(&labels).set(count);
        }
        changed
    }

    /// The statuses of `RateLimitDomains` that changed.
    fn domains_to_write(&self, now: &str) -> Vec<(Write, RateLimitDomainStatus)> {
        let mut changed = Vec::new();
        self.metrics.domains.clear();
        for seen in self.cluster.all_domains() {
            let object = seen.object;
            let key = object.metadata.key();
            let Some(result) = self.translation.domain_objects.get(&key.name) else {
                let generation = object.metadata.generation;
                let made = status::of_ending_domain(&object.status, generation, now);
                if object.metadata.deletion_timestamp.is_some() && made != object.status {
                    changed.push((Write::new(key, seen.uid, generation), made));
                }
                continue;
            };
            let accepted = if result.accepted.ok {
                "True"
            } else {
                result.accepted.reason
            };
            let accepted = accepted.to_owned();
            let labels = metrics::AcceptedLabels { accepted };
            self.metrics.domains.get_or_create(&labels).inc();
            let domain = result.domain.as_ref();
            let domain = domain.and_then(|name| self.domains.get(name));
            let own = object.metadata.generation;
            let generation = result.in_force.as_ref().map_or(own, |one| one.generation);
            let programmed = domain.map(|domain| match domain.why_not_all() {
                Some(why) => Claim::new("False", domain.reason(), why, generation),
                None => Claim::new("True", "Programmed", "", generation),
            });
            let revision = domain.and_then(|domain| domain.revision);
            let in_force = result.in_force.as_ref().map(|one| one.spec.filter);
            let is_managed = in_force == Some(Some(Filter::Managed)) && domain.is_some();
            let filter = is_managed.then(|| self.filters.claim(&key.name, generation));
            let before = &object.status;
            let made = status::of_domain(before, result, own, now, programmed, filter, revision);
            if made != object.status || seen.is_overwritten {
                changed.push((Write::new(key, seen.uid, own), made));
            }
        }
        changed
    }
}

/// How often each name of a Ready Pod of a Gateway in a domain occurs, and what node ids call these Pods. A Gateway of no domain
/// may be anybody's.
fn names_of<'p>(
    pods: &[&'p Pod],
    domains: &BTreeMap<Key, Name>,
) -> (HashMap<&'p str, usize>, HashSet<String>) {
    let mut names: HashMap<&str, usize> = HashMap::new();
    let mut nodes = HashSet::new();
    for pod in pods.iter().filter(|pod| pod.is_ready) {
        let is_in_domain = |gateway| domains.contains_key(gateway);
        if pod.gateway.as_ref().is_some_and(is_in_domain) {
            let Key { namespace, name } = &pod.key;
            *names.entry(name.as_str()).or_default() += 1;
            nodes.extend([name.clone(), format!("{name}.{namespace}")]);
        }
    }
    (names, nodes)
}

/// The object of which a status is written.
struct Write {
    key: Key,
    uid: String,
    generation: i64,
}

impl Write {
    fn new(key: Key, uid: &str, generation: i64) -> Self {
        let uid = uid.to_owned();
        Self {
            key,
            uid,
            generation,
        }
    }
}

/// Writes statuses, as many as are written by a time. Once the API server has failed at one, the others wait for the next
/// turn: it has enough to do.
async fn write_all<T: serde::Serialize>(
    client: &Client,
    metrics: &Metrics,
    all: Vec<(Write, T)>,
    until: Instant,
) -> Vec<(Write, T, Wrote)> {
    let written = stream::iter(all).map(|(write, status)| async move {
        let outcome = cluster::write_status(client, &write.key, &write.uid, &status).await;
        match outcome {
            Wrote::Done(_) => drop(metrics.statuses.inc()),
            Wrote::Gone => {}
            Wrote::Refused(_) | Wrote::Failed(_) => metrics.failures.count(metrics::API_SERVER),
        }
        (write, status, outcome)
    });
    let written = written.buffer_unordered(WRITES_AT_ONCE);
    let mut written = pin!(written.take_until(sleep_until(until)));
    let mut all = Vec::new();
    while let Some(one) = written.next().await {
        let has_failed = matches!(one.2, Wrote::Failed(_));
        all.push(one);
        if has_failed {
            break;
        }
    }
    all
}

/// One look at the fleet, for all objects.
struct Look<'l> {
    /// `None`: the store cannot be read.
    reports: Option<&'l Reports<'l>>,
    domains: &'l Domains<'l>,
    pods: Vec<&'l Pod>,
    /// How many Ready Pods of Gateways in domains have a name.
    names: HashMap<&'l str, usize>,
    /// What node ids call these Pods.
    nodes: HashSet<String>,
    held: &'l mut BTreeMap<(Key, AncestorRef), Held>,
    now: Instant,
    starting: i64,
}

impl Look<'_> {
    fn judge(
        &mut self,
        object: &Key,
        found: &AncestorResult,
        generation: i64,
        before: Option<&Condition>,
    ) -> Judged {
        let domain = found
            .domain
            .as_ref()
            .and_then(|name| Some((name, self.domains.get(name)?)));
        let Some((name, domain)) = domain else {
            return Judged::waiting("Pending", "the domain is not written yet", generation);
        };
        let Some(revision) = domain.programmed(object, generation) else {
            return Judged::waiting(domain.reason(), &domain.why_not(object), generation);
        };
        let mine = |drift: &str| found.limits.iter().any(|limit| limit.as_str() == drift);
        let edited: Vec<&str> = domain
            .drift()
            .iter()
            .map(String::as_str)
            .filter(|one| mine(one))
            .collect();
        if !edited.is_empty() {
            let names = edited.join(", ");
            let text = format!(
                "edited in the store since, until this object changes: {names}; rlctl history says by whom"
            );
            let claim = Claim::new("False", "Drift", text, generation);
            return Judged {
                programmed: claim.clone(),
                enforced: Some(claim),
                revision: Some(revision),
            };
        }
        let programmed = Claim::new(
            "True",
            "Programmed",
            format!("since revision {revision} of domain {name}"),
            generation,
        );
        if domain.is_paused(&found.limits) {
            let text = "paused: `rlctl resume` ends it, or `paused` where the object of the limits, or of \
                        the domain, says so";
            let enforced = Some(Claim::new("False", "Paused", text, generation));
            return Judged {
                programmed,
                enforced,
                revision: Some(revision),
            };
        }
        let enforced = self.enforced(object, found, (generation, revision), before);
        Judged {
            programmed,
            enforced,
            revision: Some(revision),
        }
    }

    fn verdict(&self, ancestor: &AncestorRef, needed: Needed<'_>) -> Verdict {
        let Some(reports) = self.reports else {
            return Verdict::NoReports;
        };
        if ancestor.kind == "Service" {
            return reports.judge_all(needed, |node| self.nodes.contains(node));
        }
        let namespace = ancestor.namespace.clone().unwrap_or_default();
        let gateway = Key::new(namespace, &ancestor.name);
        let pods =
            { self.pods.iter().copied() }.filter(|pod| pod.gateway.as_ref() == Some(&gateway));
        let names = &self.names;
        let namesake = |name: &str| names.get(name).is_some_and(|count| *count > 1);
        reports.judge(needed, pods, namesake)
    }

    fn enforced(
        &mut self,
        object: &Key,
        found: &AncestorResult,
        about: (i64, u64),
        before: Option<&Condition>,
    ) -> Option<Claim> {
        let name = found.domain.as_ref()?;
        let domain = self.domains.get(name)?;
        let needed = Needed {
            domain: name,
            revisions: &domain.revisions,
            since: about.1,
            entries: &found.entries,
        };
        let verdict = self.verdict(&found.ancestor, needed);
        let held = self
            .held
            .entry((object.clone(), found.ancestor.clone()))
            .or_default();
        let said = held.hold(about, before, verdict, self.now);
        let Some(said) = said else {
            if before.is_none() {
                // Not shown: there are too many Gateways.
                return held.said.clone();
            }
            // Of another generation it says nothing.
            let before = before.filter(|one| one.observed_generation == about.0)?;
            if before.status == "True" {
                self.starting += 1;
            }
            return None;
        };
        let (status, reason, message) = said.describe();
        held.said = Some(match (&said, found.shadow) {
            (Verdict::All(_), true) => Claim::new(
                status,
                "Shadow",
                format!("{message}, and its limits deny nothing"),
                about.0,
            ),
            _ => Claim::new(status, reason, message, about.0),
        });
        held.said.clone()
    }
}

impl Judged {
    fn waiting(reason: &str, why: &str, generation: i64) -> Self {
        Self {
            programmed: Claim::new("False", reason, why, generation),
            enforced: Some(Claim::new(
                "Unknown",
                "NotProgrammed",
                "the limits are not in the store yet",
                generation,
            )),
            revision: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn supplying(entries: Option<&str>) -> ProxyStatus {
        let names = |list: &str| list.split(' ').map(|name| name.parse().unwrap()).collect();
        ProxyStatus {
            id: "p".to_owned(),
            node: None,
            is_module: false,
            revision: None,
            supplies: entries.map(|list| Arc::new(names(list))),
            ago_ms: 0,
        }
    }

    #[test]
    fn rules_have_names_once_every_proxy_reads_them_and_a_new_proxy_changes_nothing_before_it_says()
    {
        let shop: Name = "shop".parse().unwrap();
        let mut supply = Supply::default();
        let mut take = |proxies: &[Option<&str>]| {
            let proxies: Vec<_> = proxies.iter().copied().map(supplying).collect();
            let mut fleet = Fleet::default();
            let known = { proxies.iter() }.map(|proxy| proxy.supplies.as_deref());
            if let Some(known) = known.collect::<Option<Vec<_>>>() {
                let all = known.into_iter().flatten().cloned().collect();
                fleet.entries.insert(shop.clone(), all);
            }
            fleet.proxies.insert(shop.clone(), proxies);
            let changed = supply.take(&fleet);
            let has_tenant = { supply.by_domain.get(&shop) }.map(|one| one.contains("tenant"));
            (changed, has_tenant, supply.by_rule_name.contains(&shop))
        };
        let (with, without) = (Some("tenant route_rule"), Some("user"));
        assert_eq!(take(&[None]), (false, None, false));
        assert_eq!(take(&[with, without]), (true, Some(true), false));
        assert_eq!(take(&[with, None]), (false, Some(true), false));
        assert_eq!(take(&[with, with]), (true, Some(true), true));
        assert_eq!(take(&[with, with, None]), (false, Some(true), true));
        assert_eq!(take(&[with, without]), (true, Some(true), false));
        assert_eq!(take(&[without]), (true, Some(false), false));
    }

    #[tokio::test]
    async fn statuses_that_are_not_answered_end_with_their_time() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap());
        let client = Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
        let one = |at: usize| {
            let key = Key::new("a", at.to_string());
            (Write::new(key, "", 1), RateLimitStatus::default())
        };
        let all = (0..40).map(one).collect();
        let started = Instant::now();
        let until = started + Duration::from_millis(200);
        let written = write_all(&client, &Metrics::new(), all, until).await;
        assert!(written.is_empty() && started.elapsed() < Duration::from_secs(5));
    }

    /// An API server that is away, or has too much to do, is not sent all of them in each turn.
    #[tokio::test]
    async fn after_a_status_that_failed_the_others_wait_for_the_next_turn() {
        let away = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", away.local_addr().unwrap());
        drop(away);
        let client = Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
        let one = |at: usize| {
            let key = Key::new("a", at.to_string());
            (Write::new(key, "", 1), RateLimitStatus::default())
        };
        let metrics = Metrics::new();
        let until = Instant::now() + Duration::from_secs(20);
        let written = write_all(&client, &metrics, (0..100).map(one).collect(), until).await;
        assert_eq!(written.len(), 1);
        assert!(matches!(written[0].2, Wrote::Failed(_)));
    }

    /// Else a start whose last list comes after the objects would take every domain for abandoned.
    #[test]
    fn objects_that_were_not_translated_stay_due() {
        let mut due = Due::default();
        due.add(Changed {
            objects: true,
            ..Changed::default()
        });
        due = due.after(false);
        assert!(due.objects && due.first.is_none());
        due.add(Changed {
            pods: true,
            ..Changed::default()
        });
        assert!(due.objects);
        assert!(!due.after(true).objects);
    }
}
