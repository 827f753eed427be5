//! The limits files: they fill a store that has no limits yet, and are the policy if the store is
//! this process's memory.

mod in_store;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use policy::{Name, Policy, Problems};
use store::{Change, Edit, EditError, OverrideEdits, Overrides, Signature, Store, Stored};
use tokio::time::{Instant, sleep};

use crate::{
    aside::{Pace, alone},
    log::shortened,
    rls_config::RlsConfig,
    sighup::Sighup,
    watched_files::WatchedFiles,
};

/// How often the files are checked if they are the policy.
const POLL: Duration = Duration::from_millis(200);

/// Why limits files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LimitsError {
    /// A file cannot be read.
    #[error("cannot read the limits file {}: {error}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// A file is invalid; the message lists every problem with its place.
    #[error("{0}")]
    Invalid(Problems),
    /// envoyproxy/ratelimit's files are wrong, as the message shows.
    #[error("{0}")]
    Rls(String),
    /// Two files are about the same domain.
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

/// The policies of all files.
pub(crate) struct ReadPolicies {
    /// From limits files.
    pub(crate) limits: Vec<Policy>,
    /// From `--rls-config`.
    pub(crate) rls: Vec<Policy>,
}

impl ReadPolicies {
    pub(crate) fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.rls.is_empty()
    }
}

/// The files, and the error of the last attempt to use them.
pub(crate) struct LimitsFiles {
    paths: Vec<PathBuf>,
    watched: WatchedFiles,
    rls: Option<(PathBuf, RlsConfig)>,
    store: Arc<dyn Store>,
    error: Mutex<Option<String>>,
}

impl LimitsFiles {
    pub(crate) fn new(
        paths: Vec<PathBuf>,
        rls_config: Option<PathBuf>,
        store: Arc<dyn Store>,
    ) -> Self {
        Self {
            watched: WatchedFiles::new(paths.iter().map(PathBuf::as_path)),
            paths,
            rls: rls_config.map(|folder| (folder.clone(), RlsConfig::new(folder))),
            store,
            error: Mutex::default(),
        }
    }

    /// Reads and validates every file.
    pub(crate) fn read(&self) -> Result<ReadPolicies, LimitsError> {
        let limits = self.read_limits()?;
        let Some((folder, config)) = &self.rls else {
            let rls = Vec::new();
            return Ok(ReadPolicies { limits, rls });
        };
        let rls = config.read()?;
        for policy in &rls {
            let known = limits.iter().position(|p| p.domain == policy.domain);
            if let Some(first) = known.and_then(|at| self.paths.get(at)) {
                return Err(LimitsError::Twice {
                    domain: policy.domain.clone(),
                    first: first.clone(),
                    second: folder.clone(),
                });
            }
        }
        if rls.is_empty() {
            tracing::warn!(folder = %folder.display(), "--rls-config has no limits yet");
        }
        Ok(ReadPolicies { limits, rls })
    }

    fn is_none(&self) -> bool {
        self.paths.is_empty() && self.rls.is_none()
    }

    fn read_limits(&self) -> Result<Vec<Policy>, LimitsError> {
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

    /// Why the current files are not in force.
    pub(crate) fn error(&self) -> Option<String> {
        self.error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set_error(&self, error: Option<String>) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    /// Makes the store hold exactly the policies of the files.
    pub(crate) async fn impose(&self, policies: ReadPolicies) -> Result<(), EditError> {
        let ReadPolicies { mut limits, rls } = policies;
        limits.extend(rls);
        let policies = limits;
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
        for policy in &policies {
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

    /// Follows the files forever. If they become unusable, the limits stay as they are.
    pub(crate) async fn follow(&self, mut sighup: Sighup) {
        let mut pace = Pace::new();
        loop {
            let signalled = tokio::select! {
                () = sleep(POLL), if !self.is_none() => false,
                () = sighup.next() => true,
            };
            let rls_changed = self
                .rls
                .as_ref()
                .is_some_and(|(_, config)| config.changed());
            if self.is_none() {
                tracing::info!("SIGHUP changes nothing: there are no limits files");
            } else if self.watched.changed() || rls_changed || signalled {
                pace.turn().await;
                let began = Instant::now();
                self.again().await;
                pace.ended(began);
            }
        }
    }

    async fn again(&self) {
        let _alone = alone().await;
        let outcome = match self.read() {
            Ok(policies) => {
                let imposed = self.impose(policies).await;
                imposed.map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        let outcome = outcome.map_err(shortened);
        match &outcome {
            Ok(()) => tracing::info!("limits files read again"),
            Err(error) => tracing::error!(error, "the limits stay as they were"),
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
