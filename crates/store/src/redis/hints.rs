//! Publications of edits: they make the next poll come at once.

use std::{
    io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::StreamExt;
use redis::RedisConnectionInfo;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    cluster::Cluster,
    dial::{Dialer, Stream},
    link::AbortOnDrop,
};

/// Pause between attempts to subscribe. Hints only save time, so there is no hurry.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Hints {
    subscriber: Arc<Subscriber>,
    task: OnceLock<AbortOnDrop>,
}

struct Subscriber {
    publisher: Publisher,
    channel: String,
    connect_timeout: Duration,
    count: watch::Sender<u64>,
}

/// Who tells of edits.
pub(super) enum Publisher {
    One(Dialer),
    /// Any node does: a Cluster passes publications on to all of them.
    Any(Cluster),
}

impl Publisher {
    async fn dial(&self) -> io::Result<(Box<dyn Stream>, RedisConnectionInfo)> {
        match self {
            Self::One(dialer) => Ok((dialer.dial().await?, dialer.server().login.clone())),
            Self::Any(cluster) => cluster.dial().await,
        }
    }
}

impl Hints {
    pub(super) fn new(publisher: Publisher, channel: String, connect_timeout: Duration) -> Self {
        Self {
            subscriber: Arc::new(Subscriber {
                publisher,
                channel,
                connect_timeout,
                count: watch::Sender::new(0),
            }),
            task: OnceLock::new(),
        }
    }

    /// Counts publications; subscribes at the first use.
    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.task.get_or_init(|| {
            let subscriber = Arc::clone(&self.subscriber);
            AbortOnDrop::new(tokio::spawn(async move { subscriber.keep().await }))
        });
        self.subscriber.count.subscribe()
    }
}

impl Subscriber {
    async fn keep(&self) {
        loop {
            if let Err(error) = self.listen().await {
                tracing::debug!(%error, "no subscription to edits; polling goes on");
            }
            sleep(PAUSE).await;
        }
    }

    async fn listen(&self) -> Result<(), String> {
        let subscribe = async {
            let (stream, login) = self.publisher.dial().await.map_err(|e| e.to_string())?;
            let mut connection = redis::aio::PubSub::new(&login, stream)
                .await
                .map_err(|e| e.to_string())?;
            let subscribed = connection.subscribe(&self.channel).await;
            subscribed.map_err(|e| e.to_string())?;
            Ok::<_, String>(connection)
        };
        let connection = match timeout(self.connect_timeout, subscribe).await {
            Ok(connection) => connection?,
            Err(_) => return Err("no answer".to_owned()),
        };
        // Something may have been published while nobody listened.
        self.bump();
        let mut messages = connection.into_on_message();
        while messages.next().await.is_some() {
            self.bump();
        }
        Err("the subscription ended".to_owned())
    }

    fn bump(&self) {
        self.count
            .send_modify(|count| *count = count.wrapping_add(1));
    }
}
