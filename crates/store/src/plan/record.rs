//! A domain's limits as they are stored: one JSON document. Overrides and generations are stored
//! separately, so that changing them does not rewrite the document.

use std::collections::{BTreeMap, HashMap};

use limits_file::ToNode as _;
use policy::{Limit, Name, Node, Override, Policy, Revision, Value, node_to_value};

use crate::plan::{Operation, edit};

#[cfg(doc)]
use crate::plan::RecordedSide;

/// Something stored that is not what this version writes, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidRecord(pub String);

/// The document of a policy: what its author wrote, without overrides.
pub fn limits_json(policy: &Policy) -> String {
    let domain = json(&Node::text(policy.domain.as_str()));
    let mut text = format!(
        r#"{{"domain":{domain},"limits":{}"#,
        limits_list(&policy.limits)
    );
    if let Some(paused) = policy.paused {
        text.push_str(r#","paused":"#);
        text.push_str(&json(&paused.to_node()));
    }
    if !policy.exempt.is_empty() {
        text.push_str(r#","exempt":"#);
        text.push_str(&json(&limits_file::exemptions_node(&policy.exempt)));
    }
    text.push('}');
    text
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

/// A stored document that has not been validated yet.
#[derive(Default)]
pub struct Document {
    domain: Option<Node>,
    paused: Option<Node>,
    exempt: Option<Node>,
    limits: Vec<Node>,
}

impl Document {
    /// Reads a stored document.
    pub fn parse(text: &str) -> Result<Self, InvalidRecord> {
        let node: Node = serde_json::from_str(text)
            .map_err(|e| InvalidRecord(format!("limits that are not JSON: {e}")))?;
        let mut document = Self::default();
        let Value::Map(entries) = node.value else {
            return Ok(document);
        };
        for entry in entries {
            match (entry.key.as_str(), entry.value.value) {
                // Moved: the trees of 10,000 limits take some ten megabytes.
                ("limits", Value::List(limits)) => document.limits = limits,
                ("domain", value) => document.domain = Some(value.into()),
                ("paused", value) => document.paused = Some(value.into()),
                ("exempt", value) => document.exempt = Some(value.into()),
                _ => {}
            }
        }
        Ok(document)
    }

    /// Validates the whole. `generations` are the last edit that changed all limits, 0 if none is known,
    /// and those of single ones. A limit without a generation gets the record's revision, the newest
    /// edit that can have made it; one without a reset was never reset.
    pub fn into_policy(
        mut self,
        domain: &Name,
        revision: Revision,
        (base, generations): (u64, &BTreeMap<String, u64>),
        resets: &BTreeMap<String, u64>,
    ) -> Result<Policy, InvalidRecord> {
        for limit in &mut self.limits {
            let name = limit
                .get("name")
                .and_then(Node::as_text)
                .unwrap_or_default();
            let generation = match generations.get(name) {
                Some(own) => base.max(*own),
                None if base > 0 => base,
                None => revision.number,
            };
            limit.set("generation", Node::number(generation));
        }
        let mut node = Node::map([
            ("domain", self.domain.unwrap_or_else(|| Node::text(""))),
            ("limits", Node::list(self.limits)),
        ]);
        if let Some(paused) = self.paused {
            node.set("paused", paused);
        }
        if let Some(exempt) = self.exempt {
            node.set("exempt", exempt);
        }
        let invalid = |problems| InvalidRecord(format!("the limits of {domain}: {problems}"));
        let mut policy = limits_file::policy_from_record_node(&node).map_err(invalid)?;
        if policy.domain != *domain {
            return Err(InvalidRecord(format!(
                "the record of {domain} holds the limits of {}",
                policy.domain
            )));
        }
        for limit in &mut policy.limits {
            let reset = resets.get(limit.name.as_str());
            limit.reset_generation = reset.copied().unwrap_or(0);
        }
        policy.revision = revision;
        Ok(policy)
    }
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
    /// Listed, but the record is not there: it was lost, or is being written this moment.
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
}

impl Stored {
    /// The limits, if there is a live record.
    pub fn policy(&self) -> Option<&Policy> {
        match self {
            Self::Live(record) => Some(&record.policy),
            Self::Absent | Self::Deleted(_) => None,
        }
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
    /// The word of an [`Operation`].
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

// ---- Reading only what changed, where there are very many overrides.
//
// Reading 100,000 overrides takes the better part of a second of a limiter's time, and every edit
// of one of them makes every limiter read. The history lists which overrides changed.

/// The most edits to catch up with; after more, limiters read the whole record.
pub const EDITS_MAX: u64 = 200;

/// What changed in a domain since a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangesSince {
    /// The limits as they are, without overrides.
    pub policy: Policy,
    /// The overrides that came, changed or went. Where a limit's `per` or numbers changed as well,
    /// its other overrides mean something else now, too.
    pub overrides: Vec<OverrideChange>,
}

/// A change of one override.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverrideChange {
    /// The limit.
    pub limit: Name,
    /// The bucket.
    pub values: Vec<Option<Vec<u8>>>,
    /// `None`: it is gone.
    pub to: Option<Override>,
}

impl ChangesSince {
    /// The changes that these edits made, the last ones, oldest first; `None` if one of them does
    /// not list its changes. `policy` is what is stored now.
    pub fn new(policy: Policy, edits: &[HistoryEntry]) -> Option<Self> {
        let overrides = changed(&policy, edits)?;
        Some(Self { policy, overrides })
    }
}

/// Overrides by limit and bucket, `None` where they are gone.
type Changed = BTreeMap<(Name, Vec<Option<Vec<u8>>>), Option<Node>>;

/// The limits as they are now, by name.
type Limits<'p> = HashMap<&'p str, &'p Limit>;

/// The edits after `known`, up to `now` and without a gap. The digest of the first entry shows
/// that this is the same history, not a restored one.
pub fn edits_between<'h>(
    entries: &'h [HistoryEntry],
    known: &Revision,
    now: &Revision,
) -> Option<&'h [HistoryEntry]> {
    // One more may have been written after the record was read.
    let end = entries.iter().position(|entry| entry.revision == *now)?;
    let (first, edits) = entries.get(..=end)?.split_first()?;
    let whole = known.number.checked_add(u64::try_from(edits.len()).ok()?) == Some(now.number);
    (whole && first.revision == *known).then_some(edits)
}

/// The overrides that edits changed, as the last of them left each; `None` if one of the edits
/// does not list them.
fn changed(policy: &Policy, edits: &[HistoryEntry]) -> Option<Vec<OverrideChange>> {
    let limits = &policy.by_name();
    let mut changed = Changed::new();
    for edit in edits {
        match edit.kind()? {
            // What edits of fields made is in the document, which is read again in any case.
            Operation::Reset | Operation::Credit | Operation::Fields => {}
            Operation::Override => {
                apply_override(limits, &mut changed, edit.limit.as_ref()?, edit)?;
            }
            Operation::Edit => apply_edit(limits, &mut changed, edit)?,
            Operation::Delete => return None,
        }
    }
    let read = |((name, values), node): ((Name, _), Option<Node>)| {
        let limit = limits.get(name.as_str())?;
        let to = node
            .map(|node| limits_file::override_from_node(limit, &node))
            .transpose()
            .ok()?;
        Some(OverrideChange {
            limit: name,
            values,
            to,
        })
    };
    changed.into_iter().map(read).collect()
}

/// An edit of one override.
fn apply_override(
    limits: &Limits<'_>,
    changed: &mut Changed,
    name: &Name,
    edit: &HistoryEntry,
) -> Option<()> {
    for (json, stays) in [(&edit.before, false), (&edit.after, true)] {
        if !json.is_empty() {
            apply_one(
                limits,
                changed,
                name,
                (serde_json::from_str(json).ok()?, stays),
            )?;
        }
    }
    Some(())
}

/// An edit of limits and overrides.
fn apply_edit(limits: &Limits<'_>, changed: &mut Changed, entry: &HistoryEntry) -> Option<()> {
    for (json, stays) in [(&entry.before, false), (&entry.after, true)] {
        for (name, overrides) in edit::read_overrides(json)? {
            for found in overrides {
                apply_one(limits, changed, &name, (found, stays))?;
            }
        }
    }
    Some(())
}

/// Applies an override as an edit found it, or as it left it. `None` if it does not fit the limit's
/// current `per`: the limit was another one in between.
fn apply_one(
    limits: &Limits<'_>,
    changed: &mut Changed,
    name: &Name,
    (node, stays): (Node, bool),
) -> Option<()> {
    // The overrides of a removed limit are gone with it.
    if let Some(limit) = limits.get(name.as_str()) {
        let values = override_values(&node, &limit.per)?;
        changed.insert((name.clone(), values), stays.then_some(node));
    }
    Some(())
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
