//! A persistent connection, shared by all callers: dialled once, probed when suspect, redialled
//! when lost.
//!
//! A single task owns the connection, so there is never more than one dial under way, however many
//! callers wait. Callers see one of four states:
//!
//! - *connecting*: they wait, no longer than their own deadline;
//! - *up*: they send;
//! - *suspect*, since a caller's deadline passed: they fail at once until a probe is answered.
//!   So a server that hangs gets one batch and one PING, not a backlog that it would charge all at
//!   once when it resumes, long after the requests were decided without it;
//! - *down*: they fail at once, with the reason of the last dial.
//!
//! A deposed primary may stay up and answer. So the task also replaces the connection when
//! sentinels name another primary or, without sentinels, when the server refuses writes: its host
//! name may point elsewhere by now. The old connection stays open for the answers to earlier
//! commands.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisError, aio::MultiplexedConnection};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::{Notify, watch},
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};

use crate::{
    Error, Lane, Refusal, Script, Settings,
    bounded::{self, Bounded, Fault},
    dial::{Route, Stream},
    error::{self, Reply},
    task::{AbortOnDrop, jittered},
    url::Host,
    value,
};

/// A connection that lived shorter than this does not show that the next one will last.
const PROVEN: Duration = Duration::from_secs(1);
/// How often an idle connection is probed.
const KEEPALIVE: Duration = Duration::from_secs(5);
const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// With the time that a probe may take, this keeps recovery of a server's connection below one
/// second.
const BACKOFF_MAX: Duration = Duration::from_millis(250);
/// The longest first answer of a server, in bytes.
const GREETING_MAX: usize = 4096;
/// Commands that the client library may queue, in addition to those that callers hold.
const BUFFER: usize = 64;
/// Pause before redialling a server that refuses writes.
const REDIAL: Duration = Duration::from_millis(500);
/// How often to probe a server that refused commands.
const RECHECK: Duration = Duration::from_millis(250);
/// A refusal is reported for this long after the last one, since a permission may cover one command
/// and not the next.
const QUIET: Duration = Duration::from_secs(1);
/// A script with a shebang line is refused before it runs if writes are: by a replica, a server out
/// of memory, without its replicas or with a full disk. It has no key, so any node of a Cluster
/// accepts it.
const TAKES_WRITES: &str = "#!lua\nreturn 1";
/// How often an outage is logged again.
const OUTAGE_LOGGED_AGAIN: Duration = Duration::from_secs(30);

#[derive(Clone)]
struct Session {
    number: u64,
    connection: MultiplexedConnection,
    fault: Fault,
}

impl Session {
    /// The failure of the connection while an answer was awaited.
    fn broken(&self, error: &RedisError) -> Error {
        match self.fault.get() {
            Some(fault) => Error::Broken(fault.clone()),
            None => error::broken(error),
        }
    }
}

enum Status {
    Connecting,
    Up(Session),
    Suspect(Session, Error),
    Down(Error),
}

/// What callers do while a long-lived connection that was lost is redialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenLost {
    /// They wait, no longer than their deadline: most likely a restart or a failover.
    Wait,
    /// They fail at once: requests to other nodes must not wait for the lost one.
    Fail,
}

struct Shared {
    route: Route,
    lane: Lane,
    when_lost: WhenLost,
    settings: Settings,
    status: watch::Sender<Status>,
    /// The server refused a write.
    refused: Notify,
    /// Why commands are refused; only set for [`Lane::Data`].
    refusing: watch::Sender<Option<Refusing>>,
    /// Which refusals are logged: one user may lack a right for one limit, and the memory for another.
    refusals: Mutex<OutageLog>,
}

/// A connected server that refuses commands: it became a replica, is out of memory, or the user
/// lacks a permission.
struct Refusing {
    refusal: Refusal,
    last: Instant,
}

/// When a reply is too late.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Instant,
    limit: Duration,
}

impl Deadline {
    /// From now on.
    pub fn within(limit: Duration) -> Self {
        Self {
            at: Instant::now() + limit,
            limit,
        }
    }

    /// The last moment.
    pub fn at(self) -> Instant {
        self.at
    }
}

/// A connection that is kept. Dropping it closes the connection.
pub(crate) struct Connection {
    shared: Arc<Shared>,
    keeper: OnceLock<AbortOnDrop>,
}

