//! Shared data with Envoy's rules, for tests.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
};

use policy::Compiled;

use crate::{
    Worker,
    active_policy::PolicyState,
    host::{CasMismatch, Host, Version, Versioned},
};

impl Worker {
    /// The limits in force.
    pub fn in_force(&self) -> Option<&Compiled> {
        match &self.policy.state {
            PolicyState::Limits(policy) => Some(&policy.compiled),
            PolicyState::NoLimits | PolicyState::Unknown => None,
        }
    }
}

/// The map of one Envoy process. Versions count up over all keys; an absent key accepts any
/// version, and version 0 matches any value.
#[derive(Debug, Default)]
pub struct SharedData {
    values: RefCell<HashMap<Vec<u8>, Versioned>>,
    writes: Cell<u32>,
    lose: Cell<u32>,
    calls: Cell<u64>,
}

impl SharedData {
    /// Overwrites a value as another plugin could.
    pub fn overwrite(&self, key: &[u8], value: &[u8]) {
        self.write(key, value);
    }

    /// Makes the next writes fail, as if another worker wrote the same value first.
    pub fn lose_writes(&self, count: u32) {
        self.lose.set(count);
    }

    /// How often workers have read or written.
    pub fn calls(&self) -> u64 {
        self.calls.get()
    }

    /// The number of keys, and their size with the values in bytes.
    pub fn size(&self) -> (usize, usize) {
        let values = self.values.borrow();
        let bytes = values.iter().map(|(k, v)| k.len() + v.bytes.len()).sum();
        (values.len(), bytes)
    }

    /// The keys.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        self.values.borrow().keys().cloned().collect()
    }

    fn write(&self, key: &[u8], value: &[u8]) {
        self.writes.set(self.writes.get() + 1);
        let value = Versioned {
            bytes: value.to_vec(),
            version: Version(self.writes.get()),
        };
        self.values.borrow_mut().insert(key.to_vec(), value);
    }
}

impl Host for SharedData {
    fn load(&self, key: &[u8]) -> Option<Versioned> {
        self.calls.set(self.calls.get() + 1);
        self.values.borrow().get(key).cloned()
    }

    fn swap(&self, key: &[u8], value: &[u8], expected: Version) -> Result<(), CasMismatch> {
        self.calls.set(self.calls.get() + 1);
        if self.lose.get() > 0 {
            self.lose.set(self.lose.get() - 1);
            let there = self.load(key).map_or_else(Vec::new, |read| read.bytes);
            self.write(key, &there);
            return Err(CasMismatch);
        }
        let current = self.values.borrow().get(key).map(|read| read.version);
        match current {
            Some(version) if expected != version && expected != Version(0) => Err(CasMismatch),
            _ => {
                self.write(key, value);
                Ok(())
            }
        }
    }
}
