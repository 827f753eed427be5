//! The results of comparing with another rate limit service.

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

/// What came of one call: the same, over a limit only in one of the two, no answer from the other, or
/// not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the label's values, as they are read")]
pub(crate) enum Compared {
    same,
    only_here,
    only_there,
    failed,
    dropped,
}

const ALL: [Compared; 5] = [
    Compared::same,
    Compared::only_here,
    Compared::only_there,
    Compared::failed,
    Compared::dropped,
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    domain: String,
    outcome: Compared,
}

/// The calls by outcome.
#[derive(Debug, Default)]
pub(super) struct Comparisons(Family<Labels, Counter>);

impl Comparisons {
    pub(super) fn register(&self, all: &mut Registry) {
        all.register(
            "compared",
            "Calls of Envoy's rate limit service that --compare-with decided, too, by outcome",
            self.0.clone(),
        );
    }

    /// Counts a call; unknown domains are counted together under an empty name.
    pub(super) fn count(&self, domain: Option<String>, outcome: Compared) {
        let domain = domain.unwrap_or_default();
        self.0.get_or_create(&Labels { domain, outcome }).inc();
    }

    pub(super) fn forget(&self, domain: &str) {
        for outcome in ALL {
            let domain = domain.to_owned();
            self.0.remove(&Labels { domain, outcome });
        }
    }
}
