//! Buckets, requests and numbers as they are written on the command line.

use std::str::FromStr;

use clap::Args;
use insight::LiveEntries;
pub use insight::bucket::{KeyEntries, describe_key, display, key_entries, key_entry, visible};
use policy::{
    Compiled, DESCRIPTOR, Descriptor, Limit, Name, Node, REMOTE_ADDRESS, WHOLE_ADDRESS,
    normal_value, value_to_node,
};

use crate::{
    error::{self, Error},
    printer::Printer,
};

/// `key=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Before the first `=`.
    pub key: String,
    /// After it, perhaps empty.
    pub value: String,
    /// What it stands for, if that is no text.
    pub raw: Option<Vec<u8>>,
}

impl Pair {
    /// The value.
    pub fn bytes(&self) -> &[u8] {
        self.raw.as_deref().unwrap_or(self.value.as_bytes())
    }
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok(Self {
                key: key.to_owned(),
                value: value.to_owned(),
                raw: None,
            }),
            _ => Err("expected key=value".to_owned()),
        }
    }
}

/// A whole number, for flags.
pub fn parse_whole_number(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("expected a whole number from 0 to {}", u64::MAX))
}

/// A limit's name, as an argument.
pub fn limit_name(text: &str) -> Result<Name, Error> {
    text.parse()
        .map_err(|error| Error::usage(format!("`{text}` cannot be a limit's name: {error}")))
}

/// One bucket of a limit.
#[derive(Clone, Debug, Default, Args)]
pub struct BucketArgs {
    /// The bucket: a value for every entry of the limit's `per`.
    #[arg(value_name = "KEY=VALUE")]
    pub values: Vec<Pair>,

    /// The bucket of the requests without this entry.
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    pub without: Vec<String>,
}

/// The values of a bucket, in the order of the limit's `per`.
pub type Values = Vec<Option<Vec<u8>>>;

impl BucketArgs {
    /// Whether no bucket is named.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty() && self.without.is_empty()
    }

    /// The bucket's values; an error unless every entry of `per` is named once, and nothing else.
    pub fn of(&self, limit: &Limit) -> Result<Values, Error> {
        bucket(limit, &self.values, &self.without)
    }
}

/// See [`BucketArgs::of`].
pub fn bucket(limit: &Limit, values: &[Pair], without: &[String]) -> Result<Values, Error> {
    let mut named: Vec<(&str, Option<&[u8]>)> = values
        .iter()
        .map(|pair| (pair.key.as_str(), Some(pair.bytes())))
        .collect();
    named.extend(without.iter().map(|key| (key.as_str(), None)));
    for (key, _) in &named {
        if !limit.per.iter().any(|name| name.as_str() == *key) {
            return Err(unknown_key(limit, key));
        }
    }
    let one = |name: &Name| {
        let mut found = named.iter().filter(|(key, _)| *key == name.as_str());
        match (found.next(), found.next()) {
            (Some((key, value)), None) => Ok(value.map(|value| normal_value(key, value.to_vec()))),
            (None, _) => Err(Error::usage(format!(
                "which {name}? {} has one bucket for each",
                limit.name
            ))
            .hint(format!("name it: {}", example(limit)))),
            (Some(_), Some(_)) => Err(Error::usage(format!("`{name}` is given twice"))),
        }
    };
    limit.per.iter().map(one).collect()
}

/// The values of a bucket as a document has them.
pub fn to_node(limit: &Limit, values: &Values) -> Node {
    let pairs = limit.per.iter().zip(values);
    Node::map(pairs.map(|(key, value)| (key.as_str(), value_to_node(value.as_deref()))))
}

fn unknown_key(limit: &Limit, key: &str) -> Error {
    let error = Error::usage(format!("limit {} is not split by `{key}`", limit.name));
    if limit.per.is_empty() {
        return error.hint("it has one bucket for all requests, which needs no key=value");
    }
    let known = limit.per.iter().map(Name::as_str);
    let all = || format!("its buckets are named by {}", example(limit));
    error.hint(error::meant(key, known).unwrap_or_else(all))
}

