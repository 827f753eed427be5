//! What a limiter makes of its compiled limits for others: the snapshot for filters, with the edges of calendar
//! windows, and the same as JSON for people and programs.

use algorithms::Parameters;
use documents::{Node, to_base64};
use policy::{Compiled, Limit, Pause, Quota, Scope, Snapshot};

use crate::{
    read::FORMAT,
    write::{ToNode as _, exemptions_node, node_without_overrides, override_node},
};

/// The version of the meaning of a limit's fields, and that of a domain with exemptions: a reader
/// without a notion of them must not decide its limits.
const LEVEL: u64 = 1;
const LEVEL_WITH_EXEMPTIONS: u64 = 2;

/// The snapshot with the edges of calendar windows around a time in milliseconds since the epoch.
pub fn snapshot_at(compiled: &Compiled, now_ms: u64) -> Vec<u8> {
    compiled.to_snapshot(&|parameters| calendar::edges_of(parameters, now_ms))
}

/// As [`snapshot_at`], after the snapshots that this process made before.
pub fn snapshot_after(compiled: &Compiled, now_ms: u64, before: Option<&Snapshot>) -> Snapshot {
    let edges = |parameters: &Parameters| calendar::edges_of(parameters, now_ms);
    let timed = snapshot_until_ms(compiled, now_ms).is_some();
    Snapshot::new(compiled, &edges, timed, before)
}

/// The snapshot as the filter's configuration has it: `limits`.
pub fn snapshot_text(compiled: &Compiled, now_ms: u64) -> String {
    to_base64(&snapshot_at(compiled, now_ms))
}

/// This policy as filters get it, as JSON for people and programs, with the edges of calendar windows
/// around a time in milliseconds since the epoch: `GET /v1/policy` answers with it, and `rlctl apply`
/// reads it as a limits file.
pub fn snapshot_json(compiled: &Compiled, now_ms: u64) -> Node {
    let revision = compiled.revision();
    // Only limiters decide limits of the rate limit service.
    let limits = compiled.limits().iter().enumerate();
    let limits = limits.filter(|(_, limit)| limit.descriptor.is_none());
    let mut snapshot = Node::map([
        ("format", Node::number(FORMAT)),
        ("domain", Node::text(compiled.domain().as_str())),
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
            Node::list(
                compiled
                    .needed_keys()
                    .iter()
                    .map(|k| Node::text(k.as_str())),
            ),
        ),
        (
            "limits",
            Node::list(limits.map(|(at, limit)| limit_snapshot(compiled, at, limit, now_ms))),
        ),
    ]);
    if !compiled.exemptions().is_empty() {
        snapshot.set("exempt", exemptions_node(compiled.exemptions()));
    }
    snapshot
}

/// When the edges in a snapshot of this time no longer cover the current time, in milliseconds
/// since the epoch; `None`: it has no edges.
pub fn snapshot_until_ms(compiled: &Compiled, now_ms: u64) -> Option<u64> {
    let own = compiled.limits().iter().map(|limit| limit.quota);
    let of_proxies = compiled.limits().iter().enumerate();
    let of_proxies = of_proxies.filter(|(_, limit)| limit.scope == Scope::Proxy);
    let overrides = of_proxies.flat_map(|(at, limit)| {
        let overrides = compiled.overrides(at);
        overrides.filter_map(|found| found.quota.of(&limit.quota))
    });
    let quotas = own.chain(overrides);
    let ends = quotas.filter_map(|quota| {
        let (window, _) = calendar::window_of(quota.algorithm(), now_ms)?;
        Some(window.end_ms)
    });
    ends.min()
}

fn limit_snapshot(compiled: &Compiled, at: usize, limit: &Limit, now_ms: u64) -> Node {
    let mut node = node_without_overrides(limit);
    node.unset("description");
    // On each limit, so that a filter too old to read it sends all requests to the limiter.
    if let Some(paused) = Pause::later(limit.paused, compiled.paused()) {
        node.set("paused", paused.to_node());
    }
    node.set("generation", Node::number(limit.generation));
    let level = match compiled.exemptions() {
        [] => LEVEL,
        _ => LEVEL_WITH_EXEMPTIONS,
    };
    node.set("level", Node::number(level));
    set_edges(&mut node, &limit.quota, now_ms);
    match limit.scope {
        Scope::Global if compiled.has_overrides(at) => node.set("has_overrides", true.into()),
        // Only the proxy decides these limits, so it needs their overrides.
        Scope::Proxy if compiled.has_overrides(at) => {
            let overrides = compiled.overrides(at).map(|found| {
                let mut node = override_node(found, &limit.per);
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

/// Adds the edges of calendar windows: the label of the first, their starts, and the end of the last.
fn set_edges(node: &mut Node, quota: &Quota, now_ms: u64) {
    if let Some(edges) = calendar::edges_of(quota.parameters(), now_ms) {
        let serial = u64::from(edges.serial());
        let numbers = [serial].into_iter().chain(edges.starts_ms());
        node.set("edges", Node::list(numbers.map(Node::number)));
    }
}
