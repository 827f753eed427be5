//! The entries that describe one request.

use std::{borrow::Cow, collections::BTreeSet};

use address::Address;
use documents::Name;

/// The client's address, cut to the prefix by which proxies distinguish clients: a bucket is of a
/// prefix. Patterns test the [`WHOLE_ADDRESS`].
pub const REMOTE_ADDRESS: &str = "remote_address";

/// The client's address with all its bits; where a request has none, its [`REMOTE_ADDRESS`].
pub const WHOLE_ADDRESS: &str = "remote_address.whole";

/// The entries extracted from one request: `method=GET`, `user=alice`, ...
///
/// Values are bytes, because a header may hold any; nothing here assumes UTF-8. What a request can
/// spell in many ways is stored in its [normal form](normal_value).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Sorted by key, without repetition: a request has few entries, and they mostly come sorted.
    entries: Vec<(Name, Vec<u8>)>,
}

impl Descriptor {
    /// A descriptor without entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets an entry; a later value of the same key replaces the earlier one.
    pub fn insert(&mut self, key: Name, value: impl Into<Vec<u8>>) {
        let value = normal_value(key.as_str(), value.into());
        match self.entries.binary_search_by(|(known, _)| known.cmp(&key)) {
            Ok(at) => {
                if let Some(entry) = self.entries.get_mut(at) {
                    entry.1 = value;
                }
            }
            Err(at) => self.entries.insert(at, (key, value)),
        }
    }

    /// The value of a key, if the request has one. An empty value is a value.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        let found = self
            .entries
            .binary_search_by(|(known, _)| known.as_str().cmp(key));
        match found {
            Ok(at) => self.entries.get(at).map(|(_, value)| value.as_slice()),
            // Programs send one address, and cut it themselves if they do.
            Err(_) if key == WHOLE_ADDRESS => self.get(REMOTE_ADDRESS),
            Err(_) => None,
        }
    }

    /// The entries in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, &[u8])> {
        self.entries.iter().map(|(k, v)| (k, v.as_slice()))
    }
}

/// The value of an entry as proxies send it: a path, host, method or address in its normal form.
/// Other entries may be anything, and stay as they are.
pub fn normal_value(key: &str, mut value: Vec<u8>) -> Vec<u8> {
    match key {
        "path" => match normalize::path(&value) {
            Cow::Borrowed(path) if path.len() == value.len() => value,
            path => path.into_owned(),
        },
        "method" => {
            value.make_ascii_uppercase();
            value
        }
        "host" => normalize::host(&value),
        // An IPv4 address has one spelling, unless it is written as IPv6.
        REMOTE_ADDRESS | WHOLE_ADDRESS if value.contains(&b':') => match Address::parse(&value) {
            Some(address) => address.canonical().to_text(),
            None => value,
        },
        _ => value,
    }
}

impl FromIterator<(Name, Vec<u8>)> for Descriptor {
    fn from_iter<I: IntoIterator<Item = (Name, Vec<u8>)>>(entries: I) -> Self {
        let entries = entries.into_iter();
        let mut descriptor = Self {
            entries: Vec::with_capacity(entries.size_hint().0),
        };
        for (key, value) in entries {
            descriptor.insert(key, value);
        }
        descriptor
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

/// The entries that every proxy supplies, whatever its configuration.
pub const BUILT_IN: [&str; 8] = [
    "method",
    "path",
    "host",
    "route",
    REMOTE_ADDRESS,
    WHOLE_ADDRESS,
    "workload",
    "namespace",
];

/// Stands among the supplied entries if proxies read bodies of requests.
pub const REQUEST_BODY: &str = "request_body";

/// Stands there if a filter is configured to read bodies, but Envoy lets requests pass before the
/// bodies arrive.
pub const REQUEST_BODY_PASSES: &str = "request_body_passes";

/// Stands there if a check stream was refused since Envoy started, as a cluster without HTTP/2 does.
pub const CHECK_STREAM_REFUSED: &str = "check_stream_refused";

/// What proxies do to values before they match and count them. They list it among the entries that
/// they supply, so that tools name the same buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alterations {
    /// To how many bits filters cut an IPv4 and an IPv6 address; empty: not known.
    pub prefixes: BTreeSet<[u8; 2]>,
    /// The entries whose values are hashed.
    pub hashed: BTreeSet<Name>,
}

impl Alterations {
    /// Ends the name under which filters list an entry whose values they hash, beside the entry itself. No entry's
    /// own name does.
    pub const HASHED: &str = ".hashed";

