//! The descriptor entries that live proxies supply, which limits are checked against.

use std::collections::BTreeMap;

use policy::{BUILT_IN, Name, Supply};
use store::Fleet;

/// All entries that the proxies of each domain supply; unknown for domains that are not in it.
#[derive(Debug, Default)]
pub struct LiveEntries(BTreeMap<Name, Vec<Name>>);

impl LiveEntries {
    /// The entries that proxies have reported.
    pub fn of(fleet: &Fleet) -> Self {
        let built_in = BUILT_IN.iter().filter_map(|name| name.parse().ok());
        let domains = fleet.entries.iter().map(|(domain, own)| {
            let entries = built_in.clone().chain(own.iter().cloned());
            (domain.clone(), entries.collect())
        });
        Self(domains.collect())
    }

    /// What a domain's limits are checked against; `None` if unknown.
    pub fn supply(&self, domain: &Name) -> Option<Supply<'_>> {
        self.0.get(domain).map(|entries| Supply {
            entries,
            domains: &[],
            prefixes: None,
            source: None,
        })
    }
}
