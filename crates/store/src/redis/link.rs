//! One connection that is kept: dialled once for everybody, probed when in doubt, redialled when
//! lost.
//!
//! A single task owns the connection, so there is never more than one dial under way, however many
//! callers wait. Callers see one of four states:
//!
//! - *connecting*: they wait, no longer than their own deadline;
//! - *up*: they send;
//! - *suspect*, since somebody's deadline passed: they fail at once until a probe is answered. A
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

use super::{
    dial::Dialer,
    outage::Outage,
    reply::{self, Reply},
};
use crate::{Refusal, StoreError, url::Host};

/// How long a probe may take before the connection is given up.
const PROBE_MAX: Duration = Duration::from_millis(500);
/// How often an idle connection is probed.
const KEEPALIVE: Duration = Duration::from_secs(5);
const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// With `PROBE_MAX`, what keeps the way back to a recovered server below a second.
const BACKOFF_MAX: Duration = Duration::from_millis(250);
/// A connection that lived shorter than this did not prove that the next one will do better.
pub(super) const PROVEN: Duration = Duration::from_secs(1);
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
    Suspect(Session, StoreError),
    Down(StoreError),
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
    when_lost: WhenLost,
    connect_timeout: Duration,
    status: watch::Sender<Status>,
    /// The server refused to be written to.
    refused: Notify,
}

/// A connection that was just made.
struct Connected {
    connection: MultiplexedConnection,
    driver: Driver,
}

/// Why a connection is not used any more.
enum End {
    Lost(StoreError),
    /// Another one is better.
    Left,
}

/// When an answer is too late.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    at: Instant,
    limit: Duration,
}

impl Deadline {
    pub(crate) fn within(limit: Duration) -> Self {
        Self {
            at: Instant::now() + limit,
            limit,
        }
    }

    pub(crate) fn at(self) -> Instant {
        self.at
    }
}

/// A connection that is kept. Dropping it closes the connection.
pub(crate) struct Link {
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

impl Link {
    /// Dials at the first use, or at [`Link::start`].
    pub(crate) fn new(dialer: Dialer, connect_timeout: Duration, when_lost: WhenLost) -> Self {
        Self {
            shared: Arc::new(Shared {
                dialer,
                when_lost,
                connect_timeout,
                status: watch::Sender::new(Status::Connecting),
                refused: Notify::new(),
            }),
            keeper: OnceLock::new(),
        }
    }

