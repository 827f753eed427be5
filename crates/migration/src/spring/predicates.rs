//! A route's predicates as `match`: when its limiter applies.

use documents::{Name, Node};
use patterns::Pattern;

use super::tree::{At, canonical};
use crate::{names::literal, report::Reading};

/// The patterns, by entry. Predicates without a counterpart are reported as lost.
pub(super) fn read(route: &At<'_>, reading: &mut Reading) -> Option<Node> {
    let mut matchers: Vec<(Name, Vec<String>)> = Vec::new();
    let predicates = route.at(&["predicates"]);
    for predicate in predicates.iter().flat_map(At::items) {
        let (name, args) = parts(&predicate);
        match patterns(&name, &args) {
            Ok(found) => {
                if let Some((key, patterns)) = found {
                    note_entry(&predicate, &name, &key, reading);
                    if matchers.iter().any(|(held, _)| *held == key) {
                        let message = format!("a second predicate for `{key}`");
                        reading
                            .lost
                            .add(&predicate.path(), predicate.place(), message);
                    }
                    matchers.push((key, patterns));
                }
            }
            Err(why) => {
                reading.lost.add(&predicate.path(), predicate.place(), why);
            }
        }
    }
    let matchers = matchers.into_iter().map(|(key, patterns)| {
        let node = match patterns.as_slice() {
            [only] => Node::text(only),
            many => Node::list(many.iter().map(Node::text)),
        };
        (key.to_string(), node)
    });
    let matchers: Vec<_> = matchers.collect();
    (!matchers.is_empty()).then(|| Node::map(matchers))
}

/// `Path=/a,/b`, or `{name: Path, args: {…}}`.
fn parts(predicate: &At<'_>) -> (String, Vec<String>) {
    if let Some(text) = predicate.text() {
        let (name, args) = text.split_once('=').unwrap_or((text, ""));
        let args = args.split(',').map(|arg| arg.trim().to_owned());
        return (
            name.trim().to_owned(),
            args.filter(|arg| !arg.is_empty()).collect(),
        );
    }
    let name = predicate
        .at(&["name"])
        .as_ref()
        .and_then(At::text)
        .unwrap_or_default()
        .to_owned();
    let args = predicate.at(&["args"]);
    let args = args.iter().flat_map(At::leaves).flat_map(|(_, at)| {
        let items = at.items();
        let one = at.text().map(str::to_owned);
        let many = items
            .iter()
            .filter_map(At::text)
            .map(str::to_owned)
            .collect::<Vec<_>>();
        one.into_iter().chain(many)
    });
    (name, args.collect())
}

type Found = Option<(Name, Vec<String>)>;

fn patterns(name: &str, args: &[String]) -> Result<Found, String> {
    let all = |key: &str, pattern: fn(&str) -> Option<String>| -> Result<Found, String> {
        let patterns = args.iter().map(|arg| {
            pattern(arg).ok_or_else(|| format!("`{arg}` has no counterpart among patterns"))
        });
        Ok(Some((entry(key)?, patterns.collect::<Result<_, _>>()?)))
    };
    match (canonical(name).as_str(), args) {
        ("path", [_, ..]) => {
            let flag = |arg: &String| matches!(arg.as_str(), "true" | "false");
            let paths: Vec<String> = args.iter().filter(|arg| !flag(arg)).cloned().collect();
            let found = paths.iter().map(|path| {
                path_pattern(path)
                    .ok_or_else(|| format!("`{path}` has no counterpart among patterns"))
            });
            Ok(Some((entry("path")?, found.collect::<Result<_, _>>()?)))
        }
        ("method", [_, ..]) => all("method", |arg| Some(literal(&arg.to_ascii_uppercase()))),
        ("host", [_, ..]) => all("host", host_pattern),
        ("remoteaddr", [_, ..]) => all("remote_address", network),
        ("header" | "cookie" | "query", [key, rest @ ..]) => {
            let pattern = match rest {
                [] => "**".to_owned(),
                [expression, ..] => format!("re:{expression}"),
            };
            if Pattern::parse(&pattern).is_err() {
                return Err(format!("`{pattern}` has no counterpart among patterns"));
            }
            Ok(Some((entry(&key.to_ascii_lowercase())?, vec![pattern])))
        }
        // A limit cannot decide which share of requests a route gets.
        _ => Err(format!("the predicate `{name}` has no counterpart")),
    }
}

