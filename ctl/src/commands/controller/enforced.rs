//! Whether the proxies of a Gateway enforce a revision.
//!
//! The cluster says which proxies there are: the Ready Pods of the Gateway. The fleet's reports say what each has. A Pod
//! that reports nothing counts against the Gateway, because its proxy may never have loaded the filter; the
//! reports alone would not show it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use insight::{findings::is_current, limiter_name, truncated_list};
use kubernetes::Key;
use policy::{Name, Revision};
use store::{Fleet, ProxyStatus};

/// The label of the Pods of a Gateway, which is in their namespace. Istio sets it, and others.
pub(super) const GATEWAY_LABEL: &str = "gateway.networking.k8s.io/gateway-name";
/// The labels of Envoy Gateway's Pods, whose namespace is another than that of the Gateway.
pub(super) const OWNING_GATEWAY_LABEL: &str = "gateway.envoyproxy.io/owning-gateway-name";
const OWNING_NAMESPACE_LABEL: &str = "gateway.envoyproxy.io/owning-gateway-namespace";

/// A process that was replaced stays listed for a while. If it was heard this recently, it may still run.
const STILL_RUNS_MS: u64 = 3000;

/// The most names in a message.
const NAMED_MAX: usize = 5;

/// A Pod that may be a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pod {
    pub(super) key: Key,
    pub(super) is_ready: bool,
    /// Whether its deletion was asked for.
    pub(super) is_ending: bool,
    /// The Gateway whose proxy it is, by its labels.
    pub(super) gateway: Option<Key>,
}

impl Pod {
    /// Whether the Gateway that the labels name is believed: anybody can label a Pod in a namespace of theirs. It must
    /// be in the Gateway's own, or in one of `trusted`.
    pub(super) fn is_believed(&self, trusted: &[String]) -> bool {
        let own = &self.key.namespace;
        let gateway = self.gateway.as_ref();
        gateway.is_some_and(|gateway| gateway.namespace == *own || trusted.contains(own))
    }
}

/// The Gateway that a Pod's labels name.
pub(super) fn gateway_of(namespace: &str, labels: &BTreeMap<String, String>) -> Option<Key> {
    // Envoy Gateway sets both, and its Pods are elsewhere than the Gateway.
    if let Some(name) = labels.get(OWNING_GATEWAY_LABEL) {
        return Some(Key::new(labels.get(OWNING_NAMESPACE_LABEL)?, name));
    }
    Some(Key::new(namespace, labels.get(GATEWAY_LABEL)?))
}

/// The revisions of a domain, as far as this controller saw them. Numbers start again in a store that lost
/// its data, so a number alone proves nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Revisions(BTreeMap<u64, u64>);

/// Bound: revisions of a domain that the controller remembers. Beyond it, the oldest go.
///
/// A proxy that has one that is forgotten counts as behind.
const REVISIONS_MAX: usize = 4096;

impl Revisions {
    /// Adds the newest one.
    pub(super) fn add(&mut self, revision: &Revision) {
        let is_lost = |(number, digest): (&u64, &u64)| {
            revision.number < *number || revision.number == *number && revision.digest != *digest
        };
        if self.0.last_key_value().is_some_and(is_lost) {
            // All are those of a store that is gone.
            self.0.clear();
        }
        self.0.insert(revision.number, revision.digest);
        while self.0.len() > REVISIONS_MAX {
            self.0.pop_first();
        }
    }

    /// Whether a revision is `since` or a later one. One that others made between two looks is not known, and counts
    /// if those before and after it do.
    fn include(&self, has: &Revision, since: u64) -> bool {
        if has.number < since {
            return false;
        }
        let Some(digest) = self.0.get(&has.number).copied() else {
            let is_known_since = self.0.range(since..has.number).next().is_some();
            return is_known_since && self.0.range(has.number..).next().is_some();
        };
        let known = Revision {
            number: has.number,
            digest,
        };
        is_current(Some(has), Some(&known))
    }
}

/// What each proxy must have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needed<'n> {
    pub(super) domain: &'n Name,
    pub(super) revisions: &'n Revisions,
    /// The revision, or a later one.
    pub(super) since: u64,
    /// Its filter must supply these entries: a limit applies to no request that lacks what it matches.
    pub(super) entries: &'n BTreeSet<Name>,
}

