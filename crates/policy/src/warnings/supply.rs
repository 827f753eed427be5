//! The entries that proxies supply, and those that they do not.

use std::collections::BTreeSet;

use documents::{Name, similar};

use super::Surroundings;
use crate::{REMOTE_ADDRESS, WHOLE_ADDRESS};

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

/// Ends the name under which proxies list an entry whose values they hash, beside the entry itself.
const HASHED: &str = ".hashed";

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
    /// How a filter lists its prefix lengths.
    pub fn cut_mark([v4, v6]: [u8; 2]) -> String {
        format!("{REMOTE_ADDRESS}.{v4}.{v6}")
    }

    /// How a filter lists that it hashes the values of an entry; `None`: that is no name.
    pub fn hashed_mark(entry: &Name) -> Option<String> {
        let mark = format!("{entry}{HASHED}");
        (mark.len() <= Name::MAX_LEN).then_some(mark)
    }

    /// Adds what a name in a list stands for; `false`: it is that of an entry.
    pub fn read_mark(&mut self, name: &Name, listed: impl Fn(&Name) -> bool) -> bool {
        let name = name.as_str();
        let lengths = |rest: &str| {
            let (v4, v6) = rest.strip_prefix('.')?.split_once('.')?;
            Some([v4.parse().ok()?, v6.parse().ok()?])
        };
        if let Some(prefixes) = name.strip_prefix(REMOTE_ADDRESS).and_then(lengths) {
            self.prefixes.insert(prefixes);
            return true;
        }
        let hashed = name.strip_suffix(HASHED).and_then(|name| name.parse().ok());
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

/// What the proxies supply.
#[derive(Clone, Copy, Debug)]
pub struct Supply<'a> {
    /// Every entry, the built-in ones included.
    pub entries: &'a [Name],
    /// The domains that proxies request; empty: unknown.
    pub domains: &'a [Name],
    /// What they do to values.
    pub alterations: &'a Alterations,
    /// The file that this comes from, for messages: `envoy.yaml`; `None`: the live proxies report it.
    pub source: Option<&'a str>,
}

/// Why no request has an entry, and which one was probably meant.
pub(super) fn unsupplied(
    key: &Name,
    around: &Surroundings<'_>,
) -> Option<(String, Option<String>)> {
    let meant = |known: &[&str]| {
        similar(key.as_str(), known).map(|meant| format!("did you mean `{meant}`?"))
    };
    let Some(supply) = around.supply else {
        // The supply is not known; but one letter less or more than a built-in entry is a typo.
        let typo = |known: &&&str| key.as_str().len() > 4 && is_typo(key.as_str(), known);
        let known = BUILT_IN.iter().find(typo)?;
        let what = format!("`{key}` is not the built-in entry `{known}`");
        return Some((what, Some(format!("did you mean `{known}`?"))));
    };
    if supply.entries.contains(key) {
        return None;
    }
    let known: Vec<&str> = supply.entries.iter().map(Name::as_str).collect();
    let hint = meant(&known).or_else(|| {
        let bodies = [REQUEST_BODY, REQUEST_BODY_PASSES];
        let listed = |name: &&&str| !BUILT_IN.contains(*name) && !bodies.contains(*name);
        let own = known.iter().filter(listed);
        let own: Vec<&str> = own.copied().collect();
        Some(match own.as_slice() {
            [] => "only the built-in entries are supplied; `descriptors` of the filter's \
                   configuration adds others"
                .to_owned(),
            own => format!("beside the built-in entries there are: {}", own.join(", ")),
        })
    });
    let what = match supply.source {
        Some(file) => format!("{file} supplies no `{key}`"),
        None => format!("no live proxy supplies `{key}`"),
    };
    Some((what, hint))
}

/// One letter too many, too few, wrong or exchanged with its neighbour.
fn is_typo(typed: &str, known: &str) -> bool {
    let (a, b) = (typed.as_bytes(), known.as_bytes());
    let head = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let (a, b) = (a.get(head..), b.get(head..));
    let (Some(a), Some(b)) = (a, b) else {
        return false;
    };
    match (a, b) {
        ([_, rest @ ..], other) if rest == other => true,
        (other, [_, rest @ ..]) if rest == other => true,
        ([_, one @ ..], [_, other @ ..]) if one == other => true,
        ([first, second, one @ ..], [third, fourth, other @ ..]) => {
            first == fourth && second == third && one == other
        }
        _ => false,
    }
}
