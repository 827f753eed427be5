//! One connection that is kept open: dialled once for all callers, probed when suspect, redialled when
//! lost.
//!
//! A single task owns the connection, so there is never more than one dial under way, however many
//! callers wait. Callers see one of four states:
//!
//! - *connecting*: they wait, no longer than their own deadline;
//! - *up*: they send;
//! - *suspect*, since a caller's deadline passed: they fail at once until a probe is answered. A
//!   server that hangs thus gets one batch and one PING, not a backlog that it would charge all at
//!   once when it wakes up, long after the requests were decided without it;
//! - *down*: they fail at once, with the reason of the last dial.
//!
//! A primary that was deposed may live on and answer. So the connection is also left when sentinels
//! name another primary, or, where there are none, when the server refuses to be written to: its name
//! may lead elsewhere by now. What was sent before keeps the old connection for its answer.

use std::{
    pin::Pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use redis::{AsyncConnectionConfig, aio::MultiplexedConnection};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};

use crate::{
    Error, Lane, Refusal, Script, Settings,
    dial::Dialer,
    outage_log::OutageLog,
    reply::{self, Reply},
    url::Host,
    value,
};

/// How often an idle connection is probed.
const KEEPALIVE: Duration = Duration::from_secs(5);
const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// With the time that a probe may take, what keeps the way back to a recovered server below a second.
const BACKOFF_MAX: Duration = Duration::from_millis(250);
/// A connection that lived shorter than this did not prove that the next one will do better.
pub(crate) const PROVEN: Duration = Duration::from_secs(1);
/// How often a server that refused commands is asked whether it still does.
const RECHECK: Duration = Duration::from_millis(250);
/// What may be permitted for one command and not for the next is reported for this long.
const QUIET: Duration = Duration::from_secs(1);
/// A script that declares itself is refused before it runs where writes are: by a replica, a server
/// out of memory or of replicas, one whose disk is full. It has no key, so any node of a Cluster takes it.
const TAKES_WRITES: &str = "#!lua\nreturn 1";
/// Commands that may wait inside the client, beyond those that callers hold.
const BUFFER: usize = 64;
/// Pause before a server that refuses to be written to is dialled again.
const REDIAL: Duration = Duration::from_millis(500);

/// Moves bytes for as long as the connection lives.
type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Clone)]
struct Session {
    number: u64,
    connection: MultiplexedConnection,
}

enum Status {
    Connecting,
    Up(Session),
    Suspect(Session, Error),
    Down(Error),
}

/// What callers do while a connection that was lost after a good while is dialled again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenLost {
    /// They wait, no longer than their deadline: most likely a restart or a failover.
    Wait,
    /// They fail at once: others than the one that is lost have to be served.
    Fail,
}

struct Shared {
    dialer: Dialer,
    lane: Lane,
    when_lost: WhenLost,
    settings: Settings,
    status: watch::Sender<Status>,
    /// The server refused to be written to.
    refused: Notify,
    /// Of [`Lane::Data`]: why commands are refused.
    refusing: watch::Sender<Option<Refusing>>,
}

/// A server that answers and decides nothing.
struct Refusing {
    refusal: Refusal,
    since: Instant,
    last: Instant,
}

/// A connection that was just made.
struct Connected {
    connection: MultiplexedConnection,
    driver: Driver,
}

