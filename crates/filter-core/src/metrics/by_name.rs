//! Counters by limit or exemption, of a bounded number of names.

use policy::Name;

/// Names that get counters of their own.
pub(super) const MAX_NAMES: usize = 256;
/// The name that the others share.
const OTHERS: &str = "_others";

/// `N` counters for each name.
#[derive(Debug)]
pub(super) struct ByName<const N: usize> {
    // Names stay, so that there are never more of them.
    named: Vec<(Name, [u64; N])>,
    others: [u64; N],
}

impl<const N: usize> Default for ByName<N> {
    fn default() -> Self {
        Self {
            named: Vec::new(),
            others: [0; N],
        }
    }
}

impl<const N: usize> ByName<N> {
    /// The counters of a name.
    pub(super) fn of(&mut self, name: &Name) -> &mut [u64; N] {
        let known = self.named.iter().position(|(known, _)| known == name);
        let at = match known {
            // Names that are counted often move to the front.
            Some(at @ 1..) => {
                self.named.swap(at, at - 1);
                at - 1
            }
            Some(0) => 0,
            None if self.named.len() < MAX_NAMES => {
                self.named.push((name.clone(), [0; N]));
                self.named.len() - 1
            }
            None => return &mut self.others,
        };
        match self.named.get_mut(at) {
            Some((_, counts)) => counts,
            None => &mut self.others,
        }
    }

    /// The names that have counters of their own.
    pub(super) fn named(&self) -> &[(Name, [u64; N])] {
        &self.named
    }

    pub(super) fn is_zero(&self) -> bool {
        let mut named = self.named.iter().map(|(_, counts)| counts);
        named.all(|counts| *counts == [0; N]) && self.others == [0; N]
    }

    /// Takes the counts: calls `each` with the name, the counter's index, and the count.
    pub(super) fn take(&mut self, mut each: impl FnMut(&str, usize, u64)) {
        let named = self.named.iter_mut();
        let named = named.map(|(name, counts)| (name.as_str(), counts));
        for (name, counts) in named.chain([(OTHERS, &mut self.others)]) {
            for (at, count) in counts.iter_mut().enumerate().filter(|(_, n)| **n > 0) {
                each(name, at, std::mem::take(count));
            }
        }
    }
}