/// Moves bytes for as long as the connection lives.
type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A connection that was just made.
struct Connected {
    connection: MultiplexedConnection,
    driver: Driver,
    fault: Fault,
}

/// Why a connection is not used any more.
enum End {
    Lost(Error),
    /// A new connection replaces it.
    Left,
}

impl Connection {
    /// Dials at the first use, or at [`Connection::start`].
    pub(crate) fn new(route: Route, lane: Lane, settings: Settings, when_lost: WhenLost) -> Self {
        Self {
            shared: Arc::new(Shared {
                route,
                lane,
                when_lost,
                settings,
                status: watch::Sender::new(Status::Connecting),
                refused: Notify::new(),
                refusing: watch::Sender::new(None),
                refusals: Mutex::default(),
            }),
            keeper: OnceLock::new(),
        }
    }

    /// Sends commands together and waits for every answer.
    ///
    /// On [`Error::Timeout`] and [`Error::Broken`] they may or may not have run.
    pub(crate) async fn run(
        &self,
        commands: &redis::Pipeline,
        deadline: Deadline,
    ) -> Result<Vec<Reply>, Error> {
        let Ok(session) = timeout_at(deadline.at, self.session()).await else {
            return Err(Error::Unreachable(
                "no answer to a connection attempt yet".to_owned(),
            ));
        };
        let mut session = session?;
        let answers = session
            .connection
            .send_packed_commands(commands, 0, commands.len());
        match timeout_at(deadline.at, answers).await {
            Ok(Ok(values)) => {
                let replies: Vec<Reply> = values.into_iter().map(error::reply_of).collect();
                self.shared.track_refusals(&session, &replies);
                Ok(replies)
            }
            Ok(Err(error)) => Err(session.broken(&error)),
            Err(_) => {
                let error = Error::Timeout(deadline.limit);
                self.shared.suspect(&session, error.clone());
                Err(error)
            }
        }
    }

    /// Whether there is a connection, suspect or not.
    pub(crate) fn is_connected(&self) -> bool {
        let status = self.shared.status.borrow();
        matches!(*status, Status::Up(_) | Status::Suspect(..))
    }

    /// Whether it is dialling and there is no known reason for a failure.
    pub(crate) fn is_connecting(&self) -> bool {
        matches!(*self.shared.status.borrow(), Status::Connecting)
    }

    /// Why callers get no usable answer; `None` before the first dial, and while a long-lived
    /// connection is redialled.
    pub(crate) fn fault(&self) -> Option<Error> {
        match &*self.shared.status.borrow() {
            Status::Suspect(_, why) | Status::Down(why) => return Some(why.clone()),
            Status::Connecting | Status::Up(_) => {}
        }
        let refusing = self.shared.refusing.borrow();
        let refusal = refusing.as_ref().map(|r| r.refusal.clone());
        refusal.map(Error::from)
    }

    /// Dials now, so that the first use need not wait for it.
    pub(crate) fn start(&self) {
        self.keeper.get_or_init(|| {
            let shared = Arc::clone(&self.shared);
            AbortOnDrop::new(tokio::spawn(async move { shared.keep().await }))
        });
    }

    async fn session(&self) -> Result<Session, Error> {
        self.start();
        let mut status = self.shared.status.subscribe();
        loop {
            match &*status.borrow_and_update() {
                Status::Connecting => {}
                Status::Up(session) => return Ok(session.clone()),
                Status::Suspect(_, error) | Status::Down(error) => return Err(not_sent(error)),
            }
            if status.changed().await.is_err() {
                return Err(Error::Unreachable("the store was closed".to_owned()));
            }
        }
    }
}

impl Shared {
    /// Makes callers fail until the session has answered a probe.
    fn suspect(&self, session: &Session, error: Error) {
        self.status.send_if_modified(|status| {
            let current = matches!(status, Status::Up(s) if s.number == session.number);
            if current {
                *status = Status::Suspect(session.clone(), error);
            }
            current
        });
    }
}

/// The error of a caller that sent nothing because of the last failure.
fn not_sent(last: &Error) -> Error {
    if last.is_harmless() {
        last.clone()
    } else {
        Error::Unreachable(format!("not asked again since {last}"))
    }
}