    /// How a filter lists its prefix lengths.
    pub fn cut_mark([v4, v6]: [u8; 2]) -> String {
        format!("{REMOTE_ADDRESS}.{v4}.{v6}")
    }

    /// How a filter lists that it hashes the values of an entry; `None`: that is no name.
    pub fn hashed_mark(entry: &Name) -> Option<String> {
        let mark = format!("{entry}{}", Self::HASHED);
        (mark.len() <= Name::MAX_LEN).then_some(mark)
    }

    /// To how many bits filters cut addresses that list this name; `None`: it stands for something else.
    pub fn prefixes_of(name: &str) -> Option<[u8; 2]> {
        let lengths = name.strip_prefix(REMOTE_ADDRESS)?.strip_prefix('.')?;
        let (v4, v6) = lengths.split_once('.')?;
        Some([v4.parse().ok()?, v6.parse().ok()?])
    }

    /// Adds what a name in a list stands for; `false`: it is that of an entry.
    pub fn read_mark(&mut self, name: &Name, listed: impl Fn(&Name) -> bool) -> bool {
        let name = name.as_str();
        if let Some(prefixes) = Self::prefixes_of(name) {
            self.prefixes.insert(prefixes);
            return true;
        }
        let hashed = name
            .strip_suffix(Self::HASHED)
            .and_then(|name| name.parse().ok());
        let hashed = hashed.filter(listed);
        let is_mark = hashed.is_some();
        self.hashed.extend(hashed);
        is_mark
    }

    /// To how many bits addresses are cut: the most, if filters differ, and by default as a filter
    /// does without configuration.
    pub fn longest_prefixes(&self) -> [u8; 2] {
        let longest = |[a, b]: [u8; 2], [c, d]: &[u8; 2]| [a.max(*c), b.max(*d)];
        let found = self.prefixes.iter().fold([0, 0], longest);
        if self.prefixes.is_empty() {
            DEFAULT_PREFIXES
        } else {
            found
        }
    }
}

/// To how many bits a filter cuts an IPv4 and an IPv6 address if nothing is configured.
pub const DEFAULT_PREFIXES: [u8; 2] = [32, 64];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_a_key_counts() {
        let key = |text: &str| text.parse::<Name>().unwrap();
        let pairs = [("b", "1"), ("a", "2"), ("b", "3"), ("b", "4"), ("a", "5")];
        let pairs = pairs.map(|(k, v)| (key(k), v.as_bytes().to_vec()));
        let mut one_by_one = Descriptor::new();
        for (key, value) in pairs.clone() {
            one_by_one.insert(key, value);
        }
        let collected: Descriptor = pairs.into_iter().collect();
        assert_eq!(collected, one_by_one);
        assert_eq!(collected.get("a"), Some(&b"5"[..]));
        assert_eq!(collected.get("b"), Some(&b"4"[..]));
        assert_eq!(collected.get("c"), None);
        assert_eq!(collected.iter().count(), 2);
    }

    #[test]
    fn what_a_request_can_spell_in_many_ways_is_held_in_its_normal_form() {
        let mut descriptor = Descriptor::new();
        descriptor.insert("path".parse().unwrap(), "/api%2forders;v=1/?q");
        descriptor.insert("target".parse().unwrap(), "/api%2forders");
        assert_eq!(descriptor.get("path"), Some(&b"/api/orders"[..]));
        assert_eq!(descriptor.get("target"), Some(&b"/api%2forders"[..]));
        for (key, value, normal) in [
            ("method", "post", "POST"),
            ("host", "Shop.Example.:8080", "shop.example"),
            ("remote_address", "2001:DB8::0:1", "2001:db8::1"),
            ("remote_address", "::ffff:192.0.2.1", "192.0.2.1"),
            ("remote_address", "unknown:", "unknown:"),
            ("user", "Alice:80", "Alice:80"),
        ] {
            let found = normal_value(key, value.as_bytes().to_vec());
            assert_eq!(String::from_utf8_lossy(&found), normal);
        }
    }
}
