//! What every edit has in common: who, why, whether for real, and what is reported.

use std::fmt::Write as _;

use clap::Args;
use policy::{Name, Revision};
use serde::Serialize;
use store::{Change, Edit, EditError, Overrides, Signature, Stored};

use crate::{
    changes::{self, Action, FieldChange, LimitChange},
    error::Error,
    exit::Exit,
    render::{self, Page, View},
    session::Session,
};

/// What every edit takes.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Edit options")]
pub struct EditArgs {
    /// Show what would change, and change nothing.
    #[arg(long)]
    pub dry_run: bool,

    /// Why, for the history.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub reason: String,

    /// Who, for the history [default: the user at this machine].
    #[arg(
        long,
        value_name = "NAME",
        env = "RLCTL_AUTHOR",
        hide_env_values = true
    )]
    pub author: Option<String>,

    /// Wait until every live limiter and proxy has the edit, this long at most [default: 5s].
    #[arg(
        long,
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "5s",
        value_parser = millis
    )]
    pub wait: Option<u64>,
}

impl EditArgs {
    /// Who edits, and why.
    pub fn signature(&self) -> Signature {
        Signature {
            author: self
                .author
                .clone()
                .filter(|name| !name.is_empty())
                .unwrap_or_else(user_at_host),
            reason: self.reason.clone(),
        }
    }
}

/// A duration in milliseconds, for flags.
fn millis(text: &str) -> Result<u64, String> {
    policy::parse_duration(text).map_err(|error| error.to_string())
}

fn user_at_host() -> String {
    let name = |variable| std::env::var(variable).ok().filter(|name| !name.is_empty());
    let user = name("USER")
        .or_else(|| name("LOGNAME"))
        .unwrap_or_else(|| "unknown".to_owned());
    format!("{user}@{}", gethostname::gethostname().to_string_lossy())
}

/// An edit that was made, or would be.
#[derive(Debug, Serialize)]
pub struct EditReport {
    /// The domain.
    pub domain: String,
    /// Its revision before; `None`: it was not there.
    pub previous_revision: Option<u64>,
    /// Its revision after; the same as before if nothing changed.
    pub revision: Option<u64>,
    /// Whether nothing was written because of `--dry-run`.
    pub dry_run: bool,
    /// What changed about the domain itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub domain_changes: Vec<FieldChange>,
    /// What changed.
    pub changes: Vec<LimitChange>,
}

impl View for EditReport {
    fn text(&self, page: Page) -> String {
        let mut text = render::changes::of_domain(&self.domain, &self.domain_changes, page);
        text.push_str(&render::changes::text(&self.changes, page));
        text.push_str(&self.domain);
        text.push_str(": ");
        text.push_str(&render::changes::summary(
            &self.domain_changes,
            &self.changes,
        ));
        let _ = match (self.previous_revision, self.revision) {
            _ if self.dry_run => write!(text, "; dry run, nothing was written"),
            (Some(before), Some(after)) if before != after => {
                write!(
                    text,
                    "; revision {before} {} {after}",
                    render::changes::arrow(page)
                )
            }
            (None, Some(after)) => write!(text, "; revision {after}"),
            (Some(same), _) => write!(text, "; still at revision {same}"),
            (None, None) => Ok(()),
        };
        text.push('\n');
        text
    }

    /// The limits that are not what they were.
    fn names(&self) -> Vec<String> {
        let differs = |change: &&LimitChange| change.action != Action::Unchanged;
        self.changes
            .iter()
            .filter(differs)
            .map(|change| change.limit.clone())
            .collect()
    }
}

/// One edit, ready to be shown and made.
#[derive(Debug)]
pub struct Prepared<'a> {
    /// The domain.
    pub domain: &'a Name,
    /// What it is based on.
    pub base: &'a Stored,
    /// What is written.
    pub change: Change<'a>,
    /// What that means.
    pub changes: Vec<LimitChange>,
}

/// How often an edit is made anew because somebody else edited something else meanwhile.
const TRIES: usize = 10;

impl Session<'_> {
    /// Makes an edit, unless it changes nothing or is a dry run.
    pub async fn edit(&self, edit: Prepared<'_>, args: &EditArgs) -> Result<EditReport, EditError> {
        let before = revision_of(edit.base).map(|revision| revision.number);
        let mut after = before;
        let domain_changes = match edit.change {
            Change::Limits(after) | Change::Fields(after) => {
                changes::of_domain(edit.base.policy(), after)
            }
            Change::Override { .. } | Change::Delete => Vec::new(),
        };
        let any = !domain_changes.is_empty()
            || changes::any(&edit.changes)
            || matches!(edit.change, Change::Delete);
        if any && !args.dry_run {
            self.printer.set_pending(true);
            let edit = Edit {
                domain: edit.domain,
                base: edit.base,
                change: edit.change,
                by: &args.signature(),
            };
            after = Some(self.store.write(&edit).await?.number);
            self.printer.set_pending(false);
        }
        Ok(EditReport {
            domain: edit.domain.to_string(),
            previous_revision: before,
            revision: after,
            dry_run: args.dry_run,
            domain_changes,
            changes: edit.changes,
        })
    }

    /// Reads a domain and makes an edit of it; where somebody else wrote in between, once more on
    /// top of that. Only if they touched what this edit is `about` is it a conflict.
    pub async fn edit_on_top<T: Clone + PartialEq>(
        &self,
        domain: &Name,
        overrides: Overrides,
        about: impl AsyncFn(&Stored) -> Result<T, Error>,
        attempt: impl AsyncFn(&Stored, &T) -> Result<Result<EditReport, EditError>, Error>,
    ) -> Result<EditReport, Error> {
        let mut first_seen = None;
        for _ in 0..TRIES {
            let base = self.read(domain, overrides).await?;
            let seen = about(&base).await?;
            let first = first_seen.get_or_insert_with(|| seen.clone());
            if *first != seen {
                break;
            }
            match attempt(&base, &seen).await? {
                Ok(report) => return Ok(report),
                Err(EditError::Conflict { .. }) => {}
                Err(error) => return Err(self.edit_failed(&error)),
            }
        }
        Err(conflict())
    }
}

