//! Counts the messages of a channel.

use std::{
    io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::{StreamExt, future::BoxFuture};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use crate::{
    bounded::{Bounded, MESSAGE_MAX},
    dial::Dialled,
    task::AbortOnDrop,
    url::Host,
};

/// Pause between attempts to subscribe: callers poll as well, so a message only saves time.
const PAUSE: Duration = Duration::from_secs(1);
/// How often the publisher is asked whether the subscription is still there. A publisher that is cut off, or
/// whose end of the connection is forgotten on the way, sends nothing for ever, as a quiet one does.
const PROBE: Duration = Duration::from_secs(5);

/// Counts the messages of a channel. One can be lost; the count also rises after every new
/// connection, because messages may have been missed before.
pub struct Subscription {
    subscriber: Arc<Subscriber>,
    task: OnceLock<AbortOnDrop>,
}

struct Subscriber {
    publisher: Box<dyn Publisher>,
    channel: String,
    connect_timeout: Duration,
    count: watch::Sender<u64>,
}

/// The publisher of a channel.
pub(crate) trait Publisher: Send + Sync {
    /// Opens a stream to it.
    fn dial(&self) -> BoxFuture<'_, io::Result<Dialled>>;

    /// Returns once another server is the publisher.
    fn moved<'a>(&'a self, from: Option<&'a Host>) -> BoxFuture<'a, ()>;
}

impl Subscription {
    pub(crate) fn new(
        publisher: impl Publisher + 'static,
        channel: String,
        connect_timeout: Duration,
    ) -> Self {
        Self {
            subscriber: Arc::new(Subscriber {
                publisher: Box::new(publisher),
                channel,
                connect_timeout,
                count: watch::Sender::new(0),
            }),
            task: OnceLock::new(),
        }
    }

    /// The count of messages; subscribes at the first use.
    pub fn watch(&self) -> watch::Receiver<u64> {
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
                let channel = &self.channel;
                tracing::debug!(%error, channel, "no subscription; polling goes on");
                sleep(PAUSE).await;
            }
        }
    }

    /// Counts messages; returns `Ok` once another server is the publisher.
    async fn listen(&self) -> Result<(), String> {
        let subscribe = async {
            let dialled = self.publisher.dial().await.map_err(|e| e.to_string())?;
            let stream = Bounded::new(dialled.stream, MESSAGE_MAX);
            let mut connection = redis::aio::PubSub::new(&dialled.login, stream)
                .await
                .map_err(|e| e.to_string())?;
            let subscribed = connection.subscribe(&self.channel).await;
            subscribed.map_err(|e| e.to_string())?;
            Ok::<_, String>((connection, dialled.place))
        };
        let (connection, place) = match timeout(self.connect_timeout, subscribe).await {
            Ok(connection) => connection?,
            Err(_) => return Err("no answer".to_owned()),
        };
        // Messages may have been published while there was no subscription.
        self.bump();
        let (mut requests, mut messages) = connection.split();
        let publications = async {
            while messages.next().await.is_some() {
                self.bump();
            }
        };
        let lost = async {
            loop {
                sleep(PROBE).await;
                // To subscribe once more changes nothing, and needs no other right.
                let again = requests.subscribe(&self.channel);
                if !matches!(timeout(self.connect_timeout, again).await, Ok(Ok(()))) {
                    return;
                }
            }
        };
        tokio::select! {
            () = publications => Err("the subscription ended".to_owned()),
            () = lost => Err("no answer to a probe".to_owned()),
            () = self.publisher.moved(place.as_ref()) => Ok(()),
        }
    }

    fn bump(&self) {
        self.count
            .send_modify(|count| *count = count.wrapping_add(1));
    }
}
