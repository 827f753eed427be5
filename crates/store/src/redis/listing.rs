//! Listings of buckets: SCAN of every server that holds some.

use std::sync::atomic::Ordering;

use policy::Name;
use redis_link::{Deadline, Lane, Node, Request, Servers, value};

use super::RedisStore;
use crate::{Cursor, KeyScan, ListedBucket, Page, StoreError};

/// Keys that one SCAN looks at: about 0.3 ms of the server's time, which every check waits for.
const SCAN_COUNT: u64 = 250;

/// What one SCAN answered: where it goes on (0: that was all), and keys.
type Scanned = (u64, Vec<String>);

impl RedisStore {
    pub(super) async fn list(
        &self,
        domain: &Name,
        limit: Option<&Name>,
        cursor: Cursor,
    ) -> Result<Page, StoreError> {
        let glob = self.keys().bucket_glob(domain, limit);
        let (next, keys) = self.scan(&glob, cursor).await?;
        self.options.walked.fetch_add(SCAN_COUNT, Ordering::Relaxed);
        let buckets = keys.into_iter().filter_map(|key| {
            let parsed = self.keys().parse_bucket(key.as_bytes())?;
            // The glob also finds limits whose name only starts like the one asked for.
            let wanted = limit.is_none_or(|limit| parsed.limit == *limit);
            wanted.then_some(ListedBucket {
                key,
                limit: parsed.limit,
                partition: parsed.partition,
                values: parsed.values,
            })
        });
        Ok(Page {
            buckets: buckets.collect(),
            next,
        })
    }

    pub(super) async fn scan_keys(&self, cursor: Cursor) -> Result<KeyScan, StoreError> {
        let glob = format!("{}*", self.keys().prefix());
        let (next, keys) = self.scan(&glob, cursor).await?;
        self.options.walked.fetch_add(SCAN_COUNT, Ordering::Relaxed);
        let held = keys.into_iter().filter_map(|key| self.keys().held(key));
        Ok(KeyScan {
            keys: held.collect(),
            scanned: SCAN_COUNT,
            next,
        })
    }

    pub(super) async fn ttls_ms(&self, keys: &[&str]) -> Result<Vec<Option<u64>>, StoreError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let ask = |key: &&str| {
            let mut ask = redis_link::cmd("PTTL");
            ask.arg(*key);
            ask
        };
        let replies = self.control_all(keys.iter().map(ask)).await?;
        // -1: it stays; -2: it is gone already.
        let ttl = |reply| match value::integer(reply)? {
            -1 => Ok(None),
            ms => Ok(Some(u64::try_from(ms).unwrap_or(0))),
        };
        replies.into_iter().map(ttl).collect()
    }

    /// One server after the other. Should slots have moved before the end, all is looked at again:
    /// a bucket that went from a server not yet looked at to one that was would not be found.
    async fn scan(
        &self,
        glob: &str,
        cursor: Cursor,
    ) -> Result<(Option<Cursor>, Vec<String>), StoreError> {
        let scan = scan_command(glob);
        let deadline = self.control_deadline();
        let cluster = match &self.servers {
            Servers::One(node) => {
                let (next, keys) = scan_one(node, scan(cursor.scan), deadline).await?;
                let next = Cursor {
                    scan: next,
                    ..cursor
                };
                return Ok(((next.scan != 0).then_some(next), keys));
            }
            Servers::Cluster(cluster) => cluster,
        };
        let starting = cursor == Cursor::default();
        let masters = cluster.masters(starting, deadline).await?;
        let mut cursor = cursor;
        if starting || cursor.map != masters.fingerprint() {
            cursor = Cursor {
                map: masters.fingerprint(),
                ..Cursor::default()
            };
        }
        let node = masters.get(cursor.server).ok_or_else(value::short)?;
        let (next, keys) = scan_one(node, scan(cursor.scan), deadline).await?;
        cursor.scan = next;
        if next != 0 {
            return Ok((Some(cursor), keys));
        }
        cursor.server += 1;
        if masters.get(cursor.server).is_some() {
            return Ok((Some(cursor), keys));
        }
        let now = cluster.masters(true, deadline).await?.fingerprint();
        let again = Cursor {
            map: now,
            ..Cursor::default()
        };
        Ok(((now != cursor.map).then_some(again), keys))
    }
}

fn scan_command(glob: &str) -> impl Fn(u64) -> Request {
    move |from| {
        let mut scan = redis_link::cmd("SCAN");
        scan.arg(from).arg("MATCH").arg(glob);
        scan.arg("COUNT").arg(SCAN_COUNT);
        Request::from(scan)
    }
}

async fn scan_one(node: &Node, scan: Request, deadline: Deadline) -> Result<Scanned, StoreError> {
    let mut answers = node.run(Lane::Control, &[&scan], deadline).await;
    let (next, keys) = value::scan(answers.pop().ok_or_else(value::short)??)?;
    // Our keys are text; a foreign one that is not is none of ours.
    let text = |key| value::text(key).ok();
    let keys = value::items(keys)?.into_iter().filter_map(text);
    Ok((next, keys.collect()))
}
