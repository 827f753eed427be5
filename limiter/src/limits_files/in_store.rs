//! Writes limits from files into a store that other limiters and operators also write.

use policy::Policy;
use store::{EditError, Overrides, Stored};
use tokio::time::{Duration, Instant, sleep};

use super::{LimitsFiles, POLL, ReadPolicies};
use crate::{
    aside::{Pace, alone},
    domains::Domains,
    log::shortened,
    rls_config::{PublishError, Publisher, RlsConfig},
    sighup::Sighup,
};

/// The pause before a failed call of the store is repeated.
const RETRY: Duration = Duration::from_millis(200);

impl LimitsFiles {
    /// Fills the domains that have no record once the store answers, then follows `--rls-config`.
    /// Without `--rls-config`, SIGHUP changes nothing, but must not end the process.
    pub(crate) async fn fill_and_follow(
        &self,
        policies: ReadPolicies,
        domains: &Domains,
        mut sighup: Sighup,
    ) {
        let was_empty = policies.is_empty();
        self.fill(policies.limits).await;
        let mut publisher = Publisher::new(std::sync::Arc::clone(&self.store), "--rls-config");
        let error = loop {
            match self.publish(&mut publisher, &policies.rls).await {
                Err(error) if error.is_outage() => sleep(RETRY).await,
                outcome => break outcome.err(),
            }
        };
        if !was_empty {
            domains.filled().await;
        }
        let Some((_, config)) = &self.rls else {
            loop {
                sighup.next().await;
                tracing::info!("SIGHUP changes nothing: the limits are in the store, not in files");
            }
        };
        let unwritten = error.map(|_| policies.rls);
        self.follow_rls(config, publisher, unwritten, sighup).await;
    }

    /// `unwritten` are limits that are to be put in force, and could not be yet.
    async fn follow_rls(
        &self,
        config: &RlsConfig,
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
            let changed = config.changed() || signalled;
            if !changed && unwritten.is_none() {
                continue;
            }
            pace.turn().await;
            let alone = alone().await;
            let began = Instant::now();
            if changed {
                // The last limits are dropped first. If the files are wrong, those in the store stay
                // in force, and nothing is written until the files change.
                unwritten = None;
                match self.read() {
                    Ok(policies) => unwritten = Some(policies.rls),
                    Err(error) => self.report(Some(error.to_string())),
                }
            }
            if let Some(policies) = &unwritten
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
        policies: &[Policy],
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
            // The record is older, or another replica was faster.
            Err(EditError::Conflict { .. }) => tracing::warn!(
                %domain,
                "the limits file is ignored: the store has a record of the domain; \
                 `rlctl diff -f` shows the difference, `rlctl apply -f` makes the edit"
            ),
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
