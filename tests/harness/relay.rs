//! A relay of TCP connections that a test can cut.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::{free_port, serve::serve_each};

/// The relay. Clones share it; it ends with the last.
#[derive(Debug, Clone)]
pub struct Relay {
    port: u16,
    tasks: Arc<Mutex<JoinSet<()>>>,
}

impl Relay {
    /// A relay on a free port that accepts no connection yet.
    pub fn new() -> Result<Self> {
        Ok(Self {
            port: free_port()?,
            tasks: Arc::default(),
        })
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Relays connections to this port.
    pub async fn relay_to(&self, port: u16) -> Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port)).await?;
        let tasks = serve_each(listener, move |mut from| async move {
            // Either side may close the connection at any time.
            if let Ok(mut to) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
                let _ = copy_bidirectional(&mut from, &mut to).await;
            }
        });
        *self.tasks.lock().unwrap_or_else(PoisonError::into_inner) = tasks;
        Ok(())
    }

    /// Closes every connection, and refuses new ones.
    pub async fn cut(&self) {
        let mut tasks =
            std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        tasks.shutdown().await;
    }
}
