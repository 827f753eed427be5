//! Reads the files after a change, once they no longer change.

use policy::Policy;

use super::{Applied, File, Stamps, Watch, plain};
use crate::commands::apply::{check_domain, read};
use crate::error::Error;

impl Watch<'_> {
    /// Reads the files if they changed, and have been stable for one turn.
    pub(super) async fn look_at_files(&mut self) {
        let now = match Stamps::of(&self.apply.files) {
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
        if Stamps::of(&self.apply.files).ok().as_ref() != Some(&now) {
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
            digests: Applied::of(&policy),
            policy,
            compared: None,
        };
        self.files = policies.into_iter().map(file).collect();
    }
}
