//! The penalty of a bucket of a check.

use algorithms::{Denials, Penalty, check::PenaltyRequest};

use crate::script::ScriptPenalty;

/// The penalty of one bucket.
#[derive(Debug)]
pub struct BucketPenalty {
    /// The key of its denials.
    pub key: String,
    /// When it is penalized.
    pub penalty: Penalty,
    /// Denials that proxies decided from their caches.
    pub(super) reported: u64,
}

impl BucketPenalty {
    /// The arguments for the algorithms.
    pub fn request<'a>(&self, stored: Option<&'a Denials>) -> PenaltyRequest<'a> {
        PenaltyRequest {
            penalty: self.penalty,
            stored,
            reported: self.reported,
        }
    }

    pub(super) fn as_script(&self) -> ScriptPenalty<'_> {
        ScriptPenalty {
            key: self.key.as_bytes(),
            penalty: self.penalty,
            reported: self.reported,
        }
    }
}
