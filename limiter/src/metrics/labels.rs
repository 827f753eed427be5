//! The labels of metrics.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct CheckLabels {
    pub(super) domain: String,
    pub(super) limit: String,
    pub(super) decision: Decision,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct DomainLabels {
    pub(super) domain: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct LimitLabels {
    pub(super) domain: String,
    pub(super) limit: String,
}

impl LimitLabels {
    pub(super) fn new(domain: &str, limit: &str) -> Self {
        Self {
            domain: domain.to_owned(),
            limit: limit.to_owned(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RefusedLabels {
    pub(super) code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct UnmatchedLabels {
    pub(super) reason: Unmatched,
}

/// Why no limit applies to a descriptor of Envoy's rate limit service: there is no such domain, or
/// the domain has no matching limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the label's values, as they are read")]
pub(crate) enum Unmatched {
    domain,
    limit,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct CutLabels {
    pub(super) reason: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the label's values, as they are read")]
pub(super) enum Decision {
    allowed,
    denied,
    would_deny,
    degraded,
}

pub(super) const DECISIONS: [Decision; 4] = [
    Decision::allowed,
    Decision::denied,
    Decision::would_deny,
    Decision::degraded,
];

pub(super) fn labels(domain: &str) -> DomainLabels {
    DomainLabels {
        domain: domain.to_owned(),
    }
}

pub(super) fn check_labels(domain: &str, limit: &str, decision: Decision) -> CheckLabels {
    CheckLabels {
        domain: domain.to_owned(),
        limit: limit.to_owned(),
        decision,
    }
}
