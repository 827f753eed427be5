//! Writes limits from files into a store that other limiters and operators also write.

use policy::Policy;
use store::{EditError, Overrides, Stored};
use tokio::time::{Duration, Instant, sleep};

use super::{LimitsFiles, POLL, ReadPolicies};
use crate::{
    domains::Domains,
    log::shortened,
    rls_config::{Publisher, RlsConfig},
    sighup::Sighup,
};

/// The pause before a failed call of the store is repeated.
const RETRY: Duration = Duration::from_millis(200);

/// The pause before another attempt to put limits from `--rls-config` in force.
const RLS_RETRY: Duration = Duration::from_secs(1);

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
        while !self.publish(&mut publisher, &policies.rls).await {
            sleep(RETRY).await;
        }
        if !was_empty {
            domains.filled().await;
        }
        let Some((_, config)) = &self.rls else {
            loop {
                sighup.next().await;
                tracing::info!("SIGHUP changes nothing: the limits are in the store, not in files");
            }
        };
        self.follow_rls(config, publisher, policies.rls, sighup)
            .await;
    }

    async fn follow_rls(
        &self,
        config: &RlsConfig,
        mut publisher: Publisher,
        mut wanted: Vec<Policy>,
        mut sighup: Sighup,
    ) {
        let mut retry_at = Instant::now() + RLS_RETRY;
        // Unreadable files stay an error until they change, even while the last limits stay in
        // force.
        let mut broken = false;
        loop {
            let signalled = tokio::select! {
                () = sleep(POLL) => false,
                () = sighup.next() => true,
            };
            if config.changed() || signalled {
                let read = self.read();
                broken = read.is_err();
                match read {
                    Ok(policies) => wanted = policies.rls,
                    Err(error) => self.report(Some(error.to_string())),
                }
            } else if self.error().is_none() || Instant::now() < retry_at {
                continue;
            }
            if broken {
                continue;
            }
            self.publish(&mut publisher, &wanted).await;
            retry_at = Instant::now() + RLS_RETRY;
        }
    }

    /// Publishes the limits of `--rls-config`; returns whether the store answered.
    async fn publish(&self, publisher: &mut Publisher, policies: &[Policy]) -> bool {
        let error = publisher.publish(policies).await.err();
        self.report(error.as_ref().map(ToString::to_string));
        !error.is_some_and(|error| error.is_outage())
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
