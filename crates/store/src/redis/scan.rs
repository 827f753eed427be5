//! SCAN of every server that holds keys.

use redis_link::{Deadline, Lane, Node, Request, Servers, value};

use super::RedisStore;
use crate::{Cursor, StoreError};

/// Keys that one SCAN looks at: about 0.3 ms of the server's time, which every check waits for.
pub(super) const SCAN_COUNT: u64 = 250;

/// The reply to one SCAN: the next cursor (0: the end), and keys.
type Scanned = (u64, Vec<String>);

impl RedisStore {
    /// Scans one server after the other. If slots moved before the end, starts again: a bucket that
    /// moved from a server not yet scanned to one already scanned would be missed.
    pub(super) async fn scan(
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
    // Our keys are text, so this skips others.
    let text = |key| value::text(key).ok();
    let keys = value::items(keys)?.into_iter().filter_map(text);
    Ok((next, keys.collect()))
}
