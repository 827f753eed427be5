//! `rlctl apply --watch`: applies limits files, and each change of them.
//!
//! A limit is written only when the files change that limit: live edits stay, and are reported as
//! drift. A domain that the store lost is written whole.

mod metrics;

use std::{
    collections::BTreeMap, fs::Metadata, os::unix::fs::MetadataExt, sync::Arc, time::Duration,
};

use limits_file::ToNode as _;
use policy::{Exemption, Limit, Name, Node, Policy, Revision};
use serde::{Deserialize, Serialize};
use store::{EditError, HeadState};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep},
};

use super::Apply;
use crate::{
    changes::{self, Action},
    commands::apply::{self, Pruning, check_domain, note_merged, plan_file, read},
    edit::revision_of,
    error::{Error, Exit},
    input::FilesArg,
    render::{counted, truncated_list},
    session::{EditPlan, Session, conflict, sort_overrides},
};
use metrics::Metrics;

/// The time between two looks at the files and the store.
const TURN: Duration = Duration::from_secs(1);
/// The longest pause after failures in a row; the first is one turn.
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// Applies the files until SIGTERM.
pub(super) async fn run(apply: &Apply, session: &Session<'_>) -> Result<Exit, Error> {
    if apply.files.has_stdin() {
        return Err(Error::usage("--watch cannot watch stdin").hint("name a file or a folder"));
    }
    // A typo ends the command; it does not wait for the file to appear.
    let stamps = Stamps::read(&apply.files)?;
    for path in apply.files.list()? {
        if let Err(error) = std::fs::metadata(&path) {
            return Err(Error::usage(format!("cannot read {path}: {error}")));
        }
    }
    let cannot = |error| Error::new(Exit::Usage, format!("cannot wait for signals: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
    let metrics = Arc::new(Metrics::new());
    if let Some(at) = apply.metrics_listen {
        let at = metrics::serve(at, Arc::clone(&metrics)).await?;
        session
            .printer
            .note(format_args!("metrics at http://{at}/metrics"));
    }
    let mut watch = Watch {
        apply,
        session,
        metrics,
        seen: Stamps::default(),
        candidate: stamps,
        files: Vec::new(),
        invalid: Some("the files are not read yet".to_owned()),
        failure: None,
    };
    loop {
        watch.turn().await;
        tokio::select! {
            biased;
            _ = terminate.recv() => {
                session.printer.note("stopped");
                return Ok(Exit::Done);
            }
            () = sleep(TURN) => {}
        }
    }
}

/// The message without colours, for a page.
fn plain(error: &Error) -> String {
    anstream::adapter::strip_str(&error.to_string()).to_string()
}

struct Watch<'w> {
    apply: &'w Apply,
    session: &'w Session<'w>,
    metrics: Arc<Metrics>,
    /// The stamps of the files when they were last read.
    seen: Stamps,
    /// The stamps one turn ago. Files that still change may be half written.
    candidate: Stamps,
    /// The limits of the last valid files, a domain each.
    files: Vec<File>,
    /// The error in the current files.
    invalid: Option<String>,
    failure: Option<Failure>,
}

/// A failure of the store, or of an edit.
struct Failure {
    message: String,
    pause: Duration,
    until: Instant,
}

/// A valid file.
struct File {
    policy: Policy,
    digests: Applied,
    /// The record at the last comparison; `None` before the first.
    compared: Option<Compared>,
}

/// What a comparison found.
#[derive(PartialEq, Eq)]
struct Compared {
    /// The revision of the domain.
    revision: Option<Revision>,
    /// The limits that differ.
    drift: Vec<String>,
}

impl Watch<'_> {
    async fn turn(&mut self) {
        self.look_at_files().await;
        let waits = |failure: &Failure| Instant::now() < failure.until;
        if !self.failure.as_ref().is_some_and(waits) {
            match self.compare_all().await {
                Ok(()) => {
                    if self.failure.take().is_some() {
                        self.session.printer.note("the store answers again");
                    }
                }
                Err(error) => self.note_failure(&error),
            }
        }
        let failure = self.failure.as_ref().map(|failure| &failure.message);
        self.metrics
            .turned(self.invalid.as_ref().or(failure).cloned());
    }

    fn note_failure(&mut self, error: &Error) {
        self.metrics.failed(error.exit());
        let message = plain(error);
        let last = self.failure.take();
        let same = last.as_ref().is_some_and(|last| last.message == message);
        let pause = last.map_or(TURN, |last| (last.pause * 2).min(BACKOFF_MAX));
        if !same {
            self.session.printer.error(error);
            self.session
                .printer
                .note("trying again, with pauses of up to 30 s");
        }
        self.failure = Some(Failure {
            message,
            pause,
            until: Instant::now() + pause,
        });
    }
}

// --- Reads the files after a change, once they no longer change.

