//! The plan of applying a limits file.

use policy::{Name, Policy, Problems};
use store::{Overrides, Stored};

use crate::{
    edit::revision_of,
    error::Error,
    exit::Exit,
    merge::{self, Merged},
    render::diagnostics,
    session::{Deltas, EditPlan, Session, conflict},
};

/// Attempts to read all pages of a domain at one revision.
const TRIES: usize = 5;

/// Lines of conflicts that are shown.
const LINES_MAX: usize = 5;

/// What an edit may delete.
#[derive(Clone, Copy, Debug)]
pub struct Pruning {
    /// Overrides that are not listed, of limits that list some.
    pub unlisted_overrides: bool,
    /// All overrides of a limit whose `per` changes.
    pub split_otherwise: bool,
}

/// The domain as stored, the merged limits, and the plan of the edit.
pub async fn plan_file(
    session: &Session<'_>,
    file: Policy,
    prune: bool,
) -> Result<(Stored, Merged, EditPlan), Error> {
    let domain = file.domain.clone();
    let merge = |base: &Stored| merge::merge(file.clone(), base.policy(), prune);
    let pruning = Pruning {
        unlisted_overrides: prune,
        split_otherwise: prune,
    };
    plan(session, &domain, merge, pruning).await
}

/// As [`plan_file`], with the limits that `merge` makes of the domain.
pub async fn plan(
    session: &Session<'_>,
    domain: &Name,
    merge: impl Fn(&Stored) -> Result<Merged, Problems>,
    pruning: Pruning,
) -> Result<(Stored, Merged, EditPlan), Error> {
    for _ in 0..TRIES {
        let base = session.read(domain, Overrides::None).await?;
        let mut merged = merge(&base).map_err(|problems| does_not_fit(&diagnostics(&problems)))?;
        let mut lines = Vec::new();
        if let Some(before) = base.policy().filter(|_| !pruning.unlisted_overrides) {
            let kept = session.keep_unlisted(before, &mut merged.policy).await?;
            merged.overrides_kept = kept.by_limit;
            lines = kept.problems;
        }
        let plan = session
            .plan_edit(base.policy(), &merged.policy, &Deltas::new())
            .await?;
        let pages_read = plan.overrides_read || !lines.is_empty();
        if !pages_read || unchanged(session, &base, domain).await? {
            if !lines.is_empty() {
                return Err(does_not_fit(&bounded(&lines)));
            }
            if let Some(text) = plan.invalid_overrides_text() {
                return Err(does_not_fit(&text));
            }
            if !pruning.split_otherwise {
                check_no_override_lost(&merged.split_otherwise, &plan)?;
            }
            return Ok((base, merged, plan));
        }
    }
    Err(conflict())
}

/// Whether the domain is still at the same revision: overrides are read page by page, and all pages
/// must be of one revision.
async fn unchanged(session: &Session<'_>, base: &Stored, domain: &Name) -> Result<bool, Error> {
    let now = session.read(domain, Overrides::None).await?;
    Ok(revision_of(&now) == revision_of(base))
}

fn bounded(lines: &[String]) -> String {
    let mut shown: Vec<&str> = lines.iter().take(LINES_MAX).map(String::as_str).collect();
    let more = format!("… and {} more", lines.len().saturating_sub(LINES_MAX));
    if lines.len() > LINES_MAX {
        shown.push(&more);
    }
    shown.join("\n")
}

fn does_not_fit(text: &str) -> Error {
    Error::new(
        Exit::No,
        format!("the file conflicts with what is stored\n{text}"),
    )
    .hint("apply keeps overrides that were set live, and limits that are not in the file")
}

/// A limit with another `per` leaves its overrides without a bucket.
fn check_no_override_lost(split_otherwise: &[Name], plan: &EditPlan) -> Result<(), Error> {
    let mut lost = split_otherwise.iter();
    match lost.find(|name| plan.overrides.contains_key(*name)) {
        None => Ok(()),
        Some(name) => Err(Error::new(
            Exit::No,
            format!("the `per` of {name} would change, and its overrides would be deleted"),
        )
        .hint("nothing was written; --prune allows it")),
    }
}
