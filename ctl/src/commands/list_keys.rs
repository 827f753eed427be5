//! `rlctl list-keys`.

mod glob;
mod walk;

use std::collections::BTreeMap;

use clap::Args;
use policy::{Limit, Name, Policy};
use serde::Serialize;
use store::{KeyValue, ListedBucket, Overrides};

use walk::Walk;

use crate::{
    args::{Global, examples},
    bucket::{key, parse_whole_number},
    error::Error,
    exit::Exit,
    printer::Printer,
    render::{Page, Table, View},
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
            wanted: self,
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

    fn wanted(&self, row: &Row) -> bool {
        let Some(pattern) = &self.matching else {
            return true;
        };
        let entry = |(key, value): (&String, &Option<String>)| {
            let value = value.as_deref().unwrap_or_default();
            glob::matches(pattern, value) || glob::matches(pattern, &format!("{key}={value}"))
        };
        glob::matches(pattern, &row.redis_key) || row.bucket.iter().any(entry)
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
        let limit = policy.limit(bucket.limit.as_str());
        let names = limit.map(|limit| names(limit, &bucket)).unwrap_or_default();
        let values: Vec<&KeyValue> = bucket.partition.iter().chain(&bucket.values).collect();
        // The values of a bucket of an older edit may not fit `per`: then only the key is certain.
        let entries: Vec<(String, Option<String>)> = if names.len() == values.len() {
            names
                .iter()
                .zip(values)
                .map(|(name, value)| key::entry(name, value))
                .collect()
        } else {
            Vec::new()
        };
        let shown = match (entries.is_empty(), bucket.values.is_empty()) {
            (false, _) => key::describe(&entries),
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
        if self.keys.is_empty() {
            return String::new();
        }
        let mut headers = vec!["LIMIT", "BUCKET"];
        if page.wide {
            headers.push("KEY");
        }
        let mut table = Table::new(headers);
        for row in &self.keys {
            let mut cells = vec![row.limit.clone(), row.shown.clone()];
            if page.wide {
                cells.push(row.redis_key.clone());
            }
            table.row(cells);
        }
        table.draw(page)
    }

    fn names(&self) -> Vec<String> {
        self.keys.iter().map(|row| row.redis_key.clone()).collect()
    }
}
