//! The store's errors as messages: what happened, and what to check first.

use store::{CheckError, CheckPlanError, EditError, EditPlanError, StoreError};

use super::Session;
use crate::{
    error::Error,
    exit::Exit,
    settings::{self, Settings},
};

impl Session<'_> {
    /// The message for an error of the store.
    pub fn failed(&self, error: &StoreError) -> Error {
        failure(error, &self.settings)
    }

    /// The message for an error of an edit.
    pub fn edit_failed(&self, error: &EditError) -> Error {
        match error {
            EditError::Store(error @ (StoreError::Timeout(_) | StoreError::Broken(_))) => {
                self.failed(error).hint(
                    "it is unknown whether the edit was written; `rlctl history -n 3` shows it if it was",
                )
            }
            EditError::Store(error) => self.failed(error),
            EditError::Bucket(CheckError::Store(
                error @ (StoreError::Timeout(_) | StoreError::Broken(_)),
            )) => self
                .failed(error)
                .hint("it may have been done: look before you try again"),
            EditError::Bucket(error) => self.check_failed(error),
            EditError::Conflict { .. } => conflict(),
            EditError::Plan(EditPlanError::UnknownLimit(_)) => Error::not_found(error.to_string()),
            _ => Error::new(Exit::Refused, error.to_string()),
        }
    }

    /// The message for an error of a change of one bucket, which comes before the entry in the history: without
    /// an answer, `uncertain` says how to find out.
    pub fn bucket_change_failed(&self, error: &EditError, uncertain: String) -> Error {
        match error {
            EditError::Store(error) | EditError::Bucket(CheckError::Store(error))
                if matches!(error, StoreError::Timeout(_) | StoreError::Broken(_)) =>
            {
                self.failed(error).hint(uncertain)
            }
            error => self.edit_failed(error),
        }
    }

    /// The message for an error of a check.
    pub fn check_failed(&self, error: &CheckError) -> Error {
        match error {
            CheckError::Store(error) | CheckError::PartiallyCharged(error) => self.failed(error),
            CheckError::CorruptBucket(limit) => Error::new(Exit::Refused, error.to_string()).hint(
                format!("`rlctl reset {limit}` with the bucket's values resets it"),
            ),
            CheckError::Plan(CheckPlanError::UnknownLimit(_)) => {
                Error::not_found(error.to_string())
            }
            CheckError::Plan(CheckPlanError::NoMatch) => {
                Error::new(Exit::NotFound, error.to_string())
                    .hint("`rlctl explain` with the same -d says why")
            }
            CheckError::Stale => conflict(),
            CheckError::Plan(CheckPlanError::WrongBucket { .. }) => Error::usage(error.to_string()),
        }
    }
}

/// Another edit of the same limit or domain was written first.
pub fn conflict() -> Error {
    Error::new(
        Exit::Conflict,
        "conflict: another edit was written in the meantime",
    )
    .hint("nothing was written; `rlctl history` shows the other edit, then try again")
}

pub(super) fn failure(error: &StoreError, settings: &Settings) -> Error {
    let url = &settings.url;
    let source = &settings.url_source;
    let unreachable = |why: String| Error::new(Exit::Unreachable, why).hint(whence(settings));
    match error {
        StoreError::Unreachable(why) => unreachable(format!("cannot reach {url}: {why}")),
        StoreError::Timeout(limit) => unreachable(format!(
            "{url} did not answer within {} ms",
            limit.as_millis()
        )),
        StoreError::Broken(why) => unreachable(format!("lost the connection to {url}: {why}")),
        StoreError::Auth(why) => Error::new(Exit::Auth, format!("{url} refused the login: {why}"))
            .hint(format!(
                "the credentials come from {source}: redis://user:password@host"
            )),
        StoreError::Refused(refusal) => {
            let message = format!("{url} refused: {} {}", refusal.code, refusal.message);
            let hint = match refusal.code.as_str() {
                "WRONGTYPE" => {
                    Some("a key of ours holds something else; `rlctl doctor` looks for it")
                }
                _ => refusal.hint(),
            };
            Error::new(Exit::Refused, message).maybe_hint(hint)
        }
        StoreError::Corrupt(_) | StoreError::Unsupported(_) => {
            Error::new(Exit::Refused, format!("{url}: {error}"))
        }
    }
}

/// The hint when there is no answer.
fn whence(settings: &Settings) -> String {
    match settings.url_source {
        settings::DEFAULT_SOURCE => {
            "is it running? this is the default address; --redis or RLCTL_REDIS sets another"
                .to_owned()
        }
        settings::FLAG_SOURCE => "is it running there?".to_owned(),
        variable => {
            format!("is it running? the address comes from {variable}; --redis overrides it")
        }
    }
}