impl Watch<'_> {
    /// Reads the files if they changed, and have been stable for one turn.
    pub(super) async fn look_at_files(&mut self) {
        let now = match Stamps::read(&self.apply.files) {
            Ok(now) => now,
            // A folder that has no file for a moment is being replaced.
            Err(error) => {
                if self.invalid.as_ref() != Some(&plain(&error)) {
                    self.refuse_files(&error);
                }
                self.seen = Stamps::default();
                return;
            }
        };
        if now == self.seen {
            return;
        }
        if now != self.candidate {
            self.candidate = now;
            return;
        }
        let read = self.read_files().await;
        if Stamps::read(&self.apply.files).ok().as_ref() != Some(&now) {
            // The files changed during the read.
            return;
        }
        self.seen = now;
        match read {
            Ok(policies) => self.take_files(policies),
            Err(error) => self.refuse_files(&error),
        }
    }

    async fn read_files(&self) -> Result<Vec<Policy>, Error> {
        let policies = read(&self.apply.files, self.session).await?;
        for policy in &policies {
            check_domain(self.session, policy)?;
        }
        Ok(policies)
    }

    fn refuse_files(&mut self, error: &Error) {
        self.metrics.failed(error.exit());
        self.session.printer.error(error);
        if !self.files.is_empty() {
            self.session
                .printer
                .note("the limits that were applied last stay in force");
        }
        self.invalid = Some(plain(error));
    }

    fn take_files(&mut self, policies: Vec<Policy>) {
        self.invalid = None;
        // The failure belongs to the previous files.
        self.failure = None;
        let printer = self.session.printer;
        for file in std::mem::take(&mut self.files) {
            let domain = &file.policy.domain;
            if !policies.iter().any(|policy| policy.domain == *domain) {
                printer.warn(format_args!(
                    "no file has domain {domain} any more; it stays as it is"
                ));
                printer.hint(format_args!("`rlctl delete-domain {domain}` deletes it"));
                self.metrics.forget(domain);
            }
        }
        let file = |policy: Policy| File {
            digests: Applied::from_policy(&policy),
            policy,
            compared: None,
        };
        self.files = policies.into_iter().map(file).collect();
    }
}

// --- Whether limits files changed, without reading them.

/// Distinguishes two states of the files: their names, and each one's inode, size and times. A
/// mounted ConfigMap swaps a symbolic link, so every change brings new files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Stamps(Vec<(String, Option<Stamp>)>);

type Stamp = (u64, u64, u64, (i64, i64), (i64, i64));

impl Stamps {
    /// The files as they are now.
    pub(super) fn read(files: &FilesArg) -> Result<Self, Error> {
        let stamped = |path: String| {
            let stamp = std::fs::metadata(&path).ok().map(|file| stamp(&file));
            (path, stamp)
        };
        Ok(Self(files.list()?.into_iter().map(stamped).collect()))
    }
}

fn stamp(file: &Metadata) -> Stamp {
    let modified = (file.mtime(), file.mtime_nsec());
    let changed = (file.ctime(), file.ctime_nsec());
    (file.dev(), file.ino(), file.size(), modified, changed)
}

// --- Writes what the files change, and reports other differences as drift.

/// Attempts to write on top of concurrent edits.
const TRIES: usize = 10;
/// Limits that one message names.
const NAMED_MAX: usize = 10;

