//! `rlctl list-keys`.

use std::{
    collections::{BTreeMap, HashSet},
    hash::{BuildHasher, RandomState},
};

use clap::Args;
use policy::{Limit, Name, Policy};
use regex::Regex;
use serde::Serialize;
use store::{Cursor, KeyValue, ListedBucket, Overrides};

use crate::{
    bucket::{describe_key, key_entry, parse_whole_number},
    cli::{Format, Global, examples},
    error::{Error, Exit},
    printer::Printer,
    render::{Page, Table, View, counted},
    session::{self, Session},
};

/// List the buckets that hold usage.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl list-keys"
    "rlctl list-keys --limit per-user --match 'user=al*'"
    "rlctl list-keys -o name | wc -l"
    "rlctl list-keys -o json | jq -r '.keys[].bucket.user'"
))]
pub struct ListKeys {
    /// Only buckets of this limit.
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,

    /// Only buckets with an entry (as key=value), a value or a key that matches this glob; `*` is any
    /// text, `?` one character.
    #[arg(long = "match", value_name = "GLOB")]
    matching: Option<String>,

    /// Stop after N buckets; 0 lists all, unsorted, as they are found.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = parse_whole_number,
        allow_negative_numbers = true)]
    max: u64,
}

impl ListKeys {
    /// Walks over the keys, page by page.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let policy = session.policy(Overrides::None).await?;
        let limit = self
            .limit
            .as_deref()
            .map(|name| session::find_limit(&policy, name));
        let limit = limit.transpose()?.map(|limit| &limit.name);
        let walk = Walk {
            matching: self.matching.as_deref().map(glob).transpose()?,
            session: &session,
            policy: &policy,
            limit,
        };
        if self.max == 0 {
            return walk.stream().await;
        }
        let max = usize::try_from(self.max).unwrap_or(usize::MAX);
        let mut rows = BTreeMap::new();
        let listed = session.with_progress(walk.pages(|page| {
            // SCAN may return a key more than once.
            rows.extend(page.into_iter().map(|row| (row.redis_key.clone(), row)));
            Ok(rows.len() <= max)
        }));
        listed.await?;
        let truncated = rows.len() > max;
        let keys: Vec<Row> = rows.into_values().take(max).collect();
        if truncated {
            printer.warn(format_args!("only {max} are shown; --max 0 lists all"));
        } else if keys.is_empty() {
            printer.note("no bucket holds usage");
        }
        printer.data(&Report { truncated, keys })?;
        Ok(Exit::Done)
    }
}

#[derive(Serialize)]
struct Report {
    truncated: bool,
    keys: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    limit: String,
    /// Entries and values; `None` is the bucket of the requests without that entry.
    bucket: BTreeMap<String, Option<String>>,
    redis_key: String,
    #[serde(skip)]
    shown: String,
}

impl Row {
    fn new(policy: &Policy, bucket: ListedBucket) -> Self {
        let entries = entries(policy, &bucket).into_iter();
        let entries: Vec<(String, Option<String>)> = entries
            .map(|(name, value)| key_entry(name, value))
            .collect();
        let shown = match (entries.is_empty(), bucket.values.is_empty()) {
            (false, _) => describe_key(&entries),
            (true, true) => "(all)".to_owned(),
            (true, false) => "(split otherwise)".to_owned(),
        };
        Self {
            limit: bucket.limit.to_string(),
            bucket: entries.into_iter().collect(),
            redis_key: bucket.key,
            shown,
        }
    }
}

/// The entries of a bucket with their values, in the key's order. The values of a bucket of an older edit may not
/// fit `per`: then only the key is certain.
pub fn entries<'b>(policy: &'b Policy, bucket: &'b ListedBucket) -> Vec<(&'b Name, &'b KeyValue)> {
    let limit = policy.limit(bucket.limit.as_str());
    let names = limit.map(|limit| names(limit, bucket)).unwrap_or_default();
    let values = bucket.partition.iter().chain(&bucket.values);
    if names.len() != values.clone().count() {
        return Vec::new();
    }
    names.into_iter().zip(values).collect()
}

/// The entries that a key's values belong to, in the key's order.
fn names<'l>(limit: &'l Limit, bucket: &ListedBucket) -> Vec<&'l Name> {
    if bucket.partition.len() != limit.partition.len() {
        return Vec::new();
    }
    let others = limit
        .per
        .iter()
        .filter(|name| !limit.partition.contains(name));
    limit.partition.iter().chain(others).collect()
}

impl View for Report {
    fn text(&self, page: Page) -> String {
        Table::of(&self.keys)
            .column("LIMIT", |row| &row.limit)
            .column("BUCKET", |row| &row.shown)
            .wide(page, "KEY", |row| &row.redis_key)
            .draw(page)
    }

    fn names(&self) -> Vec<String> {
        self.keys.iter().map(|row| row.redis_key.clone()).collect()
    }
}

// --- Walking over the keys of a server, a page at a time.

/// One scan, and what it looks for.
struct Walk<'w> {
    matching: Option<Regex>,
    session: &'w Session<'w>,
    policy: &'w Policy,
    limit: Option<&'w Name>,
}

