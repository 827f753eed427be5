//! A domain's limits as they are stored: each as JSON, in one hash. The domain's own fields, overrides and
//! generations are stored separately, so that an edit writes what it changes and limiters read that alone.

use std::collections::BTreeMap;

use policy::{
    BucketEdit, BucketEdits, Limit, Name, Node, Override, Policy, Revision, Value, node_to_value,
};

#[cfg(doc)]
use crate::plan::RecordedSide;

/// Something stored that is not what this version writes, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidRecord(pub String);

/// Bytes of a limit's place, which is in front of its JSON.
pub const PLACE: usize = 16;

/// A limit as it is stored: its place among the limits, and what its author wrote without overrides.
pub fn limit_text(limit: &Limit, place: u64) -> String {
    let json = json(&limits_file::node_without_overrides(limit));
    format!("{place:0PLACE$}{json}")
}

/// Reads a limit as [`limit_text`] wrote it.
pub fn read_limit(text: &str) -> Result<Limit, InvalidRecord> {
    let (place, json) = text.split_at_checked(PLACE).unwrap_or_default();
    let place = place.parse();
    let place = place.map_err(|_| InvalidRecord("a limit without a place".to_owned()))?;
    let node: Node = serde_json::from_str(json)
        .map_err(|e| InvalidRecord(format!("a limit that is not JSON: {e}")))?;
    let limit = limits_file::limit_from_node(&node);
    let limit = limit.map_err(|problems| InvalidRecord(problems.to_string()))?;
    Ok(Limit { place, ..limit })
}

/// The domain's own fields: what its author wrote, without limits.
pub fn domain_json(policy: &Policy) -> String {
    let node = limits_file::domain_node(&policy.domain, policy.paused, &policy.exempt);
    json(&node)
}

/// Reads the domain's own fields.
pub fn read_domain(domain: &Name, json: &str) -> Result<Policy, InvalidRecord> {
    let mut node: Node = serde_json::from_str(json)
        .map_err(|e| InvalidRecord(format!("a domain that is not JSON: {e}")))?;
    node.set("limits", Node::list([]));
    let invalid = |problems| InvalidRecord(format!("the limits of {domain}: {problems}"));
    let policy = limits_file::policy_from_node(&node).map_err(invalid)?;
    if policy.domain == *domain {
        return Ok(policy);
    }
    Err(InvalidRecord(format!(
        "the record of {domain} holds the limits of {}",
        policy.domain
    )))
}

/// Checks limits that were read one by one, and sorts them.
pub fn with_limits(mut policy: Policy, mut limits: Vec<Limit>) -> Result<Policy, InvalidRecord> {
    limits.sort_by_key(|limit| limit.place);
    policy.limits = limits;
    let domain = policy.domain.clone();
    let invalid = |problems| InvalidRecord(format!("the limits of {domain}: {problems}"));
    limits_file::edit::checked(policy).map_err(invalid)
}

/// What the store keeps beside a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Generations {
    /// Its last edit.
    pub own: Option<u64>,
    /// Its latest reset, of all buckets.
    pub reset: Option<u64>,
    /// Edits of single buckets, as `lua/policy_write.lua` writes them.
    pub buckets: Option<String>,
}

impl Generations {
    /// Sets those of a limit. `base` is the last edit that changed all limits, 0 if none is known. A limit
    /// without a generation gets the record's revision, the newest edit that can have made it; one without a
    /// reset was never reset.
    pub fn set(&self, limit: &mut Limit, base: u64, revision: &Revision) {
        limit.generation = match self.own {
            Some(own) => base.max(own),
            None if base > 0 => base,
            None => revision.number,
        };
        limit.reset_generation = self.reset.unwrap_or(0);
        limit.bucket_edits = BucketEdits::default();
        for edit in self.buckets.iter().flat_map(|text| text.split(',')) {
            let mut numbers = edit.split(':');
            let mut number = || numbers.next()?.parse::<u64>().ok();
            // What is no edit was not written by an editor.
            if let (Some(slot), Some(generation), Some(reset)) = (number(), number(), number())
                && let Ok(slot) = slot.try_into()
            {
                limit.bucket_edits.add(BucketEdit {
                    slot,
                    generation,
                    reset_generation: reset,
                });
            }
        }
    }
}

/// Limits without overrides as a list, written one by one: the trees of 10,000 limits take some ten
/// megabytes.
pub(crate) fn limits_list<'l>(limits: impl IntoIterator<Item = &'l Limit>) -> String {
    let mut text = String::from("[");
    for limit in limits {
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(&json(&limits_file::node_without_overrides(limit)));
    }
    text.push(']');
    text
}

/// One override as JSON.
pub fn override_json(per: &[Name], found: &Override) -> String {
    json(&limits_file::override_node(found, per))
}