/// What is known of the proxies of one Gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Every limiter and every proxy has it; how many proxies.
    All(usize),
    /// No Ready Pod is known to be of this Gateway.
    NoPods,
    /// No proxy reports for the domain of a mesh.
    NoneReports,
    /// None of its Pods, of which there are so many, reports for the domain.
    NoProxies(usize),
    /// No limiter reports.
    NoLimiters,
    /// The store, which has the reports, cannot be read.
    NoReports,
    /// Some lack it.
    Lacking(Lacking),
}

/// Who lacks a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lacking {
    /// Proxies that have it.
    have: usize,
    /// Proxies.
    of: usize,
    /// The limiters and proxies that do not, and what they have.
    who: Vec<(String, Has)>,
}

/// What one has that lacks a revision, or an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Has {
    /// An older one, or one of another store.
    Older(u64),
    /// Nothing yet: it is starting.
    Nothing,
    /// It does not report.
    Unknown,
    /// The revision, but not these entries.
    Without(Vec<Name>),
    /// The revision; it does not say which entries it supplies.
    Unlisted,
}

impl Lacking {
    /// Whether all that lack it may just be starting again.
    pub(super) fn may_be_starting(&self) -> bool {
        let must_change = |has: &Has| matches!(has, Has::Older(_) | Has::Without(_));
        !self.who.iter().any(|(_, has)| must_change(has))
    }

    fn describe(&self) -> String {
        let Self { have, of, who } = self;
        let one = |(name, has): &(String, Has)| match has {
            Has::Older(number) => format!("{name} has revision {number}"),
            Has::Nothing => format!("{name} has none"),
            Has::Unknown => format!("{name} does not report"),
            Has::Without(entries) => {
                let entries = entries.iter().map(|entry| format!("`{entry}`"));
                let entries = truncated_list(entries, NAMED_MAX);
                format!(
                    "{name} does not supply {entries}: add it to `descriptors` in its filter's configuration"
                )
            }
            Has::Unlisted => format!("{name} does not say which entries it supplies"),
        };
        let mut names: Vec<String> = who.iter().take(NAMED_MAX).map(one).collect();
        if who.len() > NAMED_MAX {
            names.push(format!("{} more", who.len() - NAMED_MAX));
        }
        format!("{have} of {of} proxies have it; {}", names.join(", "))
    }
}

/// The reports of proxies, by what their node ids say of the Pod.
pub(super) struct Reports<'f> {
    fleet: &'f Fleet,
    by_node: HashMap<(&'f Name, &'f str), Vec<&'f ProxyStatus>>,
}

impl<'f> Reports<'f> {
    pub(super) fn new(fleet: &'f Fleet) -> Self {
        let mut by_node: HashMap<_, Vec<_>> = HashMap::new();
        for (domain, proxies) in &fleet.proxies {
            for proxy in proxies {
                if let Some(node) = &proxy.node {
                    let pod = pod_of(node);
                    by_node.entry((domain, pod)).or_default().push(proxy);
                }
            }
        }
        Self { fleet, by_node }
    }

