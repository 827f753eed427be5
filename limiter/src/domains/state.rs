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
        Self {
            active: self.active,
            fault: Some(Fault {
                message,
                since,
                record: record.cloned(),
                tried: now,
            }),
        }
    }

    /// The revision in force.
    pub(super) fn revision(&self) -> Option<&Revision> {
        let active = self.active.as_ref()?;
        Some(active.compiled.revision())
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
        let message = |domain: &Self| domain.fault.as_ref().map(|fault| fault.message.clone());
        match (message(self), before.and_then(message)) {
            (Some(now), before) if before.as_ref() != Some(&now) => {
                tracing::error!(domain = %name, fault = now, "the stored limits cannot be used");
            }
            (None, Some(_)) => tracing::info!(domain = %name, "the stored limits are good again"),
            _ => {}
        }
    }
}