/// An override as it is stored.
pub fn read_override(limit: &Limit, json: &str) -> Result<Override, InvalidRecord> {
    let name = &limit.name;
    let node: Node = serde_json::from_str(json)
        .map_err(|e| InvalidRecord(format!("an override of {name} is not JSON: {e}")))?;
    let invalid = |problems| InvalidRecord(format!("an override of {name}: {problems}"));
    limits_file::override_from_node(limit, &node).map_err(invalid)
}

/// The bucket that an override is for, its values in the order of `per`; `None` if it is not an
/// override of a limit with these entries, and no others.
pub fn override_values(node: &Node, per: &[Name]) -> Option<Vec<Option<Vec<u8>>>> {
    let Value::Map(values) = &node.get("values")?.value else {
        return None;
    };
    let value = |name: &Name| {
        let entry = values.iter().find(|entry| entry.key == name.as_str())?;
        match entry.value.value {
            Value::Null => Some(None),
            _ => node_to_value(&entry.value).map(Some),
        }
    };
    (values.len() == per.len()).then(|| per.iter().map(value).collect())?
}

/// A document as JSON, which cannot fail: its keys are texts.
pub fn json(node: &Node) -> String {
    serde_json::to_string(node).unwrap_or_default()
}

// ---- What is stored of a domain.

/// A domain and the revision it is at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The domain.
    pub domain: Name,
    /// What is there.
    pub state: HeadState,
}

/// What a domain's record is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeadState {
    /// Limits, perhaps none.
    Live(Revision),
    /// Deleted on purpose, by the edit of this revision.
    Deleted(Revision),
    /// Listed, with a history or named by a caller, but without a record: it was lost, or was never written.
    Missing,
    /// There, but not a record that this version can read, and why. Other domains are not affected.
    Unreadable(String),
}

/// A domain's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// Never written, or lost.
    Absent,
    /// Deleted on purpose, by the edit of this revision.
    Deleted(Revision),
    /// There.
    Live(Box<Record>),
}

/// The limits of a domain, and how much of them was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The limits, with their revision and generations.
    pub policy: Policy,
    /// Whether the overrides are among them.
    pub overrides: Overrides,
    /// The bytes of all limits in a snapshot, as the last edit counted them; `None`: not counted yet.
    pub snapshot_bytes: Option<u64>,
    /// Whether other limits of the domain were left out: for edits of the ones that were read.
    pub is_part: bool,
}

impl Stored {
    /// The limits, if there is a live record.
    pub fn policy(&self) -> Option<&Policy> {
        match self {
            Self::Live(record) => Some(&record.policy),
            Self::Absent | Self::Deleted(_) => None,
        }
    }

    /// Whether other limits of the domain were left out.
    pub fn is_part(&self) -> bool {
        matches!(self, Self::Live(record) if record.is_part)
    }
}

/// Whether reading a record also reads the overrides, of which there may be very many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overrides {
    /// Read.
    All,
    /// Left out; the limits then list none.
    None,
}

// ---- Edits of a domain, and its history.

/// Who edits, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// A person or a program.
    pub author: String,
    /// Shown with the history.
    pub reason: String,
}

/// One edit.
#[derive(Clone, Debug)]
pub struct Edit<'a> {
    /// The domain.
    pub domain: &'a Name,
    /// What the editor read. If the store holds something else by now, the edit is a conflict.
    pub base: &'a Stored,
    /// What to do.
    pub change: Change<'a>,
    /// Who and why.
    pub by: &'a Signature,
}

/// What an edit does.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// The domain's limits, with their overrides, become these (revision and generations in them
    /// do not matter). The base has to be read with [`Overrides::All`]; only differences are
    /// written, and only limits that differ get a new generation.
    Limits(&'a Policy),
    /// As [`Change::Limits`], for edits that leave every override as it is stored: those listed
    /// here are ignored, and the base can be read with [`Overrides::None`]. A limit with overrides
    /// may not be removed, and its `per` may not change.
    Fields(&'a Policy),
    /// As [`Change::Fields`], with changes to overrides. If a limit with overrides is removed,
    /// these have to be among the changes.
    Parts {
        /// The limits. Their overrides count only where an edit says that they are all.
        limits: &'a Policy,
        /// The changes to overrides.
        overrides: &'a OverrideEdits,
    },
    /// One bucket gets an override, or loses it. Costs the same however many overrides there are;
    /// the base can be read with [`Overrides::None`].
    Override {
        /// The limit.
        limit: &'a Name,
        /// The bucket.
        values: &'a [Option<Vec<u8>>],
        /// `None` removes it.
        to: Option<&'a Override>,
    },
    /// The domain's limits are deleted. Its revision numbers go on if it is written again. If the
    /// base was read with [`Overrides::None`], these are the overrides that are deleted with them.
    Delete(&'a OverrideEdits),
}

/// One edit that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    /// The revision that it made.
    pub revision: Revision,
    /// When, in milliseconds since the epoch, by the store's clock.
    pub at_ms: u64,
    /// The word of an [`Operation`](super::Operation).
    pub operation: String,
    /// Who and why.
    pub by: Signature,
    /// The limit that an `override`, a `reset` or a `credit` concerned.
    pub limit: Option<Name>,
    /// The state before, as JSON: a [`RecordedSide`] for an edit of limits, the old override for an
    /// edit of one. Empty if there was nothing, for a reset and a credit, and for an edit that is
    /// larger than the history keeps or whose overrides were too many to list.
    pub before: String,
    /// The same, after the edit; for a reset see [`HistoryEntry::reset_of`], for a credit
    /// [`HistoryEntry::credited`].
    pub after: String,
}

// ---- Reading only what changed.

/// The most changes to catch up with; after more, limiters read the whole record.
pub const CATCH_UP_MAX: usize = 1000;

/// What the store lists as changed since a revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Limits.
    pub limits: Vec<Name>,
    /// Limits all of whose overrides went, before those below.
    pub cleared: Vec<Name>,
    /// The fields of overrides that changed, by limit.
    pub overrides: BTreeMap<Name, Vec<String>>,
}

