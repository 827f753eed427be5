//! What was last applied from a file, and what a new version of the file changes.
//!
//! The store holds the record, so that a restart does not undo live edits.

use std::collections::BTreeMap;

use policy::{Exemption, Limit, Name, Node, Pause, Policy};
use serde::{Deserialize, Serialize};

use crate::session::sort_overrides;

/// The format of the record; a record of another format is ignored.
const FORMAT: u32 = 1;

/// Digests of a file: of each limit with its overrides, of each exemption, and of the domain's own fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Applied {
    format: u32,
    domain: String,
    limits: BTreeMap<String, String>,
    /// By exemption. Records of earlier versions have none.
    #[serde(default)]
    exempt: BTreeMap<String, String>,
}

impl Applied {
    /// The digests of a file.
    pub(super) fn of(file: &Policy) -> Self {
        let mut file = file.clone();
        sort_overrides(&mut file);
        let limit = |limit: &Limit| (limit.name.to_string(), digest(&limit.to_node()));
        Self {
            format: FORMAT,
            domain: digest(&file.paused.map_or_else(|| Node::text(""), Pause::to_node)),
            limits: file.limits.iter().map(limit).collect(),
            exempt: { file.exempt.iter() }
                .map(|exemption| (exemption.name.to_string(), digest(&exemption.to_node())))
                .collect(),
        }
    }

    /// The stored record; empty if it cannot be read, so that the whole file counts as changed.
    pub(super) fn read(record: Option<&str>) -> Self {
        let read: Option<Self> = record.and_then(|record| serde_json::from_str(record).ok());
        read.filter(|read| read.format == FORMAT)
            .unwrap_or_default()
    }