/// `user=… tenant=…`.
fn example(limit: &Limit) -> String {
    limit
        .per
        .iter()
        .map(|name| format!("{name}=…"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// A request made up on the command line.
#[derive(Clone, Debug, Default, Args)]
pub struct RequestArgs {
    /// The entries of the request's descriptor.
    #[arg(value_name = "KEY=VALUE")]
    entries: Vec<Pair>,

    /// The same, as an option; may be given several times.
    #[arg(short, long, value_name = "KEY=VALUE")]
    descriptor: Vec<Pair>,
}

impl RequestArgs {
    /// All entries that were given.
    pub fn pairs(&self) -> impl Iterator<Item = &Pair> {
        self.entries.iter().chain(&self.descriptor)
    }
}

/// The descriptor with these entries.
pub fn descriptor<'p>(pairs: impl IntoIterator<Item = &'p Pair>) -> Result<Descriptor, Error> {
    let mut descriptor = Descriptor::new();
    for pair in pairs {
        let key: Name = pair.key.parse().map_err(|error| {
            Error::usage(format!("`{}` cannot be an entry's key: {error}", pair.key))
        })?;
        if descriptor.iter().any(|(known, _)| *known == key) {
            return Err(Error::usage(format!("`{key}` is given twice")));
        }
        descriptor.insert(key, pair.bytes());
    }
    Ok(descriptor)
}

/// Sets an entry as proxies send it that nobody configured otherwise: a client's address is cut to the
/// prefix that names its bucket, and patterns test all of it.
///
/// # Errors
/// The value is a network, and no bucket is of it.
pub fn insert_as_proxies(
    descriptor: &mut Descriptor,
    key: Name,
    value: &[u8],
) -> Result<(), String> {
    let altered = LiveEntries::default().alter(&key, key.as_str(), value)?;
    if let Some(whole) = altered.matched
        && let Ok(name) = WHOLE_ADDRESS.parse()
    {
        descriptor.insert(name, whole);
    }
    descriptor.insert(key, altered.value);
    Ok(())
}

/// Notes entries of a request that no limit uses: they change nothing.
pub fn note_unused<'p>(
    pairs: impl IntoIterator<Item = &'p Pair>,
    policies: &[Compiled],
    printer: &Printer,
) {
    let keys = || policies.iter().flat_map(Compiled::needed_keys);
    let uses = |name: &str| keys().any(|key| key.as_str() == name);
    let mut limits = policies.iter().flat_map(Compiled::limits);
    let of_service = limits.any(|limit| limit.descriptor.is_some());
    for Pair { key, .. } in pairs {
        let is_used = match key.as_str() {
            DESCRIPTOR if of_service => true,
            REMOTE_ADDRESS if uses(WHOLE_ADDRESS) => true,
            key => uses(key),
        };
        if !is_used {
            printer.note(format_args!("no limit uses `{key}`"));
            if let Some(meant) = error::meant(key, keys().map(Name::as_str)) {
                printer.hint(meant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use policy::Node;

    use super::*;

    fn limit(per: &[&str]) -> Limit {
        let node = Node::map([
            ("name", Node::text("a")),
            ("rate", Node::text("1/s")),
            ("per", Node::list(per.iter().copied().map(Node::text))),
        ]);
        limits_file::limit_from_node(&node).unwrap()
    }

    fn values(per: &[&str], pairs: &[&str], without: &[&str]) -> Result<Values, String> {
        let pairs: Vec<Pair> = pairs.iter().map(|pair| pair.parse().unwrap()).collect();
        let without: Vec<String> = without.iter().map(ToString::to_string).collect();
        bucket(&limit(per), &pairs, &without).map_err(|error| {
            let hints: Vec<&str> = error.hints().collect();
            format!("{error} ({})", hints.join("; "))
        })
    }

    #[test]
    fn values_come_in_the_order_of_per() {
        let found = values(&["user", "tenant"], &["tenant=acme", "user=a=b"], &[]).unwrap();
        assert_eq!(found, [Some(b"a=b".to_vec()), Some(b"acme".to_vec())]);
        assert_eq!(
            values(&["user"], &["user="], &[]).unwrap(),
            [Some(Vec::new())]
        );
        assert_eq!(
            values(&["path"], &["path=/login;v=1/"], &[]).unwrap(),
            [Some(b"/login".to_vec())],
            "as requests have it"
        );
        assert_eq!(values(&["user"], &[], &["user"]).unwrap(), [None]);
        assert_eq!(values(&[], &[], &[]).unwrap(), []);
    }

    #[test]
    fn every_entry_is_named_exactly_once() {
        assert_eq!(
            values(&["user"], &["usr=alice"], &[]).unwrap_err(),
            "limit a is not split by `usr` (did you mean `user`?)"
        );
        assert_eq!(
            values(&["user", "tenant"], &["user=alice"], &[]).unwrap_err(),
            "which tenant? a has one bucket for each (name it: user=… tenant=…)"
        );
        assert_eq!(
            values(&["user"], &["user=a", "user=b"], &[]).unwrap_err(),
            "`user` is given twice ()"
        );
        assert_eq!(
            values(&[], &["user=a"], &[]).unwrap_err(),
            "limit a is not split by `user` (it has one bucket for all requests, which needs no key=value)"
        );
    }
}
