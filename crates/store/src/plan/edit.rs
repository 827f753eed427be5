//! What an edit changes, worked out before anything is sent.

use std::collections::{BTreeMap, HashMap, HashSet};

use limits_file::{DOCUMENT_MAX, LIMIT_BYTES_MAX, ToNode as _};
use policy::{
    BucketEdits, Entry, Exemption, Limit, Name, Node, OVERRIDES_MAX, Override, Pause, Policy,
    Revision, Value,
};
use protocol::SNAPSHOT_MAX;

use crate::plan::{
    Change, Edit, HistoryEntry, Keys, OverrideEdit, OverrideEdits, Overrides, Signature, Stored,
    record,
};

/// Bound: edits in a domain's history. Beyond it, the oldest go.
pub const HISTORY_MAX: usize = 1000;
/// Bound: bytes of a domain's history. Beyond it, the oldest edits go.
pub const HISTORY_BYTES_MAX: usize = 16 << 20;
/// Bound: changes of limits and overrides that the store can list in a domain. Beyond it, the oldest
/// go; a limiter that lacks one of those reads the whole domain.
const CHANGES_MAX: usize = 10_000;

/// What the store has to hold for an edit to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// No live record.
    Nothing,
    /// This revision.
    At(Revision),
    /// Any live record: for edits that do not depend on its content.
    Any,
}

/// What an edit of this base expects.
pub fn expected(base: &Stored) -> Expected {
    match base {
        Stored::Absent | Stored::Deleted(_) => Expected::Nothing,
        Stored::Live(record) => Expected::At(record.policy.revision.clone()),
    }
}

impl Expected {
    /// The revision, if it has to be one.
    pub fn revision(&self) -> Option<Revision> {
        match self {
            Self::At(revision) => Some(revision.clone()),
            Self::Nothing | Self::Any => None,
        }
    }
}

/// One edit, ready to be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// See [`crate::plan::HistoryEntry::operation`].
    pub operation: Operation,
    /// See [`crate::plan::HistoryEntry::before`].
    pub before: String,
    /// See [`crate::plan::HistoryEntry::after`].
    pub after: String,
    /// The limit concerned, of an edit that concerns one.
    pub limit: Option<Name>,
    /// The domain's own fields as JSON, where the edit may change them.
    pub domain: Option<String>,
    /// The bytes of all limits in a snapshot then, where the edit may change them and they are known.
    pub snapshot_bytes: Option<u64>,
    /// Limits that are written.
    pub limits: LimitWrites,
    /// Limits whose generation rises.
    pub raise: Vec<Name>,
    /// The slot of the bucket, of an edit of one bucket: only its generation rises.
    pub bucket: Option<u8>,
    /// Whether these are all limits that there are then, and many.
    pub raise_all: bool,
    /// Limits that are removed.
    pub forget: Vec<Name>,
    /// Writes to overrides, by limit.
    pub overrides: Vec<(Name, OverrideWrites)>,
}

/// Writes to limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitWrites {
    /// Whether these are all limits, and too many for one script call: they are first written elsewhere,
    /// in steps.
    pub stage: bool,
    /// Each limit as it is stored.
    pub texts: Vec<(Name, String)>,
}

/// Writes to the overrides of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverrideWrites {
    /// What happens to the existing overrides.
    pub how: How,
    /// Fields and the JSON they become; `None` removes.
    pub fields: Vec<(String, Option<String>)>,
}

/// What happens to the existing overrides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// They stay, except for the fields that are written.
    Keep,
    /// They are deleted.
    Clear,
    /// They are deleted, and the fields are first written elsewhere, in steps: writing so many at
    /// once would hold up every check.
    Stage,
}

