//! The limits files: what fills a store that has no limits yet, and the policy where the store is
//! this process's memory.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use policy::{Name, Policy, Problems};
use store::{Change, Edit, EditError, OverrideEdits, Overrides, Signature, Store, Stored};
use tokio::time::sleep;

use crate::{domains::Domains, sighup::Sighup, watched_files::WatchedFiles};

/// How often the files are looked at where they are the policy.
const POLL: Duration = Duration::from_millis(200);

/// The pause before a failed call of the store is repeated.
const RETRY: Duration = Duration::from_millis(200);

/// Why limits files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LimitsError {
    /// One cannot be read.
    #[error("cannot read the limits file {}: {error}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// One is wrong; the message shows every problem with its place.
    #[error("{0}")]
    Invalid(Problems),
    /// Two are about the same domain.
    #[error("{} and {} are both about the domain `{domain}`", .first.display(), .second.display())]
    Twice {
        /// The domain.
        domain: Name,
        /// The file given first.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
}

/// The files, and what became of them.
pub(crate) struct LimitsFiles {
    paths: Vec<PathBuf>,
    watched: WatchedFiles,
    store: Arc<dyn Store>,
    error: Mutex<Option<String>>,
}

impl LimitsFiles {
    pub(crate) fn new(paths: Vec<PathBuf>, store: Arc<dyn Store>) -> Self {
        Self {
            watched: WatchedFiles::new(paths.iter().map(PathBuf::as_path)),
            paths,
            store,
            error: Mutex::default(),
        }
    }

    /// Reads and validates every file.
    pub(crate) fn read(&self) -> Result<Vec<Policy>, LimitsError> {
        let mut policies: Vec<Policy> = Vec::new();
        for path in &self.paths {
            let policy = read(path)?;
            let known = policies.iter().position(|p| p.domain == policy.domain);
            if let Some(first) = known.and_then(|at| self.paths.get(at)) {
                return Err(LimitsError::Twice {
                    domain: policy.domain,
                    first: first.clone(),
                    second: path.clone(),
                });
            }
            policies.push(policy);
        }
        Ok(policies)
    }

    /// Why the files as they are now are not in force, if they are not.
    pub(crate) fn error(&self) -> Option<String> {
        self.error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set_error(&self, error: Option<String>) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    /// Fills the domains that have no record, once the store answers. SIGHUP then changes
    /// nothing, but must not end the process either.
    pub(crate) async fn fill_once(
        &self,
        policies: Vec<Policy>,
        domains: &Domains,
        mut sighup: Sighup,
    ) {
        if !policies.is_empty() {
            self.fill(policies).await;
            domains.filled().await;
        }
        loop {
            sighup.next().await;
            tracing::info!("SIGHUP changes nothing: the limits are in the store, not in files");
        }
    }

    async fn fill(&self, policies: Vec<Policy>) {
        for policy in policies {
            while let Err(error) = self.fill_one(&policy).await {
                let error = Some(error.to_string());
                if self.error() != error {
                    tracing::warn!(domain = %policy.domain, error, "cannot fill the domain yet");
                    self.set_error(error);
                }
                sleep(RETRY).await;
            }
        }
        self.set_error(None);
    }

    async fn fill_one(&self, policy: &Policy) -> Result<(), EditError> {
        let domain = &policy.domain;
        let base = self.store.read(domain, Overrides::None).await?;
        let held = match &base {
            Stored::Absent => self.write(policy, &base).await,
            Stored::Live(_) | Stored::Deleted(_) => Err(EditError::Conflict {
                expected: None,
                found: None,
            }),
        };
        match held {
            Ok(()) => tracing::info!(%domain, "filled from the limits file"),
            // Written before, or by a replica that was faster.
            Err(EditError::Conflict { .. }) => tracing::warn!(
                %domain,
                "the limits file is ignored: the store has a record of the domain; \
                 `rlctl diff -f` shows the difference, `rlctl apply -f` makes the edit"
            ),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Makes the store hold exactly what the files say.
    pub(crate) async fn impose(&self, policies: &[Policy]) -> Result<(), EditError> {
        for head in self.store.heads().await? {
            if policies.iter().any(|policy| policy.domain == head.domain) {
                continue;
            }
            let base = self.store.read(&head.domain, Overrides::All).await?;
            if matches!(base, Stored::Live(_)) {
                let read = OverrideEdits::new();
                self.edit(&head.domain, &base, Change::Delete(&read))
                    .await?;
            }
        }
        for policy in policies {
            let base = self.store.read(&policy.domain, Overrides::All).await?;
            let same = base
                .policy()
                .is_some_and(|held| held.to_node() == policy.to_node());
            if !same {
                self.write(policy, &base).await?;
            }
        }
        Ok(())
    }

    async fn write(&self, policy: &Policy, base: &Stored) -> Result<(), EditError> {
        self.edit(&policy.domain, base, Change::Limits(policy))
            .await
    }

    async fn edit(
        &self,
        domain: &Name,
        base: &Stored,
        change: Change<'_>,
    ) -> Result<(), EditError> {
        let by = Signature {
            author: "limiter".to_owned(),
            reason: "limits file".to_owned(),
        };
        let edit = Edit {
            domain,
            base,
            change,
            by: &by,
        };
        self.store.write(&edit).await.map(|_revision| ())
    }

    /// Follows the files for ever. Files that cannot be used leave the limits as they are.
    pub(crate) async fn follow(&self, mut sighup: Sighup) {
        loop {
            let signalled = tokio::select! {
                () = sleep(POLL) => false,
                () = sighup.next() => true,
            };
            if self.watched.changed() || signalled {
                self.again().await;
            }
        }
    }

    async fn again(&self) {
        let outcome = match self.read() {
            Ok(policies) => self.impose(&policies).await.map_err(|e| e.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match &outcome {
            Ok(()) => tracing::info!("limits files read again"),
            Err(error) => tracing::error!(%error, "the limits stay as they were"),
        }
        self.set_error(outcome.err());
    }
}

fn read(path: &Path) -> Result<Policy, LimitsError> {
    let text = fs::read(path).map_err(|error| LimitsError::Read {
        path: path.to_owned(),
        error,
    })?;
    Policy::from_yaml(&path.to_string_lossy(), &text).map_err(LimitsError::Invalid)
}
