//! What a domain becomes when a limits file is applied to it.

use std::collections::BTreeSet;

use policy::{Limit, Name, Node, Pause, Policy, Problems};

use crate::session::sort_overrides;

/// The limits of a file laid over those of a domain.
#[derive(Debug)]
pub struct Merged {
    /// What the domain becomes.
    pub policy: Policy,
    /// Limits that the file does not have and that stay all the same.
    pub kept: Vec<Name>,
    /// What stays paused although the file does not say so: limits, and the domain.
    pub still_paused: Vec<(Name, Pause)>,
    /// Limits whose overrides are lost, because their buckets are split by something else now.
    pub overrides_lost: Vec<Name>,
}

/// Lays `file` over `live`. A limit keeps its live overrides unless the file lists some for it;
/// limits that only `live` has stay, unless `prune`.
pub fn merge(file: &Policy, live: Option<&Policy>, prune: bool) -> Result<Merged, Problems> {
    let domain_pause = live.and_then(|policy| policy.paused);
    let live = live.map_or(&[][..], |policy| &policy.limits);
    let old = |name: &Name| live.iter().find(|limit| limit.name == *name);
    let (mut overrides_lost, mut still_paused) = (Vec::new(), Vec::new());
    let mut limits: Vec<Node> = Vec::with_capacity(file.limits.len());
    for limit in &file.limits {
        let mut node = limit.to_node();
        if let Some(old) = old(&limit.name).filter(|_| limit.overrides.is_empty()) {
            if old.per == limit.per {
                keep_overrides(&mut node, old);
            } else if !old.overrides.is_empty() {
                overrides_lost.push(limit.name.clone());
            }
        }
        let live_pause = old(&limit.name).and_then(|old| old.paused);
        let stays = keep_pause(&mut node, limit.paused, live_pause);
        still_paused.extend(stays.map(|pause| (limit.name.clone(), pause)));
        limits.push(node);
    }
    let in_file: BTreeSet<&Name> = file.limits.iter().map(|limit| &limit.name).collect();
    let kept: Vec<&Limit> = live
        .iter()
        .filter(|limit| !prune && !in_file.contains(&limit.name))
        .collect();
    limits.extend(kept.iter().map(|limit| limit.to_node()));
    let mut document = Node::map([
        ("domain", Node::text(file.domain.as_str())),
        ("limits", Node::list(limits)),
    ]);
    let stays = keep_pause(&mut document, file.paused, domain_pause);
    still_paused.extend(stays.map(|pause| (file.domain.clone(), pause)));
    let mut policy = Policy::from_node(&document)?;
    sort_overrides(&mut policy);
    Ok(Merged {
        policy,
        kept: kept.into_iter().map(|limit| limit.name.clone()).collect(),
        still_paused,
        overrides_lost,
    })
}

/// A pause that was set live outlives a file that does not mention it: whoever reached for the
/// kill switch must not lose it to the next deployment. What is kept so comes back.
fn keep_pause(node: &mut Node, file: Option<Pause>, live: Option<Pause>) -> Option<Pause> {
    match file.or(live) {
        Some(pause) if pause != Pause::OVER => node.set("paused", pause.to_node()),
        _ => {
            node.unset("paused");
        }
    }
    live.filter(|_| file.is_none())
}

fn keep_overrides(node: &mut Node, old: &Limit) {
    if let Some(overrides) = old.to_node().get("overrides") {
        node.set("overrides", overrides.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(limits: &str) -> Policy {
        let file = format!("domain: shop\nlimits: [{limits}]\n");
        Policy::from_yaml("test", file.as_bytes()).unwrap()
    }

    fn merged(file: &str, live: &str, prune: bool) -> Merged {
        merge(&policy(file), Some(&policy(live)), prune).unwrap()
    }

    fn names(policy: &Policy) -> Vec<&str> {
        policy
            .limits
            .iter()
            .map(|limit| limit.name.as_str())
            .collect()
    }

    const LIVE: &str = "{name: a, per: [user], rate: 1/s, \
                        overrides: [{values: {user: x}, rate: 9/s}]}, {name: b, rate: 1/s}";

    #[test]
    fn nothing_is_deleted_without_prune() {
        let kept = merged("{name: c, rate: 1/s}", LIVE, false);
        assert_eq!(names(&kept.policy), ["c", "a", "b"]);
        assert_eq!(kept.kept.len(), 2);
        let pruned = merged("{name: c, rate: 1/s}", LIVE, true);
        assert_eq!(names(&pruned.policy), ["c"]);
        assert_eq!(pruned.kept, []);
    }

    #[test]
    fn live_overrides_stay_unless_the_file_lists_some() {
        let same = merged("{name: a, per: [user], rate: 2/s}", LIVE, false);
        assert_eq!(
            same.policy.limits[0].overrides,
            policy(LIVE).limits[0].overrides
        );
        let own =
            "{name: a, per: [user], rate: 2/s, overrides: [{values: {user: y}, unlimited: true}]}";
        let listed = merged(own, LIVE, false);
        assert_eq!(
            listed.policy.limits[0].overrides,
            policy(own).limits[0].overrides
        );
    }

    #[test]
    fn overrides_of_other_buckets_are_lost_and_said_to_be() {
        let split = merged("{name: a, per: [tenant], rate: 2/s}", LIVE, false);
        assert_eq!(split.policy.limits[0].overrides, []);
        assert_eq!(split.overrides_lost.len(), 1);
    }

    #[test]
    fn a_live_override_that_no_longer_fits_is_a_problem() {
        let file = policy("{name: a, per: [user], rate: 2/s, algorithm: fixed_window}");
        let live = "{name: a, per: [user], rate: 1/s, overrides: [{values: {user: x}, burst: 9}]}";
        assert!(merge(&file, Some(&policy(live)), false).is_err());
    }
}
