//! What the history records of an edit: edits write it; `rlctl`, and limiters that read only what
//! changed, read it.

use std::collections::BTreeMap;

use policy::{Entry, Exemption, Limit, Name, Node, Pause, Policy, Value};

use crate::{HistoryEntry, OverrideEdits, record};

/// The largest `before` and `after` together that a history entry keeps, in bytes.
const ENTRY_MAX: usize = 1 << 20;

/// `after` of a reset of every bucket, when it has ended and when it starts.
const RESET_ALL: &str = "*";
const RESET_STARTED: &str = "* begun";

/// What kind of edit a history entry records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Operation {
    /// Limits, exemptions or the domain's pause changed, and no override.
    #[default]
    Fields,
    /// Limits and overrides changed.
    Edit,
    /// The domain was deleted.
    Delete,
    /// One override changed.
    Override,
    /// One bucket of a limit, or all of them, became unused.
    Reset,
    /// Units were given back to a bucket.
    Credit,
}

/// Which buckets a reset concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetOf<'e> {
    /// The bucket with this key.
    Bucket(&'e str),
    /// Every bucket of the limit; the entry is written at the end.
    All,
    /// Every bucket of the limit; the entry is written at the start. An interrupted reset leaves only
    /// this.
    AllStarted,
}

/// Overrides as documents, by limit.
pub type RecordedOverrides = BTreeMap<Name, Vec<Node>>;

/// `before` or `after` of an edit of limits.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedSide {
    /// The limits that the edit changed, without their overrides.
    pub limits: Vec<Limit>,
    /// The overrides that it changed.
    pub overrides: RecordedOverrides,
    /// The domain's pause, if the edit changed it and there is one.
    pub paused: Option<Pause>,
    /// The exemptions that the edit changed.
    pub exempt: Vec<Exemption>,
}

impl Operation {
    const ALL: [Self; 6] = [
        Self::Fields,
        Self::Edit,
        Self::Delete,
        Self::Override,
        Self::Reset,
        Self::Credit,
    ];

    /// The word in the history.
    pub fn word(self) -> &'static str {
        match self {
            Self::Fields => "fields",
            Self::Edit => "edit",
            Self::Delete => "delete",
            Self::Override => "override",
            Self::Reset => "reset",
            Self::Credit => "credit",
        }
    }
}

impl HistoryEntry {
    /// The kind of edit; `None` if this version writes no such edits.
    pub fn kind(&self) -> Option<Operation> {
        { Operation::ALL.into_iter() }.find(|operation| operation.word() == self.operation)
    }

    /// Which buckets a [`Operation::Reset`] concerned.
    pub fn reset_of(&self) -> ResetOf<'_> {
        match self.after.as_str() {
            RESET_ALL => ResetOf::All,
            RESET_STARTED => ResetOf::AllStarted,
            key => ResetOf::Bucket(key),
        }
    }

    /// The units of a [`Operation::Credit`], and the bucket's key.
    pub fn credited(&self) -> Option<(u64, &str)> {
        let (units, key) = self.after.split_once(' ')?;
        Some((units.parse().ok()?, key))
    }
}

/// `after` of a reset.
pub(super) fn reset(of: ResetOf<'_>) -> String {
    let word = match of {
        ResetOf::Bucket(key) => key,
        ResetOf::All => RESET_ALL,
        ResetOf::AllStarted => RESET_STARTED,
    };
    word.to_owned()
}

/// `after` of a credit.
pub(super) fn credit(units: u64, key: &str) -> String {
    format!("{units} {key}")
}