/// Why a connection is not used any more.
enum End {
    Lost(Error),
    /// Another one is better.
    Left,
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

/// A task that ends with its owner.
pub(crate) struct AbortOnDrop(JoinHandle<()>);

impl AbortOnDrop {
    pub(crate) fn new(task: JoinHandle<()>) -> Self {
        Self(task)
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Connection {
    /// Dials at the first use, or at [`Connection::start`].
    pub(crate) fn new(dialer: Dialer, lane: Lane, settings: Settings, when_lost: WhenLost) -> Self {
        Self {
            shared: Arc::new(Shared {
                dialer,
                lane,
                when_lost,
                settings,
                status: watch::Sender::new(Status::Connecting),
                refused: Notify::new(),
                refusing: watch::Sender::new(None),
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
                let replies: Vec<Reply> = values.into_iter().map(reply::of).collect();
                self.shared.track_refusals(&session, &replies);
                Ok(replies)
            }
            Ok(Err(error)) => Err(reply::transport(&error)),
            Err(_) => {
                let error = Error::Timeout(deadline.limit);
                self.shared.suspect(&session, error.clone());
                Err(error)
            }
        }
    }

    /// Whether there is a connection, in doubt or not.
    pub(crate) fn is_connected(&self) -> bool {
        let status = self.shared.status.borrow();
        matches!(*status, Status::Up(_) | Status::Suspect(..))
    }

    /// Whether there is no connection yet, or again, and it is not known why.
    pub(crate) fn is_connecting(&self) -> bool {
        matches!(*self.shared.status.borrow(), Status::Connecting)
    }

    /// Why callers get no answer that they can use; one that was not dialled yet, or is dialled again
    /// after a good while, is not in trouble.
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
            AbortOnDrop(tokio::spawn(async move { shared.keep().await }))
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
    async fn keep(&self) {
        let mut backoff = BACKOFF_MIN;
        let mut outage = OutageLog::default();
        // Where the server was dialled last, if sentinels say so.
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
                    server = %self.dialer.server(), error = %why, attempts,
                    "no connection to the store"
                );
            }
            // It may be lost because it is the primary no more.
            self.dialer.refresh();
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
                    () = self.dialer.moved(place.as_ref()) => {}
                }
                backoff = (backoff * 2).min(BACKOFF_MAX);
            }
        }
    }

    fn log_connected(&self, outage: &mut OutageLog) {
        let server = self.dialer.server();
        if let Some((lasted, attempts)) = outage.over(Instant::now()) {
            tracing::info!(%server, ?lasted, attempts, "connected again");
        } else {
            tracing::debug!(%server, "connected");
        }
    }

    async fn connect(&self, place: &mut Option<Host>) -> Result<Connected, Error> {
        let late = |_| {
            Error::Unreachable(format!(
                "no answer to a connection attempt within {} ms",
                self.settings.connect_timeout.as_millis()
            ))
        };
        loop {
            let found = timeout(self.settings.connect_timeout, self.dialer.place()).await;
            *place = found.map_err(late)?.map_err(unreachable)?;
            tokio::select! {
                connected = timeout(self.settings.connect_timeout, self.open(place.as_ref())) => {
                    return connected.map_err(late)?;
                }
                () = self.dialer.moved(place.as_ref()) => {}
            }
        }
    }

    async fn open(&self, place: Option<&Host>) -> Result<Connected, Error> {
        let stream = self.dialer.dial(place).await.map_err(unreachable)?;
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_connection_timeout(None)
            .set_pipeline_buffer_size(BUFFER);
        let login = &self.dialer.server().login;
        let (mut connection, driver) =
            MultiplexedConnection::new_with_config(login, stream, config)
                .await
                .map_err(|e| reply::login(&e))?;
        let mut driver: Driver = Box::pin(driver);
        tokio::select! {
            prepared = self.prepare(&mut connection) => prepared?,
            () = &mut driver => {
                return Err(Error::Unreachable("closed at once".to_owned()));
            }
        }
        Ok(Connected { connection, driver })
    }

    /// Makes sure that the server replies, and has the scripts: the first call has no time to load
    /// them.
    async fn prepare(&self, connection: &mut MultiplexedConnection) -> Result<(), Error> {
        let scripts: &[&Script] = match self.lane {
            Lane::Data => &self.settings.scripts,
            Lane::Control => &[],
        };
        // A server that wants a password, or is loading, reports it only in a reply.
        let mut first = redis::Pipeline::with_capacity(2);
        first.cmd("PING");
        if !scripts.is_empty() {
            first.cmd("SCRIPT").arg("EXISTS");
            for script in scripts {
                first.arg(&script.sha1);
            }
        }
        let answers = connection.send_packed_commands(&first, 0, first.len());
        let mut answers = answers.await.map_err(|e| reply::login(&e))?.into_iter();
        reply::greeting(answers.next().unwrap_or(redis::Value::Nil))?;
        // Where that may not be asked, the first call finds out.
        let found = answers.next().and_then(|found| value::integers(found).ok());
        let mut load = redis::Pipeline::new();
        for (script, found) in scripts.iter().zip(found.unwrap_or_default()) {
            if found == 0 {
                load.cmd("SCRIPT").arg("LOAD").arg(&script.source);
            }
        }
        if !load.is_empty() {
            let loaded = connection.send_packed_commands(&load, 0, load.len());
            loaded.await.map_err(|e| reply::login(&e))?;
        }
        Ok(())
    }

    /// Lets callers use a connection until it is lost, or there is a better one.
    async fn serve(&self, number: u64, connected: Connected, place: Option<&Host>) -> End {
        let mut driver = AbortOnDrop(tokio::spawn(connected.driver));
        let connection = connected.connection;
        let session = Session { number, connection };
        self.status.send_replace(Status::Up(session.clone()));
        let end = tokio::select! {
            why = self.monitor(&mut driver) => End::Lost(why),
            () = self.dialer.moved(place) => {
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

    /// Returns once the server has refused to be written to, and was dialled some time ago.
    async fn redial_due(&self) {
        let dialled = Instant::now();
        self.refused.notified().await;
        sleep_until(dialled + jittered(REDIAL)).await;
    }

    /// What was sent over a connection keeps it for its answers.
    fn retire(&self, session: Session, mut driver: AbortOnDrop) {
        let limit = PROVEN + 2 * self.settings.connect_timeout;
        tokio::spawn(async move {
            let _open = session;
            // It is closed in either case.
            let _ = timeout(limit, &mut driver.0).await;
        });
    }

    /// Returns when the connection is lost, and why.
    async fn monitor(&self, driver: &mut AbortOnDrop) -> Error {
        let mut status = self.status.subscribe();
        let mut refusing = self.refusing.subscribe();
        loop {
            let refuses = refusing.borrow_and_update().is_some();
            let pause = if refuses { RECHECK } else { KEEPALIVE };
            let suspected = status.wait_for(|s| !matches!(s, Status::Up(_)));
            tokio::select! {
                _ = &mut driver.0 => {
                    return Error::Broken("closed by the server".to_owned());
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
                Ok(answer) if refuses => self.check_writable(&reply::of(answer)),
                // Any answer will do: this asks whether the server lives.
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

    /// Stops callers until the session has answered a probe.
    fn suspect(&self, session: &Session, error: Error) {
        self.status.send_if_modified(|status| {
            let current = matches!(status, Status::Up(s) if s.number == session.number);
            if current {
                *status = Status::Suspect(session.clone(), error);
            }
            current
        });
    }

    /// Sends a probe; `writes`: one that also shows whether the server takes writes.
    async fn probe(&self, mut session: Session, writes: bool) -> Result<redis::Value, Error> {
        let mut command = redis::cmd(if writes { "EVAL" } else { "PING" });
        if writes {
            command.arg(TAKES_WRITES).arg(0);
        }
        let limit = self.settings.probe_timeout;
        match timeout(limit, session.connection.send_packed_command(&command)).await {
            Ok(answer) => answer.map_err(|error| reply::transport(&error)),
            Err(_) => Err(Error::Timeout(limit)),
        }
    }

    fn track_refusals(&self, session: &Session, replies: &[Reply]) {
        let refusals = replies.iter().filter_map(|reply| reply.as_ref().err());
        let Some(refusal) = refusals.into_iter().find(|r| r.is_a_state()) else {
            return;
        };
        // A primary that became a replica, or lost its replicas, stays connected and refuses every
        // write: there may be another one by now. A node of a Cluster keeps its connection; its
        // callers refresh the map of slots.
        if refusal.may_be_a_demotion() && !self.dialer.refresh() && self.when_lost == WhenLost::Wait
        {
            self.refused.notify_one();
        }
        // A refusal by a primary that was left does not concern its successor.
        let current = match &*self.status.borrow() {
            Status::Up(now) | Status::Suspect(now, _) => now.number == session.number,
            Status::Connecting | Status::Down(_) => false,
        };
        if current && self.lane == Lane::Data {
            self.refuses(refusal);
        }
    }

    fn refuses(&self, refusal: &Refusal) {
        let now = Instant::now();
        self.refusing.send_if_modified(|refusing| match refusing {
            Some(known) if known.refusal.code == refusal.code => {
                known.last = now;
                false
            }
            _ => {
                let since = refusing.as_ref().map_or(now, |known| known.since);
                tracing::warn!(server = %self.dialer.server(), %refusal, "commands are refused");
                *refusing = Some(Refusing {
                    refusal: refusal.clone(),
                    since,
                    last: now,
                });
                true
            }
        });
    }

    /// Whether the server still refuses, by the reply to a probe for writes.
    fn check_writable(&self, answer: &Reply) {
        match answer {
            // A user who may not ask learns nothing by it.
            Err(refusal) if refusal.code != "NOPERM" => return self.refuses(refusal),
            Ok(_) | Err(_) => {}
        }
        self.refusing.send_if_modified(|refusing| {
            let over = refusing.take_if(|known| known.last.elapsed() >= QUIET);
            if let Some(Refusing { since, .. }) = &over {
                let (server, lasted) = (self.dialer.server(), since.elapsed());
                tracing::info!(%server, ?lasted, "commands are not refused any more");
            }
            over.is_some()
        });
    }
}

#[expect(clippy::needless_pass_by_value, reason = "what `map_err` gives")]
fn unreachable(error: std::io::Error) -> Error {
    Error::Unreachable(error.to_string())
}

/// The error of a caller that sent nothing because of the last failure.
fn not_sent(last: &Error) -> Error {
    if last.is_harmless() {
        last.clone()
    } else {
        Error::Unreachable(format!("not asked again since {last}"))
    }
}

/// Between half of a pause and all of it, so that many do not come back at once.
pub(crate) fn jittered(wait: Duration) -> Duration {
    let micros = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(fastrand::u64(micros / 2..=micros))
}
