//! The task that owns the connection: dials, probes and redials.

use std::{pin::Pin, time::Duration};

use redis::{AsyncConnectionConfig, aio::MultiplexedConnection};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{PROVEN, Session, Shared, Status, WhenLost, refusals};
use crate::{
    Error, Lane, Script,
    bounded::{self, Bounded, Fault},
    outage_log::OutageLog,
    reply,
    task::{AbortOnDrop, jittered},
    url::Host,
    value,
};

/// How often an idle connection is probed.
const KEEPALIVE: Duration = Duration::from_secs(5);
const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// With the time that a probe may take, this keeps recovery of a server's connection below one
/// second.
const BACKOFF_MAX: Duration = Duration::from_millis(250);
/// Commands that the client library may queue, in addition to those that callers hold.
const BUFFER: usize = 64;
/// Pause before redialling a server that refuses writes.
const REDIAL: Duration = Duration::from_millis(500);

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

impl Shared {
    pub(super) async fn keep(&self) {
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
        let late = |_| {
            Error::Unreachable(format!(
                "no answer to a connection attempt within {} ms",
                self.settings.connect_timeout.as_millis()
            ))
        };
        loop {
            let found = timeout(self.settings.connect_timeout, self.route.place()).await;
            *place = found.map_err(late)?.map_err(unreachable)?;
            tokio::select! {
                connected = timeout(self.settings.connect_timeout, self.open(place.as_ref())) => {
                    return connected.map_err(late)?;
                }
                () = self.route.moved(place.as_ref()) => {}
            }
        }
    }

    async fn open(&self, place: Option<&Host>) -> Result<Connected, Error> {
        let stream = self.route.dial(place).await.map_err(unreachable)?;
        let stream = Bounded::new(
            stream,
            match self.lane {
                Lane::Data => bounded::CHECK_MAX,
                Lane::Control => bounded::RECORD_MAX,
            },
        );
        let fault = stream.fault();
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_connection_timeout(None)
            .set_pipeline_buffer_size(BUFFER);
        let login = &self.route.server().login;
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
        Ok(Connected {
            connection,
            driver,
            fault,
        })
    }

    /// Makes sure that the server replies, and has the scripts: the first call has no time to load
    /// them.
    async fn prepare(&self, connection: &mut MultiplexedConnection) -> Result<(), Error> {
        let scripts: &[&Script] = match self.lane {
            Lane::Data => &self.settings.scripts,
            Lane::Control => &[],
        };
        // A server that requires a password, or is loading, reports it only in a reply.
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
        // Without permission for this query, the first call loads the script.
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
            let pause = if refuses {
                refusals::RECHECK
            } else {
                KEEPALIVE
            };
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
                Ok(answer) if refuses => self.check_writable(&reply::of(answer)),
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
            command.arg(refusals::TAKES_WRITES).arg(0);
        }
        let limit = self.settings.probe_timeout;
        match timeout(limit, session.connection.send_packed_command(&command)).await {
            Ok(answer) => answer.map_err(|error| session.broken(&error)),
            Err(_) => Err(Error::Timeout(limit)),
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "what `map_err` gives")]
fn unreachable(error: std::io::Error) -> Error {
    Error::Unreachable(error.to_string())
}
