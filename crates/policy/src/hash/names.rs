//! Names in the order in which they were added.

use super::{Positions, digest};

/// Distinct names, each found by a lookup. They must come from authors of limits, not from clients:
/// see `Positions`.
#[derive(Clone, Debug, Default)]
pub struct Names<'n> {
    list: Vec<&'n str>,
    positions: Positions,
}

impl<'n> Names<'n> {
    /// Adds a name; returns whether it is new.
    pub fn add(&mut self, name: &'n str) -> bool {
        if self.position(name).is_some() {
            return false;
        }
        self.positions.add(digest(name.as_bytes()), self.list.len());
        self.list.push(name);
        true
    }

    /// Where a name is in the list.
    pub fn position(&self, name: &str) -> Option<usize> {
        let mut positions = self.positions.of(digest(name.as_bytes()));
        positions.find(|at| self.list.get(*at).is_some_and(|known| *known == name))
    }

    /// All of them.
    pub fn list(&self) -> &[&'n str] {
        &self.list
    }
}
