//! Queries to one sentinel.

use redis::{AsyncConnectionConfig, Pipeline, Value, aio::MultiplexedConnection};

use super::quorum::Claim;
use crate::{
    Error,
    bounded::{Bounded, MESSAGE_MAX},
    dial::Dialer,
    reply,
    task::AbortOnDrop,
    url::Host,
    value,
};

/// A connection to a sentinel.
pub(super) struct Connection {
    connection: MultiplexedConnection,
    /// Moves bytes for as long as the connection is kept.
    _driver: AbortOnDrop,
}

impl Connection {
    pub(super) async fn open(dialer: &Dialer) -> Result<Self, String> {
        let dialled = dialer.dial().await.map_err(|e| e.to_string())?;
        let dialled = Bounded::new(dialled, MESSAGE_MAX);
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_connection_timeout(None);
        let login = &dialer.server().login;
        let opened = MultiplexedConnection::new_with_config(login, dialled, config);
        let (connection, driver) = opened.await.map_err(|e| e.to_string())?;
        Ok(Self {
            connection,
            _driver: AbortOnDrop::new(tokio::spawn(driver)),
        })
    }

    /// The address of the primary, and its configuration epoch.
    pub(super) async fn ask(&mut self, service: &str) -> Result<Claim, String> {
        // The epoch first: if a failover happens between the two, the address is newer than the
        // epoch, which the next query corrects. An old address never gets a newer epoch.
        let mut both = Pipeline::with_capacity(2);
        for question in ["MASTER", "GET-MASTER-ADDR-BY-NAME"] {
            both.cmd("SENTINEL").arg(question).arg(service);
        }
        let answers = self.connection.send_packed_commands(&both, 0, 2).await;
        let mut answers = answers.map_err(|e| e.to_string())?.into_iter();
        let about = answers.next().map(reply::of);
        let place = answers.next().map_or(Ok(Value::Nil), reply::of);
        let place = place.map_err(|refusal| Error::from(refusal).to_string())?;
        if place == Value::Nil {
            return Err(format!("it has no service {service}"));
        }
        Ok(Claim {
            primary: address(place).map_err(|e| e.to_string())?,
            // The user may lack permission for the epoch and still be allowed to query the address.
            epoch: about.and_then(Result::ok).and_then(epoch).unwrap_or(0),
        })
    }
}

fn address(answer: Value) -> Result<Host, Error> {
    let mut parts = value::texts(answer)?.into_iter();
    let mut next = || parts.next().ok_or_else(value::short);
    let (host, port) = (next()?, next()?);
    Ok((host, port.parse().map_err(|_| value::short())?))
}

fn epoch(about: Value) -> Option<u64> {
    let fields = value::pairs(about).ok()?;
    fields.get("config-epoch")?.parse().ok()
}
