//! What the policy is told of a request.
//!
//! The configuration says where entries come from, the policy which of them
//! matter: only those are asked of the host, as bytes, and nothing is assumed
//! about what a client put in them.

mod address;
mod hashed;
mod text;

use std::rc::Rc;

use filter_config::Source;
use policy::Name;
use protocol::MAX_VALUE;

/// What the host knows of a request.
pub trait Request {
    /// The first value of a header; names are lower case.
    fn header(&self, name: &str) -> Option<&[u8]>;
    /// A property by its path, whose parts are parted by zero bytes.
    fn property(&self, path: &[u8]) -> Option<Vec<u8>>;
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

    /// Asks the host for what is wanted.
    pub(crate) fn extract(&self, request: &impl Request) -> Extracted {
        let value = |source: &Option<Source>| {
            let mut value = value_of(source.as_ref()?, request)?;
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

fn value_of(source: &Source, request: &impl Request) -> Option<Vec<u8>> {
    match source {
        Source::Method => request.header(":method").map(<[u8]>::to_vec),
        Source::Path => {
            let target = request.header(":path")?;
            Some(text::without_query(target).to_vec())
        }
        Source::Host => Some(text::host(request.header(":authority")?)),
        Source::RemoteAddress(prefixes) => {
            address::client(request.property(b"source\0address")?, *prefixes)
        }
        Source::Header(name) => request.header(name).map(<[u8]>::to_vec),
        Source::Cookie(name) => text::cookie(request.header("cookie")?, name.as_bytes()),
        Source::Query(name) => text::query(request.header(":path")?, name.as_bytes()),
        Source::Property(path, format) => text::property(request.property(path)?, *format),
        Source::Constant(value) => Some(value.clone()),
        Source::Hashed(source) => Some(hashed::hashed(&value_of(source, request)?)),
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

    /// The values in the order of `keys`, to be lent until [`Extracted::give_back`].
    pub(crate) fn lend(&mut self, keys: &Rc<[Name]>) -> Vec<Option<Vec<u8>>> {
        if Rc::ptr_eq(keys, &self.keys) {
            return std::mem::take(&mut self.values);
        }
        // The limits changed while the check waited beside others.
        let value = |key: &Name| self.value(key).map(<[u8]>::to_vec);
        keys.iter().map(value).collect()
    }

    /// Takes back what was lent for the same keys.
    pub(crate) fn give_back(&mut self, keys: &Rc<[Name]>, values: Vec<Option<Vec<u8>>>) {
        if Rc::ptr_eq(keys, &self.keys) {
            self.values = values;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Cookies(&'static [u8]);

    impl Request for Cookies {
        fn header(&self, name: &str) -> Option<&[u8]> {
            (name == "cookie").then_some(self.0)
        }

        fn property(&self, _path: &[u8]) -> Option<Vec<u8>> {
            None
        }
    }

    #[test]
    fn a_hashed_value_stays_here_and_an_absent_one_stays_absent() {
        let sid: Name = "sid".parse().unwrap();
        let source = Source::Hashed(Box::new(Source::Cookie("sid".to_owned())));
        let plan = Plan::new(std::slice::from_ref(&sid), &[(sid.clone(), source)]);
        let found = plan.extract(&Cookies(b"sid=abc; theme=dark"));
        let hash = b"ba7816bf8f01cfea414140de5dae2223";
        assert_eq!(found.values(), [Some(&hash[..])]);
        assert_eq!(plan.extract(&Cookies(b"theme=dark")).values(), [None]);
    }
}