/// Why an edit cannot be made. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditPlanError {
    /// The limit to change is not there.
    #[error("the domain has no limit named {0}")]
    UnknownLimit(Name),
    /// The base was read without overrides, so it is not known which of them the edit drops.
    #[error("this edit has to be based on a record read with its overrides")]
    PartialBase,
    /// The domain has no record.
    #[error("the domain has no limits to delete")]
    NothingToDelete,
    /// The domain would have more overrides than limiters agree to load.
    #[error("the domain would have {count} overrides, more than the {max} that it may")]
    TooManyOverrides {
        /// How many.
        count: usize,
        /// The most.
        max: usize,
    },
    /// A limit is larger than what limiters agree to load.
    #[error("limit {limit} takes {bytes} bytes, more than the {max} that one may")]
    LimitTooLarge {
        /// The limit.
        limit: Name,
        /// Its size without overrides.
        bytes: usize,
        /// The largest size.
        max: usize,
    },
    /// The limits together are larger than what limiters agree to load.
    #[error("the limits take {bytes} bytes, more than the {max} that a domain may")]
    TooLarge {
        /// Their size without overrides.
        bytes: usize,
        /// The largest size.
        max: usize,
    },
    /// Proxies would refuse the limits.
    #[error(
        "proxies would receive {bytes} bytes of limits, more than the {max} that they read; split the limits \
         over several domains"
    )]
    SnapshotTooLarge {
        /// Their size in a snapshot.
        bytes: u64,
        /// The largest size.
        max: u64,
    },
}

/// What the edit writes.
///
/// # Errors
/// [`EditPlanError`] where it does not fit its base, or is too large.
pub fn plan(edit: &Edit<'_>) -> Result<Plan, EditPlanError> {
    let base = edit.base.policy();
    let counted = match edit.base {
        Stored::Live(record) => record.snapshot_bytes,
        Stored::Absent | Stored::Deleted(_) => None,
    };
    let partial = matches!(edit.base, Stored::Live(record) if record.overrides == Overrides::None);
    match edit.change {
        Change::Override { limit, values, to } => {
            let limit = base
                .and_then(|policy| policy.limit(limit.as_str()))
                .ok_or_else(|| EditPlanError::UnknownLimit(limit.clone()))?;
            Ok(set_override(limit, values, to))
        }
        Change::Fields(policy) if any_goes(base, policy) => Err(EditPlanError::PartialBase),
        Change::Fields(policy) => parts((base, counted), policy, &OverrideEdits::new()),
        Change::Parts { limits, overrides } => parts((base, counted), limits, overrides),
        Change::Limits(_) if partial => Err(EditPlanError::PartialBase),
        Change::Limits(policy) => parts((base, counted), policy, &between(base, policy)),
        Change::Delete(overrides) => {
            let base = base.ok_or(EditPlanError::NothingToDelete)?;
            let empty = Policy::empty(base.domain.clone());
            let read = (!partial).then(|| between(Some(base), &empty));
            Ok(Plan {
                operation: Operation::Delete,
                ..parts(
                    (Some(base), counted),
                    &empty,
                    read.as_ref().unwrap_or(overrides),
                )?
            })
        }
    }
}

fn any_goes(base: Option<&Policy>, policy: &Policy) -> bool {
    let kept = policy.by_name();
    let mut names = base.map_or(&[][..], |base| &base.limits).iter();
    names.any(|old| !kept.contains_key(old.name.as_str()))
}

/// As [`reset`], for units that were given back to a bucket.
pub fn credit(limit: &Limit, units: u64, bucket: (&[Option<Vec<u8>>], &str)) -> Plan {
    let (values, key) = bucket;
    Plan {
        operation: Operation::Credit,
        after: credit_words(units, key),
        ..reset(limit, ResetOf::Bucket(key), Some(values))
    }
}

/// Raises the generation of one limit, or of one bucket, and changes nothing else.
pub fn reset(limit: &Limit, of: ResetOf<'_>, bucket: Option<&[Option<Vec<u8>>]>) -> Plan {
    let bucket = bucket.map(|values| BucketEdits::slot_of(&limit.name, values));
    Plan {
        operation: Operation::Reset,
        after: reset_words(of),
        limit: Some(limit.name.clone()),
        raise: match bucket {
            None => vec![limit.name.clone()],
            Some(_) => Vec::new(),
        },
        bucket,
        ..Plan::default()
    }
}

fn set_override(limit: &Limit, values: &[Option<Vec<u8>>], to: Option<&Override>) -> Plan {
    let json = to.map(|found| record::override_json(&limit.per, found));
    Plan {
        operation: Operation::Override,
        after: json.clone().unwrap_or_default(),
        limit: Some(limit.name.clone()),
        bucket: Some(BucketEdits::slot_of(&limit.name, values)),
        overrides: vec![(
            limit.name.clone(),
            OverrideWrites {
                how: How::Keep,
                fields: vec![(Keys::override_field(values), json)],
            },
        )],
        ..Plan::default()
    }
}

