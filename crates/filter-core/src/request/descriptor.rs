//! The descriptor of a request: the entries that the policy needs.
//!
//! The configuration says where entries come from, and the policy which of them it needs. The filter
//! reads only those from the host, as bytes, and assumes nothing about what a client put in them. A
//! value that a client can spell in many ways has one normal form, and no spelling makes a value seem
//! absent.

mod metadata;

use std::rc::Rc;

use address::Address;
use filter_config::{Format, IfSeveral, Prefixes, Source};
use normalize::percent_decode;
use policy::{Entries, MULTIPLE_VALUES, Name};
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
            client(request.property(b"source\0address").ok()?, *prefixes)
        }
        Source::Header(name, several) => {
            let mut found = Found::new(*several);
            request.headers(name).for_each(|value| found.add(value));
            found.value
        }
        Source::Cookie(name, several) => {
            let mut found = Found::new(*several);
            for line in request.headers("cookie") {
                read_cookie(line, name, &mut found);
            }
            found.value
        }
        Source::Query(name, several) => {
            let mut found = Found::new(*several);
            read_parameter(request.header(":path")?, name, &mut found);
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
            Some(if value == MULTIPLE_VALUES {
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
            (Some(known), IfSeveral::Share) if known != value => *known = MULTIPLE_VALUES.to_vec(),
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

// --- The client's address as an entry.

/// The address in Envoy's `source.address` (`10.0.0.1:80`, `[::1]:80`), its bits beyond the prefix set
/// to zero; `None` for a source that is no IP address (a Unix socket).
fn client(mut bytes: Vec<u8>, prefixes: Prefixes) -> Option<Vec<u8>> {
    let host = host(&bytes)?;
    // The zone of a link-local address (`fe80::1%eth0`) does not distinguish clients.
    let host = before(host, b'%').unwrap_or(host);
    let address = Address::parse(host)?;
    // Envoy writes addresses in canonical form, except IPv4 addresses mapped into IPv6.
    if address.is_v4() && prefixes.v4 >= 32 {
        let plain = host.len();
        bytes.truncate(plain);
        return Some(bytes);
    }
    let address = address.canonical();
    let prefix = if address.is_v4() {
        prefixes.v4
    } else {
        prefixes.v6
    };
    Some(address.cut(prefix).to_text())
}

/// An address without its port.
fn host(address: &[u8]) -> Option<&[u8]> {
    if let Some(v6) = address.strip_prefix(b"[") {
        return before(v6, b']');
    }
    let mut colons = address.iter().filter(|byte| **byte == b':');
    match (colons.next(), colons.next()) {
        (Some(_), None) => before(address, b':'),
        _ => Some(address),
    }
}

fn before(text: &[u8], end: u8) -> Option<&[u8]> {
    text.get(..text.iter().position(|byte| *byte == end)?)
}

// --- Cookies, parsed as leniently as any service does: what some service accepts as the cookie is found
// here, and all its spellings become one value.

/// Finds the values of a name in a `cookie` header.
///
/// Names are compared without case and decoded. Blanks around names and values, quotes,
/// backslashes within quotes and percent-encoding are undone.
#[inline(never)]
fn read_cookie(line: &[u8], name: &str, found: &mut Found) {
    for pair in line.split(|byte| *byte == b';') {
        if let Some(at) = pair.iter().position(|byte| *byte == b'=')
            && let Some((key, [_, value @ ..])) = pair.split_at_checked(at)
            && is_cookie_name(key.trim_ascii(), name)
        {
            found.add(&decoded_cookie(value));
        }
    }
}

fn is_cookie_name(key: &[u8], name: &str) -> bool {
    key.eq_ignore_ascii_case(name.as_bytes())
        || key.contains(&b'%') && percent_decode(key).eq_ignore_ascii_case(name.as_bytes())
}

fn decoded_cookie(value: &[u8]) -> Vec<u8> {
    let value = value.trim_ascii();
    match value {
        // Some services drop the last byte as the closing quote, whatever it is.
        [b'"', quoted @ .., _] => percent_decode(&unescaped(quoted)),
        _ => percent_decode(value),
    }
}

/// Undoes `\"` and `\101`.
fn unescaped(quoted: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(quoted.len());
    let mut rest = quoted;
    loop {
        rest = match rest {
            [] => return out,
            [
                b'\\',
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                after @ ..,
            ] => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                after
            }
            [b'\\', byte, after @ ..] | [byte, after @ ..] => {
                out.push(*byte);
                after
            }
        };
    }
}

// --- Parameters of a query, parsed as leniently as any service does.

/// Finds the decoded values of a name in the query of a request target.
///
/// `&` and `;` separate parameters. Names are decoded, and compared without case and surrounding
/// blanks.
#[inline(never)]
fn read_parameter(target: &[u8], name: &str, found: &mut Found) {
    let end = target.iter().position(|byte| *byte == b'#');
    let target = end.and_then(|end| target.get(..end)).unwrap_or(target);
    let Some(start) = target.iter().position(|byte| *byte == b'?') else {
        return;
    };
    let query = target.get(start + 1..).unwrap_or_default();
    for pair in query.split(|byte| matches!(byte, b'&' | b';')) {
        let at = pair.iter().position(|byte| *byte == b'=');
        if let Some((key, value)) = pair.split_at_checked(at.unwrap_or(pair.len()))
            && is_parameter_name(key, name)
        {
            found.add(&decoded_parameter(value.get(1..).unwrap_or_default()));
        }
    }
}

fn is_parameter_name(key: &[u8], name: &str) -> bool {
    key.eq_ignore_ascii_case(name.as_bytes())
        || key.iter().any(|byte| matches!(byte, b'%' | b'+' | ..=b' '))
            && (decoded_parameter(key).trim_ascii()).eq_ignore_ascii_case(name.as_bytes())
}

/// Undoes percent-encoding and `+`. What is not an encoding stays as it is.
fn decoded_parameter(text: &[u8]) -> Vec<u8> {
    let mut spaced = text.to_vec();
    for byte in &mut spaced {
        if *byte == b'+' {
            *byte = b' ';
        }
    }
    percent_decode(&spaced)
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod address_tests {
    use super::*;

    fn cut(address: &str, v4: u8, v6: u8) -> Option<String> {
        let value = client(address.as_bytes().to_vec(), Prefixes { v4, v6 })?;
        Some(String::from_utf8(value).unwrap())
    }

    #[test]
    fn addresses_lose_their_port_and_the_bits_after_the_prefix() {
        for (address, v4, v6, expected) in [
            ("10.1.2.3:41000", 32, 64, "10.1.2.3"),
            ("10.1.2.3:0", 24, 64, "10.1.2.0"),
            ("10.1.2.3", 32, 64, "10.1.2.3"),
            ("10.1.2.3:1", 0, 64, "0.0.0.0"),
            ("[2001:db8:1:2:3:4:5:6]:443", 32, 64, "2001:db8:1:2::"),
            ("[2001:db8::1]:443", 32, 128, "2001:db8::1"),
            ("2001:db8::1", 32, 0, "::"),
            ("[::ffff:10.1.2.3]:1", 32, 64, "10.1.2.3"),
            ("[::ffff:10.1.2.3]:1", 16, 64, "10.1.0.0"),
            ("[fe80::1%eth0]:80", 32, 128, "fe80::1"),
            ("fe80::1%2", 32, 128, "fe80::1"),
        ] {
            assert_eq!(cut(address, v4, v6).as_deref(), Some(expected), "{address}");
        }
    }

    #[test]
    fn an_invalid_address_yields_no_entry() {
        for address in ["", "/run/envoy.sock", "[::1", "a:b", "\u{fffd}"] {
            assert_eq!(cut(address, 32, 64), None, "{address:?}");
        }
        assert_eq!(client(vec![0xff], Prefixes::default()), None);
    }
}