fn entry(key: &str) -> Result<Name, String> {
    key.parse()
        .map_err(|error| format!("`{key}` cannot be an entry: {error}"))
}

/// Notes that the filter must supply an entry that is not built in.
fn note_entry(predicate: &At<'_>, name: &str, key: &Name, reading: &mut Reading) {
    let source = canonical(name);
    if matches!(source.as_str(), "header" | "cookie" | "query") {
        let message = format!("the filter has to supply the entry `{key}`");
        reading
            .changed
            .add(&predicate.path(), predicate.place(), message)
            .push_hint(format!(
                "in its `descriptors`: {{\"key\": \"{key}\", \"{source}\": \"{key}\"}}"
            ));
    }
}

/// Spring's path patterns: `{name}` is a segment, `{*name}` and `**` are the rest.
fn path_pattern(path: &str) -> Option<String> {
    let path = path
        .strip_suffix('/')
        .filter(|path| !path.is_empty())
        .unwrap_or(path);
    let segments = path.split('/').map(|segment| match segment {
        "**" => Some("**".to_owned()),
        rest if rest.starts_with("{*") && rest.ends_with('}') => Some("**".to_owned()),
        rest if rest.contains(['?', '\\', ':', '!']) => None,
        rest => braces(rest),
    });
    let pattern = segments.collect::<Option<Vec<_>>>()?.join("/");
    Pattern::parse(&pattern).ok().map(|_| pattern)
}

/// A segment with `{name}` replaced by `*`.
fn braces(segment: &str) -> Option<String> {
    let mut pattern = String::new();
    let mut rest = segment;
    while let Some((before, inside)) = rest.split_once('{') {
        pattern.push_str(before);
        pattern.push('*');
        rest = inside.split_once('}')?.1;
    }
    if rest.contains('}') {
        return None;
    }
    pattern.push_str(rest);
    Some(pattern)
}

/// Hosts have labels instead of segments; `*` is one label, `**` any number of them.
fn host_pattern(host: &str) -> Option<String> {
    let host = host.to_ascii_lowercase();
    if !host.contains(['*', '{', '?']) {
        return Some(literal(&host));
    }
    if host.contains(['?', '{', '}', ':']) {
        return None;
    }
    let whole = regex_lite::escape(&host);
    let whole = whole.replace(r"\*\*", ".*").replace(r"\*", "[^.]*");
    Some(format!("re:{whole}"))
}

/// The host bits of a network may be set; they are ignored.
fn network(arg: &str) -> Option<String> {
    let pattern = if arg.contains('/') {
        format!("cidr:{arg}")
    } else {
        arg.to_owned()
    };
    match Pattern::parse(&pattern) {
        Ok(_) => Some(pattern),
        Err(patterns::PatternError::HostBits(meant)) => Some(format!("cidr:{meant}")),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_hosts_and_networks_are_patterns() {
        assert_eq!(path_pattern("/red/{segment}").as_deref(), Some("/red/*"));
        assert_eq!(path_pattern("/red/**").as_deref(), Some("/red/**"));
        assert_eq!(path_pattern("/{*rest}").as_deref(), Some("/**"));
        assert_eq!(path_pattern("/a/").as_deref(), Some("/a"));
        assert_eq!(path_pattern("/").as_deref(), Some("/"));
        assert_eq!(path_pattern("/{id:[0-9]+}"), None);
        assert_eq!(path_pattern("/a?"), None);
        assert_eq!(host_pattern("Example.org").as_deref(), Some("example.org"));
        assert_eq!(
            host_pattern("**.example.org").as_deref(),
            Some(r"re:.*\.example\.org")
        );
        assert_eq!(
            network("192.168.1.1/24").as_deref(),
            Some("cidr:192.168.1.0/24")
        );
        assert_eq!(network("192.168.1.1").as_deref(), Some("192.168.1.1"));
    }
}
