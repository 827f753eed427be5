//! Sources of entries.

use policy::{Alterations, Name, REMOTE_ADDRESS};

/// The source of an entry's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The request's method.
    Method,
    /// Its path, in normal form.
    Path,
    /// Its host, in normal form.
    Host,
    /// The client's address, cut to a prefix.
    RemoteAddress(Prefixes),
    /// A header.
    Header(String, IfSeveral),
    /// One of its cookies.
    Cookie(String, IfSeveral),
    /// A parameter of its query.
    Query(String, IfSeveral),
    /// A property of the host's, by its path.
    Property(Vec<u8>, Format),
    /// A constant, the same for every request.
    Constant(Vec<u8>),
    /// A hash of another source's value; the value itself stays in the proxy.
    Hashed(Box<Source>),
}

impl Source {
    /// How a filter lists what it does to the values of this entry.
    pub fn mark(&self, entry: &Name) -> Option<String> {
        match self {
            Self::RemoteAddress(Prefixes { v4, v6 }) if entry.as_str() == REMOTE_ADDRESS => {
                Some(Alterations::cut_mark([*v4, *v6]))
            }
            Self::Hashed(_) => Alterations::hashed_mark(entry),
            _ => None,
        }
    }
}

/// Which of several different values of a header, cookie or parameter is the entry's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfSeveral {
    /// None: it is unknown which one the service takes, so all such requests share a bucket
    /// ([`policy::SEVERAL`]).
    #[default]
    Share,
    /// The first, as the service does.
    First,
    /// The last, as the service does.
    Last,
}

/// How a property's bytes become a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Unchanged.
    #[default]
    Text,
    /// Dynamic metadata: text, numbers, booleans, lists and maps, all as text.
    Metadata,
    /// A signed integer of 8 bytes, little-endian; other lengths are unchanged.
    Integer,
}

/// How many bits of an address identify a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefixes {
    /// Of an IPv4 address, at most 32.
    pub v4: u8,
    /// Of an IPv6 address, at most 128. One client usually owns 64 bits.
    pub v6: u8,
}

impl Default for Prefixes {
    fn default() -> Self {
        let [v4, v6] = policy::DEFAULT_PREFIXES;
        Self { v4, v6 }
    }
}
