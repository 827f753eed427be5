//! Writes what the files change, and reports other differences as drift.

use policy::{Name, Revision};
use store::{Change, EditError, HeadState};

use super::{Applied, Compared, File, Watch};
use crate::{
    changes::{self, Action},
    commands::apply::{
        note_merged,
        plan::{self, Pruning},
        plan_file,
    },
    edit::{EditArgs, Prepared},
    error::Error,
    exit::Exit,
    merge,
    render::{counted, truncated_list},
    session::{EditPlan, conflict},
};

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
        let heads = self.session.store.heads().await;
        let heads = heads.map_err(|error| self.session.failed(&error))?;
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
            let recorded = self.session.store.record_applied(domain, &record).await;
            recorded.map_err(|error| self.session.failed(&error))?;
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
        let record = self.session.store.applied(domain).await;
        let record = record.map_err(|error| self.session.failed(&error))?;
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
                merge::merge(target, live, true)
            };
            let pruning = Pruning {
                unlisted_overrides: false,
                split_otherwise: self.apply.prune,
            };
            let (base, merged, plan) = plan::plan(session, domain, merge, pruning).await?;
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
            let prepared = Prepared {
                domain,
                base: &base,
                change: Change::Parts {
                    limits: &merged.policy,
                    overrides: &plan.overrides,
                },
                changes: plan.changes,
            };
            match session.edit(prepared, self.edit_args()).await {
                Ok(report) => {
                    self.metrics.edited(domain);
                    return session.printer.data(&report);
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

    fn edit_args(&self) -> &EditArgs {
        &self.apply.edit
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
        let revision = crate::edit::revision_of(&base).cloned().or(seen);
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
