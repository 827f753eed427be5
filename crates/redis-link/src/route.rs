//! The way to a server: always the same, or to the primary that sentinels name.

use std::io;

use futures_util::future::BoxFuture;

use crate::{
    Settings,
    dial::{Dialer, Dialled, Stream},
    sentinel::Primary,
    subscription::Publisher,
    url::{Address, Host, Server},
};

/// How to reach a server, wherever it is now.
#[derive(Clone)]
pub(crate) struct Route {
    dialer: Dialer,
    /// Of a server that sentinels name.
    primary: Option<Primary>,
}

impl Route {
    /// A sentinel may take as long to answer as a connection attempt.
    pub(crate) fn new(dialer: Dialer, settings: &Settings) -> Self {
        let primary = match &dialer.server().address {
            Address::Sentinel { sentinels, .. } => {
                let dial_to = |host: &Host| dialer.with_login(host, sentinels.login.clone());
                Some(Primary::new(sentinels, settings.connect_timeout, dial_to))
            }
            _ => None,
        };
        Self { dialer, primary }
    }

    pub(crate) fn server(&self) -> &Server {
        self.dialer.server()
    }

    /// Where a server is that sentinels name; `None`: always in the same place.
    pub(crate) async fn place(&self) -> io::Result<Option<Host>> {
        match &self.primary {
            Some(primary) => primary.place().await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns once sentinels name another place; never, where there are none.
    pub(crate) async fn moved(&self, from: Option<&Host>) {
        match (&self.primary, from) {
            (Some(primary), Some(from)) => primary.moved(from).await,
            _ => std::future::pending().await,
        }
    }

    /// The server that was dialled takes no writes: another one may be meant by now. Says whether that
    /// is found out without dialling.
    pub(crate) fn refresh(&self) -> bool {
        if let Some(primary) = &self.primary {
            primary.refresh();
        }
        self.primary.is_some()
    }

    /// Dials the server, at the place that [`Route::place`] named.
    pub(crate) async fn dial(&self, place: Option<&Host>) -> io::Result<Box<dyn Stream>> {
        let Some((host, port)) = place else {
            return self.dialer.dial().await;
        };
        let dialled = self.dialer.tcp(host, *port).await;
        dialled.map_err(|e| io::Error::other(format!("the primary {host}:{port}: {e}")))
    }
}

impl Publisher for Route {
    fn dial(&self) -> BoxFuture<'_, io::Result<Dialled>> {
        Box::pin(async {
            let place = self.place().await?;
            Ok(Dialled {
                stream: self.dial(place.as_ref()).await?,
                login: self.server().login.clone(),
                place,
            })
        })
    }

    fn moved<'a>(&'a self, from: Option<&'a Host>) -> BoxFuture<'a, ()> {
        Box::pin(self.moved(from))
    }
}
