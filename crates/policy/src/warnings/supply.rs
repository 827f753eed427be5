//! The entries that proxies supply, and those that they do not.

use documents::{Name, similar};

use super::Surroundings;

/// The entries that every proxy supplies, whatever its configuration.
pub const BUILT_IN: [&str; 7] = [
    "method",
    "path",
    "host",
    "route",
    "remote_address",
    "workload",
    "namespace",
];

/// Stands among the supplied entries if proxies read bodies of requests.
pub const REQUEST_BODY: &str = "request_body";

/// Stands there if a filter is configured to read bodies, but Envoy lets requests pass before the
/// bodies arrive.
pub const REQUEST_BODY_PASSES: &str = "request_body_passes";

/// What the proxies supply.
#[derive(Clone, Copy, Debug)]
pub struct Supply<'a> {
    /// Every entry, the built-in ones included.
    pub entries: &'a [Name],
    /// The domains that proxies request; empty: unknown.
    pub domains: &'a [Name],
    /// To how many bits an IPv4 and an IPv6 address are cut; `None`: not known.
    pub prefixes: Option<[u8; 2]>,
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
