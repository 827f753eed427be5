//! Which limiters and proxies are alive, and at which revision.

use std::collections::{BTreeMap, BTreeSet};

use policy::{Name, Node, Revision};

use super::{PROXY_LIFE_MS, document};

/// The fleet as one limiter reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetReport {
    /// What it has in force, by domain.
    pub revisions: BTreeMap<Name, Revision>,
    /// The proxies that polled or called it, by domain, whether or not there are
    /// limits for it.
    pub proxies: BTreeMap<Name, Vec<ProxyStatus>>,
    /// The entries that these proxies supply beside the built-in ones, by domain; without domains
    /// of which one proxy did not report its entries.
    pub entries: BTreeMap<Name, BTreeSet<Name>>,
}

/// A proxy at its last request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyStatus {
    /// The random id of one Envoy process.
    pub id: String,
    /// Its node name in Envoy's configuration, if it sent one.
    pub node: Option<String>,
    /// What it has in force; `None`: nothing yet.
    pub revision: Option<Revision>,
    /// How long ago, in milliseconds.
    pub ago_ms: u64,
}

/// A limiter at its last report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimiterStatus {
    /// Its name: host and port, and a random suffix that distinguishes it from its predecessor.
    pub id: String,
    /// What it has in force, by domain.
    pub revisions: BTreeMap<Name, Revision>,
    /// How long ago, in milliseconds.
    pub ago_ms: u64,
}

/// The limiters and proxies that were alive within the last 10 s.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fleet {
    /// By name.
    pub limiters: Vec<LimiterStatus>,
    /// By domain, and there by id.
    pub proxies: BTreeMap<Name, Vec<ProxyStatus>>,
    /// The entries that the proxies of a domain supply beside the built-in ones; without domains
    /// that no proxy uses, or of which one did not report its entries.
    pub entries: BTreeMap<Name, BTreeSet<Name>>,
}

impl FleetReport {
    /// As it is stored.
    pub fn to_json(&self) -> String {
        let revisions = self.revisions.iter();
        let revisions = revisions.map(|(name, r)| (name.as_str(), document::revision_node(r)));
        let proxies = self.proxies.iter().map(|(name, seen)| {
            let seen = seen.iter().map(ProxyStatus::to_node);
            (name.as_str(), Node::list(seen))
        });
        let entries = self.entries.iter().map(|(domain, names)| {
            let names = names.iter().map(|name| Node::text(name.as_str()));
            (domain.as_str(), Node::list(names))
        });
        document::json(&document::report([
            ("revisions", Node::map(revisions)),
            ("proxies", Node::map(proxies)),
            ("entries", Node::map(entries)),
        ]))
    }

    fn read(json: &str) -> Option<Self> {
        let report = document::read(json)?;
        let revisions = document::named(&report, "revisions");
        let proxies = document::named(&report, "proxies").map(|(domain, list)| {
            let seen = list.items().iter().filter_map(ProxyStatus::read);
            (domain, seen.collect())
        });
        let entries = document::named(&report, "entries").filter_map(|(domain, list)| {
            let names = list.items().iter().map(|name| name.as_text()?.parse().ok());
            Some((domain, names.collect::<Option<_>>()?))
        });
        Some(Self {
            entries: entries.collect(),
            revisions: revisions
                .filter_map(|(domain, node)| Some((domain, document::read_revision(node)?)))
                .collect(),
            proxies: proxies.collect(),
        })
    }
}

impl ProxyStatus {
    /// Whether the proxy counts as alive, by a report that was written so long ago.
    fn is_alive(&self, reported_ms_ago: u64) -> bool {
        self.ago_ms.saturating_add(reported_ms_ago) <= PROXY_LIFE_MS
    }

    fn to_node(&self) -> Node {
        let mut node = Node::map([
            ("id", Node::text(&self.id)),
            ("ago_ms", Node::number(self.ago_ms)),
        ]);
        if let Some(revision) = &self.revision {
            node.set("revision", document::revision_node(revision));
        }
        if let Some(name) = &self.node {
            node.set("node", Node::text(name));
        }
        node
    }

    fn read(node: &Node) -> Option<Self> {
        let text = |field| Some(node.get(field)?.as_text()?.to_owned());
        Some(Self {
            id: text("id")?,
            node: text("node"),
            revision: node.get("revision").and_then(document::read_revision),
            ago_ms: document::number(node.get("ago_ms")?)?,
        })
    }
}

impl Fleet {
    /// Merges reports: of each limiter the newest, of each proxy its last request.
    pub fn from_reports(
        reports: impl IntoIterator<Item = (String, u64, String)>,
        now_ms: u64,
    ) -> Self {
        let mut newest: BTreeMap<String, (u64, String)> = BTreeMap::new();
        for (limiter, at_ms, json) in reports {
            let known = newest.get(&limiter).map(|(at_ms, _)| *at_ms);
            if known.is_none_or(|known| known < at_ms) {
                newest.insert(limiter, (at_ms, json));
            }
        }
        let (mut limiters, mut proxies) = (Vec::new(), BTreeMap::new());
        let mut entries: BTreeMap<Name, Option<BTreeSet<Name>>> = BTreeMap::new();
        for (id, (at_ms, json)) in newest {
            let Some(fleet_report) = FleetReport::read(&json) else {
                continue;
            };
            let ago_ms = now_ms.saturating_sub(at_ms);
            for (domain, seen) in fleet_report.proxies {
                if seen.iter().any(|proxy| proxy.is_alive(ago_ms)) {
                    let all = entries.entry(domain.clone());
                    let all = all.or_insert_with(|| Some(BTreeSet::new()));
                    *all = all
                        .take()
                        .zip(fleet_report.entries.get(&domain))
                        .map(|(all, more)| &all | more);
                }
                add(proxies.entry(domain).or_default(), seen, ago_ms);
            }
            if ago_ms <= PROXY_LIFE_MS {
                limiters.push(LimiterStatus {
                    id,
                    revisions: fleet_report.revisions,
                    ago_ms,
                });
            }
        }
        proxies.retain(|_, seen| !seen.is_empty());
        let by_id = |(domain, seen): (Name, BTreeMap<_, _>)| (domain, seen.into_values());
        let lists = proxies.into_iter().map(by_id);
        Self {
            limiters,
            proxies: lists
                .map(|(domain, seen)| (domain, seen.collect()))
                .collect(),
            entries: entries
                .into_iter()
                .filter_map(|(domain, names)| Some((domain, names?)))
                .collect(),
        }
    }
}

fn add(known: &mut BTreeMap<String, ProxyStatus>, seen: Vec<ProxyStatus>, reported_ms_ago: u64) {
    for mut proxy in seen {
        let is_alive = proxy.is_alive(reported_ms_ago);
        proxy.ago_ms = proxy.ago_ms.saturating_add(reported_ms_ago);
        let before = known.get(&proxy.id).map_or(u64::MAX, |known| known.ago_ms);
        if is_alive && proxy.ago_ms < before {
            known.insert(proxy.id.clone(), proxy);
        }
    }
}

#[cfg(test)]
mod tests;
