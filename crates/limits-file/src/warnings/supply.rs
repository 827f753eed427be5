//! What proxies supply: entries, and the values that they can have. Other entries, patterns that no value
//! matches and overrides that no bucket has are probably mistakes.

use address::Address;
use documents::{Name, similar};
use normalize::{hashed, is_hash};
use patterns::Pattern;
use policy::{
    Alterations, BUILT_IN, CHECK_STREAM_REFUSED, MULTIPLE_VALUES, REMOTE_ADDRESS, REQUEST_BODY,
    REQUEST_BODY_PASSES,
};

use super::Surroundings;

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
        let marks = [REQUEST_BODY, REQUEST_BODY_PASSES, CHECK_STREAM_REFUSED];
        let listed = |name: &&&str| !BUILT_IN.contains(*name) && !marks.contains(*name);
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

/// Why a pattern finds nothing, and what was probably meant.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Never {
    pub(super) why: String,
    pub(super) meant: Option<String>,
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "whoever calls it returns an option"
)]
fn because(why: impl Into<String>, meant: impl Into<Option<String>>) -> Option<Never> {
    Some(Never {
        why: why.into(),
        meant: meant.into(),
    })
}

/// Stands for a wildcard in a text where `*` is a literal character; normalizing a path keeps it
/// like any letter.
const WILD: char = '\u{e000}';

/// A pattern without its negation, and how it is written.
struct Spelling<'p> {
    negation: &'p str,
    /// `i:`, `exact:` or nothing.
    prefix: &'p str,
    text: &'p str,
}

impl Spelling<'_> {
    /// `None` for patterns that are neither a text nor a glob.
    fn parse(pattern: &str) -> Option<Spelling<'_>> {
        let (negation, body) = match pattern.strip_prefix('!') {
            Some(body) => ("!", body),
            None => ("", pattern),
        };
        if body.starts_with("re:") || body.starts_with("cidr:") {
            return None;
        }
        let prefixes = ["i:", "exact:"];
        let prefix = prefixes.into_iter().find(|p| body.starts_with(p));
        let prefix = prefix.unwrap_or("");
        Some(Spelling {
            negation,
            prefix,
            text: body.get(prefix.len()..).unwrap_or_default(),
        })
    }

    fn any_case(&self) -> bool {
        self.prefix == "i:"
    }

    fn is_literal(&self) -> bool {
        self.prefix == "exact:" || !self.text.replace("\\*", "").contains('*')
    }

    /// The text as it would be in a path: without escapes, each wildcard as [`WILD`].
    fn unescaped(&self) -> String {
        if self.prefix == "exact:" {
            return self.text.to_owned();
        }
        let mut plain = String::with_capacity(self.text.len());
        let mut rest = self.text.chars();
        while let Some(c) = rest.next() {
            match c {
                '\\' => plain.extend(rest.next()),
                '*' => plain.push(WILD),
                c => plain.push(c),
            }
        }
        plain
    }

    /// Undoes [`Spelling::unescaped`].
    fn escaped(&self, plain: &str) -> String {
        if self.prefix == "exact:" {
            return plain.to_owned();
        }
        plain.replace('*', "\\*").replace(WILD, "*")
    }

    /// The same pattern with another text.
    fn meant(&self, text: &str) -> String {
        format!("did you mean `{}{}{text}`?", self.negation, self.prefix)
    }
}

/// Why no request has a value of `key` that the pattern finds; `None` if one may.
pub(super) fn never(key: &str, pattern: &Pattern) -> Option<Never> {
    let spelling = Spelling::parse(pattern.as_str())?;
    if let Some(never) = of_expression(&spelling) {
        return Some(never);
    }
    match key {
        "method" => of_method(&spelling),
        "path" => of_path(&spelling).or_else(|| not_normal(&spelling, pattern)),
        "host" => of_host(&spelling),
        REMOTE_ADDRESS => of_address(&spelling),
        _ => None,
    }
}

/// A regular expression without its prefix.
fn of_expression(spelling: &Spelling<'_>) -> Option<Never> {
    let text = spelling.text.strip_prefix('^')?;
    if spelling.prefix == "exact:" {
        return None;
    }
    // An expression matches the whole value in any case.
    let expression = text.strip_suffix('$').unwrap_or(text);
    because(
        "a pattern is a text, in which `*` is a wildcard, unless it begins with `re:`",
        format!("did you mean `{}re:{expression}`?", spelling.negation),
    )
}

fn of_method(spelling: &Spelling<'_>) -> Option<Never> {
    let text = spelling.text;
    if spelling.any_case() || !text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return None;
    }
    let meant = spelling.meant(&text.to_ascii_uppercase());
    because("methods are in upper case", meant)
}

fn of_path(spelling: &Spelling<'_>) -> Option<Never> {
    let text = spelling.text;
    if let Some((_, rest)) = text.split_once("://") {
        let path = rest
            .find('/')
            .and_then(|at| rest.get(at..))
            .unwrap_or("/**");
        return because(
            "a path comes without scheme and host, which `host` matches",
            spelling.meant(path),
        );
    }
    if let Some((path, query)) = text.split_once(['?', '#']) {
        // In `/v?/x` the `?` is meant as a wildcard of another syntax, in `/x?a=b` it starts a query.
        let meant = if query.contains('/') {
            text.replace('?', "*")
        } else {
            path.to_owned()
        };
        return because(
            "a path comes without its query, and `?` is no wildcard",
            spelling.meant(&meant),
        );
    }
    if spelling.is_literal() {
        if text.is_empty() || text.starts_with('/') || text == "*" || text == "\\*" {
            return None;
        }
        return because(
            "paths start with a slash",
            spelling.meant(&format!("/{text}")),
        );
    }
    let rest = text.trim_start_matches('*');
    match text.len() - rest.len() {
        // A path may be `*` itself, as in `OPTIONS *`.
        0 if !rest.starts_with('/') && !rest.starts_with("\\*") => because(
            "paths start with a slash",
            spelling.meant(&format!("/{text}")),
        ),
        1 if !rest.starts_with('/') => because(
            "`*` stays within one segment, and paths start with a slash",
            spelling.meant(&format!("*{text}")),
        ),
        _ => None,
    }
}