impl Shared {
    /// The task that owns the connection: dials, probes and redials.
    async fn keep(&self) {
        let mut backoff = BACKOFF_MIN;
        let mut outage = OutageLog::default();
        // Where the server was last dialled, if sentinels name it.
        let mut place = None;
        for number in 0.. {
            let dialled = Instant::now();
            let end = match self.connect(&mut place).await {
                Ok(connected) => {
                    self.log_connected(&mut outage);
                    self.serve(number, connected, place.as_ref()).await
                }
                Err(error) => End::Lost(error),
            };
            let End::Lost(why) = end else {
                continue;
            };
            if let Some(attempts) = outage.failed(&why, Instant::now()) {
                tracing::warn!(
                    server = %self.route.server(), error = %why, attempts,
                    "no connection to the store"
                );
            }
            // The server may have stopped being the primary.
            self.route.refresh();
            if dialled.elapsed() >= PROVEN + self.settings.connect_timeout {
                backoff = BACKOFF_MIN;
                self.status.send_replace(match self.when_lost {
                    WhenLost::Wait => Status::Connecting,
                    WhenLost::Fail => Status::Down(why),
                });
            } else {
                self.status.send_replace(Status::Down(why));
                tokio::select! {
                    () = sleep(jittered(backoff)) => {}
                    () = self.route.moved(place.as_ref()) => {}
                }
                backoff = (backoff * 2).min(BACKOFF_MAX);
            }
        }
    }

    fn log_connected(&self, outage: &mut OutageLog) {
        let server = self.route.server();
        if let Some((lasted, attempts)) = outage.over(Instant::now()) {
            tracing::info!(%server, ?lasted, attempts, "connected again");
        } else {
            tracing::debug!(%server, "connected");
        }
    }

    async fn connect(&self, place: &mut Option<Host>) -> Result<Connected, Error> {
        loop {
            let limit = self.settings.connect_timeout;
            let found = timeout(limit, self.route.place()).await;
            *place = found
                .map_err(|_| self.late("a connection attempt", ""))?
                .map_err(unreachable)?;
            tokio::select! {
                connected = self.open(place.as_ref(), Instant::now() + limit) => return connected,
                () = self.route.moved(place.as_ref()) => {}
            }
        }
    }

    /// What to look at first differs: the address and the network, or the server.
    fn late(&self, to: &str, hint: &str) -> Error {
        let limit = self.settings.connect_timeout.as_millis();
        Error::Unreachable(format!("no answer to {to} within {limit} ms{hint}"))
    }

    async fn open(&self, place: Option<&Host>, until: Instant) -> Result<Connected, Error> {
        let stream = timeout_at(until, self.route.dial(place)).await;
        let speaks_tls = self.route.speaks_tls();
        let tls = if speaks_tls {
            "; does this port speak TLS?"
        } else {
            ""
        };
        let stream = stream
            .map_err(|_| self.late("a connection attempt", tls))?
            .map_err(unreachable)?;
        let logged_in = timeout_at(until, self.log_in(stream)).await;
        logged_in.unwrap_or_else(|_| Err(self.late("PING", ", though it takes connections")))
    }

    async fn log_in(&self, stream: Box<dyn Stream>) -> Result<Connected, Error> {
        let mut stream = Bounded::new(
            stream,
            match self.lane {
                Lane::Data => bounded::CHECK_MAX,
                Lane::Control => bounded::RECORD_MAX,
            },
        );
        let fault = stream.fault();
        self.greet(&mut stream).await?;
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_connection_timeout(None)
            .set_pipeline_buffer_size(BUFFER);
        let logged_in = RedisConnectionInfo::default().set_skip_set_lib_name();
        let (mut connection, driver) =
            MultiplexedConnection::new_with_config(&logged_in, stream, config)
                .await
                .map_err(|e| error::login_failed(&e))?;
        let mut driver: Driver = Box::pin(driver);
        tokio::select! {
            prepared = self.prepare(&mut connection) => prepared?,
            () = &mut driver => return Err(self.closed(None)),
        }
        Ok(Connected {
            connection,
            driver,
            fault,
        })
    }

    /// With TLS 1.3 a server that refuses our certificate says so after the handshake, if at all.
    fn closed(&self, said: Option<&io::Error>) -> Error {
        let tls = if self.route.speaks_tls() {
            "; does it want another client certificate (--store-cert, RL_STORE_CERT)?"
        } else {
            "; does this port want TLS (rediss://)?"
        };
        match said.filter(|error| error.kind() == io::ErrorKind::InvalidData) {
            Some(said) => Error::Unreachable(format!("closed at once, {said}{tls}")),
            None => Error::Unreachable(format!("closed at once{tls}")),
        }
    }

