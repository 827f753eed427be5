//! Merging a limits file into a domain.

use std::collections::{BTreeMap, BTreeSet};

use policy::{Exemption, Limit, Name, Node, Pause, Policy, Problems};

use crate::session::sort_overrides;

/// The limits of a file laid over those of a domain.
#[derive(Debug)]
pub struct Merged {
    /// The merged limits. A limit lists overrides only if the file lists some for it.
    pub policy: Policy,
    /// Limits that are not in the file and stay.
    pub kept: Vec<Name>,
    /// Pauses that the file does not mention and that stay: of limits, and of the domain.
    pub still_paused: Vec<(Name, Pause)>,
    /// Limits whose overrides, if they have any, are lost because their `per` changed.
    pub split_otherwise: Vec<Name>,
    /// How many overrides stay although the file does not list them, by limit.
    pub overrides_kept: Vec<(Name, usize)>,
}

/// Merges `file` into `live`, whose overrides need not be loaded. Limits and exemptions
/// that only `live` has stay, unless `prune`.
pub fn merge(file: Policy, live: Option<&Policy>, prune: bool) -> Result<Merged, Problems> {
    let domain_pause = live.and_then(|policy| policy.paused);
    let mut exempt = file.exempt;
    if !prune {
        let live = live.map_or(&[][..], |policy| &policy.exempt).iter();
        let listed: BTreeSet<Name> = exempt.iter().map(|one| one.name.clone()).collect();
        exempt.extend(live.filter(|one| !listed.contains(&one.name)).cloned());
    }
    let live = live.map_or(&[][..], |policy| &policy.limits);
    let by_name: BTreeMap<&Name, &Limit> = live.iter().map(|limit| (&limit.name, limit)).collect();
    let (mut split_otherwise, mut still_paused) = (Vec::new(), Vec::new());
    let mut limits: Vec<Node> = Vec::with_capacity(file.limits.len());
    for limit in &file.limits {
        let mut node = limit.to_node_without_overrides();
        let old = by_name.get(&limit.name).copied();
        if limit.overrides.is_empty() && old.is_some_and(|old| old.per != limit.per) {
            split_otherwise.push(limit.name.clone());
        }
        let stays = keep_pause(&mut node, limit.paused, old.and_then(|old| old.paused));
        still_paused.extend(stays.map(|pause| (limit.name.clone(), pause)));
        limits.push(node);
    }
    let in_file: BTreeSet<&Name> = file.limits.iter().map(|limit| &limit.name).collect();
    let kept: Vec<&Limit> = live
        .iter()
        .filter(|limit| !prune && !in_file.contains(&limit.name))
        .collect();
    limits.extend(kept.iter().map(|limit| limit.to_node_without_overrides()));
    let mut document = Node::map([
        ("domain", Node::text(file.domain.as_str())),
        ("exempt", Exemption::list_node(&exempt)),
        ("limits", Node::list(limits)),
    ]);
    let stays = keep_pause(&mut document, file.paused, domain_pause);
    still_paused.extend(stays.map(|pause| (file.domain.clone(), pause)));
    let mut policy = Policy::from_node(&document)?;
    // The file's limits come first, in its order.
    for (limit, listed) in policy.limits.iter_mut().zip(file.limits) {
        limit.overrides = listed.overrides;
    }
    sort_overrides(&mut policy);
    Ok(Merged {
        policy,
        kept: kept.into_iter().map(|limit| limit.name.clone()).collect(),
        still_paused,
        split_otherwise,
        overrides_kept: Vec::new(),
    })
}

/// Keeps a live pause if the file does not mention one: the next deployment must not undo the kill
/// switch. Returns the pause that it kept.
fn keep_pause(node: &mut Node, file: Option<Pause>, live: Option<Pause>) -> Option<Pause> {
    match file.or(live) {
        Some(pause) if pause != Pause::OVER => node.set("paused", pause.to_node()),
        _ => {
            node.unset("paused");
        }
    }
    live.filter(|_| file.is_none())
}

#[cfg(test)]
mod tests;
