//! What the proxy knows of one request.

use std::collections::BTreeMap;

use crate::Name;

/// The entries extracted from one request: `method=GET`, `user=alice`, ...
///
/// Values are bytes, because a header may hold any; nothing here assumes UTF-8.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    entries: BTreeMap<Name, Vec<u8>>,
}

impl Descriptor {
    /// A descriptor without entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets an entry; a later value of the same key replaces the earlier one.
    pub fn insert(&mut self, key: Name, value: impl Into<Vec<u8>>) {
        self.entries.insert(key, value.into());
    }

    /// The value of a key, if the request has one. An empty value is a value.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.entries.get(key).map(Vec::as_slice)
    }

    /// The entries in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, &[u8])> {
        self.entries.iter().map(|(k, v)| (k, v.as_slice()))
    }
}

impl FromIterator<(Name, Vec<u8>)> for Descriptor {
    fn from_iter<I: IntoIterator<Item = (Name, Vec<u8>)>>(entries: I) -> Self {
        Self {
            entries: entries.into_iter().collect(),
        }
    }
}

/// Where the values of a request's entries come from.
pub trait Entries {
    /// The value of an entry, if the request has it. An empty value is a value.
    fn get(&self, key: &str) -> Option<&[u8]>;
}

impl Entries for Descriptor {
    fn get(&self, key: &str) -> Option<&[u8]> {
        Self::get(self, key)
    }
}
