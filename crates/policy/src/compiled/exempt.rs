//! Which exemption applies to a request, by the same lookups that find limits.

use documents::Name;

use super::{
    Compiled, find,
    index::{Conditions, Index},
};
use crate::{Entries, Exemption, Matcher};

/// The exemptions of a domain that has any.
#[derive(Debug)]
pub(super) struct Exempt {
    /// For each matcher of each exemption, the position of its entry in the compiled keys.
    keys: Vec<Vec<usize>>,
    index: Index,
}

impl Exempt {
    pub(super) fn new(exemptions: &[Exemption], keys: &[Name]) -> Option<Self> {
        if exemptions.is_empty() {
            return None;
        }
        let position = |matcher: &Matcher| find(keys, &matcher.entry).ok();
        let matchers = exemptions.iter().map(|found| found.matchers.iter());
        let positions: Vec<Vec<usize>> = matchers
            .map(|matchers| matchers.filter_map(position).collect())
            .collect();
        let conditions = exemptions.iter().zip(&positions);
        let conditions: Vec<Conditions<'_>> = conditions
            .map(|(exemption, keys)| Conditions {
                matchers: &exemption.matchers,
                keys,
                never: false,
            })
            .collect();
        Some(Self {
            index: Index::new(&conditions, keys.len()),
            keys: positions,
        })
    }

    /// The first exemption that certainly holds.
    pub(super) fn find<'x>(
        &self,
        exemptions: &'x [Exemption],
        values: &[Option<&[u8]>],
    ) -> Option<&'x Exemption> {
        let candidates = self.index.candidates(values);
        candidates.iter().find_map(|at| {
            let exemption = exemptions.get(at)?;
            let mut matchers = exemption.matchers.iter().zip(self.keys.get(at)?);
            let holds = matchers
                .all(|(matcher, key)| matcher.holds_surely(values.get(*key).copied().flatten()));
            holds.then_some(exemption)
        })
    }
}

impl Compiled {
    /// The first exemption that applies to a request, whatever is paused.
    pub fn exemption(&self, entries: &(impl Entries + ?Sized)) -> Option<&Exemption> {
        self.shape.exempt.as_ref()?;
        let keys = self.shape.keys.iter();
        let values: Vec<Option<&[u8]>> = keys.map(|key| entries.get(key.as_str())).collect();
        self.exemption_of_values(&values)
    }

    /// As [`Compiled::exemption`], for values in the order of [`Compiled::needed_keys`].
    pub(super) fn exemption_of_values(&self, values: &[Option<&[u8]>]) -> Option<&Exemption> {
        let exempt = self.shape.exempt.as_ref()?;
        exempt.find(&self.policy.exempt, values)
    }

    /// The exemptions, in the order of the policy.
    pub fn exemptions(&self) -> &[Exemption] {
        &self.policy.exempt
    }
}