    /// Sends commands together and waits for every answer.
    ///
    /// On [`StoreError::Timeout`] and [`StoreError::Broken`] they may or may not have run.
    pub(crate) async fn run(
        &self,
        commands: &redis::Pipeline,
        deadline: Deadline,
    ) -> Result<Vec<Reply>, StoreError> {
        let Ok(session) = timeout_at(deadline.at, self.session()).await else {
            return Err(StoreError::Unreachable(
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
                self.shared.look_for_demotion(&replies);
                Ok(replies)
            }
            Ok(Err(error)) => Err(reply::transport(&error)),
            Err(_) => {
                let error = StoreError::Timeout(deadline.limit);
                self.shared.suspect(&session, error.clone());
                Err(error)
            }
        }
    }

    /// Whether the last that was heard of the server was good.
    pub(crate) fn is_up(&self) -> bool {
        matches!(*self.shared.status.borrow(), Status::Up(_))
    }

    /// Whether the last that was heard of the server was bad; one that was not dialled yet, or is
    /// dialled again after a good while, is not down.
    pub(crate) fn is_down(&self) -> bool {
        matches!(
            *self.shared.status.borrow(),
            Status::Suspect(..) | Status::Down(_)
        )
    }

    /// Dials now, so that the first use need not wait for it.
    pub(crate) fn start(&self) {
        self.keeper.get_or_init(|| {
            let shared = Arc::clone(&self.shared);
            AbortOnDrop(tokio::spawn(async move { shared.keep().await }))
        });
    }

    async fn session(&self) -> Result<Session, StoreError> {
        self.start();
        let mut status = self.shared.status.subscribe();
        loop {
            match &*status.borrow_and_update() {
                Status::Connecting => {}
                Status::Up(session) => return Ok(session.clone()),
                Status::Suspect(_, error) | Status::Down(error) => return Err(unasked(error)),
            }
            if status.changed().await.is_err() {
                return Err(StoreError::Unreachable("the store was closed".to_owned()));
            }
        }
    }
}

impl Shared {
    async fn keep(&self) {
        let mut backoff = BACKOFF_MIN;
        let mut outage = Outage::default();
        // Where the server was dialled last, if sentinels say so.
        let mut place = None;
        for number in 0.. {
            let dialled = Instant::now();
            let end = match self.connect(&mut place).await {
                Ok(connected) => {
                    self.tell_connected(&mut outage);
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
            self.dialer.doubt();
            if dialled.elapsed() >= PROVEN + self.connect_timeout {
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

    fn tell_connected(&self, outage: &mut Outage) {
        let server = self.dialer.server();
        if let Some((lasted, attempts)) = outage.over(Instant::now()) {
            tracing::info!(%server, ?lasted, attempts, "connected again");
        } else {
            tracing::debug!(%server, "connected");
        }
    }

    async fn connect(&self, place: &mut Option<Host>) -> Result<Connected, StoreError> {
        let late = |_| {
            StoreError::Unreachable(format!(
                "no answer to a connection attempt within {} ms",
                self.connect_timeout.as_millis()
            ))
        };
        loop {
            let found = timeout(self.connect_timeout, self.dialer.place()).await;
            *place = found.map_err(late)?.map_err(unreachable)?;
            tokio::select! {
                connected = timeout(self.connect_timeout, self.open(place.as_ref())) => {
                    return connected.map_err(late)?;
                }
                () = self.dialer.moved(place.as_ref()) => {}
            }
        }
    }

    async fn open(&self, place: Option<&Host>) -> Result<Connected, StoreError> {
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
        // A server that wants a password, or is loading, says so only when it is asked.
        let ping = redis::cmd("PING");
        tokio::select! {
            answer = connection.send_packed_command(&ping) => reply::greeting(answer)?,
            () = &mut driver => {
                return Err(StoreError::Unreachable("closed at once".to_owned()));
            }
        }
        Ok(Connected { connection, driver })
    }

    /// Lets callers use a connection until it is lost, or there is a better one.
    async fn serve(&self, number: u64, connected: Connected, place: Option<&Host>) -> End {
        let mut driver = AbortOnDrop(tokio::spawn(connected.driver));
        let connection = connected.connection;
        let session = Session { number, connection };
        self.status.send_replace(Status::Up(session.clone()));
        let end = tokio::select! {
            why = self.attend(&mut driver) => End::Lost(why),
            () = self.dialer.moved(place) => End::Left,
            () = self.is_to_be_redialled() => End::Left,
        };
        if matches!(end, End::Left) {
            self.status.send_replace(Status::Connecting);
            self.retire(session, driver);
        }
        end
    }

    /// Returns once the server has refused to be written to, and was dialled some time ago.
    async fn is_to_be_redialled(&self) {
        let dialled = Instant::now();
        self.refused.notified().await;
        sleep_until(dialled + jittered(REDIAL)).await;
    }

    /// What was sent over a connection keeps it for its answers.
    fn retire(&self, session: Session, mut driver: AbortOnDrop) {
        let limit = PROVEN + 2 * self.connect_timeout;
        tokio::spawn(async move {
            let _open = session;
            // It is closed in either case.
            let _ = timeout(limit, &mut driver.0).await;
        });
    }

    /// Returns when the connection is lost, and why.
    async fn attend(&self, driver: &mut AbortOnDrop) -> StoreError {
        let mut status = self.status.subscribe();
        loop {
            let doubt = status.wait_for(|s| !matches!(s, Status::Up(_)));
            tokio::select! {
                _ = &mut driver.0 => {
                    return StoreError::Broken("closed by the server".to_owned());
                }
                _ = timeout(KEEPALIVE, doubt) => {}
            }
            let session = match &*self.status.borrow() {
                Status::Up(session) | Status::Suspect(session, _) => session.clone(),
                Status::Down(why) => return why.clone(),
                Status::Connecting => return StoreError::Broken("closed".to_owned()),
            };
            if let Err(why) = probe(session.clone()).await {
                return why;
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
    fn suspect(&self, session: &Session, error: StoreError) {
        self.status.send_if_modified(|status| {
            let current = matches!(status, Status::Up(s) if s.number == session.number);
            if current {
                *status = Status::Suspect(session.clone(), error);
            }
            current
        });
    }

    /// A primary that became a replica, or lost its replicas, stays connected and refuses every write:
    /// there may be another one by now.
    fn look_for_demotion(&self, replies: &[Reply]) {
        let demoted = |reply: &Reply| {
            let refusal = reply.as_ref().err();
            refusal.is_some_and(Refusal::may_be_a_demotion)
        };
        // A node of a Cluster stays what it is; who has its slots is asked for by whoever uses it.
        if replies.iter().any(demoted) && !self.dialer.doubt() && self.when_lost == WhenLost::Wait {
            self.refused.notify_one();
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "what `map_err` gives")]
fn unreachable(error: std::io::Error) -> StoreError {
    StoreError::Unreachable(error.to_string())
}

/// What a caller gets whom the last failure kept from sending anything.
fn unasked(last: &StoreError) -> StoreError {
    if last.is_harmless() {
        last.clone()
    } else {
        StoreError::Unreachable(format!("not asked again since {last}"))
    }
}

async fn probe(mut session: Session) -> Result<(), StoreError> {
    let ping = redis::cmd("PING");
    match timeout(PROBE_MAX, session.connection.send_packed_command(&ping)).await {
        // Any answer will do: this asks whether the server lives.
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(reply::transport(&error)),
        Err(_) => Err(StoreError::Timeout(PROBE_MAX)),
    }
}

/// Between half of a pause and all of it, so that many do not come back at once.
pub(crate) fn jittered(wait: Duration) -> Duration {
    let micros = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(fastrand::u64(micros / 2..=micros))
}