/// What an edit of limits records: the limits, exemptions and overrides that it changes, and the domain's
/// pause if that changes.
pub(super) struct Recorded<'a> {
    /// Before and after: the policy, and those of its limits that differ.
    pub(super) sides: [(Option<&'a Policy>, &'a [&'a Limit]); 2],
    pub(super) edits: &'a OverrideEdits,
}

impl Recorded<'_> {
    /// `before` and `after`; `None` if they are larger than the history keeps.
    pub(super) fn as_json(&self) -> Option<[String; 2]> {
        if self.edits.values().any(|edit| edit.before.is_none()) {
            return None;
        }
        let [before, after] = self.sides.map(|(policy, _)| policy.and_then(|p| p.paused));
        let paused = before != after;
        let json = [
            self.side(0, (paused, before)),
            self.side(1, (paused, after)),
        ];
        let bytes: usize = json.iter().map(String::len).sum();
        (bytes <= ENTRY_MAX).then_some(json)
    }

    /// One side, with the domain's pause, and whether that changed.
    fn side(&self, side: usize, (changed, pause): (bool, Option<Pause>)) -> String {
        let Some((policy, limits)) = self.sides.get(side) else {
            return String::new();
        };
        let exempt = self.exempt(side);
        if self.edits.is_empty() && !changed && exempt.is_empty() {
            return record::limits_list(limits.iter().copied());
        }
        let known = policy.map(Policy::by_name).unwrap_or_default();
        let limits = Node::list(limits.iter().map(|l| l.to_node_without_overrides()));
        let overrides = self.edits.iter().filter_map(|(name, edit)| {
            let limit = known.get(name.as_str())?;
            let found = match side {
                0 => edit.before.as_deref().unwrap_or_default(),
                _ => &edit.after,
            };
            let found = found.iter().map(|found| found.to_node(&limit.per));
            Some((name.as_str(), Node::list(found)))
        });
        let mut all = Node::map([("limits", limits)]);
        if !self.edits.is_empty() {
            all.set("overrides", Node::map(overrides));
        }
        if let Some(pause) = pause.filter(|_| changed) {
            all.set("paused", pause.to_node());
        }
        if !exempt.is_empty() {
            all.set("exempt", Exemption::list_node(&exempt));
        }
        record::json(&all)
    }

    /// The exemptions of one side that the other lacks or has differently.
    fn exempt(&self, side: usize) -> Vec<Exemption> {
        let of = |policy: Option<&Policy>| policy.map_or_else(Vec::new, |p| p.exempt.clone());
        let [before, after] = self.sides.map(|(policy, _)| of(policy));
        let (mut own, other) = match side {
            0 => (before, after),
            _ => (after, before),
        };
        own.retain(|exemption| !other.contains(exemption));
        own
    }
}

impl RecordedSide {
    /// Reads `before` or `after`: a list of limits, or a map of them, of overrides, exemptions and of the pause.
    /// `None` if this version cannot read it.
    pub fn read(json: &str) -> Option<Self> {
        let node: Node = serde_json::from_str(json).ok()?;
        let limits = node.get("limits").unwrap_or(&node).items().iter();
        let limits: Option<_> = limits.map(|node| Limit::from_record(node).ok()).collect();
        let exempt = node.get("exempt").map(Node::items).unwrap_or_default();
        let exempt: Option<_> = exempt
            .iter()
            .map(|node| Exemption::from_node(node).ok())
            .collect();
        Some(Self {
            limits: limits?,
            exempt: exempt?,
            overrides: overrides_of(&node)?,
            paused: node.get("paused").and_then(Pause::from_node),
        })
    }
}

/// Only the overrides of a [`RecordedSide`].
pub(crate) fn read_overrides(json: &str) -> Option<RecordedOverrides> {
    overrides_of(&serde_json::from_str(json).ok()?)
}

fn overrides_of(node: &Node) -> Option<RecordedOverrides> {
    let entries = match node.get("overrides").map(|node| &node.value) {
        None => return Some(RecordedOverrides::new()),
        Some(Value::Map(entries)) => entries,
        Some(_) => return None,
    };
    let one = |entry: &Entry| Some((entry.key.parse().ok()?, entry.value.items().to_vec()));
    entries.iter().map(one).collect()
}
