//! The route to a server: a fixed address, or the primary that sentinels name.

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
    /// The connect timeout also bounds a sentinel's answers.
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

    /// The place of a server that sentinels name; `None`: its address is fixed.
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

    /// Call when the dialled server refuses writes: there may be a new primary. Returns whether
    /// sentinels can find it, without redialling.
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
