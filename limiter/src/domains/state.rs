//! The state of one domain, and what is logged when it changes.

use std::sync::Arc;

use policy::{Name, Revision};
use tokio::time::{Duration, Instant};

use super::Active;

/// An unusable record is read again after this long: it may have been half written, or the read may
/// have failed.
const RETRY: Duration = Duration::from_secs(2);

/// A domain as the last poll left it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Domain {
    /// The policy in force; `None`: never loaded.
    pub(crate) active: Option<Arc<Active>>,
    /// Why the policy in force differs from the store's record.
    pub(crate) fault: Option<Fault>,
}

/// What is wrong with a domain's record.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    /// A text for operators.
    pub(crate) message: String,
    /// When it was first seen.
    pub(crate) since: Instant,
    /// The revision of the unusable record, if there is a record.
    record: Option<Revision>,
    /// When it was tried last.
    tried: Instant,
    /// Whether operators hear of it. A new domain is listed a moment before its record is written, and
    /// that is no fault.
    pub(crate) reported: bool,
}

impl Domain {
    /// A domain with this in force, and nothing wrong.
    pub(super) fn sound(active: Active) -> Self {
        Self {
            active: Some(Arc::new(active)),
            fault: None,
        }
    }

    /// The same domain without its fault.
    pub(super) fn mended(self) -> Self {
        Self {
            fault: None,
            ..self
        }
    }

    /// The same domain with a fault; `record` is the revision that cannot be used, if there is a
    /// record at all.
    pub(super) fn faulty(self, message: String, record: Option<&Revision>) -> Self {
        let now = Instant::now();
        let since = match self.fault {
            Some(before) if before.message == message => before.since,
            _ => now,
        };
        let is_new = self.active.is_none() && record.is_none();
        let reported = !is_new || now.duration_since(since) >= RETRY;
        Self {
            active: self.active,
            fault: Some(Fault {
                message,
                since,
                record: record.cloned(),
                tried: now,
                reported,
            }),
        }
    }

    /// The revision in force.
    pub(super) fn revision(&self) -> Option<&Revision> {
        let active = self.active.as_ref()?;
        Some(active.compiled.revision())
    }

    /// Whether the same limits are in force as in this one, not merely equal ones.
    pub(super) fn has_the_limits_of(&self, other: &Self) -> bool {
        let actives = self.active.as_ref().zip(other.active.as_ref());
        actives.is_some_and(|(ours, theirs)| Arc::ptr_eq(ours, theirs))
    }

    /// Whether this revision is in force.
    pub(super) fn is_at(&self, revision: &Revision) -> bool {
        self.revision() == Some(revision)
    }

    /// Whether this revision was read recently and cannot be used.
    pub(super) fn was_tried(&self, revision: &Revision) -> bool {
        self.fault.as_ref().is_some_and(|fault| {
            fault.record.as_ref() == Some(revision) && fault.tried.elapsed() < RETRY
        })
    }

    /// Logs what is new since `before`.
    pub(super) fn report(&self, name: &Name, before: Option<&Self>) {
        if self.revision() != before.and_then(Self::revision)
            && let Some(active) = &self.active
        {
            tracing::info!(
                domain = %name,
                revision = active.compiled.revision().number,
                limits = active.compiled.limits().len(),
                "limits in force"
            );
        }
        let message = |domain: &Self| {
            let fault = domain.fault.as_ref().filter(|fault| fault.reported);
            fault.map(|fault| fault.message.clone())
        };
        match (message(self), before.and_then(message)) {
            (Some(now), before) if before.as_ref() != Some(&now) => {
                tracing::error!(domain = %name, fault = now, "the stored limits cannot be used");
            }
            (None, Some(_)) => tracing::info!(domain = %name, "the stored limits are good again"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_new_domain_is_no_fault_until_its_record_stays_away() {
        let reported = |domain: &Domain| domain.fault.as_ref().map(|fault| fault.reported);
        let missing = || "the record is gone".to_owned();
        let listed = Domain::default().faulty(missing(), None);
        assert_eq!(reported(&listed), Some(false));
        tokio::time::advance(RETRY / 2).await;
        let listed = listed.faulty(missing(), None);
        assert_eq!(reported(&listed), Some(false));
        tokio::time::advance(RETRY / 2).await;
        assert_eq!(reported(&listed.faulty(missing(), None)), Some(true));
        // A record that cannot be read is a fault at once.
        let revision = Revision {
            number: 1,
            digest: 1,
        };
        let unread = Domain::default().faulty("not JSON".to_owned(), Some(&revision));
        assert_eq!(reported(&unread), Some(true));
    }
}
