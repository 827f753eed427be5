//! Brings a domain to what its limits files, or its objects in Kubernetes, say: the edits of
//! `rlctl apply --watch` and of `rlctl controller`.
//!
//! A limit is written only when its origin changes that limit: live edits stay, and are reported as
//! drift. A domain that the store lost is written whole.

use std::collections::{BTreeMap, BTreeSet};

use insight::findings::shell_word;
use limits_file::ToNode as _;
use policy::{Exemption, Limit, Name, Node, Pause, Policy, Revision};
use serde::{Deserialize, Serialize};
use store::{EditError, HeadState, Origin};

use super::{Pruning, beside, merge, note_merged, plan, plan_file};
use crate::{
    changes::{self, Action},
    edit::{EditArgs, revision_of},
    error::{Error, Exit},
    render::{counted, truncated_list},
    session::{EditPlan, Session, conflict, sort_overrides},
};

/// Attempts to write on top of concurrent edits.
const TRIES: usize = 10;
/// Limits that one message names.
const NAMED_MAX: usize = 10;

/// Writes domains, each by one edit.
#[derive(Clone, Debug)]
pub struct Writer<'w> {
    /// The store, and where messages go.
    pub session: &'w Session<'w>,
    /// Who edits.
    pub edit: &'w EditArgs,
    /// Where the limits are kept.
    pub origin: Origin,
    /// The cluster whose objects they are: several may share a store. `None` of files.
    pub owner: Option<String>,
    /// Whether a limit that left the origin is deleted.
    pub prune: bool,
    /// How many of a domain's limits one edit may delete, in percent; `None`: all.
    pub prune_max: Option<u8>,
}

/// What a domain should have.
#[derive(Debug)]
pub struct Wanted {
    /// The limits.
    pub policy: Policy,
    digests: Applied,
    /// Whose limits stay as they are in the store, unless they are in `policy`.
    stays: BTreeSet<String>,
    /// The record at the last comparison; `None` before the first.
    pub compared: Option<Compared>,
}

impl Wanted {
    /// Not compared yet.
    pub fn new(policy: Policy) -> Self {
        Self {
            digests: Applied::from_policy(&policy),
            policy,
            stays: BTreeSet::new(),
            compared: None,
        }
    }

    /// Not compared yet; limits of these objects that are not in `policy` stay as they are in the store. `of` is the object
    /// of each limit in `policy` whose name does not say it.
    pub fn beside(policy: Policy, of: BTreeMap<String, String>, stays: BTreeSet<String>) -> Self {
        let mut wanted = Self::new(policy);
        (wanted.digests.of, wanted.stays) = (of, stays);
        wanted
    }

    /// What was applied that stays as it is.
    fn left_alone(&self, last: &Applied) -> Applied {
        let stays = |limit: &str| {
            let of = last
                .of
                .get(limit)
                .map_or_else(|| object_of(limit), String::as_str);
            self.stays.contains(of) && !self.digests.limits.contains_key(limit)
        };
        let mut alone = last.clone();
        alone.limits.retain(|limit, _| stays(limit));
        alone.of.retain(|limit, _| alone.limits.contains_key(limit));
        alone
    }
}

/// What a comparison found.
#[derive(Debug, PartialEq, Eq)]
pub struct Compared {
    /// The revision of the domain.
    pub revision: Option<Revision>,
    /// The limits that differ, and other differences.
    pub drift: Vec<String>,
    /// The pause of the whole domain, whoever wrote it. It may be over.
    pub paused: Option<Pause>,
    /// Those of limits.
    pub limits_paused: BTreeMap<Name, Pause>,
    /// The revision that last changed each of the origin's limits, whoever wrote it.
    pub changed: BTreeMap<Name, u64>,
}

impl Compared {
    /// The revision that last changed one of these limits.
    pub fn changed_last(&self, limits: &[Limit]) -> Option<u64> {
        let changed = { limits.iter() }.filter_map(|limit| self.changed.get(&limit.name));
        changed.max().copied()
    }

    /// Whether one of these limits is paused at a time, alone or with its domain.
    pub fn is_paused(&self, limits: &[Name], now_ms: u64) -> bool {
        let own = limits
            .iter()
            .filter_map(|limit| self.limits_paused.get(limit));
        self.paused
            .iter()
            .chain(own)
            .any(|pause| pause.holds(now_ms))
    }
}