// ---- Edits of whole limits: what differs is written, and recorded in the history.

/// Fields of one hash that one script call writes: about 5 ms of the server's time.
const STAGE_ABOVE: usize = 1000;
/// Bytes of limits that one script call writes: some milliseconds, too.
const STAGE_ABOVE_BYTES: usize = 1 << 20;

/// Generations that an edit of all limits writes one by one. A field for each of 10,000 limits holds up
/// every check for 10 ms; but only of what is written one by one limiters know what changed.
const RAISE_ALL_ABOVE: usize = 100;

/// Whether limiters load limits of this size.
///
/// # Errors
/// How large they are, and how large they may be.
pub fn fits(policy: &Policy) -> Result<(), EditPlanError> {
    let mut bytes = 0;
    for limit in &policy.limits {
        bytes += limit_text(limit, 0)?.len() - record::PLACE;
    }
    if bytes > DOCUMENT_MAX {
        let max = DOCUMENT_MAX;
        return Err(EditPlanError::TooLarge { bytes, max });
    }
    snapshot_fits(policy, in_snapshot(&policy.limits), None)
}

/// Bytes of a snapshot besides its limits and exemptions: the names of the entries, what frames them, and edits
/// of buckets beyond the few that are counted with each limit.
const FRAME_BYTES: u64 = 64 << 10;

fn in_snapshot<'l>(limits: impl IntoIterator<Item = &'l Limit>) -> u64 {
    let bytes: usize = limits.into_iter().map(policy::snapshot_bytes).sum();
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Whether proxies read limits that take so many bytes of a snapshot. An edit that leaves fewer `than` there
/// were is one towards that.
fn snapshot_fits(policy: &Policy, limits: u64, than: Option<u64>) -> Result<(), EditPlanError> {
    let exempt = record::json(&limits_file::exemptions_node(&policy.exempt)).len();
    let max = u64::try_from(SNAPSHOT_MAX).unwrap_or(u64::MAX) - FRAME_BYTES;
    let bytes = limits.saturating_add(u64::try_from(exempt).unwrap_or(u64::MAX));
    if bytes > max && than.is_none_or(|than| limits > than) {
        return Err(EditPlanError::SnapshotTooLarge { bytes, max });
    }
    Ok(())
}

fn limit_text(limit: &Limit, place: u64) -> Result<String, EditPlanError> {
    let text = record::limit_text(limit, place);
    let bytes = text.len() - record::PLACE;
    if bytes > LIMIT_BYTES_MAX {
        return Err(EditPlanError::LimitTooLarge {
            limit: limit.name.clone(),
            bytes,
            max: LIMIT_BYTES_MAX,
        });
    }
    Ok(text)
}

/// Writes those of these limits, which are all that there will be, that are not stored like this: `same`
/// says which of them are, except perhaps for their places.
fn limit_writes(
    limits: &[Limit],
    known: &HashMap<&str, &Limit>,
    same: &[bool],
) -> Result<LimitWrites, EditPlanError> {
    let mut writes = LimitWrites::default();
    let mut bytes = 0;
    let places = places(limits, known);
    let same = same.iter().copied().chain(std::iter::repeat(false));
    for ((limit, place), same) in limits.iter().zip(&places).zip(same) {
        let old = known.get(limit.name.as_str());
        if !same || old.is_none_or(|old| old.place != *place) {
            let text = limit_text(limit, *place)?;
            bytes += text.len();
            writes.texts.push((limit.name.clone(), text));
        }
    }
    writes.stage = writes.texts.len() > STAGE_ABOVE || bytes > STAGE_ABOVE_BYTES;
    if writes.stage && writes.texts.len() < limits.len() {
        let all = limits.iter().zip(places);
        let all = all.map(|(limit, place)| Ok((limit.name.clone(), limit_text(limit, place)?)));
        writes.texts = all.collect::<Result<_, EditPlanError>>()?;
    }
    Ok(writes)
}

/// Between two limits that were written together, so that one that comes between them moves neither.
const APART: u64 = 1 << 10;

/// Where the store will have each of these limits: where it has it, if that is their order.
fn places(limits: &[Limit], known: &HashMap<&str, &Limit>) -> Vec<u64> {
    let stored = |limit: &Limit| known.get(limit.name.as_str()).map_or(0, |old| old.place);
    let stay = limits.iter().rposition(|limit| stored(limit) > 0);
    let mut last = 0_u64;
    let place = |(at, limit)| {
        last = match stored(limit) {
            place if place > last => place,
            _ if stay.is_some_and(|stay| at < stay) => last + 1,
            _ => last + APART,
        };
        last
    };
    limits.iter().enumerate().map(place).collect()
}

/// How the order of the limits that are in both differs: those between the first and the last that is elsewhere, as
/// they are before and after. `None` if it is the same.
pub fn reordered(before: &[Limit], after: &[Limit]) -> Option<[Vec<Name>; 2]> {
    fn common<'l>(limits: &'l [Limit], others: &[Limit]) -> Vec<&'l Name> {
        let others: HashSet<&Name> = others.iter().map(|limit| &limit.name).collect();
        let names = limits.iter().map(|limit| &limit.name);
        names.filter(|name| others.contains(name)).collect()
    }
    let both = [common(before, after), common(after, before)];
    let [old, new] = &both;
    let first = old.iter().zip(new).position(|(old, new)| old != new)?;
    let behind = old.iter().rev().zip(new.iter().rev());
    let behind = behind.take_while(|(old, new)| old == new).count();
    let changed = |names: Vec<&Name>| {
        let changed = names.len() - first - behind;
        names
            .into_iter()
            .skip(first)
            .take(changed)
            .cloned()
            .collect()
    };
    Some(both.map(changed))
}

