//! The store on Redis or Valkey.
//!
//! An ACL user needs these rights and no other (with the default key prefix):
//!
//! ```text
//! ~rl:* &rl:* -@all +eval +evalsha +script|load +script|exists +ping +time
//! +get +set +del +unlink +scan +pttl +pexpire +persist +rename
//! +hget +hset +hdel +hmget +hlen +hgetall +hscan +lindex +llen +lrange +lset +ltrim +rpush
//! +xadd +xdel +xlen +xrange +xrevrange +zadd +zcard +zremrangebyscore +zcount +zrange +zrangebyscore +zrem +zscore
//! +sadd +smembers +publish +subscribe
//! ```
//!
//! `+hello` lets `rlctl ping` show the server's version and role; a Cluster needs `+cluster|slots`
//! and `+asking` too.

mod buckets;
mod checks;
mod cluster_batch;
mod diagnostics;
mod policy;
mod telemetry;

use std::{fmt, sync::Arc, time::Duration};

use redis_link::{
    Cmd, Deadline, Lane, Node, Outcome, Request, Server, Servers, Settings, Subscription, Value,
    is_refused, value,
};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep_until, timeout_at},
};

use crate::{
    Cursor, Keys, Options, StoreError,
    plan::Seal,
    random_key,
    scripts::{CHECK, REFUND},
};
use telemetry::ClockOffset;

/// The store on one server or on a Cluster. Connects at the first use, and again whenever it has
/// to.
pub(crate) struct RedisStore {
    servers: Servers,
    edits: Subscription,
    clock_offset: ClockOffset,
    seal: SharedSeal,
    options: Options,
    address: String,
}

impl RedisStore {
    /// A store that has not connected yet. Fails only where TLS has no root certificates.
    pub(crate) fn new(server: &Server, options: Options) -> Result<Self, StoreError> {
        let settings = Settings {
            connect_timeout: options.connect_timeout,
            probe_timeout: options.probe_timeout(),
            client_certificate: options.client_certificate.clone(),
            network: options.network.clone(),
            // Loaded at connecting: a check that had to load its script first would be late.
            scripts: Arc::new([&CHECK, &REFUND]),
        };
        let servers = Servers::new(server.clone(), &settings)?;
        Ok(Self {
            edits: servers.subscription(options.keys.edits(), options.connect_timeout),
            servers,
            clock_offset: ClockOffset::default(),
            seal: SharedSeal::default(),
            address: server.to_string(),
            options,
        })
    }