/// Why a domain was not written.
#[derive(Debug)]
pub enum NotWritten {
    /// What it would have does not fit, which another edit may; the store was not asked.
    DoesNotFit(Error),
    /// The objects of another cluster have it.
    Foreign(Error),
    /// It could not be read or written, whatever the edit.
    Failed(Error),
}

impl NotWritten {
    /// The error.
    pub fn into_error(self) -> Error {
        match self {
            Self::DoesNotFit(error) | Self::Foreign(error) | Self::Failed(error) => error,
        }
    }
}

impl From<Error> for NotWritten {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Whose limits a domain has, by its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Those of this cluster's objects.
    Own,
    /// Nobody's: they become those of whoever has the domain.
    Nobody,
    /// Those of another cluster's.
    Other,
}

/// What became of a domain; of several attempts, the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// Nothing changed since the last comparison.
    Same,
    /// It was compared, and had all.
    Compared,
    /// It was written.
    Edited,
}

impl Writer<'_> {
    fn kept_in(&self) -> &'static str {
        match self.origin {
            Origin::Files => "the files",
            Origin::Objects => "the objects",
        }
    }

    /// Compares a domain, whose head was just read, with what it should have, if either changed; writes
    /// what the origin changed.
    pub async fn bring(&self, wanted: &mut Wanted, state: &HeadState) -> Result<Turn, NotWritten> {
        let revision = match state {
            HeadState::Live(revision) | HeadState::Deleted(revision) => Some(revision.clone()),
            // The edit reports the record's error.
            HeadState::Missing | HeadState::Unreadable(_) => None,
        };
        let known = wanted.compared.as_ref();
        if known.is_some_and(|known| known.revision == revision) {
            return Ok(Turn::Same);
        }
        if known.is_some_and(|known| known.revision.is_some()) && revision.is_none() {
            self.session.printer.warn(format_args!(
                "the store has lost domain {}; it is written again",
                wanted.policy.domain
            ));
        }
        let mut turn = Turn::Compared;
        let last = self.last_applied(&wanted.policy.domain, state).await?;
        let mut done = wanted.digests.clone();
        done.owner.clone_from(&self.owner);
        let left_alone = { last.as_ref() }.map(|last| wanted.left_alone(last));
        let left_alone = left_alone.unwrap_or_default();
        done.limits.extend(left_alone.limits.clone());
        done.of.extend(left_alone.of);
        if last.as_ref() != Some(&done) {
            let mut last = last.unwrap_or_default();
            let to_be = Some(last.with_new(&done)).filter(|to_be| *to_be != last);
            // As if they were nobody's.
            let is_alone = |limit: &String| left_alone.limits.contains_key(limit);
            last.limits.retain(|limit, _| !is_alone(limit));
            if self.write(wanted, &last, to_be.as_ref()).await? {
                turn = Turn::Edited;
            }
            self.record(&wanted.policy.domain, &done).await?;
        }
        self.measure_drift(wanted, revision).await?;
        Ok(turn)
    }

    async fn record(&self, domain: &Name, applied: &Applied) -> Result<(), Error> {
        let record = applied.to_record();
        let store = &self.session.store;
        let recorded = store.record_applied(domain, self.origin, &record);
        self.session.call(recorded).await
    }

    /// What was last applied to a domain; `None` if the domain is missing.
    async fn last_applied(
        &self,
        domain: &Name,
        state: &HeadState,
    ) -> Result<Option<Applied>, NotWritten> {
        let record = self.applied(domain).await?;
        let other = record.as_ref().and_then(|record| record.owner.as_ref());
        // Also of a domain that is missing: another cluster may be about to write it.
        if let Some(other) = other.filter(|other| Some(*other) != self.owner.as_ref()) {
            // The store lists no domain that was never written.
            let named = match state {
                HeadState::Missing => format!(" --domain {}", shell_word(domain.as_str())),
                _ => String::new(),
            };
            let message = format!(
                "domain {domain} has the limits of another cluster's objects (kube-system there has the UID {other}), \
                 and stays as it is; if that cluster is gone, `rlctl controller --release keep --cluster {other}{named}` \
                 leaves them to this one"
            );
            return Err(NotWritten::Foreign(Error::new(Exit::Refused, message)));
        }
        Ok(record.filter(|_| !matches!(state, HeadState::Missing)))
    }

    async fn applied(&self, domain: &Name) -> Result<Option<Applied>, Error> {
        let record = self.session.store.applied(domain, self.origin);
        let record = self.session.call(record).await?;
        Ok(record.map(|record| Applied::read(Some(&record))))
    }

    /// Whose limits the store remembers in a domain; `None`: it remembers none of this origin.
    pub async fn holder(&self, domain: &Name) -> Result<Option<Holder>, Error> {
        let record = self.applied(domain).await?;
        let record = record.filter(|record| record.format > 0);
        Ok(record.map(|record| match record.owner {
            None => Holder::Nobody,
            owner if owner == self.owner => Holder::Own,
            Some(_) => Holder::Other,
        }))
    }

    /// Forgets what this cluster applied to a domain that is gone, so that another one may have it.
    pub async fn disown(&self, domain: &Name) -> Result<(), Error> {
        match self.holder(domain).await? {
            Some(Holder::Own) => self.forget(domain).await,
            _ => Ok(()),
        }
    }

    /// Forgets what was applied: the limits stay, and are nobody's.
    pub async fn forget(&self, domain: &Name) -> Result<(), Error> {
        let record = self
            .session
            .store
            .record_applied(domain, self.origin, "null");
        self.session.call(record).await
    }

    /// Writes what the origin changed since `last` was applied, and `to_be` before it does; returns whether anything did.
    async fn write(
        &self,
        wanted: &Wanted,
        last: &Applied,
        to_be: Option<&Applied>,
    ) -> Result<bool, NotWritten> {
        let session = self.session;
        let domain = &wanted.policy.domain;
        let nothing = Applied::default();
        for _ in 0..TRIES {
            let merged = |base: &store::Stored| {
                let live = base.policy();
                // A deleted domain has nothing to keep.
                let last = if live.is_some() { last } else { &nothing };
                let target = last.target(&wanted.policy, &wanted.digests, live, self.prune);
                merge(target, live, true)
            };
            let pruning = Pruning {
                unlisted_overrides: false,
                split_otherwise: self.prune,
            };
            let planned = plan(session, domain, merged, pruning).await;
            let (base, merged, plan) = planned.map_err(|error| match error.exit() {
                Exit::No => NotWritten::DoesNotFit(error),
                _ => NotWritten::Failed(error),
            })?;
            let any = changes::any(&plan.changes)
                || !changes::of_domain(base.policy(), &merged.policy).is_empty();
            if !any {
                let origin = self.kept_in();
                session
                    .printer
                    .note(format_args!("{domain}: as in {origin}"));
                return Ok(false);
            }
            self.few_enough(domain, last, &plan)?;
            note_merged(session.printer, &merged, &plan);
            // What the edit creates must be known as this origin's even if this program ends before it can
            // record the edit; and what an edit that is refused would have created is not.
            if let Some(to_be) = to_be {
                self.record(domain, to_be).await?;
            }
            let planned = merged.planned(plan);
            match session.write(self.edit, domain, base, planned).await {
                Ok(edited) => {
                    session.printer.data(&edited.report)?;
                    return Ok(true);
                }
                Err(EditError::Conflict { .. }) => {}
                Err(error @ EditError::Plan(_)) => {
                    return Err(NotWritten::DoesNotFit(session.edit_failed(&error)));
                }
                Err(error) => return Err(session.edit_failed(&error).into()),
            }
        }
        Err(conflict().into())
    }

    /// Files that lost most of their limits are more often wrong than meant: a template without values,
    /// a folder that is half mounted. Nobody can confirm it.
    fn few_enough(&self, domain: &Name, last: &Applied, plan: &EditPlan) -> Result<(), Error> {
        let changes = plan.changes.iter();
        let deleted = changes
            .filter(|change| change.action == Action::Deleted)
            .count();
        // Not those that an edit was about to create.
        let were = { last.limits.values() }
            .filter(|digest| !digest.is_empty())
            .count();
        let most = self
            .prune_max
            .filter(|most| deleted.saturating_mul(100) > were.saturating_mul(usize::from(*most)));
        let Some(most) = most else {
            return Ok(());
        };
        let message = format!(
            "the files would delete {deleted} of the {} of domain {domain} that were in them, more \
             than {most} %; nothing of it was changed",
            counted(were, "limit")
        );
        Err(Error::new(Exit::No, message)
            .hint("if that is meant, start with --prune-max 100%")
            .hint(format!(
                "`rlctl delete-domain {}` deletes a whole domain",
                shell_word(domain.as_str())
            )))
    }

    /// Compares the domain with what it should have, as `rlctl diff` does.
    async fn measure_drift(
        &self,
        wanted: &mut Wanted,
        seen: Option<Revision>,
    ) -> Result<(), Error> {
        let (base, merged, plan) = plan_file(self.session, wanted.policy.clone(), true).await?;
        let domain = &wanted.policy.domain;
        let mut drift = changes::names(&plan.changes);
        let paused = merged.still_paused.iter().map(|(name, _)| name.to_string());
        drift.extend(paused.map(|name| format!("{name} (paused)")));
        match self.origin {
            Origin::Files if !changes::of_domain(base.policy(), &merged.policy).is_empty() => {
                drift.push("the domain itself".to_owned());
            }
            Origin::Files => {}
            // Beside them a domain may have limits of files and of people.
            Origin::Objects => drift.retain(|name| {
                let name = name.strip_suffix(" (paused)").unwrap_or(name);
                wanted.digests.limits.contains_key(name)
            }),
        }
        // A deleted domain has a revision, too.
        let revision = revision_of(&base).cloned().or(seen);
        let known = wanted.compared.as_ref().map(|known| &known.drift);
        if known.map_or(!drift.is_empty(), |known| *known != drift) {
            self.report_drift(domain, &drift);
        }
        let live = base.policy();
        let limits = live.map_or(&[][..], |live| &live.limits).iter();
        let limits_paused = { limits.clone() }
            .filter_map(|limit| Some((limit.name.clone(), limit.paused?)))
            .collect();
        let own = limits.filter(|limit| wanted.digests.has(&limit.name));
        let changed = own
            .map(|limit| (limit.name.clone(), limit.generation))
            .collect();
        wanted.compared = Some(Compared {
            revision,
            drift,
            paused: live.and_then(|live| live.paused),
            limits_paused,
            changed,
        });
        Ok(())
    }

    fn report_drift(&self, domain: &Name, drift: &[String]) {
        let printer = self.session.printer;
        if drift.is_empty() {
            printer.note(format_args!("{domain}: no drift any more"));
            return;
        }
        let origin = self.kept_in();
        printer.warn(format_args!(
            "{domain}: {} from {origin}, until {origin} change there: {}",
            counted(drift.len(), "difference"),
            truncated_list(drift, NAMED_MAX)
        ));
        if self.origin == Origin::Files {
            printer.hint(
                "`rlctl diff` shows the differences, `rlctl export` prints a file that has them",
            );
        }
    }
}