    /// Sends the first command and reads its answer, which the library would not pass on: a server that takes no
    /// more clients says so before it is asked, and closes.
    async fn greet(&self, stream: &mut Bounded<Box<dyn Stream>>) -> Result<(), Error> {
        let login = &self.route.server().login;
        let mut first = redis::cmd(if login.password().is_some() {
            "AUTH"
        } else {
            "PING"
        });
        first.arg(login.username()).arg(login.password());
        // Where that fails, what was said before is still there to be read.
        let sent = stream.write_all(&first.get_packed_command()).await;
        let _ = sent.and(stream.flush().await);
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            // Byte by byte: what follows is the library's.
            match stream.read_u8().await {
                Ok(byte) if line.len() < GREETING_MAX => line.push(byte),
                Ok(_) => return Err(value::short()),
                Err(error) => return Err(self.closed(Some(&error))),
            }
        }
        match line.trim_ascii_end().split_first() {
            Some((b'+', _)) => Ok(()),
            Some((b'-', refusal)) => {
                error::check_greeting(Err(error::refusal_of(&String::from_utf8_lossy(refusal))))
            }
            _ => Err(value::short()),
        }
    }

    /// Makes sure that the server replies, and has the scripts: the first call has no time to load
    /// them.
    async fn prepare(&self, connection: &mut MultiplexedConnection) -> Result<(), Error> {
        let scripts: &[&Script] = match self.lane {
            Lane::Data => &self.settings.scripts,
            Lane::Control => &[],
        };
        let db = self.route.server().login.db();
        let mut first = redis::Pipeline::with_capacity(3);
        if db != 0 {
            first.cmd("SELECT").arg(db);
        }
        // A server that is loading reports it only in a reply.
        first.cmd("PING");
        if !scripts.is_empty() {
            first.cmd("SCRIPT").arg("EXISTS");
            for script in scripts {
                first.arg(&script.sha1);
            }
        }
        let answers = connection.send_packed_commands(&first, 0, first.len());
        let mut answers = answers
            .await
            .map_err(|e| error::login_failed(&e))?
            .into_iter();
        let mut next = || error::reply_of(answers.next().unwrap_or(redis::Value::Nil));
        if db != 0 {
            next()?;
        }
        error::check_greeting(next())?;
        // Without permission for this query, the first call loads the script.
        let found = next().ok().and_then(|found| value::integers(found).ok());
        let mut load = redis::Pipeline::new();
        for (script, found) in scripts.iter().zip(found.unwrap_or_default()) {
            if found == 0 {
                load.cmd("SCRIPT").arg("LOAD").arg(&script.source);
            }
        }
        if !load.is_empty() {
            let loaded = connection.send_packed_commands(&load, 0, load.len());
            loaded.await.map_err(|e| error::login_failed(&e))?;
        }
        Ok(())
    }

    /// Lets callers use a connection until it is lost, or there is a better one.
    async fn serve(&self, number: u64, connected: Connected, place: Option<&Host>) -> End {
        let mut driver = AbortOnDrop::new(tokio::spawn(connected.driver));
        let session = Session {
            number,
            connection: connected.connection,
            fault: connected.fault,
        };
        self.status.send_replace(Status::Up(session.clone()));
        let end = tokio::select! {
            why = self.monitor(&mut driver, &session.fault) => End::Lost(why),
            () = self.route.moved(place) => {
                self.refusing.send_replace(None);
                End::Left
            }
            () = self.redial_due() => End::Left,
        };
        if matches!(end, End::Left) {
            self.status.send_replace(Status::Connecting);
            self.retire(session, driver);
        }
        end
    }

    /// Returns once the server has refused a write and was dialled some time ago.
    async fn redial_due(&self) {
        let dialled = Instant::now();
        self.refused.notified().await;
        sleep_until(dialled + jittered(REDIAL)).await;
    }

    /// Keeps the connection open for the answers to commands already sent.
    fn retire(&self, session: Session, mut driver: AbortOnDrop) {
        let limit = PROVEN + 2 * self.settings.connect_timeout;
        tokio::spawn(async move {
            let _open = session;
            // It is closed in either case.
            let _ = timeout(limit, driver.ended()).await;
        });
    }

    /// Returns when the connection is lost, and why.
    async fn monitor(&self, driver: &mut AbortOnDrop, fault: &Fault) -> Error {
        let mut status = self.status.subscribe();
        let mut refusing = self.refusing.subscribe();
        loop {
            let refuses = refusing.borrow_and_update().is_some();
            let pause = if refuses { RECHECK } else { KEEPALIVE };
            let suspected = status.wait_for(|s| !matches!(s, Status::Up(_)));
            tokio::select! {
                () = driver.ended() => {
                    let why = fault.get().cloned();
                    return Error::Broken(why.unwrap_or_else(|| "closed by the server".to_owned()));
                }
                _ = refusing.changed(), if !refuses => continue,
                _ = timeout(pause, suspected) => {}
            }
            let session = match &*self.status.borrow() {
                Status::Up(session) | Status::Suspect(session, _) => session.clone(),
                Status::Down(why) => return why.clone(),
                Status::Connecting => return Error::Broken("closed".to_owned()),
            };
            match self.probe(session.clone(), refuses).await {
                Ok(answer) if refuses => self.check_writable(&error::reply_of(answer)),
                // Any answer proves that the server is alive.
                Ok(_) => {}
                Err(why) => return why,
            }
            self.status.send_if_modified(|status| {
                let suspect = matches!(status, Status::Suspect(..));
                if suspect {
                    *status = Status::Up(session);
                }
                suspect
            });
        }
    }

    /// Sends a probe; `writes`: one that also shows whether the server takes writes.
    async fn probe(&self, mut session: Session, writes: bool) -> Result<redis::Value, Error> {
        let mut command = redis::cmd(if writes { "EVAL" } else { "PING" });
        if writes {
            command.arg(TAKES_WRITES).arg(0);
        }
        let limit = self.settings.probe_timeout;
        match timeout(limit, session.connection.send_packed_command(&command)).await {
            Ok(answer) => answer.map_err(|error| session.broken(&error)),
            Err(_) => Err(Error::Timeout(limit)),
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "what `map_err` gives")]
fn unreachable(error: io::Error) -> Error {
    Error::Unreachable(error.to_string())
}

