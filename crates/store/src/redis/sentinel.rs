//! Asks sentinels where the primary is.

use std::io;

use futures_util::future::{FutureExt, select_ok};
use redis::{AsyncConnectionConfig, aio::MultiplexedConnection};

use super::dial::{Dialer, Stream};
use crate::url::Sentinels;

/// A connection to the primary that some sentinel names.
///
/// All are asked at once and the first to know decides: one that is down, or cut off, costs
/// nothing. That its answer may be of the past is found out by the first write: the old primary
/// refuses it as a replica, and the link dials again.
pub(super) async fn dial(dialer: &Dialer, sentinels: &Sentinels) -> io::Result<Box<dyn Stream>> {
    let ask = |host: &(String, u16)| ask(dialer, sentinels, host.clone()).boxed();
    let asked: Vec<_> = sentinels.hosts.iter().map(ask).collect();
    let ((host, port), _) = select_ok(asked).await?;
    let primary = dialer.tcp(&host, port).await;
    primary.map_err(|e| error(&format!("the primary {host}:{port}: {e}")))
}

async fn ask(
    dialer: &Dialer,
    sentinels: &Sentinels,
    (host, port): (String, u16),
) -> io::Result<(String, u16)> {
    let named = |e: &dyn std::fmt::Display| error(&format!("the sentinel {host}:{port}: {e}"));
    let stream = dialer.tcp(&host, port).await.map_err(|e| named(&e))?;
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_connection_timeout(None);
    let opened = MultiplexedConnection::new_with_config(&sentinels.login, stream, config);
    let (mut connection, driver) = opened.await.map_err(|e| named(&e))?;
    let mut question = redis::cmd("SENTINEL");
    question
        .arg("GET-MASTER-ADDR-BY-NAME")
        .arg(&sentinels.service);
    let answer = question.query_async::<Option<(String, u16)>>(&mut connection);
    tokio::select! {
        answer = answer => match answer {
            Ok(Some(address)) => Ok(address),
            Ok(None) => Err(named(&format!("it knows no service {}", sentinels.service))),
            Err(e) => Err(named(&e)),
        },
        () = driver => Err(named(&"it closed the connection")),
    }
}

fn error(message: &str) -> io::Error {
    io::Error::other(message.to_owned())
}
