//! Where entries come from.

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
    /// A hash of another's value, which itself stays in the proxy.
    Hashed(Box<Source>),
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

/// How much of an address tells clients apart, in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefixes {
    /// Of an IPv4 address, at most 32.
    pub v4: u8,
    /// Of an IPv6 address, at most 128. One client usually owns 64 bits.
    pub v6: u8,
}

impl Default for Prefixes {
    fn default() -> Self {
        Self { v4: 32, v6: 64 }
    }
}