impl Walk<'_> {
    /// Passes every page to `each` until that returns false.
    async fn pages(
        &self,
        mut each: impl FnMut(Vec<Row>) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let mut cursor = Some(Cursor::default());
        while let Some(from) = cursor {
            let page = self
                .session
                .store
                .list(&self.policy.domain, self.limit, from)
                .await;
            let page = page.map_err(|error| self.session.failed(&error))?;
            let rows = page
                .buckets
                .into_iter()
                .map(|bucket| Row::new(self.policy, bucket));
            if !each(rows.filter(|row| self.wants(row)).collect())? {
                break;
            }
            cursor = page.next;
        }
        Ok(())
    }

    fn wants(&self, row: &Row) -> bool {
        let Some(pattern) = &self.matching else {
            return true;
        };
        let entry = |(key, value): (&String, &Option<String>)| {
            let value = value.as_deref().unwrap_or_default();
            pattern.is_match(value) || pattern.is_match(&format!("{key}={value}"))
        };
        pattern.is_match(&row.redis_key) || row.bucket.iter().any(entry)
    }

    /// Prints every bucket as it is found, so that a million of them need no memory.
    async fn stream(&self) -> Result<Exit, Error> {
        let printer = self.session.printer;
        let format = printer.format();
        let names = self.policy.limits.iter().map(|limit| limit.name.as_str());
        let width = names.chain(["LIMIT"]).map(str::len).max().unwrap_or(0);
        let [start, first, next, after, end, none] = frame(format);
        printer.raw(start)?;
        if matches!(format, Format::Table | Format::Wide) {
            let headers = Row {
                limit: "LIMIT".to_owned(),
                bucket: BTreeMap::new(),
                redis_key: "KEY".to_owned(),
                shown: "BUCKET".to_owned(),
            };
            printer.raw(&(line(format, width, &headers)? + after))?;
        }
        let mut seen = KeyDedup::default();
        let walk = self.pages(|page| {
            let mut text = String::new();
            for row in &page {
                let before = if seen.distinct() == 0 { first } else { next };
                if seen.insert(&row.redis_key) {
                    text.extend([before, &line(format, width, row)?, after]);
                }
            }
            printer.raw(&text)?;
            Ok(!printer.is_closed())
        });
        self.session.with_progress(walk).await?;
        printer.raw(if seen.distinct() == 0 { none } else { end })?;
        printer.note(counted(seen.distinct(), "bucket"));
        Ok(Exit::Done)
    }
}

/// What each format writes of a long list: at the start, before the first row, before each other one, after each,
/// and at the end, after rows or without any.
fn frame(format: Format) -> [&'static str; 6] {
    match format {
        Format::Json => [
            "{\n  \"truncated\": false,\n  \"keys\": [",
            "\n    ",
            ",\n    ",
            "",
            "\n  ]\n}\n",
            "]\n}\n",
        ],
        // JSON is YAML.
        Format::Yaml => [
            "truncated: false\n",
            "keys:\n  - ",
            "  - ",
            "\n",
            "",
            "keys: []\n",
        ],
        Format::Name | Format::Table | Format::Wide => ["", "", "", "\n", "", ""],
    }
}

/// One row of a long list; `width` is that of the longest limit name.
fn line(format: Format, width: usize, row: &Row) -> Result<String, Error> {
    let (limit, shown, key) = (&row.limit, &row.shown, &row.redis_key);
    Ok(match format {
        Format::Json | Format::Yaml => serde_json::to_string(row)
            .map_err(|error| Error::new(Exit::Refused, format!("cannot write JSON: {error}")))?,
        Format::Name => key.clone(),
        Format::Table => format!("{limit:width$}  {shown}"),
        Format::Wide => format!("{limit:width$}  {shown}  {key}"),
    })
}

/// What a glob matches as a whole: `*` is any text, `?` one character, and nothing else is special.
fn glob(pattern: &str) -> Result<Regex, Error> {
    let pattern = regex::escape(pattern)
        .replace(r"\*", ".*")
        .replace(r"\?", ".");
    Regex::new(&format!("(?s)^(?:{pattern})$"))
        .map_err(|error| Error::usage(format!("--match: {error}")))
}

// --- Deduplication of keys: SCAN may return the same key more than once.

/// Hashes of the keys seen so far: eight bytes for each key. Two of a million keys collide with a
/// probability of one in thirty million; then the second is dropped.
#[derive(Default)]
pub struct KeyDedup {
    hashes: HashSet<u64>,
    hasher: RandomState,
}

impl KeyDedup {
    /// Adds a key; `true` if it is new.
    pub fn insert(&mut self, key: &str) -> bool {
        self.hashes.insert(self.hasher.hash_one(key))
    }

    /// The number of distinct keys.
    pub fn distinct(&self) -> u64 {
        u64::try_from(self.hashes.len()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::glob;

    fn matches(pattern: &str, text: &str) -> bool {
        glob(pattern).unwrap().is_match(text)
    }

    #[test]
    fn stars_and_question_marks() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("*", "", true),
            ("user=al*", "user=alice", true),
            ("al*", "user=alice", false),
            ("*al*ce", "user=alice", true),
            ("al?ce", "alice", true),
            ("al?ce", "alce", false),
            ("é*", "été", true),
            ("**", "x", true),
            ("a", "", false),
            ("a*b", "ac", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_do_not_take_for_ever() {
        assert!(!matches(&"*a".repeat(200), &"b".repeat(2000)));
    }
}

#[cfg(test)]
mod dedup_tests {
    use super::*;

    #[test]
    fn a_key_is_new_once() {
        let mut seen = KeyDedup::default();
        assert!(seen.insert("a") && seen.insert("b") && !seen.insert("a"));
        assert_eq!(seen.distinct(), 2);
    }
}
