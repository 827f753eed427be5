//! The descriptor of a request: the entries that the policy needs.
//!
//! The configuration says where entries come from, and the policy which of them it needs. The filter
//! reads only those from the host, as bytes, and assumes nothing about what a client put in them. A
//! value that a client can spell in many ways has one normal form, and no spelling makes a value seem
//! absent.

mod address;
mod cookie;
mod metadata;
mod query;

use std::rc::Rc;

use filter_config::{Format, IfSeveral, Source};
use policy::{Entries, Name, SEVERAL};
use protocol::MAX_VALUE;

/// A request at the host.
pub trait Request {
    /// The values of a header in their order; names are lower case.
    fn headers<'r>(&'r self, name: &str) -> impl Iterator<Item = &'r [u8]>;
    /// A property by its path, whose parts are separated by zero bytes.
    fn property(&self, path: &[u8]) -> Result<Vec<u8>, NoProperty>;

    /// Whether a body follows.
    fn has_body(&self) -> bool {
        false
    }

    /// The first value of a header.
    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers(name).next()
    }
}

/// Why the host gives no value of a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoProperty {
    /// The property does not exist.
    Absent,
    /// It exists, but the host cannot encode it as bytes.
    Unreadable,
}

/// The keys that a policy needs, in its order, and their sources. A policy may name entries for which
/// this proxy has no source; requests then lack them.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    keys: Rc<[Name]>,
    sources: Vec<Option<Source>>,
}

/// The entries of one request.
#[derive(Clone, Debug)]
pub(crate) struct Extracted {
    keys: Rc<[Name]>,
    /// In the order of the keys.
    values: Vec<Option<Vec<u8>>>,
}

impl Plan {
    /// A plan for the keys of a policy.
    pub(crate) fn new(keys: &[Name], sources: &[(Name, Source)]) -> Self {
        let find = |key: &Name| sources.iter().find(|(name, _)| name == key);
        let source = |key: &Name| find(key).map(|(_, source)| source.clone());
        Self {
            keys: keys.into(),
            sources: keys.iter().map(source).collect(),
        }
    }

    /// Reads the entries from the host.
    pub(crate) fn extract(&self, request: &impl Request) -> Extracted {
        let value = |source: &Option<Source>| {
            let mut value = value_of(source.as_ref()?, request)?;
            // A call carries the checks of many requests, so a longer value could not be sent.
            value.truncate(MAX_VALUE);
            Some(value)
        };
        Extracted {
            keys: Rc::clone(&self.keys),
            values: self.sources.iter().map(value).collect(),
        }
    }
}

fn value_of(source: &Source, request: &impl Request) -> Option<Vec<u8>> {
    match source {
        Source::Method => request.header(":method").map(normalize::method),
        Source::Path => {
            let target = request.header(":path")?;
            Some(normalize::path(target).into_owned())
        }
        Source::Host => request.header(":authority").map(normalize::host),
        Source::RemoteAddress(prefixes) => {
            address::client(request.property(b"source\0address").ok()?, *prefixes)
        }
        Source::Header(name, several) => {
            let mut found = Found::new(*several);
            request.headers(name).for_each(|value| found.add(value));
            found.value
        }
        Source::Cookie(name, several) => {
            let mut found = Found::new(*several);
            for line in request.headers("cookie") {
                cookie::read(line, name, &mut found);
            }
            found.value
        }
        Source::Query(name, several) => {
            let mut found = Found::new(*several);
            query::read(request.header(":path")?, name, &mut found);
            found.value
        }
        Source::Property(path, Format::Metadata) => metadata::value(path, request),
        Source::Property(path, format) => {
            let bytes = request.property(path).ok()?;
            Some(match (format, <[u8; 8]>::try_from(bytes.as_slice())) {
                (Format::Integer, Ok(number)) => {
                    i64::from_le_bytes(number).to_string().into_bytes()
                }
                _ => bytes,
            })
        }
        Source::Constant(value) => Some(value.clone()),
        Source::Hashed(source) => {
            let value = value_of(source, request)?;
            Some(if value == SEVERAL {
                value
            } else {
                normalize::hashed(&value)
            })
        }
    }
}

/// The value of an entry that a client may give several times.
struct Found {
    value: Option<Vec<u8>>,
    several: IfSeveral,
}

impl Found {
    fn new(several: IfSeveral) -> Self {
        Self {
            value: None,
            several,
        }
    }

    fn add(&mut self, value: &[u8]) {
        match (&mut self.value, self.several) {
            (Some(known), IfSeveral::Share) if known != value => *known = SEVERAL.to_vec(),
            (Some(_), IfSeveral::Share | IfSeveral::First) => {}
            (found, _) => *found = Some(value.to_vec()),
        }
    }
}

impl Entries for Extracted {
    fn get(&self, key: &str) -> Option<&[u8]> {
        let at = self.keys.iter().position(|known| known.as_str() == key)?;
        self.values.get(at)?.as_deref()
    }
}

impl Extracted {
    /// The keys, including those without a value.
    pub(crate) fn keys(&self) -> &Rc<[Name]> {
        &self.keys
    }

    /// The values, in the order of the keys.
    pub(crate) fn values(&self) -> Vec<Option<&[u8]>> {
        self.values.iter().map(Option::as_deref).collect()
    }

    /// The value of a key.
    pub(crate) fn value(&self, key: &Name) -> Option<&[u8]> {
        self.get(key.as_str())
    }

    /// The size of all values, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.values.iter().flatten().map(Vec::len).sum()
    }

    /// The values in the order of `keys`, moved out if possible, until [`Extracted::give_back`].
    pub(crate) fn lend(&mut self, keys: &Rc<[Name]>) -> Vec<Option<Vec<u8>>> {
        if Rc::ptr_eq(keys, &self.keys) {
            return std::mem::take(&mut self.values);
        }
        // The limits changed while the check waited, so its keys differ from those of the batch.
        let value = |key: &Name| self.value(key).map(<[u8]>::to_vec);
        keys.iter().map(value).collect()
    }

    /// Puts back the values that [`Extracted::lend`] returned for the same keys.
    pub(crate) fn give_back(&mut self, keys: &Rc<[Name]>, values: Vec<Option<Vec<u8>>>) {
        if Rc::ptr_eq(keys, &self.keys) {
            self.values = values;
        }
    }
}

#[cfg(test)]
mod tests;