/// The limits that are gone afterwards, or elsewhere in the store.
fn moved<'l>(before: &'l [Limit], after: &[Limit]) -> impl Iterator<Item = &'l Limit> {
    let known = before.iter().map(|old| (old.name.as_str(), old)).collect();
    let names = after.iter().map(|limit| limit.name.clone());
    let places: HashMap<Name, u64> = names.zip(places(after, &known)).collect();
    let moves = move |old: &&Limit| old.place > 0 && places.get(&old.name) != Some(&old.place);
    before.iter().filter(moves)
}

/// Plans an edit to these limits, with the edits of overrides.
///
/// `counted`: the bytes of all limits of the base in a snapshot.
fn parts(
    (base, counted): (Option<&Policy>, Option<u64>),
    policy: &Policy,
    edits: &OverrideEdits,
) -> Result<Plan, EditPlanError> {
    let mut plan = Plan {
        operation: if edits.is_empty() {
            Operation::Fields
        } else {
            Operation::Edit
        },
        domain: Some(record::domain_json(policy)),
        ..Plan::default()
    };
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let (known, kept) = (by_name(base), policy.by_name());
    let old = |limit: &Limit| known.get(limit.name.as_str()).copied();
    let is_same = |limit| old(limit).is_some_and(|old| same_numbers(old, limit));
    let same: Vec<bool> = policy.limits.iter().map(is_same).collect();
    plan.limits = limit_writes(&policy.limits, &known, &same)?;
    for (limit, same) in policy.limits.iter().zip(same) {
        let old = old(limit);
        let edit = edits.get(&limit.name);
        if same && edit.is_none() {
            continue;
        }
        plan.raise.push(limit.name.clone());
        if !same {
            before.extend(old);
            after.push(limit);
        }
        if let Some(edit) = edit {
            let writes = writes(edit, old, limit);
            plan.overrides.push((limit.name.clone(), writes));
        }
    }
    plan.raise_all = plan.raise.len() > RAISE_ALL_ABOVE && plan.raise.len() == policy.limits.len();
    for gone in base.map_or(&[][..], |base| &base.limits) {
        if !kept.contains_key(gone.name.as_str()) {
            before.push(gone);
            plan.forget.push(gone.name.clone());
            let clear = OverrideWrites {
                how: How::Clear,
                fields: Vec::new(),
            };
            plan.overrides.push((gone.name.clone(), clear));
        }
    }
    let bytes = match counted {
        Some(counted) => {
            let [before, after] = [&before, &after].map(|side| in_snapshot(side.iter().copied()));
            counted.saturating_add(after).saturating_sub(before)
        }
        None => in_snapshot(&policy.limits),
    };
    snapshot_fits(policy, bytes, counted)?;
    plan.snapshot_bytes = Some(bytes);
    let recorded = Recorded {
        sides: [(base, &before), (Some(policy), &after)],
        edits,
    };
    if let Some([before, after]) = recorded.as_json() {
        (plan.before, plan.after) = (before, after);
    }
    Ok(plan)
}