impl Shared {
    fn track_refusals(&self, session: &Session, replies: &[Reply]) {
        let refusals = replies.iter().filter_map(|reply| reply.as_ref().err());
        let Some(refusal) = refusals.into_iter().find(|r| r.is_a_state()) else {
            return;
        };
        // A primary that became a replica, or lost its replicas, stays connected and refuses every
        // write: there may be a new primary. A node of a Cluster keeps its connection; its callers
        // refresh the map of slots.
        if refusal.may_be_a_demotion() && !self.route.refresh() && self.when_lost == WhenLost::Wait
        {
            self.refused.notify_one();
        }
        // A refusal by a previous primary does not concern its successor.
        let current = match &*self.status.borrow() {
            Status::Up(now) | Status::Suspect(now, _) => now.number == session.number,
            Status::Connecting | Status::Down(_) => false,
        };
        if current && self.lane == Lane::Data {
            self.refuses(refusal);
        }
    }

    fn log_of_refusals(&self) -> MutexGuard<'_, OutageLog> {
        let log = self.refusals.lock();
        log.unwrap_or_else(PoisonError::into_inner)
    }

    fn refuses(&self, refusal: &Refusal) {
        let now = Instant::now();
        let why = Error::Refused(refusal.clone());
        if self.log_of_refusals().failed(&why, now).is_some() {
            tracing::warn!(server = %self.route.server(), %refusal, "commands are refused");
        }
        self.refusing.send_if_modified(|refusing| {
            let known = refusing.replace(Refusing {
                refusal: refusal.clone(),
                last: now,
            });
            known.is_none()
        });
    }

    /// Updates the refusal by the reply to a probe for writes.
    fn check_writable(&self, answer: &Reply) {
        match answer {
            // A user without permission for the probe gets no information from it.
            Err(refusal) if refusal.code != "NOPERM" => return self.refuses(refusal),
            Ok(_) | Err(_) => {}
        }
        self.refusing.send_if_modified(|refusing| {
            let over = refusing.take_if(|known| known.last.elapsed() >= QUIET);
            if over.is_some()
                && let Some((lasted, _)) = self.log_of_refusals().over(Instant::now())
            {
                let server = self.route.server();
                tracing::info!(%server, ?lasted, "commands are not refused any more");
            }
            over.is_some()
        });
    }
}

