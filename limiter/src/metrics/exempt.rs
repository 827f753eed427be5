//! Checks of requests that are exempt.

use policy::{Compiled, Name};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

/// A counter for each exemption.
#[derive(Debug, Default)]
pub(super) struct Exempt(Family<Labels, Counter>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    domain: String,
    exemption: String,
}

impl Labels {
    fn new(domain: &str, exemption: &str) -> Self {
        Self {
            domain: domain.to_owned(),
            exemption: exemption.to_owned(),
        }
    }
}

impl Exempt {
    pub(super) fn register(&self, all: &mut Registry) {
        let help = "Checks and descriptors that no limit applies to, by exemption; those that proxies let pass are in Envoy's metrics";
        all.register("exempt", help, self.0.clone());
    }

    /// The counters of a domain, in the order of its exemptions.
    pub(super) fn of(&self, policy: &Compiled) -> Vec<(Name, Counter)> {
        let domain = policy.domain().as_str();
        let names = policy.exemptions().iter().map(|exemption| &exemption.name);
        let counter = |name: &Name| {
            let labels = Labels::new(domain, name.as_str());
            self.0.get_or_create_owned(&labels)
        };
        names.map(|name| (name.clone(), counter(name))).collect()
    }

    pub(super) fn forget(&self, domain: &str, exemption: &str) {
        self.0.remove(&Labels::new(domain, exemption));
    }
}
