//! A running service.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use anyhow::{Context, Result};
use harness::{Client, Reply, Request, until};
use limiter::{Listeners, RunError, Settings, run};
use serde_json::{Value, json};
use store::{Options, Store, StoreUrl, open};
use tokio::{sync::oneshot, task::JoinHandle};

use super::{PATIENCE, publish};

/// A service in this process, with the store it uses.
pub struct Service {
    pub client: Client,
    pub data: SocketAddr,
    pub admin: SocketAddr,
    pub store: Arc<dyn Store>,
    end: oneshot::Sender<()>,
    running: JoinHandle<Result<(), RunError>>,
}

impl Service {
    /// On a memory store with these limits in `shop`; returns once it is ready.
    pub async fn with(limits: &str) -> Result<Self> {
        Self::with_settings(limits, quick()).await
    }

    pub async fn with_settings(limits: &str, settings: Settings) -> Result<Self> {
        let store = open(&StoreUrl::Memory, Options::default())?;
        publish(&store, limits).await?;
        Self::ready_on(store, settings).await
    }

    /// On this store, once it is ready.
    pub async fn ready_on(store: Arc<dyn Store>, settings: Settings) -> Result<Self> {
        let service = Self::start(store, settings)?;
        service.readiness(200, "").await?;
        Ok(service)
    }

    /// On this store, ready or not.
    pub fn start(store: Arc<dyn Store>, settings: Settings) -> Result<Self> {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listeners = Listeners::bind(any, &[any])?;
        let (data, admin) = (
            listeners.data.local_addr()?,
            listeners.admin[0].local_addr()?,
        );
        let (end, ended) = oneshot::channel();
        let shutdown = async {
            let _ = ended.await;
        };
        let running = tokio::spawn(run(settings, listeners, Arc::clone(&store), shutdown));
        Ok(Self {
            client: Client::new(),
            data,
            admin,
            store,
            end,
            running,
        })
    }

    /// Waits until `/readyz` has this status and these words in its message.
    pub async fn readiness(&self, status: u16, words: &str) -> Result<Value> {
        let what = format!("/readyz is {status} with {words:?}");
        until(&what, PATIENCE, async || {
            let reply = self.admin("/readyz").send().await.ok()?;
            let report = reply.json().ok()?;
            let matches = report["message"].as_str()?.contains(words);
            (reply.status == status && matches).then_some(report)
        })
        .await
    }

    pub fn admin(&self, path: &str) -> Request {
        self.client.get(&format!("http://{}{path}", self.admin))
    }

    pub fn get(&self, path: &str) -> Request {
        self.client.get(&format!("http://{}{path}", self.data))
    }

    pub fn post(&self, path: &str, body: impl Into<Vec<u8>>) -> Request {
        let url = format!("http://{}{path}", self.data);
        self.client.post(&url, body.into())
    }

    /// Sends a check of `shop` with these fields.
    pub async fn ask(&self, fields: Value) -> Result<Reply> {
        let mut body = json!({"domain": "shop"});
        let fields = fields.as_object().context("fields")?.clone();
        body.as_object_mut().context("an object")?.extend(fields);
        self.post("/v1/check", body.to_string()).send().await
    }

    /// Whether a request of this user is allowed.
    pub async fn allows(&self, user: &str) -> Result<bool> {
        let reply = self.ask(json!({"descriptor": {"user": user}})).await?;
        let answer = reply.json()?;
        answer["allowed"]
            .as_bool()
            .with_context(|| format!("{}: {answer}", reply.status))
    }

    /// Waits until a peek shows this quota for the one limit there is.
    pub async fn quota_becomes(&self, quota: u64) -> Result<()> {
        let what = format!("the quota is {quota}");
        until(&what, PATIENCE, async || {
            let peek = json!({"descriptor": {"user": "observer"}, "peek": true});
            let answer = self.ask(peek).await.ok()?.json().ok()?;
            (answer["limits"][0]["limit"] == quota).then_some(())
        })
        .await
    }

    /// The value of a metric, by its name and labels as the page shows them.
    pub async fn metric(&self, name: &str) -> Result<u64> {
        let page = self.admin("/metrics").send().await?.text();
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
            .with_context(|| format!("no {name} in\n{page}"))?;
        Ok(line.parse()?)
    }

    /// Waits until the service ends without a signal to.
    pub async fn ended(self) -> Result<Result<(), RunError>> {
        let what = "the service has ended";
        until(what, PATIENCE, async || {
            self.running.is_finished().then_some(())
        })
        .await?;
        Ok(self.running.await?)
    }

    /// Ends the service; await the handle for its result.
    pub fn end(self) -> JoinHandle<Result<(), RunError>> {
        let _ = self.end.send(());
        self.running
    }
}

/// [`quick`] with other settings.
pub fn tuned(tune: impl FnOnce(&mut Settings)) -> Settings {
    let mut settings = quick();
    tune(&mut settings);
    settings
}

/// The defaults with a long store timeout, for busy machines, and with almost no drain.
pub fn quick() -> Settings {
    Settings {
        store_timeout: PATIENCE,
        drain: std::time::Duration::from_millis(1),
        ..Settings::default()
    }
}