fn by_name(base: Option<&Policy>) -> HashMap<&str, &Limit> {
    base.map(Policy::by_name).unwrap_or_default()
}

/// Whether two limits say the same, apart from overrides and whichever edit made them.
fn same_numbers(a: &Limit, b: &Limit) -> bool {
    // Most are the same to the last field, which is known in a hundredth of the time.
    a == b || limits_file::node_without_overrides(a) == limits_file::node_without_overrides(b)
}

/// What turns the overrides of one policy into those of another.
fn between(base: Option<&Policy>, policy: &Policy) -> OverrideEdits {
    let (known, kept) = (by_name(base), policy.by_name());
    let edits = policy.limits.iter().map(|limit| {
        let old = known.get(limit.name.as_str()).copied();
        (limit, of_limit(old, limit))
    });
    let mut edits: OverrideEdits = edits
        .filter(|(_, edit)| edit.before != Some(Vec::new()) || !edit.after.is_empty())
        .map(|(limit, edit)| (limit.name.clone(), edit))
        .collect();
    for gone in base.map_or(&[][..], |base| &base.limits) {
        if !gone.overrides.is_empty() && !kept.contains_key(gone.name.as_str()) {
            let clear = OverrideEdit::clear(Some(gone.overrides.clone()));
            edits.insert(gone.name.clone(), clear);
        }
    }
    edits
}

fn of_limit(old: Option<&Limit>, limit: &Limit) -> OverrideEdit {
    // Under other `per` entries the old values name nothing.
    let split_otherwise = old.is_some_and(|old| old.per != limit.per);
    let before = old.map_or(&[][..], |old| &old.overrides);
    let known: HashMap<_, _> = before.iter().map(|o| (&o.values, o)).collect();
    let kept: HashMap<_, _> = limit.overrides.iter().map(|o| (&o.values, o)).collect();
    let differs = |one: &Override, others: &HashMap<&_, &Override>| {
        let other = others.get(&one.values);
        split_otherwise || !other.is_some_and(|other| one.reads_like(other))
    };
    OverrideEdit {
        before: Some(
            before
                .iter()
                .filter(|o| differs(o, &kept))
                .cloned()
                .collect(),
        ),
        after: limit
            .overrides
            .iter()
            .filter(|o| differs(o, &known))
            .cloned()
            .collect(),
        listed: true,
    }
}

/// The writes that an edit of a limit's overrides takes.
fn writes(edit: &OverrideEdit, old: Option<&Limit>, limit: &Limit) -> OverrideWrites {
    let field = |found: &Override| {
        let json = record::override_json(&limit.per, found);
        (Keys::override_field(&found.values), Some(json))
    };
    let changes = edit.before.as_ref().map_or(usize::MAX, Vec::len);
    let changes = changes.saturating_add(edit.after.len());
    let anew = old.is_some_and(|old| old.per != limit.per) || changes > STAGE_ABOVE;
    if edit.listed && anew {
        let how = match limit.overrides.len() {
            n if n > STAGE_ABOVE => How::Stage,
            _ => How::Clear,
        };
        return OverrideWrites {
            how,
            fields: limit.overrides.iter().map(field).collect(),
        };
    }
    let kept: HashSet<_> = edit.after.iter().map(|o| &o.values).collect();
    let before = edit.before.as_deref().unwrap_or_default().iter();
    let gone = before.filter(|old| !kept.contains(&old.values));
    let gone = gone.map(|o| (Keys::override_field(&o.values), None));
    OverrideWrites {
        how: How::Keep,
        fields: gone.chain(edit.after.iter().map(field)).collect(),
    }
}