// --- What was last applied from a file, and what a new version of the file changes.
//
// The store holds the record, so that a restart does not undo live edits.

/// The format of the record; a record of another format is ignored.
const FORMAT: u32 = 1;

/// Digests of a file: of each limit with its overrides, of each exemption, and of the domain's own fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Applied {
    format: u32,
    /// See [`Writer::owner`]; `None`: whose they are is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    domain: String,
    limits: BTreeMap<String, String>,
    /// The object of each limit whose name does not say it: see [`object_of`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    of: BTreeMap<String, String>,
    /// By exemption. Records of earlier versions have none.
    #[serde(default)]
    exempt: BTreeMap<String, String>,
    /// Of the order of the limits.
    #[serde(default)]
    order: String,
}

impl Applied {
    /// The digests of a file.
    fn from_policy(file: &Policy) -> Self {
        let mut file = file.clone();
        sort_overrides(&mut file);
        let limit = |limit: &Limit| (limit.name.to_string(), digest(&limit.to_node()));
        Self {
            format: FORMAT,
            owner: None,
            domain: digest(
                &file
                    .paused
                    .map_or_else(|| Node::text(""), |pause| pause.to_node()),
            ),
            limits: file.limits.iter().map(limit).collect(),
            order: digest(&Node::list(
                { file.limits.iter() }.map(|limit| Node::text(limit.name.as_str())),
            )),
            of: BTreeMap::new(),
            exempt: { file.exempt.iter() }
                .map(|exemption| (exemption.name.to_string(), digest(&exemption.to_node())))
                .collect(),
        }
    }