impl Changed {
    /// Reads members of a domain's changes, with the revision of each: those from `known` on. `None` if
    /// they are not what changed from that revision to `now`, or too many.
    pub fn read<'m>(
        members: impl IntoIterator<Item = (&'m str, u64)>,
        known: &Revision,
        now: &Revision,
    ) -> Option<Self> {
        let mut changed = Self::default();
        // An edit's digest shows that this is the same history, not a restored one.
        let edit = |of: &Revision| (format!("={:016x}", of.digest), of.number);
        let (known, now) = (edit(known), edit(now));
        let (mut from, mut to, mut count) = (false, false, 0);
        for (member, revision) in members {
            count += 1;
            from |= (member, revision) == (&*known.0, known.1);
            to |= (member, revision) == (&*now.0, now.1);
            if member.starts_with('=') || revision <= known.1 {
                continue;
            }
            // Names have no colon, and a value may end in `!`.
            if let Some((name, field)) = member.split_once(':') {
                let fields = changed.overrides.entry(name.parse().ok()?);
                fields.or_default().push(field.to_owned());
            } else if let Some(name) = member.strip_suffix('!') {
                changed.cleared.push(name.parse().ok()?);
            } else {
                changed.limits.push(member.parse().ok()?);
            }
        }
        (from && to && count <= CATCH_UP_MAX).then_some(changed)
    }
}

// ---- Overrides apart from the limits they belong to: there may be a hundred thousand.

/// An override that does not fit its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidOverride {
    /// As stored.
    pub json: String,
    /// What is wrong with it.
    pub problems: Vec<String>,
}

impl InvalidOverride {
    /// The bucket it is for, if that much can be read.
    pub fn values(&self, per: &[Name]) -> Option<Vec<Option<Vec<u8>>>> {
        override_values(&serde_json::from_str(&self.json).ok()?, per)
    }

    /// Reads an override of a limit as it is stored.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(limit: &Limit, json: String) -> Result<Override, Self> {
        let node: Node = match serde_json::from_str(&json) {
            Ok(node) => node,
            Err(error) => {
                let problems = vec![format!("not JSON: {error}")];
                return Err(Self { json, problems });
            }
        };
        limits_file::override_from_node(limit, &node).map_err(|problems| {
            let problems = problems.iter();
            let problems = problems.map(|problem| match problem.path.as_str() {
                "" => problem.message.clone(),
                path => format!("{path}: {}", problem.message),
            });
            Self {
                json,
                problems: problems.collect(),
            }
        })
    }
}

/// What an edit does to overrides, limit by limit. Limits that are not in it keep theirs.
pub type OverrideEdits = BTreeMap<Name, OverrideEdit>;

/// What an edit does to the overrides of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverrideEdit {
    /// The overrides that change or go, as they are. `None`: too many to list; the history then
    /// lists none either, and the edit cannot be rolled back.
    pub before: Option<Vec<Override>>,
    /// The overrides that change or come, as they will be.
    pub after: Vec<Override>,
    /// Whether the limit lists all overrides that it will have. If not, those in neither list above
    /// stay.
    pub listed: bool,
}

impl OverrideEdit {
    /// Deletes all of them.
    pub fn clear(before: Option<Vec<Override>>) -> Self {
        Self {
            before,
            after: Vec::new(),
            listed: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_ends_in_an_exclamation_mark_is_an_override_like_any() {
        let at = |number| Revision {
            number,
            digest: number,
        };
        let edits = [1, 2].map(|number| (format!("={number:016x}"), number));
        let members = [("user:bob!", 2), ("user!", 2), ("path", 2)];
        let edits = edits.iter().map(|(member, at)| (member.as_str(), *at));
        let changed = Changed::read(edits.chain(members), &at(1), &at(2)).expect("what changed");
        let user: Name = "user".parse().expect("a name");
        assert_eq!(
            changed.overrides,
            [(user.clone(), vec!["bob!".to_owned()])].into()
        );
        assert_eq!(changed.cleared, [user]);
        assert_eq!(changed.limits, ["path".parse().expect("a name")]);
    }
}