// ---- What the history records of an edit: edits write it, `rlctl` reads it.

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
    /// Where the limits that the edit deleted or moved were among the others: [`Limit::place`].
    pub places: BTreeMap<Name, u64>,
    /// The limits whose order the edit changed.
    pub order: Vec<Name>,
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
fn reset_words(of: ResetOf<'_>) -> String {
    let word = match of {
        ResetOf::Bucket(key) => key,
        ResetOf::All => RESET_ALL,
        ResetOf::AllStarted => RESET_STARTED,
    };
    word.to_owned()
}

/// `after` of a credit.
fn credit_words(units: u64, key: &str) -> String {
    format!("{units} {key}")
}

/// What an edit of limits records: the limits, exemptions and overrides that it changes, and the domain's
/// pause if that changes.
struct Recorded<'a> {
    /// Before and after: the policy, and those of its limits that differ.
    sides: [(Option<&'a Policy>, &'a [&'a Limit]); 2],
    edits: &'a OverrideEdits,
}

impl Recorded<'_> {
    /// `before` and `after`; `None` if they are larger than the history keeps.
    fn as_json(&self) -> Option<[String; 2]> {
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
        let known = policy.map(Policy::by_name).unwrap_or_default();
        let overrides = self.edits.iter().filter_map(|(name, edit)| {
            let limit = known.get(name.as_str())?;
            let found = match side {
                0 => edit.before.as_deref().unwrap_or_default(),
                _ => &edit.after,
            };
            let found = found
                .iter()
                .map(|found| limits_file::override_node(found, &limit.per));
            Some((name.as_str(), Node::list(found)))
        });
        let mut more = Node::from(Value::Map(Vec::new()));
        if !self.edits.is_empty() {
            more.set("overrides", Node::map(overrides));
        }
        if let Some(pause) = pause.filter(|_| changed) {
            more.set("paused", pause.to_node());
        }
        if !exempt.is_empty() {
            more.set("exempt", limits_file::exemptions_node(&exempt));
        }
        let [before, after] = self
            .sides
            .map(|(policy, _)| policy.map_or(&[][..], |p| &p.limits));
        let moved: Vec<_> = moved(before, after).collect();
        if side == 0 && !moved.is_empty() {
            let place = |limit: &Limit| (limit.name.to_string(), Node::number(limit.place));
            more.set("places", Node::map(moved.into_iter().map(place)));
        }
        if let Some(order) = reordered(before, after)
            .as_ref()
            .and_then(|both| both.get(side))
        {
            let names = order.iter().map(|name| Node::text(name.as_str()));
            more.set("order", Node::list(names));
        }
        let limits = record::limits_list(limits.iter().copied());
        match record::json(&more).strip_prefix('{') {
            Some("}") | None => limits,
            Some(more) => format!("{{\"limits\":{limits},{more}"),
        }
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
        let limits: Option<_> = limits
            .map(|node| limits_file::limit_from_node(node).ok())
            .collect();
        let exempt = node.get("exempt").map(Node::items).unwrap_or_default();
        let exempt: Option<_> = exempt
            .iter()
            .map(|node| limits_file::exemption_from_node(node).ok())
            .collect();
        let place = |entry: &Entry| {
            let place = entry.value.as_text()?.parse().ok()?;
            Some((entry.key.parse().ok()?, place))
        };
        let places = match node.get("places").map(|places| &places.value) {
            Some(Value::Map(entries)) => entries.iter().map(place).collect(),
            _ => Some(BTreeMap::new()),
        };
        let order = node.get("order").map(Node::items).unwrap_or_default();
        let name = |node: &Node| node.as_text()?.parse().ok();
        Some(Self {
            places: places?,
            order: order.iter().map(name).collect::<Option<_>>()?,
            limits: limits?,
            exempt: exempt?,
            overrides: overrides_of(&node)?,
            paused: node.get("paused").and_then(limits_file::pause_from_node),
        })
    }
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

// ---- An edit as KEYS and ARGV of `lua/policy_write.lua`.

impl Expected {
    /// ARGV 1 and 2.
    fn as_arguments(&self) -> (String, String) {
        match self {
            Self::Nothing => (String::new(), String::new()),
            Self::Any => ("*".to_owned(), String::new()),
            Self::At(revision) => (
                revision.number.to_string(),
                format!("{:016x}", revision.digest),
            ),
        }
    }
}

impl Plan {
    /// A digest of what is written, in hexadecimal.
    fn digest(&self) -> String {
        let mut written = self.domain.clone().unwrap_or_default().into_bytes();
        for (_, text) in &self.limits.texts {
            written.extend(policy::digest(text.as_bytes()).to_le_bytes());
        }
        let of = policy::digest;
        format!("{:016x}{:016x}", of(self.after.as_bytes()), of(&written))
    }

    /// Deletes the overrides that are stored for a limit, of which the plan's base knows none.
    pub fn clear_overrides(&mut self, limit: &Name) {
        let mut writes = self.overrides.iter_mut();
        match writes.find(|(name, _)| name == limit) {
            Some((_, writes)) if writes.how == How::Keep => writes.how = How::Clear,
            Some(_) => {}
            None => {
                let (how, fields) = (How::Clear, Vec::new());
                let writes = OverrideWrites { how, fields };
                self.overrides.push((limit.clone(), writes));
            }
        }
    }

    /// KEYS and ARGV. `staged` are the keys of what is written elsewhere first: limits, and overrides by
    /// [`How::Stage`], in order.
    pub fn script_call(
        &self,
        keys: &Keys,
        domain: &Name,
        expected: &Expected,
        staged: Vec<String>,
        by: &Signature,
    ) -> (Vec<String>, Vec<String>) {
        let (number, digest) = expected.as_arguments();
        let limit = self.limit.as_ref().map(ToString::to_string);
        let mut args = vec![
            number,
            digest,
            self.operation.word().to_owned(),
            by.author.clone(),
            by.reason.clone(),
            self.before.clone(),
            self.after.clone(),
            limit.unwrap_or_default(),
            self.domain.clone().unwrap_or_default(),
            keys.edits(),
            domain.to_string(),
            HISTORY_MAX.to_string(),
            HISTORY_BYTES_MAX.to_string(),
            OVERRIDES_MAX.to_string(),
            DOCUMENT_MAX.to_string(),
            CHANGES_MAX.to_string(),
            self.digest(),
            (self.snapshot_bytes.as_ref()).map_or_else(String::new, ToString::to_string),
            (self.bucket.as_ref()).map_or_else(String::new, ToString::to_string),
        ];
        let raise: &[Name] = if self.raise_all {
            args.push("*".to_owned());
            &[]
        } else {
            args.push(self.raise.len().to_string());
            &self.raise
        };
        args.extend(raise.iter().map(ToString::to_string));
        args.push(self.forget.len().to_string());
        args.extend(self.forget.iter().map(ToString::to_string));
        self.limits.push_to(&mut args);
        args.push(self.overrides.len().to_string());
        let mut touched = vec![
            keys.policy(domain),
            keys.history(domain),
            keys.limits(domain),
            keys.changes(domain),
        ];
        for (limit, writes) in &self.overrides {
            touched.push(keys.overrides(domain, limit));
            push_writes(&mut args, writes);
        }
        touched.extend(staged);
        (touched, args)
    }
}

impl LimitWrites {
    fn push_to(&self, args: &mut Vec<String>) {
        let texts = if self.stage {
            let bytes = self
                .texts
                .iter()
                .map(|(_, text)| text.len() - record::PLACE);
            let bytes: usize = bytes.sum();
            let fields = self.texts.len();
            args.extend(["staged".to_owned(), bytes.to_string(), fields.to_string()]);
            &[][..]
        } else {
            args.push("keep".to_owned());
            &self.texts
        };
        args.push(texts.len().to_string());
        for (name, text) in texts {
            args.extend([name.to_string(), text.clone()]);
        }
    }
}

fn push_writes(args: &mut Vec<String>, writes: &OverrideWrites) {
    let (how, fields) = match writes.how {
        How::Keep => ("keep", &writes.fields[..]),
        How::Clear => ("clear", &writes.fields[..]),
        How::Stage => ("staged", &[][..]),
    };
    args.push(how.to_owned());
    args.push(writes.fields.len().to_string());
    for (field, json) in fields {
        args.push(field.clone());
        args.push(json.clone().unwrap_or_default());
    }
}