    /// The stored record; empty if it cannot be read, so that the whole file counts as changed.
    fn read(record: Option<&str>) -> Self {
        let read: Option<Self> = record.and_then(|record| serde_json::from_str(record).ok());
        read.filter(|read| read.format == FORMAT)
            .unwrap_or_default()
    }

    /// The record to store.
    fn to_record(&self) -> String {
        // Text and numbers alone always become JSON.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// These, and what only `new` has, with a digest that nothing has.
    fn with_new(&self, new: &Self) -> Self {
        let mut both = self.clone();
        (both.format, both.owner) = (FORMAT, new.owner.clone());
        both.of.extend(new.of.clone());
        for name in new.limits.keys() {
            both.limits.entry(name.clone()).or_default();
        }
        for name in new.exempt.keys() {
            both.exempt.entry(name.clone()).or_default();
        }
        both
    }

    fn has(&self, limit: &Name) -> bool {
        self.limits.contains_key(limit.as_str())
    }

    /// The domain's limits if `self` was applied last and the file is `new` now. Limits that the
    /// file does not change, or never had, stay as they are live. Without `prune`, limits that left
    /// the file stay as well.
    fn target(&self, file: &Policy, new: &Self, live: Option<&Policy>, prune: bool) -> Policy {
        let same = |limit: &Name| {
            let digest = self.limits.get(limit.as_str());
            digest.is_some() && digest == new.limits.get(limit.as_str())
        };
        let mut target = file.clone();
        let by_name = live.map(Policy::by_name).unwrap_or_default();
        let of_file = file.limits.iter().filter_map(|limit| {
            if same(&limit.name) {
                by_name.get(limit.name.as_str()).copied().cloned()
            } else {
                Some(limit.clone())
            }
        });
        let stays = |limit: &Limit| !(new.has(&limit.name) || prune && self.has(&limit.name));
        let live_limits = live.map_or(&[][..], |live| &live.limits);
        target.limits = beside(of_file.collect(), live_limits, stays);
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

/// The object, `NAMESPACE.NAME`, of a limit whose name in the store says it: `NAMESPACE.NAME.LIMIT`, where the last has no
/// dot.
pub fn object_of(limit: &str) -> &str {
    limit.rsplit_once('.').map_or("", |(object, _)| object)
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
        limits_file::read("test", file.as_bytes()).unwrap()
    }

    fn target(before: &str, after: &str, live: &str, prune: bool) -> Vec<String> {
        let file = policy(after);
        let applied = Applied::from_policy(&policy(before));
        let target = applied.target(
            &file,
            &Applied::from_policy(&file),
            Some(&policy(live)),
            prune,
        );
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
            let target = Applied::from_policy(&before).target(
                &file,
                &Applied::from_policy(&file),
                Some(&live),
                prune,
            );
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
    fn a_limit_is_paused_alone_or_with_its_domain_while_the_pause_holds() {
        let [a, b] = ["a", "b"].map(|name| name.parse::<Name>().unwrap());
        let until = |ms| Pause { until_ms: Some(ms) };
        let mut compared = Compared {
            revision: None,
            drift: Vec::new(),
            paused: None,
            limits_paused: [(a.clone(), until(50))].into(),
            changed: BTreeMap::new(),
        };
        let [a, b] = [[a], [b]];
        assert!(compared.is_paused(&a, 49) && !compared.is_paused(&a, 50));
        assert!(!compared.is_paused(&b, 49));
        compared.paused = Some(until(90));
        assert!(compared.is_paused(&b, 49) && compared.is_paused(&a, 89));
        assert!(!compared.is_paused(&a, 90));
    }

    #[test]
    fn a_pause_counts_as_any_other_edit() {
        let file = policy("paused: false\nlimits: []");
        let applied = Applied::from_policy(&policy("limits: []"));
        let live = policy("paused: true\nlimits: []");
        let kept = Applied::from_policy(&file).target(
            &file,
            &Applied::from_policy(&file),
            Some(&live),
            true,
        );
        assert_eq!(kept.paused, live.paused);
        let ended = applied.target(&file, &Applied::from_policy(&file), Some(&live), true);
        assert_eq!(ended.paused, Some(Pause::OVER));
    }

    #[test]
    fn a_record_that_cannot_be_read_counts_as_none() {
        let file = policy("limits: [{name: a, rate: 1/s}]");
        let record = Applied::from_policy(&file).to_record();
        assert_eq!(Applied::read(Some(&record)), Applied::from_policy(&file));
        let later = record.replace("\"format\":1", "\"format\":2");
        for unread in [None, Some(""), Some("null"), Some(later.as_str())] {
            assert_eq!(Applied::read(unread), Applied::default(), "{unread:?}");
        }
    }

    /// `shop.a`, which does not fit, and its neighbour `shop.a.b`, which is gone.
    #[test]
    fn the_limits_of_an_object_stay_and_not_those_of_one_whose_name_begins_so() {
        let cut = format!("shop.a.{}_0123456789abcdef0123", "x".repeat(35));
        let names = ["shop.a.all", "shop.a.b.all", "shop.b.all", &cut];
        let limits = names.map(|name| format!("{{name: {name}, rate: 1/s}}"));
        let last = policy(&format!("limits: [{}]", limits.join(", ")));
        let mut last = Applied::from_policy(&last);
        let stays = BTreeSet::from(["shop.a".to_owned()]);
        let wanted = Wanted::beside(policy("limits: []"), BTreeMap::new(), stays);
        let left = |last: &Applied| -> Vec<String> {
            wanted.left_alone(last).limits.into_keys().collect()
        };
        let of = |last: &mut Applied, object: &str| {
            last.of.insert(cut.clone(), object.to_owned());
        };
        of(&mut last, "shop.a.very-long");
        assert_eq!(left(&last), ["shop.a.all"]);
        of(&mut last, "shop.a");
        assert_eq!(left(&last), ["shop.a.all", &cut]);
        assert_eq!(Applied::read(Some(&last.to_record())), last);
    }

    #[test]
    fn a_record_says_whose_it_is_from_before_the_edit_on_and_one_that_does_not_is_nobodys() {
        let applied = |limits: &str| Applied::from_policy(&policy(limits));
        let nobodys = applied("limits: [{name: a, rate: 1/s}]");
        let own = Applied {
            owner: Some("this".to_owned()),
            ..nobodys.clone()
        };
        // That alone is a difference, so that the first comparison of a record of nobody's writes it.
        assert_ne!(nobodys, own);
        assert_eq!(nobodys.with_new(&own).owner, own.owner);
        assert_eq!(Applied::read(Some(&own.to_record())), own);
        assert!(!nobodys.to_record().contains("owner"));
    }

    /// A program that ends between its edit and the record of it must find what it created.
    #[test]
    fn what_an_edit_is_about_to_create_is_deleted_if_it_leaves_before_the_edit_was_recorded() {
        let applied = |limits: &str| Applied::from_policy(&policy(limits));
        let before = applied("limits: [{name: a, rate: 1/s}]");
        let during = applied("limits: [{name: a, rate: 2/s}, {name: b, rate: 1/s}]");
        let recorded = before.with_new(&during);
        let file = policy("limits: [{name: a, rate: 1/s}]");
        let live = policy("limits: [{name: a, rate: 2/s}, {name: b, rate: 1/s}]");
        let target = recorded.target(&file, &Applied::from_policy(&file), Some(&live), true);
        assert_eq!(target.limits.len(), 1);
        assert_ne!(recorded, during);
    }

    #[test]
    fn the_order_of_overrides_is_no_change() {
        let of = |a: &str, b: &str| {
            let file = format!(
                "limits: [{{name: a, per: [user], rate: 1/s, overrides: \
                 [{{values: {{user: {a}}}, unlimited: true}}, {{values: {{user: {b}}}, unlimited: true}}]}}]"
            );
            Applied::from_policy(&policy(&file))
        };
        assert_eq!(of("x", "y"), of("y", "x"));
        assert_ne!(of("x", "y"), of("x", "z"));
    }
}