/// Somebody else's edit came first.
pub fn conflict() -> Error {
    Error::new(
        Exit::Conflict,
        "somebody else changed the same in the meantime",
    )
    .hint("nothing was written; `rlctl history` shows their edit, then try again")
}

/// The revision of a record that is there.
pub fn revision_of(stored: &Stored) -> Option<&Revision> {
    stored.policy().map(|policy| &policy.revision)
}

#[cfg(test)]
mod tests {
    use policy::{Limit, Policy};

    use super::*;
    use crate::{exit::Exit, printer::Printer};

    fn policy(limits: &str) -> Policy {
        let file = format!("domain: shop\nlimits: [{limits}]\n");
        Policy::from_yaml("test", file.as_bytes()).unwrap()
    }

    fn args() -> EditArgs {
        EditArgs {
            dry_run: false,
            reason: String::new(),
            author: Some("ada".to_owned()),
            wait: None,
        }
    }

    async fn replace(
        session: &Session<'_>,
        base: &Stored,
        after: &Policy,
    ) -> Result<EditReport, EditError> {
        let nothing = policy("");
        let prepared = Prepared {
            domain: &after.domain,
            base,
            change: Change::Limits(after),
            changes: changes::between(base.policy().unwrap_or(&nothing), after),
        };
        session.edit(prepared, &args()).await
    }

    /// Sets limit `mine` to 2/s, while somebody else makes `theirs` of the domain in between.
    async fn race(theirs: &str) -> (Result<EditReport, Error>, Policy) {
        let printer = Printer::silent();
        let session = Session::in_memory(&printer);
        let first = policy("{name: mine, rate: 1/s}, {name: other, rate: 1/s}");
        let domain = first.domain.clone();
        replace(&session, &Stored::Absent, &first).await.unwrap();
        let theirs = policy(theirs);
        let raced = std::cell::Cell::new(false);
        let mine_in =
            async |base: &Stored| Ok(base.policy().and_then(|p| p.limit("mine")).cloned());
        let attempt = async |base: &Stored, _: &Option<Limit>| {
            if !raced.replace(true) {
                replace(&session, base, &theirs).await.unwrap();
            }
            let mine = policy("{name: mine, rate: 2/s}").limits.pop().unwrap();
            let after = base.policy().unwrap().with_limit(mine).unwrap();
            Ok(replace(&session, base, &after).await)
        };
        let result = session
            .edit_on_top(&domain, Overrides::All, mine_in, attempt)
            .await;
        assert!(raced.get());
        let now = session.read(&domain, Overrides::All).await.unwrap();
        (result, now.policy().unwrap().clone())
    }

    fn rates(policy: &Policy) -> Vec<String> {
        let rate =
            |limit: &Limit| format!("{} {}", limit.name, limit.quota.parameters().rate.units);
        policy.limits.iter().map(rate).collect()
    }

    #[tokio::test]
    async fn an_edit_of_another_limit_is_built_upon() {
        let (result, now) = race("{name: mine, rate: 1/s}, {name: other, rate: 5/s}").await;
        assert_eq!(result.unwrap().revision, Some(3));
        assert_eq!(rates(&now), ["mine 2", "other 5"]);
    }

    #[tokio::test]
    async fn an_edit_of_the_same_limit_is_a_conflict_and_stays() {
        let (result, now) = race("{name: mine, rate: 9/s}, {name: other, rate: 1/s}").await;
        assert_eq!(result.unwrap_err().exit(), Exit::Conflict);
        assert_eq!(rates(&now), ["mine 9", "other 1"]);
    }

    #[tokio::test]
    async fn what_changes_nothing_and_a_dry_run_write_nothing() {
        let printer = Printer::silent();
        let session = Session::in_memory(&printer);
        let one = policy("{name: mine, rate: 1/s}");
        replace(&session, &Stored::Absent, &one).await.unwrap();
        let base = session.read(&one.domain, Overrides::All).await.unwrap();
        let same = replace(&session, &base, &one).await.unwrap();
        assert_eq!(same.revision, Some(1));
        let changed = policy("{name: mine, rate: 2/s}");
        let prepared = Prepared {
            domain: &one.domain,
            base: &base,
            change: Change::Limits(&changed),
            changes: changes::between(base.policy().unwrap(), &changed),
        };
        let dry = EditArgs {
            dry_run: true,
            ..args()
        };
        let report = session.edit(prepared, &dry).await.unwrap();
        assert_eq!((report.revision, report.dry_run), (Some(1), true));
        let now = session.read(&one.domain, Overrides::All).await.unwrap();
        assert_eq!(rates(now.policy().unwrap()), ["mine 1"]);
    }
}