    /// The reports of a Pod. A node id that is only a Pod's name counts if no other Pod that may be a proxy has that
    /// name.
    fn of(&self, domain: &Name, pod: &Pod, is_name_unique: bool) -> Vec<&'f ProxyStatus> {
        let Key { namespace, name } = &pod.key;
        let qualified = format!("{name}.{namespace}");
        let own = self.by_node.get(&(domain, qualified.as_str()));
        let plain = self.by_node.get(&(domain, name.as_str()));
        let plain = plain.filter(|_| is_name_unique);
        own.into_iter().chain(plain).flatten().copied().collect()
    }

    /// Who of a Gateway's Pods has what is needed. `has_namesake` says whether another Pod has the same name.
    pub(super) fn judge<'p>(
        &self,
        needed: Needed<'_>,
        pods: impl Iterator<Item = &'p Pod>,
        has_namesake: impl Fn(&str) -> bool,
    ) -> Verdict {
        if self.fleet.limiters.is_empty() {
            return Verdict::NoLimiters;
        }
        let mut who = self.limiters_without(needed);
        let (mut of, mut have, mut silent) = (0, 0, 0);
        for pod in pods.filter(|pod| pod.is_ready) {
            let reports = self.of(needed.domain, pod, !has_namesake(&pod.key.name));
            // One that is being deleted may have stopped its proxy already.
            if reports.is_empty() && pod.is_ending {
                continue;
            }
            of += 1;
            let lack = if reports.is_empty() {
                silent += 1;
                Some(Has::Unknown)
            } else {
                any_lacks(&reports, needed)
            };
            match lack {
                None => have += 1,
                Some(has) => who.push((pod.key.to_string(), has)),
            }
        }
        match () {
            () if of == 0 => Verdict::NoPods,
            () if silent == of => Verdict::NoProxies(of),
            () if who.is_empty() => Verdict::All(have),
            () => Verdict::Lacking(Lacking { have, of, who }),
        }
    }

    /// Who of all proxies that report for a domain has what is needed. In a mesh, any of them may call a Service and
    /// enforce its limits; those of a Gateway limit its routes, so they need not supply what callers do.
    pub(super) fn judge_all(
        &self,
        needed: Needed<'_>,
        is_of_gateway: impl Fn(&str) -> bool,
    ) -> Verdict {
        if self.fleet.limiters.is_empty() {
            return Verdict::NoLimiters;
        }
        let none = BTreeSet::new();
        let mut who = self.limiters_without(needed);
        let mut by_node: BTreeMap<&str, Vec<&ProxyStatus>> = BTreeMap::new();
        for proxy in { self.fleet.proxies.get(needed.domain).into_iter() }.flatten() {
            let name = proxy.node.as_deref().map_or(proxy.id.as_str(), pod_of);
            by_node.entry(name).or_default().push(proxy);
        }
        let of = by_node.len();
        if of == 0 {
            return Verdict::NoneReports;
        }
        let before = who.len();
        who.extend(by_node.into_iter().filter_map(|(name, reports)| {
            let entries = if is_of_gateway(name) {
                &none
            } else {
                needed.entries
            };
            let has = any_lacks(&reports, Needed { entries, ..needed })?;
            Some((name.to_owned(), has))
        }));
        if who.is_empty() {
            return Verdict::All(of);
        }
        let have = of - (who.len() - before);
        Verdict::Lacking(Lacking { have, of, who })
    }

    fn limiters_without(&self, needed: Needed<'_>) -> Vec<(String, Has)> {
        let lacking = self.fleet.limiters.iter().filter_map(|limiter| {
            let has = lacks(limiter.revisions.get(needed.domain), needed)?;
            Some((format!("limiter {}", limiter_name(&limiter.id)), has))
        });
        lacking.collect()
    }
}

/// What one of a Pod's processes has that lacks it: the one that was heard last, or another that may still run.
fn any_lacks(reports: &[&ProxyStatus], needed: Needed<'_>) -> Option<Has> {
    let newest = reports.iter().map(|proxy| proxy.ago_ms).min();
    let running = reports
        .iter()
        .filter(|proxy| proxy.ago_ms <= STILL_RUNS_MS || Some(proxy.ago_ms) == newest);
    let mut running = running.map(|proxy| {
        let has = lacks(proxy.revision.as_ref(), needed);
        has.or_else(|| lacks_entries(proxy, needed.entries))
    });
    running.find_map(|has| has)
}

fn lacks(has: Option<&Revision>, needed: Needed<'_>) -> Option<Has> {
    match has {
        None => Some(Has::Nothing),
        Some(has) if needed.revisions.include(has, needed.since) => None,
        Some(has) => Some(Has::Older(has.number)),
    }
}

fn lacks_entries(proxy: &ProxyStatus, entries: &BTreeSet<Name>) -> Option<Has> {
    if entries.is_empty() {
        return None;
    }
    let Some(supplies) = &proxy.supplies else {
        return Some(Has::Unlisted);
    };
    let missing: Vec<Name> = entries.difference(supplies).cloned().collect();
    (!missing.is_empty()).then_some(Has::Without(missing))
}

/// The part of a node id that names the Pod: the third of Istio's four (`router~IP~POD.NAMESPACE~DOMAIN`), or all of
/// it (Envoy Gateway).
fn pod_of(node: &str) -> &str {
    let mut parts = node.split('~');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(_), Some(_), Some(pod), Some(_)) => pod,
        _ => node,
    }
}