/// The reasons of an outage that are logged in 30 seconds. They may alternate: a name may have several addresses,
/// a Cluster has several nodes.
const OUTAGE_REASONS: usize = 4;

/// Which failures are logged while servers are unreachable. They are dialled several times a second: of each
/// reason one line is logged at first, and one every 30 seconds.
#[derive(Debug, Default)]
pub(crate) struct OutageLog {
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    began: Instant,
    attempts: u64,
    /// When a line was logged last, and the reasons since the first of them.
    logged: Instant,
    whys: Vec<Error>,
    /// When the connection was restored.
    back: Option<Instant>,
}

impl OutageLog {
    /// Counts a connection that was lost or could not be made; returns how many in a row, if this
    /// one is to be logged.
    pub(crate) fn failed(&mut self, why: &Error, now: Instant) -> Option<u64> {
        // A connection that did not last belongs to the previous outage.
        let is_past = |c: &Current| c.back.is_some_and(|b| now.duration_since(b) >= PROVEN);
        let Some(current) = self.current.as_mut().filter(|current| !is_past(current)) else {
            self.current = Some(Current {
                began: now,
                attempts: 1,
                logged: now,
                whys: vec![why.clone()],
                back: None,
            });
            return Some(1);
        };
        current.attempts = current.attempts.saturating_add(1);
        if now.duration_since(current.logged) >= OUTAGE_LOGGED_AGAIN {
            current.whys.clear();
        }
        if current.whys.contains(why) || current.whys.len() >= OUTAGE_REASONS {
            return None;
        }
        current.logged = now;
        current.whys.push(why.clone());
        current.back = None;
        Some(current.attempts)
    }

    /// The server is back: returns the length of the outage and the number of failed dials, if they
    /// are to be logged.
    pub(crate) fn over(&mut self, now: Instant) -> Option<(Duration, u64)> {
        let current = self.current.as_mut()?;
        let first = current.back.is_none();
        current.back = Some(now);
        first.then(|| (now.duration_since(current.began), current.attempts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> Error {
        Error::Unreachable("refused".to_owned())
    }

    #[test]
    fn a_failure_reason_is_logged_once_and_then_every_half_minute() {
        let mut outage = OutageLog::default();
        let start = Instant::now();
        let logged: Vec<u64> = (0..600)
            .filter_map(|n| outage.failed(&refused(), start + Duration::from_millis(n * 100)))
            .collect();
        assert_eq!(logged, [1, 301]);
    }

    #[test]
    fn a_different_failure_reason_is_logged_at_once() {
        let mut outage = OutageLog::default();
        let now = Instant::now();
        assert_eq!(outage.failed(&refused(), now), Some(1));
        let loading = Error::Unreachable("loading".to_owned());
        assert_eq!(outage.failed(&loading, now), Some(2));
        assert_eq!(outage.failed(&loading, now), None);
    }

    #[test]
    fn reasons_that_alternate_are_each_logged_once_and_then_every_half_minute() {
        let mut outage = OutageLog::default();
        let start = Instant::now();
        let why = |n: u64| Error::Unreachable(format!("address {}", n % 3));
        let logged: Vec<u64> = (0..600)
            .filter_map(|n| outage.failed(&why(n), start + Duration::from_millis(n * 100)))
            .collect();
        assert_eq!(logged, [1, 2, 3, 303, 304, 305]);
    }

    #[test]
    fn a_new_outage_is_logged_after_the_previous_one_ended() {
        let mut outage = OutageLog::default();
        let lost = Instant::now();
        assert!(outage.over(lost).is_none());
        outage.failed(&refused(), lost);
        let back = lost + Duration::from_millis(700);
        assert_eq!(outage.over(back), Some((Duration::from_millis(700), 1)));
        assert_eq!(outage.failed(&refused(), back + PROVEN), Some(1));
    }

    #[test]
    fn repeated_hang_ups_are_logged_like_one_outage() {
        let mut outage = OutageLog::default();
        let start = Instant::now();
        let mut lines = 0;
        for n in 0..100 {
            let now = start + Duration::from_millis(n * 250);
            lines += usize::from(outage.failed(&refused(), now).is_some());
            lines += usize::from(outage.over(now + Duration::from_millis(100)).is_some());
        }
        assert_eq!(lines, 2);
    }
}
