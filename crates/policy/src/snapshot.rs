//! Snapshots: the limits as limiters send them to filters, some of which are older than their limiter.
//!
//! A snapshot is JSON: the domain, its revision, the descriptor entries to extract, and the limits
//! without their overrides. A filter ignores unknown fields at the top level. A limit with any
//! field that it cannot read is [`Opaque`]: the filter does not decide it, but sends every request
//! to which it may apply to the limiter, which can read it.

use documents::{Choice, Field, Form, Name, Node, Path, Problem, Problems, Report, parse_digits};

use crate::{
    Compiled, Entries, Exemption, Limit, Matcher, OnFailure, Pause, Policy, Quota, Revision, Scope,
    read::{FORMAT, read_limit, read_matchers_alone},
};

/// The version of the meaning of a limit's fields. Raise it, for the limits concerned only, when a
/// known field or value gets another meaning.
const LEVEL: u64 = 1;
/// The level of the limits of a domain with exemptions: a filter that reads only [`LEVEL`] sends
/// the requests to which they may apply to the limiter, which exempts them.
const LEVEL_WITH_EXEMPTIONS: u64 = 2;

/// A limit that this version cannot interpret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opaque {
    /// Its name, if it has one that this version can read.
    pub name: Option<Name>,
    /// When it applies, as far as that can be read; without a condition, to every request.
    pub matchers: Vec<Matcher>,
    /// What to do while no limiter answers; `None` if that cannot be read either.
    pub on_failure: Option<OnFailure>,
    /// What could not be read.
    pub reason: String,
}

impl Opaque {
    /// Whether it may apply to a request.
    pub fn may_match(&self, entries: &(impl Entries + ?Sized)) -> bool {
        let mut matchers = self.matchers.iter();
        matchers.all(|matcher| matcher.holds(entries.get(matcher.entry.as_str())))
    }
}

impl Compiled {
    /// The snapshot of this policy, as JSON, with the edges of calendar windows around a time in
    /// milliseconds since the epoch.
    pub fn to_snapshot(&self, now_ms: u64) -> Node {
        let revision = self.revision();
        // Only limiters decide limits of the rate limit service.
        let limits = self.limits().iter().enumerate();
        let limits = limits.filter(|(_, limit)| limit.descriptor.is_none());
        let mut snapshot = Node::map([
            ("format", Node::number(FORMAT)),
            ("domain", Node::text(self.domain().as_str())),
            (
                "revision",
                Node::map([
                    ("number", Node::number(revision.number)),
                    // As text: JSON readers elsewhere round large numbers.
                    ("digest", Node::text(format!("{:016x}", revision.digest))),
                ]),
            ),
            (
                "keys",
                Node::list(self.needed_keys().iter().map(|k| Node::text(k.as_str()))),
            ),
            (
                "limits",
                Node::list(limits.map(|(at, limit)| self.limit_snapshot(at, limit, now_ms))),
            ),
        ]);
        if !self.exemptions().is_empty() {
            snapshot.set("exempt", Exemption::list_node(self.exemptions()));
        }
        snapshot
    }

    /// When the edges in a snapshot of this time no longer cover the current time, in milliseconds
    /// since the epoch; `None`: it has no edges.
    #[cfg(feature = "time-zones")]
    pub fn snapshot_until_ms(&self, now_ms: u64) -> Option<u64> {
        let own = self.limits().iter().map(|limit| limit.quota);
        let of_proxies = self.limits().iter().enumerate();
        let of_proxies = of_proxies.filter(|(_, limit)| limit.scope == Scope::Proxy);
        let overrides = of_proxies.flat_map(|(at, limit)| {
            let overrides = self.overrides(at);
            overrides.filter_map(|found| found.quota.of(&limit.quota))
        });
        let quotas = own.chain(overrides);
        let ends = quotas.filter_map(|quota| {
            let (window, _) = calendar::window_of(quota.algorithm(), now_ms)?;
            Some(window.end_ms)
        });
        ends.min()
    }

    fn limit_snapshot(&self, at: usize, limit: &Limit, now_ms: u64) -> Node {
        let mut node = limit.to_node_without_overrides();
        node.unset("description");
        // On each limit, so that a filter too old to read it sends all requests to the limiter.
        if let Some(paused) = Pause::later(limit.paused, self.paused()) {
            node.set("paused", paused.to_node());
        }
        node.set("generation", Node::number(limit.generation));
        let level = match self.exemptions() {
            [] => LEVEL,
            _ => LEVEL_WITH_EXEMPTIONS,
        };
        node.set("level", Node::number(level));
        set_edges(&mut node, &limit.quota, now_ms);
        match limit.scope {
            Scope::Global if self.has_overrides(at) => node.set("has_overrides", true.into()),
            // Only the proxy decides these limits, so it needs their overrides.
            Scope::Proxy if self.has_overrides(at) => {
                let overrides = self.overrides(at).map(|found| {
                    let mut node = found.to_node(&limit.per);
                    if let Some(quota) = found.quota.of(&limit.quota) {
                        set_edges(&mut node, &quota, now_ms);
                    }
                    node
                });
                node.set("overrides", Node::list(overrides));
            }
            Scope::Global | Scope::Proxy => {}
        }
        node
    }