    fn keys(&self) -> &Keys {
        &self.options.keys
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

// ---- Commands and scripts that concern limits, listings and the servers themselves.

/// Pause before a call is retried whose keys are being migrated.
const MIGRATING_PAUSE: Duration = Duration::from_millis(10);

impl RedisStore {
    /// The deadline of anything but a check.
    fn control_deadline(&self) -> Deadline {
        Deadline::within(self.options.control_timeout)
    }

    /// Runs one command; it has to succeed.
    async fn control(&self, command: Cmd) -> Result<Value, StoreError> {
        let mut answers = self.control_each([command]).await;
        answers.pop().ok_or_else(value::short)?
    }

    /// Runs commands, in their order where they are of one slot; each has to succeed.
    async fn control_all(
        &self,
        commands: impl IntoIterator<Item = Cmd>,
    ) -> Result<Vec<Value>, StoreError> {
        self.control_each(commands).await.into_iter().collect()
    }

    /// As [`RedisStore::control_all`], for a fixed number of commands.
    async fn control_array<const N: usize>(
        &self,
        commands: [Cmd; N],
    ) -> Result<[Value; N], StoreError> {
        let replies = self.control_all(commands).await?;
        replies.try_into().map_err(|_| value::short())
    }

    /// As [`RedisStore::control_all`], for commands each of which may be refused on its own.
    async fn control_each(&self, commands: impl IntoIterator<Item = Cmd>) -> Vec<Outcome> {
        let requests: Vec<Request> = commands.into_iter().map(Request::from).collect();
        let deadline = self.control_deadline();
        self.servers.run(Lane::Control, &requests, deadline).await
    }

    /// Calls a script.
    async fn control_script(&self, call: &Request) -> Result<Value, StoreError> {
        self.control_script_until(call, self.control_deadline())
            .await
    }

    async fn control_script_until(&self, call: &Request, deadline: Deadline) -> Outcome {
        let calls = std::slice::from_ref(call);
        loop {
            let mut answers = self.servers.run(Lane::Control, calls, deadline).await;
            let answer = answers.pop().ok_or_else(value::short)?;
            // The slot is being migrated, and only some of the keys have moved: the call did
            // nothing, and works as soon as the slot has moved.
            let again = Instant::now() + MIGRATING_PAUSE;
            if !is_refused(&answer, "TRYAGAIN") || again >= deadline.at() {
                return answer;
            }
            sleep_until(again).await;
        }
    }
}

// ---- SCAN of every server that holds keys.

/// Keys that one SCAN looks at: about 0.3 ms of the server's time, which every check waits for.
const SCAN_COUNT: u64 = 250;

/// The reply to one SCAN: the next cursor (0: the end), and keys.
type Scanned = (u64, Vec<String>);

impl RedisStore {
    /// Scans one server after the other. If slots moved before the end, starts again: a bucket that
    /// moved from a server not yet scanned to one already scanned would be missed.
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
        let scan = redis_link::cmd(("SCAN", from, "MATCH", glob, "COUNT", SCAN_COUNT));
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

// ---- The key of the seals of reservations, which all limiters of the store share.

/// The key is read again after this time, in case the store lost it and another limiter drew a new one.
/// Until then, an excess counts only while the bucket has the record of its reservation.
const SEAL_KEPT: Duration = Duration::from_secs(5);

/// The seal, once a check has needed it.
#[derive(Default)]
struct SharedSeal(Mutex<Option<Known>>);

struct Known {
    key: String,
    seal: Seal,
    read_at: Instant,
}

impl RedisStore {
    /// The seal of reservations. The first store that needs it draws the key. On an error certainly nothing is charged:
    /// what needs the seal is not sent.
    async fn seal(&self) -> Result<Seal, StoreError> {
        // Checks wait for this, also those of the batch that reserve nothing.
        let until = Instant::now() + self.options.timeout;
        let late =
            |_| StoreError::Unreachable("the key of the seals did not come in time".to_owned());
        let mut known = timeout_at(until, self.seal.0.lock()).await.map_err(late)?;
        let fresh = known.as_ref().filter(|of| of.read_at.elapsed() < SEAL_KEPT);
        if let Some(Known { seal, .. }) = fresh {
            return Ok(seal.clone());
        }
        // A store that lost the key gets it back.
        let mut key = known.as_ref().map_or_else(random_key, |of| of.key.clone());
        let exchanged = timeout_at(until, self.exchange_seal_key(&key)).await;
        match exchanged.map_err(late).flatten() {
            Ok(stored) => key = stored,
            // The check goes on with the key that it has; if the store does not answer, that fails anyway.
            Err(_) if known.is_some() => {}
            Err(StoreError::Broken(why)) => return Err(StoreError::Unreachable(why)),
            Err(error) => return Err(error),
        }
        let seal = Seal::new(key.as_bytes());
        *known = Some(Known {
            key,
            seal: seal.clone(),
            read_at: Instant::now(),
        });
        Ok(seal)
    }

    /// Stores a key if there is none; returns the stored one.
    async fn exchange_seal_key(&self, drawn: &str) -> Result<String, StoreError> {
        let name = self.keys().seal();
        let set = redis_link::cmd(("SET", &name, drawn, "NX"));
        let get = redis_link::cmd(("GET", &name));
        let mut answers = self.control_each([set, get]).await.into_iter();
        let set = answers.next().ok_or_else(value::short)?;
        let stored = value::optional_text(answers.next().ok_or_else(value::short)??)?;
        match stored {
            Some(key) => Ok(key),
            // The server accepts no writes.
            None => set.and_then(|_| Err(value::short())),
        }
    }
}
