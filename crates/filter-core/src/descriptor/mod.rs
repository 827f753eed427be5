//! What the policy is told of a request.
//!
//! The configuration says where entries come from, the policy which of them
//! matter: only those are asked of the host, as bytes, and nothing is assumed
//! about what a client put in them.

mod address;
mod text;

use std::{borrow::Cow, rc::Rc};

use policy::Name;
use protocol::MAX_VALUE;

pub use address::Prefixes;

/// What the host knows of a request.
pub trait Request {
    /// The first value of a header; names are lower case.
    fn header(&self, name: &str) -> Option<Cow<'_, [u8]>>;
    /// A property by its path, whose parts are parted by zero bytes.
    fn property(&self, path: &[u8]) -> Option<Vec<u8>>;
}

/// Where the value of an entry comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The request's method.
    Method,
    /// Its path, without the query.
    Path,
    /// Its host, in lower case and without the port.
    Host,
    /// The client's address, cut to a prefix.
    RemoteAddress(Prefixes),
    /// A header.
    Header(String),
    /// One of its cookies.
    Cookie(String),
    /// A parameter of its query.
    Query(String),
    /// A property of the host's, by its path.
    Property(Vec<u8>, Format),
    /// The same for every request.
    Constant(Vec<u8>),
}

/// How a property's bytes become a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// As they are.
    #[default]
    Text,
    /// Dynamic metadata holds text or a number, and does not say which.
    Metadata,
    /// A signed integer of 8 bytes, little end first.
    Integer,
}

/// What to extract: the keys that a policy needs, in its order, with the sources of those that
/// have one. A policy may name entries that this proxy was not told how to make; requests then
/// lack them.
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

    /// How many headers it reads, the path aside.
    pub(crate) fn other_headers(&self) -> usize {
        let sources = self.sources.iter().flatten();
        sources.filter(|source| source.is_other_header()).count()
    }

    /// Asks the host for what is wanted.
    pub(crate) fn extract(&self, request: &impl Request) -> Extracted {
        let value = |source: &Option<Source>| {
            let mut value = source.as_ref()?.value(request)?;
            // What is longer could not be sent, and a batch is the checks of many.
            value.truncate(MAX_VALUE);
            Some(value)
        };
        Extracted {
            keys: Rc::clone(&self.keys),
            values: self.sources.iter().map(value).collect(),
        }
    }
}

impl Source {
    fn is_other_header(&self) -> bool {
        match self {
            Self::Method | Self::Host | Self::Header(_) | Self::Cookie(_) => true,
            Self::Path
            | Self::Query(_)
            | Self::RemoteAddress(_)
            | Self::Property(..)
            | Self::Constant(_) => false,
        }
    }

    fn value(&self, request: &impl Request) -> Option<Vec<u8>> {
        match self {
            Self::Method => request.header(":method").map(Cow::into_owned),
            Self::Path => {
                let target = request.header(":path")?;
                Some(text::without_query(&target).to_vec())
            }
            Self::Host => Some(text::host(&request.header(":authority")?)),
            Self::RemoteAddress(prefixes) => {
                address::client(request.property(b"source\0address")?, *prefixes)
            }
            Self::Header(name) => request.header(name).map(Cow::into_owned),
            Self::Cookie(name) => text::cookie(&request.header("cookie")?, name.as_bytes()),
            Self::Query(name) => text::query(&request.header(":path")?, name.as_bytes()),
            Self::Property(path, format) => text::property(request.property(path)?, *format),
            Self::Constant(value) => Some(value.clone()),
        }
    }
}

impl Extracted {
    /// The keys, those without a value too.
    pub(crate) fn keys(&self) -> &Rc<[Name]> {
        &self.keys
    }

    /// The values, in the order of the keys.
    pub(crate) fn values(&self) -> Vec<Option<&[u8]>> {
        self.values.iter().map(Option::as_deref).collect()
    }

    /// The value of a key.
    pub(crate) fn value(&self, key: &Name) -> Option<&[u8]> {
        let at = self.keys.iter().position(|known| known == key)?;
        self.values.get(at)?.as_deref()
    }

    /// The size of all values, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.values.iter().flatten().map(Vec::len).sum()
    }

    /// Takes the values out, in the order of `keys`.
    pub(crate) fn take(&mut self, keys: &Rc<[Name]>) -> Vec<Option<Vec<u8>>> {
        let mut values = std::mem::take(&mut self.values);
        if Rc::ptr_eq(keys, &self.keys) {
            return values;
        }
        // The limits changed while the check waited beside others.
        let mut value = |key: &Name| {
            let at = self.keys.iter().position(|own| own == key)?;
            values.get_mut(at)?.take()
        };
        keys.iter().map(&mut value).collect()
    }
}