    /// Reads and compiles a snapshot.
    ///
    /// # Errors
    /// What is wrong with it as a whole; a limit that cannot be read is [`Opaque`].
    // As in `filter-config`: inlined into its caller, it would not be optimized for size alone.
    #[inline(never)]
    pub fn from_snapshot(json: &[u8]) -> Result<Self, Problems> {
        let node = Node::from_json(json).map_err(Problems::not_json)?;
        let wrong = |message: &str| Problems::one(Problem::new("", None, message));
        let number = |node: Option<&Node>| node.and_then(Node::as_text)?.parse::<u64>().ok();
        if number(node.get("format")) != Some(FORMAT) {
            return Err(wrong("a snapshot of another format"));
        }
        let domain = node.get("domain").and_then(Node::as_text);
        let domain: Name = domain
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| wrong("no domain"))?;
        let revision = node.get("revision").and_then(|revision| {
            let digest = revision.get("digest").and_then(Node::as_text)?;
            Some(Revision {
                number: number(revision.get("number"))?,
                digest: u64::from_str_radix(digest, 16).ok()?,
            })
        });
        let keys = node.get("keys").map(Node::items).unwrap_or_default();
        let keys = keys.iter().filter_map(|key| key.as_text()?.parse().ok());
        let mut limits = Vec::new();
        let mut opaque = Vec::new();
        let mut remote_overrides = Vec::new();
        for node in node.get("limits").map(Node::items).unwrap_or_default() {
            match read_snapshot_limit(node) {
                Ok((limit, has_overrides)) => {
                    limits.push(limit);
                    remote_overrides.push(has_overrides);
                }
                Err(limit) => opaque.push(limit),
            }
        }
        let mut exempt = Vec::new();
        for node in node.get("exempt").map(Node::items).unwrap_or_default() {
            match Exemption::from_node(node) {
                Ok(exemption) => exempt.push(exemption),
                // The limiter decides requests that it may exempt.
                Err(problems) => opaque.push(self::opaque(node, first(&problems))),
            }
        }
        let policy = Policy {
            domain,
            revision: revision.ok_or_else(|| wrong("no revision"))?,
            paused: None,
            exempt,
            limits,
        };
        Ok(Self::new(policy).with_snapshot(keys, opaque, &remote_overrides))
    }
}

/// Adds the edges of calendar windows: the label of the first, their starts, and the end of the last.
#[cfg(feature = "time-zones")]
fn set_edges(node: &mut Node, quota: &Quota, now_ms: u64) {
    if let Some(edges) = calendar::edges_of(quota.parameters(), now_ms) {
        let serial = u64::from(edges.serial());
        let numbers = [serial].into_iter().chain(edges.starts_ms());
        node.set("edges", Node::list(numbers.map(Node::number)));
    }
}

/// Without time zones there are no edges, and a reader of the limit leaves it to the limiter.
#[cfg(not(feature = "time-zones"))]
fn set_edges(_node: &mut Node, _quota: &Quota, _now_ms: u64) {}

fn read_snapshot_limit(node: &Node) -> Result<(Limit, bool), Opaque> {
    let level = node.get("level").and_then(Node::as_text);
    let level = level.and_then(parse_digits);
    if ![Some(LEVEL), Some(LEVEL_WITH_EXEMPTIONS)].contains(&level) {
        return Err(opaque(node, "another level".to_owned()));
    }
    let has_overrides = node.get("has_overrides") == Some(&true.into());
    let mut report = Report::new(Form::Snapshot);
    let field = Field {
        node,
        path: Path::Root,
    };
    let limit = read_limit(field, &mut report);
    let limit = report.finish(limit);
    match limit {
        Ok(limit) => Ok((limit, has_overrides)),
        Err(problems) => Err(opaque(node, first(&problems))),
    }
}

fn first(problems: &Problems) -> String {
    let first = problems.iter().next().map(ToString::to_string);
    first.unwrap_or_default()
}

fn opaque(node: &Node, reason: String) -> Opaque {
    let text = |field: &str| node.get(field).and_then(Node::as_text);
    let word = text("on_failure").unwrap_or(OnFailure::default().word());
    let mut choices = OnFailure::CHOICES.iter();
    let on_failure = choices.find(|(known, _)| *known == word);
    Opaque {
        name: text("name").and_then(|name| name.parse().ok()),
        matchers: read_matchers_alone(node),
        on_failure: on_failure.map(|(_, choice)| *choice),
        reason,
    }
}

#[cfg(test)]
mod tests;