/// A pattern that finds no normal form of a path, such as `/api/` and `/a%20b`.
fn not_normal(spelling: &Spelling<'_>, pattern: &Pattern) -> Option<Never> {
    let plain = spelling.unescaped();
    let finds = |path: &str| pattern.finds(&normalize::path(path.as_bytes()));
    if plain.is_empty() || samples(&plain).iter().any(|path| finds(path)) {
        return None;
    }
    let normal = normalize::path(plain.as_bytes());
    let meant = std::str::from_utf8(&normal).ok();
    because(
        "no path is written so in its normal form, in which paths are matched",
        meant.map(|normal| spelling.meant(&spelling.escaped(normal))),
    )
}

/// Paths among which there is one that the pattern finds, if it finds any in normal form.
fn samples(plain: &str) -> [String; 4] {
    let fill = |first: &str, letters: bool| {
        let mut pieces = plain.split(WILD);
        let mut path = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            path.push_str(match path.as_str() {
                "" => first,
                _ if !letters => "",
                // Only `%25`, `%3F` and `%23` stay encoded.
                path if path.ends_with('%') => "25",
                path if path.ends_with("%2") => "5",
                path if path.ends_with("%3") => "F",
                _ => "a",
            });
            path.push_str(piece);
        }
        path
    };
    [
        fill("/a", true),
        fill("", true),
        fill("", false),
        "/".to_owned(),
    ]
}

fn of_host(spelling: &Spelling<'_>) -> Option<Never> {
    let text = spelling.text;
    let host = text.split_once("://").map_or(text, |(_, host)| host);
    let host = host.split_once('/').map_or(host, |(host, _)| host);
    let host = without_port(host).trim_end_matches('.');
    let host = if spelling.any_case() {
        host.to_owned()
    } else {
        host.to_ascii_lowercase()
    };
    if host == text || host.is_empty() {
        return None;
    }
    because(
        "hosts are in lower case, without scheme, port, path or a dot at the end",
        spelling.meant(&host),
    )
}

/// An IPv6 address has colons of its own, unless it is in brackets.
fn without_port(host: &str) -> &str {
    let bracket = host.rfind(']').unwrap_or(0);
    let after = host.get(bracket..).unwrap_or_default();
    match after.split_once(':') {
        Some((before, port)) if !port.contains(':') => {
            host.get(..bracket + before.len()).unwrap_or(host)
        }
        _ => host,
    }
}

fn of_address(spelling: &Spelling<'_>) -> Option<Never> {
    let text = spelling.text;
    if !spelling.is_literal() {
        return None;
    }
    if text.contains('/') {
        return because(
            "an address is not the text of a network",
            format!("did you mean `{}cidr:{text}`?", spelling.negation),
        );
    }
    match Address::parse(text.as_bytes()) {
        Some(_) => None,
        None => because("it is no address", None),
    }
}

/// Why no request of the proxies has the bucket that an override is for.
pub(super) fn no_bucket(key: &str, value: &[u8], alterations: &Alterations) -> Option<Never> {
    let text = std::str::from_utf8(value).ok()?;
    if text.contains('*') || text.starts_with("re:") || text.starts_with("cidr:") {
        return because(
            "it is a value, not a pattern: an override is for one bucket",
            "a limit of its own with `match` and `replaces` covers several".to_owned(),
        );
    }
    if alterations.hashed.iter().any(|name| name.as_str() == key)
        && !is_hash(value)
        && value != MULTIPLE_VALUES
    {
        let hash = String::from_utf8_lossy(&hashed(value)).into_owned();
        return because(
            "the filter hashes the entry (its `hash`)",
            format!("did you mean `{hash}`?"),
        );
    }
    if key != REMOTE_ADDRESS {
        return None;
    }
    let (host, length) = text.split_once('/').unwrap_or((text, ""));
    let Some(address) = Address::parse(host.as_bytes()) else {
        return because("it is no address", None);
    };
    let [v4, v6] = alterations.longest_prefixes();
    let bits = if address.is_v4() { v4 } else { v6 };
    let cut = address.cut(bits).to_text();
    let cut = String::from_utf8_lossy(&cut);
    if length.is_empty() && cut == text {
        return None;
    }
    if !length.is_empty() && (cut != host || length != bits.to_string()) {
        return because(
            "it is a network, and an override is for one bucket",
            format!(
                "a limit of its own covers a network: `match: {{remote_address: \"cidr:{text}\"}}`"
            ),
        );
    }
    let default = if alterations.prefixes.is_empty() {
        " unless its `remote_address` says otherwise"
    } else {
        " (its `remote_address`)"
    };
    because(
        format!("the filter cuts addresses to {bits} bits{default}"),
        format!("did you mean `{cut}`, the bucket of the whole /{bits}?"),
    )
}