    /// The record to store.
    pub(super) fn to_record(&self) -> String {
        // Text and numbers alone always become JSON.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// How many limits there are.
    pub(super) fn count(&self) -> usize {
        self.limits.len()
    }

    fn has(&self, limit: &Name) -> bool {
        self.limits.contains_key(limit.as_str())
    }

    /// The domain's limits if `self` was applied last and the file is `new` now. Limits that the
    /// file does not change, or never had, stay as they are live. Without `prune`, limits that left
    /// the file stay as well.
    pub(super) fn target(
        &self,
        file: &Policy,
        new: &Self,
        live: Option<&Policy>,
        prune: bool,
    ) -> Policy {
        let same = |limit: &Name| {
            let digest = self.limits.get(limit.as_str());
            digest.is_some() && digest == new.limits.get(limit.as_str())
        };
        let mut target = file.clone();
        let of_file = file.limits.iter().filter_map(|limit| {
            if same(&limit.name) {
                live?.limit(limit.name.as_str()).cloned()
            } else {
                Some(limit.clone())
            }
        });
        let others = live.map_or(&[][..], |live| &live.limits).iter();
        let others =
            others.filter(|limit| !(new.has(&limit.name) || prune && self.has(&limit.name)));
        target.limits = of_file.chain(others.cloned()).collect();
        target.exempt = self.exempt_target(file, new, live.map_or(&[], |live| &live.exempt), prune);
        if self.domain == new.domain {
            target.paused = live.and_then(|live| live.paused);
        }
        target
    }

    /// As [`Self::target`], for exemptions.
    fn exempt_target(
        &self,
        file: &Policy,
        new: &Self,
        live: &[Exemption],
        prune: bool,
    ) -> Vec<Exemption> {
        let of_file = file.exempt.iter().filter_map(|wanted| {
            let name = wanted.name.as_str();
            let applied = self.exempt.get(name);
            if applied.is_some() && applied == new.exempt.get(name) {
                live.iter().find(|live| live.name == wanted.name).cloned()
            } else {
                Some(wanted.clone())
            }
        });
        let goes =
            |name: &str| new.exempt.contains_key(name) || prune && self.exempt.contains_key(name);
        let others = live.iter().filter(|live| !goes(live.name.as_str()));
        of_file.chain(others.cloned()).collect()
    }
}

fn digest(node: &Node) -> String {
    // A document of text and numbers always becomes JSON.
    let json = serde_json::to_string(node).unwrap_or_default();
    let mut hex = sha1_smol::Sha1::from(json).digest().to_string();
    hex.truncate(16);
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(limits: &str) -> Policy {
        let file = format!("domain: shop\n{limits}");
        Policy::from_yaml("test", file.as_bytes()).unwrap()
    }

    fn target(before: &str, after: &str, live: &str, prune: bool) -> Vec<String> {
        let file = policy(after);
        let applied = Applied::of(&policy(before));
        let target = applied.target(&file, &Applied::of(&file), Some(&policy(live)), prune);
        let limits = target.limits.iter();
        let text = |limit: &Limit| limit.to_node().to_yaml_line();
        limits
            .map(|limit| text(limit).replace("algorithm: token_bucket, ", ""))
            .collect()
    }

    #[test]
    fn only_what_the_file_changes_is_taken_from_it() {
        let before = "limits: [{name: a, rate: 1/s}, {name: b, rate: 1/s}]";
        let after = "limits: [{name: a, rate: 1/s}, {name: b, rate: 2/s}]";
        // Live edits: two limits changed, and one created.
        let live = "limits: [{name: a, rate: 7/s}, {name: b, rate: 7/s}, {name: c, rate: 7/s}]";
        let expected = [
            "{name: a, rate: 7/s}",
            "{name: b, rate: 2/s}",
            "{name: c, rate: 7/s}",
        ];
        assert_eq!(target(before, after, live, true), expected);
        assert_eq!(
            target(before, before, live, true)[1],
            "{name: b, rate: 7/s}"
        );
    }

    #[test]
    fn what_leaves_the_file_goes_only_with_prune_and_what_was_deleted_live_stays_deleted() {
        let before = "limits: [{name: a, rate: 1/s}, {name: b, rate: 1/s}]";
        let after = "limits: [{name: a, rate: 1/s}]";
        let live = "limits: [{name: b, rate: 1/s}, {name: own, rate: 1/s}]";
        let own = "{name: own, rate: 1/s}";
        assert_eq!(target(before, after, live, true), [own]);
        let b = "{name: b, rate: 1/s}";
        assert_eq!(target(before, after, live, false), [b, own]);
    }

    #[test]
    fn exemptions_are_taken_from_the_file_as_limits_are() {
        let policy = |exempt: &str| policy(&format!("exempt: [{exempt}]\nlimits: []"));
        let [x, y, z] = ["x", "y", "z"].map(|path| format!("match: {{path: /{path}}}}}"));
        let before = policy(&format!(
            "{{name: a, {x}, {{name: b, {x}, {{name: gone, {x}"
        ));
        let file = policy(&format!("{{name: a, {x}, {{name: b, {y}"));
        let live = policy(&format!(
            "{{name: a, {z}, {{name: b, {z}, {{name: gone, {z}, {{name: own, {z}"
        ));
        let of = |prune| {
            let target =
                Applied::of(&before).target(&file, &Applied::of(&file), Some(&live), prune);
            let lines = target.exempt.iter().map(|one| one.to_node().to_yaml_line());
            lines.collect::<Vec<_>>().join(" ")
        };
        let one = |name: &str, path: &str| format!("{{name: {name}, match: {{path: /{path}}}}}");
        let pruned = [one("a", "z"), one("b", "y"), one("own", "z")];
        assert_eq!(of(true), pruned.join(" "));
        let kept = [
            one("a", "z"),
            one("b", "y"),
            one("gone", "z"),
            one("own", "z"),
        ];
        assert_eq!(of(false), kept.join(" "));
    }

    #[test]
    fn a_pause_counts_as_any_other_edit() {
        let file = policy("paused: false\nlimits: []");
        let applied = Applied::of(&policy("limits: []"));
        let live = policy("paused: true\nlimits: []");
        let kept = Applied::of(&file).target(&file, &Applied::of(&file), Some(&live), true);
        assert_eq!(kept.paused, live.paused);
        let ended = applied.target(&file, &Applied::of(&file), Some(&live), true);
        assert_eq!(ended.paused, Some(Pause::OVER));
    }

    #[test]
    fn a_record_that_cannot_be_read_counts_as_none() {
        let file = policy("limits: [{name: a, rate: 1/s}]");
        let record = Applied::of(&file).to_record();
        assert_eq!(Applied::read(Some(&record)), Applied::of(&file));
        let later = record.replace("\"format\":1", "\"format\":2");
        for unread in [None, Some(""), Some("null"), Some(later.as_str())] {
            assert_eq!(Applied::read(unread), Applied::default(), "{unread:?}");
        }
    }

    #[test]
    fn the_order_of_overrides_is_no_change() {
        let of = |a: &str, b: &str| {
            let file = format!(
                "limits: [{{name: a, per: [user], rate: 1/s, overrides: \
                 [{{values: {{user: {a}}}, unlimited: true}}, {{values: {{user: {b}}}, unlimited: true}}]}}]"
            );
            Applied::of(&policy(&file))
        };
        assert_eq!(of("x", "y"), of("y", "x"));
        assert_ne!(of("x", "y"), of("x", "z"));
    }
}