impl Watch<'_> {
    /// Compares each file with its domain if either changed. An error in one domain does not stop
    /// the comparison of others.
    pub(super) async fn compare_all(&mut self) -> Result<(), Error> {
        if self.files.is_empty() {
            return Ok(());
        }
        let heads = self.session.call(self.session.store.heads()).await?;
        let mut failed = Ok(());
        for mut file in std::mem::take(&mut self.files) {
            let mut found = heads.iter();
            let head = found.find(|head| head.domain == file.policy.domain);
            let state = head.map_or(&HeadState::Missing, |head| &head.state);
            if let Err(error) = self.compare(&mut file, state).await {
                failed = Err(error);
            }
            self.files.push(file);
        }
        failed
    }

    async fn compare(&self, file: &mut File, state: &HeadState) -> Result<(), Error> {
        let revision = match state {
            HeadState::Live(revision) | HeadState::Deleted(revision) => Some(revision.clone()),
            // The edit reports the record's error.
            HeadState::Missing | HeadState::Unreadable(_) => None,
        };
        let known = file.compared.as_ref();
        if known.is_some_and(|known| known.revision == revision) {
            return Ok(());
        }
        if known.is_some_and(|known| known.revision.is_some()) && revision.is_none() {
            self.session.printer.warn(format_args!(
                "the store has lost domain {}; it is written again",
                file.policy.domain
            ));
        }
        let last = self.last_applied(&file.policy.domain, state).await?;
        if last.as_ref() != Some(&file.digests) {
            self.write(file, &last.unwrap_or_default()).await?;
            let domain = &file.policy.domain;
            let record = file.digests.to_record();
            self.session
                .call(self.session.store.record_applied(domain, &record))
                .await?;
        }
        self.measure_drift(file, revision).await
    }

    /// What was last applied to a domain; `None` if the domain is missing.
    async fn last_applied(
        &self,
        domain: &Name,
        state: &HeadState,
    ) -> Result<Option<Applied>, Error> {
        if matches!(state, HeadState::Missing) {
            return Ok(None);
        }
        let record = self
            .session
            .call(self.session.store.applied(domain))
            .await?;
        Ok(record.map(|record| Applied::read(Some(&record))))
    }

    /// Writes what the file changes since `last` was applied.
    async fn write(&self, file: &File, last: &Applied) -> Result<(), Error> {
        let session = self.session;
        let domain = &file.policy.domain;
        let nothing = Applied::default();
        for _ in 0..TRIES {
            let merge = |base: &store::Stored| {
                let live = base.policy();
                // A deleted domain has nothing to keep.
                let last = if live.is_some() { last } else { &nothing };
                let target = last.target(&file.policy, &file.digests, live, self.apply.prune);
                apply::merge(target, live, true)
            };
            let pruning = Pruning {
                unlisted_overrides: false,
                split_otherwise: self.apply.prune,
            };
            let (base, merged, plan) = apply::plan(session, domain, merge, pruning).await?;
            let any = changes::any(&plan.changes)
                || !changes::of_domain(base.policy(), &merged.policy).is_empty();
            if !any {
                session
                    .printer
                    .note(format_args!("{domain}: as in the files"));
                return Ok(());
            }
            self.few_enough(domain, last, &plan)?;
            note_merged(session.printer, &merged, &plan);
            let planned = merged.planned(plan);
            match session.write(&self.apply.edit, domain, base, planned).await {
                Ok(edited) => {
                    self.metrics.edited(domain);
                    return session.printer.data(&edited.report);
                }
                Err(EditError::Conflict { .. }) => {}
                Err(error) => return Err(session.edit_failed(&error)),
            }
        }
        Err(conflict())
    }

    /// Files that lost most of their limits are more often wrong than meant: a template without values,
    /// a folder that is half mounted. Nobody can confirm it.
    fn few_enough(&self, domain: &Name, last: &Applied, plan: &EditPlan) -> Result<(), Error> {
        let changes = plan.changes.iter();
        let deleted = changes
            .filter(|change| change.action == Action::Deleted)
            .count();
        let (were, most) = (last.count(), self.apply.prune_max);
        if deleted.saturating_mul(100) <= were.saturating_mul(usize::from(most)) {
            return Ok(());
        }
        let message = format!(
            "the files would delete {deleted} of the {} of domain {domain} that were in them, more \
             than {most} %; nothing of it was changed",
            counted(were, "limit")
        );
        Err(Error::new(Exit::No, message)
            .hint("if that is meant, start with --prune-max 100%")
            .hint(format!(
                "`rlctl delete-domain {domain}` deletes a whole domain"
            )))
    }

    /// Compares the domain with its file, as `rlctl diff` does.
    async fn measure_drift(&self, file: &mut File, seen: Option<Revision>) -> Result<(), Error> {
        let (base, merged, plan) = plan_file(self.session, file.policy.clone(), true).await?;
        let domain = &file.policy.domain;
        let mut drift = changes::names(&plan.changes);
        let paused = merged.still_paused.iter().map(|(name, _)| name.to_string());
        drift.extend(paused.map(|name| format!("{name} (paused)")));
        if !changes::of_domain(base.policy(), &merged.policy).is_empty() {
            drift.push("the domain itself".to_owned());
        }
        // A deleted domain has a revision, too.
        let revision = revision_of(&base).cloned().or(seen);
        self.metrics
            .compared(domain, revision.as_ref(), drift.len());
        let known = file.compared.as_ref().map(|known| &known.drift);
        if known.map_or(!drift.is_empty(), |known| *known != drift) {
            self.report_drift(domain, &drift);
        }
        file.compared = Some(Compared { revision, drift });
        Ok(())
    }

    fn report_drift(&self, domain: &Name, drift: &[String]) {
        let printer = self.session.printer;
        if drift.is_empty() {
            printer.note(format_args!("{domain}: no drift any more"));
            return;
        }
        printer.warn(format_args!(
            "{domain}: {} from the files, until the files change there: {}",
            counted(drift.len(), "difference"),
            truncated_list(drift, NAMED_MAX)
        ));
        printer
            .hint("`rlctl diff` shows the differences, `rlctl export` prints a file that has them");
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
    domain: String,
    limits: BTreeMap<String, String>,
    /// By exemption. Records of earlier versions have none.
    #[serde(default)]
    exempt: BTreeMap<String, String>,
}

impl Applied {
    /// The digests of a file.
    pub(super) fn from_policy(file: &Policy) -> Self {
        let mut file = file.clone();
        sort_overrides(&mut file);
        let limit = |limit: &Limit| (limit.name.to_string(), digest(&limit.to_node()));
        Self {
            format: FORMAT,
            domain: digest(
                &file
                    .paused
                    .map_or_else(|| Node::text(""), |pause| pause.to_node()),
            ),
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
        let live_limits = live.map(Policy::by_name).unwrap_or_default();
        let of_file = file.limits.iter().filter_map(|limit| {
            if same(&limit.name) {
                live_limits.get(limit.name.as_str()).copied().cloned()
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
    use policy::Pause;

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
