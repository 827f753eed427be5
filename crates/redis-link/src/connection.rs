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

mod keeper;
mod refusals;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use redis::{RedisError, aio::MultiplexedConnection};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout_at},
};

use self::refusals::Refusing;
use crate::{
    Error, Lane, Settings,
    bounded::Fault,
    reply::{self, Reply},
    route::Route,
    task::AbortOnDrop,
};

/// A connection that lived shorter than this does not show that the next one will last.
pub(crate) const PROVEN: Duration = Duration::from_secs(1);

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
            None => reply::transport(error),
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
