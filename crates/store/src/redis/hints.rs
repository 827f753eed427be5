//! Publications of edits: they make the next poll come at once.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::StreamExt;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::dial::Dialer;

/// Pause between attempts to subscribe. Hints only save time, so there is no hurry.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Hints {
    subscriber: Arc<Subscriber>,
    task: OnceLock<AbortOnDrop>,
}

struct Subscriber {
    dialer: Dialer,
    channel: String,
    connect_timeout: Duration,
    count: watch::Sender<u64>,
}

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Hints {
    pub(super) fn new(dialer: Dialer, channel: String, connect_timeout: Duration) -> Self {
        Self {
            subscriber: Arc::new(Subscriber {
                dialer,
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
            AbortOnDrop(tokio::spawn(async move { subscriber.keep().await }))
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
            let stream = self.dialer.dial().await.map_err(|e| e.to_string())?;
            let login = &self.dialer.server().login;
            let mut connection = redis::aio::PubSub::new(login, stream)
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
