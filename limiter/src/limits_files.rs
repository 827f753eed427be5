//! The limits files: they fill a store that has no limits yet, and are the policy if the store is
//! this process's memory.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use limits_file::FILE_MAX;
use policy::{Name, Policy, Problems};
use store::{EditError, Store, read_file};
use tokio::time::{Instant, sleep};

use crate::{
    aside::{Pace, alone},
    domains::Domains,
    log::shortened,
    publish::{PublishError, Publisher},
    rls_config::RlsConfig,
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
        error: io::Error,
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
    /// Whether the last attempt could not read a file, for lack of a file descriptor or of a permission:
    /// its stamp stays the same when that ends.
    unread: AtomicBool,
    store: Arc<dyn Store>,
    /// Of the limits files.
    publisher: Publisher,
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
            unread: AtomicBool::new(false),
            publisher: Publisher::new(Arc::clone(&store), "limits file"),
            store,
            error: Mutex::default(),
        }
    }

    /// Reads and validates every file.
    pub(crate) fn read(&self) -> Result<ReadPolicies, LimitsError> {
        let outcome = self.read_all();
        let unread = matches!(outcome, Err(LimitsError::Read { .. }));
        self.unread.store(unread, Ordering::Relaxed);
        outcome
    }

    fn read_all(&self) -> Result<ReadPolicies, LimitsError> {
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

    /// Whether the files of `--rls-config` differ from what was last read, or a file was not read.
    fn changed(&self) -> bool {
        let rls = self.rls.as_ref().is_some_and(|(_, rls)| rls.changed());
        rls || self.unread.load(Ordering::Relaxed)
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
        self.publisher.impose(&limits).await
    }

    /// Follows the files forever. If they become unusable, the limits stay as they are.
    pub(crate) async fn follow(&self, mut sighup: Sighup) {
        let mut pace = Pace::new();
        loop {
            let signalled = tokio::select! {
                () = sleep(POLL), if !self.is_none() => false,
                () = sighup.next() => true,
            };
            if self.is_none() {
                tracing::info!("SIGHUP changes nothing: there are no limits files");
            } else if self.watched.changed() || self.changed() || signalled {
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
        match outcome {
            Ok(()) => {
                tracing::info!("limits files read again");
                self.set_error(None);
            }
            Err(error) => self.report(Some(error)),
        }
    }
}

fn read(path: &Path) -> Result<Policy, LimitsError> {
    let unreadable = |error| LimitsError::Read {
        path: path.to_owned(),
        error,
    };
    let text = read_file(path, FILE_MAX).map_err(unreadable)?;
    limits_file::read(&path.to_string_lossy(), &text).map_err(LimitsError::Invalid)
}

// --- Writes limits from files into a store that other limiters and operators also write

/// The pause before a failed call of the store is repeated.
const RETRY: Duration = Duration::from_millis(200);

/// The pause before a domain is tried again that the store refused.
const REFUSED_RETRY: Duration = Duration::from_secs(2);

/// A domain that the store does not take from its limits file, for a reason of its own.
struct Refused {
    policy: Policy,
    why: String,
}

impl Refused {
    fn new(policy: Policy, error: &PublishError) -> Self {
        let why = shortened(format!("its limits file did not fill it: {error}"));
        Self { policy, why }
    }
}

fn reasons(refused: &[Refused]) -> BTreeMap<Name, String> {
    let reasons = refused
        .iter()
        .map(|r| (r.policy.domain.clone(), r.why.clone()));
    reasons.collect()
}

impl LimitsFiles {
    /// Fills the domains that have no record once the store answers, then follows `--rls-config`.
    /// Without `--rls-config`, SIGHUP changes nothing, but must not end the process.
    pub(crate) async fn fill_and_follow(
        &self,
        mut policies: ReadPolicies,
        domains: &Domains,
        mut sighup: Sighup,
    ) {
        let was_empty = policies.is_empty();
        let refused = self.fill(policies.limits).await;
        let mut publisher = Publisher::new(Arc::clone(&self.store), "--rls-config");
        let error = loop {
            match self.publish(&mut publisher, &mut policies.rls).await {
                Err(error) if error.is_outage() => sleep(RETRY).await,
                outcome => break outcome.err(),
            }
        };
        if !was_empty {
            domains.set_unfilled(reasons(&refused));
            domains.filled().await;
        }
        let unwritten = error.map(|_| policies.rls);
        let follow = async {
            if self.rls.is_some() {
                return self.follow_rls(publisher, unwritten, sighup).await;
            }
            loop {
                sighup.next().await;
                tracing::info!("SIGHUP changes nothing: the limits are in the store, not in files");
            }
        };
        tokio::join!(self.fill_refused(refused, domains), follow);
    }

    /// `unwritten` are limits that are to be put in force, and could not be yet.
    async fn follow_rls(
        &self,
        mut publisher: Publisher,
        mut unwritten: Option<Vec<Policy>>,
        mut sighup: Sighup,
    ) {
        let mut pace = Pace::new();
        pace.ended(Instant::now());
        loop {
            let signalled = tokio::select! {
                () = sleep(POLL) => false,
                () = sighup.next() => true,
            };
            let changed = self.changed() || signalled;
            if !changed && unwritten.is_none() {
                continue;
            }
            pace.turn().await;
            let alone = alone().await;
            let began = Instant::now();
            if changed {
                // The last limits are dropped first. If the files are wrong, those in the store stay
                // in force, and nothing is written until the files change or can be read.
                unwritten = None;
                match self.read() {
                    Ok(policies) => unwritten = Some(policies.rls),
                    Err(error) => self.report(Some(error.to_string())),
                }
            }
            if let Some(policies) = &mut unwritten
                && self.publish(&mut publisher, policies).await.is_ok()
            {
                unwritten = None;
            }
            drop(alone);
            pace.ended(began);
        }
    }

    /// Publishes the limits of `--rls-config`.
    async fn publish(
        &self,
        publisher: &mut Publisher,
        policies: &mut [Policy],
    ) -> Result<(), PublishError> {
        let outcome = publisher.publish(policies).await;
        self.report(outcome.as_ref().err().map(ToString::to_string));
        outcome
    }

    /// Records an error, and logs it if it is new.
    fn report(&self, error: Option<String>) {
        let error = error.map(shortened);
        if self.error() == error {
            return;
        }
        if let Some(error) = &error {
            tracing::error!(%error, "the limits stay as they were");
        } else {
            tracing::info!("the limits are in force as the files have them");
        }
        self.set_error(error);
    }

    /// Fills the domains once the store answers; returns those that it refuses.
    async fn fill(&self, policies: Vec<Policy>) -> Vec<Refused> {
        let mut refused = Vec::new();
        for policy in policies {
            loop {
                match self.fill_one(&policy).await {
                    Ok(()) => break,
                    Err(error) if error.is_outage() => {
                        let error = Some(error.to_string());
                        if self.error() != error {
                            let domain = &policy.domain;
                            tracing::warn!(%domain, error, "cannot fill the domain yet");
                            self.set_error(error);
                        }
                        sleep(RETRY).await;
                    }
                    Err(error) => {
                        refused.push(Refused::new(policy, &error));
                        break;
                    }
                }
            }
        }
        self.set_error(None);
        refused
    }

    /// Tries to fill these domains until the store holds them: an unreadable record may be repaired, and
    /// domains deleted.
    async fn fill_refused(&self, mut refused: Vec<Refused>, domains: &Domains) {
        while !refused.is_empty() {
            sleep(REFUSED_RETRY).await;
            let mut still = Vec::new();
            for refused in refused {
                match self.fill_one(&refused.policy).await {
                    Ok(()) => {}
                    Err(error) if error.is_outage() => still.push(refused),
                    Err(error) => still.push(Refused::new(refused.policy, &error)),
                }
            }
            refused = still;
            domains.set_unfilled(reasons(&refused));
        }
    }

    async fn fill_one(&self, policy: &Policy) -> Result<(), PublishError> {
        let domain = &policy.domain;
        if self.publisher.fill(policy).await? {
            tracing::info!(%domain, "filled from the limits file");
        } else {
            tracing::warn!(
                %domain,
                "the limits file is ignored: the store has a record of the domain; \
                 `rlctl diff -f` shows the difference, `rlctl apply -f` makes the edit"
            );
        }
        Ok(())
    }
}

// --- SIGHUP: read the files again

/// The signals received.
pub(crate) struct Sighup {
    #[cfg(unix)]
    signal: Option<tokio::signal::unix::Signal>,
}

impl Sighup {
    pub(crate) fn new() -> Self {
        Self {
            #[cfg(unix)]
            signal: {
                use tokio::signal::unix::{SignalKind, signal};
                signal(SignalKind::hangup())
                    .inspect_err(|error| tracing::warn!(%error, "cannot listen for SIGHUP: it will end the process"))
                    .ok()
            },
        }
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) {
        #[cfg(unix)]
        if let Some(signal) = &mut self.signal
            && signal.recv().await.is_some()
        {
            return;
        }
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use store::{Options, StoreUrl, open};

    use super::*;

    fn files(paths: Vec<PathBuf>, rls: Option<PathBuf>) -> LimitsFiles {
        let store = open(&StoreUrl::Memory, Options::default()).unwrap();
        LimitsFiles::new(paths, rls, store)
    }

    #[test]
    fn a_file_that_no_limits_fill_is_not_read_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("zeros.yaml");
        fs::File::create(&path)
            .unwrap()
            .set_len(FILE_MAX + 1)
            .unwrap();
        let error = files(vec![path], None).read().err().unwrap();
        let why = error.to_string();
        assert!(
            why.contains("zeros.yaml: it is larger than 256 MiB"),
            "{why}"
        );
    }

    #[test]
    fn files_that_could_not_be_read_are_read_again_though_they_stay_the_same() {
        let folder = tempfile::tempdir().unwrap();
        // A folder opens and gives an error when it is read, whoever reads it.
        let wrong = files(vec![folder.path().to_owned()], None);
        for _ in 0..2 {
            assert!(matches!(wrong.read(), Err(LimitsError::Read { .. })));
            assert!(wrong.changed());
        }
        let path = folder.path().join("limits.yaml");
        for text in ["domain: shop\nlimits: []\n", "not a limits file"] {
            fs::write(&path, text).unwrap();
            let valid = files(vec![path.clone()], None);
            assert_eq!(valid.read().is_ok(), text.starts_with("domain"));
            assert!(!valid.changed(), "{text} was read");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn so_are_those_of_rls_config() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shop.yaml");
        // It is a regular file whose first page cannot be read.
        std::os::unix::fs::symlink("/proc/self/mem", &path).unwrap();
        let files = files(Vec::new(), Some(folder.path().to_owned()));
        assert!(matches!(files.read(), Err(LimitsError::Read { .. })));
        assert!(files.changed());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "domain: shop\n").unwrap();
        assert!(files.read().is_ok());
        assert!(!files.changed());
    }
}