impl Verdict {
    /// The status, the reason and the message of a condition.
    pub(super) fn describe(&self) -> (&'static str, &'static str, String) {
        match self {
            Self::All(1) => ("True", "Enforced", "1 of 1 proxy has it".to_owned()),
            Self::All(all) => (
                "True",
                "Enforced",
                format!("{all} of {all} proxies have it"),
            ),
            Self::NoPods => (
                "Unknown",
                "ProxiesUnknown",
                format!(
                    "no Ready Pod is known to be a proxy of it: Pods are found by the label {GATEWAY_LABEL}, or \
                     by {OWNING_GATEWAY_LABEL} in its namespace and in those of --proxy-namespace"
                ),
            ),
            Self::NoneReports => (
                "Unknown",
                "ProxiesUnknown",
                "no proxy reports to a limiter for this domain, and those that call a Service are known by \
                 their reports alone"
                    .to_owned(),
            ),
            Self::NoProxies(pods) => (
                "False",
                "NoProxies",
                format!(
                    "0 of {pods} proxies report to a limiter for this domain: either their Envoy has no rate limit \
                     filter, or the filter reaches no limiter, or it is configured for another domain"
                ),
            ),
            Self::NoLimiters => (
                "Unknown",
                "ProxiesUnknown",
                "no limiter has reported in the last 10 s, and proxies are known by limiters alone"
                    .to_owned(),
            ),
            Self::NoReports => (
                "Unknown",
                "ProxiesUnknown",
                "the store, by which proxies report, cannot be read".to_owned(),
            ),
            Self::Lacking(lacking) => ("False", "Reconciling", lacking.describe()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use store::LimiterStatus;

    use super::*;

    fn revision(number: u64) -> Revision {
        Revision {
            number,
            digest: number * 7,
        }
    }

    fn shop() -> Name {
        "shop".parse().unwrap()
    }

    fn proxy(node: &str, has: Option<u64>, ago_ms: u64) -> ProxyStatus {
        ProxyStatus {
            id: format!("{node}-{ago_ms}"),
            is_module: false,
            node: Some(node.to_owned()),
            revision: has.map(revision),
            supplies: None,
            ago_ms,
        }
    }

    fn supplying(entries: &str, proxy: ProxyStatus) -> ProxyStatus {
        let entries = entries.split_whitespace().map(|name| name.parse().unwrap());
        ProxyStatus {
            supplies: Some(Arc::new(entries.collect())),
            ..proxy
        }
    }

    fn pod(namespace: &str, name: &str) -> Pod {
        Pod {
            key: Key::new(namespace, name),
            is_ready: true,
            is_ending: false,
            gateway: None,
        }
    }

    /// What the proxies that report are said to have, of revisions 1 to 3, if 2 is the one.
    fn judge(proxies: Vec<ProxyStatus>, limiter: Option<u64>, pods: &[Pod]) -> Verdict {
        judge_with(proxies, limiter, pods, "")
    }

    /// The same of limits that need these entries.
    fn judge_with(
        proxies: Vec<ProxyStatus>,
        limiter: Option<u64>,
        pods: &[Pod],
        entries: &str,
    ) -> Verdict {
        let entries = entries.split_whitespace().map(|name| name.parse().unwrap());
        let entries = entries.collect();
        let mut fleet = Fleet::default();
        fleet.limiters.push(LimiterStatus {
            id: "limiter-0:8090/1".to_owned(),
            revisions: limiter.map(|n| (shop(), revision(n))).into_iter().collect(),
            ago_ms: 100,
        });
        fleet.proxies.insert(shop(), proxies);
        let mut revisions = Revisions::default();
        (1..=3).for_each(|number| revisions.add(&revision(number)));
        let namesake = |name: &str| pods.iter().filter(|pod| pod.key.name == name).count() > 1;
        let needed = Needed {
            domain: &shop(),
            revisions: &revisions,
            since: 2,
            entries: &entries,
        };
        Reports::new(&fleet).judge(needed, pods.iter(), namesake)
    }

    #[test]
    fn node_ids_of_both_forms_are_found_and_a_later_revision_counts() {
        let pods = [
            pod("infra", "public-a"),
            pod("envoy-gateway-system", "eg-b"),
        ];
        let proxies = vec![
            proxy(
                "router~10.0.0.1~public-a.infra~infra.svc.cluster.local",
                Some(3),
                10,
            ),
            proxy("eg-b", Some(2), 10),
        ];
        assert_eq!(judge(proxies, Some(3), &pods), Verdict::All(2));
    }

    #[test]
    fn whoever_lacks_it_is_named() {
        let pods = [pod("infra", "a"), pod("infra", "b"), pod("infra", "c")];
        let reported = vec![proxy("a", Some(2), 10), proxy("b", Some(1), 10)];
        let (status, reason, message) = judge(reported.clone(), Some(2), &pods).describe();
        assert_eq!((status, reason), ("False", "Reconciling"));
        assert_eq!(
            message,
            "1 of 3 proxies have it; infra/b has revision 1, infra/c does not report"
        );
        let (_, reason, message) = judge(reported, Some(1), &pods[..1]).describe();
        assert_eq!(reason, "Reconciling");
        assert_eq!(
            message,
            "1 of 1 proxies have it; limiter limiter-0:8090 has revision 1"
        );
    }

    #[test]
    fn proxies_of_other_gateways_do_not_make_up_for_those_without_the_filter() {
        let elsewhere = vec![proxy("other", Some(3), 10)];
        let pods = [pod("infra", "a"), pod("infra", "b")];
        assert_eq!(judge(elsewhere, Some(3), &pods), Verdict::NoProxies(2));
        assert_eq!(judge(Vec::new(), Some(3), &[]), Verdict::NoPods);
    }

    #[test]
    fn a_pod_is_current_only_if_each_of_its_processes_that_may_run_is() {
        let pods = [pod("infra", "a")];
        let replaced = vec![proxy("a", Some(2), 10), proxy("a", Some(1), 5000)];
        assert_eq!(judge(replaced, Some(2), &pods), Verdict::All(1));
        let both = vec![proxy("a", Some(2), 10), proxy("a", Some(1), 900)];
        assert_ne!(judge(both, Some(2), &pods), Verdict::All(1));
        let last = vec![proxy("a", Some(1), 5000)];
        assert_ne!(judge(last, Some(2), &pods), Verdict::All(1));
    }

    #[test]
    fn a_name_that_two_pods_have_proves_nothing() {
        let pods = [pod("infra", "a"), pod("infra2", "a")];
        let reported = vec![proxy("a", Some(2), 10)];
        assert_eq!(judge(reported, Some(2), &pods), Verdict::NoProxies(2));
    }

    #[test]
    fn a_number_of_a_store_that_lost_its_data_is_not_current() {
        let mut revisions = Revisions::default();
        (1..=9).for_each(|number| revisions.add(&revision(number)));
        let again = Revision {
            number: 2,
            digest: 1,
        };
        revisions.add(&again);
        assert!(!revisions.include(&revision(1), 1));
        assert!(revisions.include(&again, 2));
        assert!(!revisions.include(&revision(2), 2));
        assert!(!revisions.include(&revision(9), 2));
    }

    #[test]
    fn a_revision_between_two_that_were_seen_is_current() {
        let mut revisions = Revisions::default();
        revisions.add(&revision(2));
        revisions.add(&revision(5));
        let is_included = |number, since| revisions.include(&revision(number), since);
        assert!(is_included(3, 2) && is_included(4, 2));
        // Before the first, and after the last, nobody knows.
        assert!(!is_included(1, 1) && !is_included(3, 3) && !is_included(6, 2));
    }

    #[test]
    fn in_a_mesh_each_proxy_that_reports_counts() {
        let mut fleet = Fleet::default();
        let mut revisions = Revisions::default();
        (1..=3).for_each(|number| revisions.add(&revision(number)));
        fleet.limiters.push(LimiterStatus {
            id: "limiter-0:8090/1".to_owned(),
            revisions: [(shop(), revision(2))].into(),
            ago_ms: 100,
        });
        let entries = ["cluster".parse().unwrap()].into();
        let judge = |fleet: &Fleet| {
            let needed = Needed {
                domain: &shop(),
                revisions: &revisions,
                since: 2,
                entries: &entries,
            };
            Reports::new(fleet).judge_all(needed, |name| name == "public-a.infra")
        };
        assert_eq!(judge(&fleet), Verdict::NoneReports);
        let sidecar = |pod, has| {
            let node = format!("sidecar~10.0.0.1~{pod}.shop~x");
            supplying("cluster", proxy(&node, Some(has), 10))
        };
        let callers = vec![sidecar("a", 2), sidecar("b", 3)];
        fleet.proxies.insert(shop(), callers);
        assert_eq!(judge(&fleet), Verdict::All(2));
        // A Gateway's own limits those of its routes.
        let gateway = "router~10.0.0.1~public-a.infra~x";
        let of_gateway = supplying("gateway", proxy(gateway, Some(2), 10));
        fleet.proxies.get_mut(&shop()).unwrap().push(of_gateway);
        assert_eq!(judge(&fleet), Verdict::All(3));
        let without = supplying("user", sidecar("c", 2));
        fleet.proxies.get_mut(&shop()).unwrap().push(without);
        let (_, _, message) = judge(&fleet).describe();
        assert!(
            message.starts_with("3 of 4 proxies have it; c.shop does not supply `cluster`:"),
            "{message}"
        );
        drop(fleet.proxies.get_mut(&shop()).unwrap().pop());
        let mut nameless = proxy("", Some(1), 10);
        nameless.node = None;
        fleet.proxies.get_mut(&shop()).unwrap().push(nameless);
        let (_, reason, message) = judge(&fleet).describe();
        assert_eq!(reason, "Reconciling");
        assert_eq!(message, "3 of 4 proxies have it; -10 has revision 1");
    }

    #[test]
    fn a_proxy_without_an_entry_that_the_limits_need_is_named_at_once() {
        let pods = [pod("infra", "a"), pod("infra", "b")];
        let with = || supplying("tenant user", proxy("a", Some(2), 10));
        let with_b = |b: ProxyStatus| judge_with(vec![with(), b], Some(2), &pods, "tenant user");
        assert_eq!(
            with_b(supplying("user tenant x", proxy("b", Some(2), 10))),
            Verdict::All(2)
        );
        let without = with_b(supplying("user", proxy("b", Some(2), 10)));
        let (status, reason, message) = without.describe();
        assert_eq!((status, reason), ("False", "Reconciling"));
        assert_eq!(
            message,
            "1 of 2 proxies have it; infra/b does not supply `tenant`: add it to `descriptors` in its filter's \
             configuration"
        );
        let Verdict::Lacking(lacking) = without else {
            panic!("{without:?}")
        };
        assert!(!lacking.may_be_starting());
        // What is not known is not true; a proxy that starts may check before it says so.
        let unknown = with_b(proxy("b", Some(2), 10));
        assert!(
            unknown
                .describe()
                .2
                .ends_with("infra/b does not say which entries it supplies")
        );
        let Verdict::Lacking(lacking) = unknown else {
            panic!("{unknown:?}")
        };
        assert!(lacking.may_be_starting());
        // Nothing is needed of either.
        assert_eq!(
            judge(vec![proxy("a", Some(2), 10)], Some(2), &pods[..1]),
            Verdict::All(1)
        );
    }

    #[test]
    fn labels_are_believed_in_the_gateways_namespace_and_in_trusted_ones() {
        let believed = |namespace: &str| {
            let mut pod = pod(namespace, "a");
            pod.gateway = Some(Key::new("infra", "public"));
            pod.is_believed(&["envoy-gateway-system".to_owned()])
        };
        assert!(believed("infra") && believed("envoy-gateway-system"));
        assert!(!believed("tenant"));
        assert!(!pod("infra", "a").is_believed(&["infra".to_owned()]));
    }

    #[test]
    fn pods_that_are_not_ready_or_already_gone_do_not_count() {
        let mut pods = [pod("infra", "a"), pod("infra", "b"), pod("infra", "c")];
        pods[1].is_ready = false;
        pods[2].is_ending = true;
        assert_eq!(
            judge(vec![proxy("a", Some(2), 10)], Some(2), &pods),
            Verdict::All(1)
        );
        let draining = vec![proxy("a", Some(2), 10), proxy("c", Some(1), 10)];
        assert_ne!(judge(draining, Some(2), &pods), Verdict::All(2));
    }

    #[test]
    fn the_gateway_of_a_pod() {
        let of = |labels: &[(&str, &str)]| {
            let labels = labels
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
            gateway_of("pods", &labels.collect())
        };
        assert_eq!(of(&[(GATEWAY_LABEL, "g")]), Some(Key::new("pods", "g")));
        let both = [
            (GATEWAY_LABEL, "g"),
            (OWNING_GATEWAY_LABEL, "g"),
            (OWNING_NAMESPACE_LABEL, "infra"),
        ];
        assert_eq!(of(&both), Some(Key::new("infra", "g")));
        assert_eq!(of(&[("app", "g")]), None);
    }
}
