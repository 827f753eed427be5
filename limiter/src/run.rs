//! Assembles and runs the service.

use std::{
    io,
    net::IpAddr,
    panic::AssertUnwindSafe,
    path::Path,
    pin::pin,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use futures_util::FutureExt;
use store::{EditError, Store};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::oneshot,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    LimitsError, Listeners, Settings, TlsError, TokenError,
    admin::{Admin, Data, MetricsPage, Page},
    api::{Api, Bounds, Comparison, Watched},
    aside::Aside,
    batch::{Batcher, LANES},
    domains::Domains,
    fleet::Fleet,
    limits_files::{LimitsFiles, ReadPolicies, Sighup},
    metrics::Metrics,
    serve::{ConnectionBounds, Lifecycle, Phase, Streams, serve},
    telemetry::Telemetry,
    tls::Tls,
    tokens::Tokens,
    xds::Xds,
};

/// Bound: connections to the admin port. Beyond it, the oldest without a request is closed, or the
/// new one is refused.
///
/// A probe, a scraper and a few people.
const ADMIN_CONNECTIONS: usize = 64;

/// Bound: connections without an admitted request. Beyond it, the oldest is closed for the next.
///
/// Thousands of proxies may connect to a limiter that starts, but each sends its first request at
/// once.
const UNAUTHENTICATED: usize = 256;

/// Connections to the data port that only send health checks; every Envoy has one. Further ones serve
/// one request each.
const HEALTH_CHECKERS: usize = 1024;

/// Bound: time in which a limiter that ends writes its last reports. Beyond it, they are missing, and `rlctl`
/// takes it for one that failed.
const LAST_REPORTS: Duration = Duration::from_secs(1);

/// Why the service could not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The limits files.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// The store refused the limits files as its policy.
    #[error("cannot put the limits in force: {0}")]
    Impose(#[from] EditError),
    /// The token file.
    #[error(transparent)]
    Tokens(#[from] TokenError),
    /// The certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
    /// The address of the other rate limit service.
    #[error("cannot compare with that service: {0}")]
    CompareWith(String),
    /// A task without which the service would go stale.
    #[error("the task `{0}` panicked; a new process starts with all of them")]
    Panicked(&'static str),
}

/// Serves checks until `shutdown`, then until every accepted request has its answer.
///
/// A store that cannot be reached is no error: checks are answered 503 until it can.
///
/// # Errors
/// If a configured file cannot be used: nothing was served then. If a task panicked: the accepted
/// requests have their answers then, as after `shutdown`.
pub async fn run(
    settings: Settings,
    listeners: Listeners,
    store: Arc<dyn Store>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let tokens = [
        load_tokens(settings.token_file.as_deref())?,
        load_tokens(settings.page_token_file.as_deref())?,
    ];
    let tls = settings.tls.clone().map(Tls::load).transpose()?;
    let files = Arc::new(LimitsFiles::new(
        settings.limits.clone(),
        settings.rls_config.clone(),
        Arc::clone(&store),
    ));
    let mut policies = Some(files.read()?);
    if settings.limits_are_the_policy
        && let Some(policies) = policies.take()
    {
        files.impose(policies).await?;
    }

    let parts = Parts::new(&settings, store, files, tokens, name(&listeners))?;
    // These tasks end when this function returns.
    let mut background = Background::default();
    parts.start(policies, &mut background)?;
    if let Some(tls) = &tls {
        background.spawn("certificates", tls.clone().follow());
    }

    let mut serving = parts.serve(listeners, tls, &settings);
    let mut shutdown = pin!(shutdown);
    let panicked = tokio::select! {
        () = &mut shutdown => None,
        task = background.panicked() => Some(task),
        // Until `Phase::Close` no port ends otherwise.
        _ = serving.join_next() => Some("port"),
    };
    if let Some(task) = panicked {
        tracing::error!(
            task,
            "a task panicked; this limiter ends, for a new one to start"
        );
    }
    tracing::info!(drain = ?settings.drain, "shutting down");
    parts.lifecycle.enter(Phase::Leave);
    tokio::select! {
        () = sleep(settings.drain) => {}
        // Who ends it after a panic waits for a new process. A second signal ends it at once.
        () = &mut shutdown, if panicked.is_some() => {}
    }
    parts.lifecycle.enter(Phase::Close);
    let ended = async { while serving.join_next().await.is_some() {} };
    let cut_off = timeout(settings.last_answers, ended).await.is_err();
    if cut_off {
        tracing::warn!("some requests did not end in time and are cut off");
        parts.lifecycle.enter(Phase::Abort);
    }
    while serving.join_next().await.is_some() {}
    // The regular reports end before the last one.
    background.tasks.shutdown().await;
    // A store that is slow takes its time for each of them.
    let last = parts.telemetry.write_last(&parts.domains, &parts.fleet);
    if timeout(LAST_REPORTS, last).await.is_err() {
        tracing::warn!("the store did not take the last reports in time");
    }
    tracing::info!(cut_off, "stopped");
    panicked.map_or(Ok(()), |task| Err(RunError::Panicked(task)))
}

/// Tasks that follow something forever, until this is dropped.
#[derive(Default)]
struct Background {
    tasks: JoinSet<&'static str>,
    aside: Aside,
}

impl Background {
    fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let task = AssertUnwindSafe(task).catch_unwind();
        self.tasks.spawn(task.map(move |_| name));
    }

    /// Spawns a task on a thread of low priority.
    fn spawn_aside(
        &mut self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let (alive, ended) = oneshot::channel::<()>();
        let task = async move {
            let _alive = alive;
            task.await;
        };
        self.aside.spawn(name, task)?;
        self.tasks.spawn(ended.map(move |_| name));
        Ok(())
    }

    /// Waits until one of them has ended. They are endless, so that is a panic.
    async fn panicked(&mut self) -> &'static str {
        match self.tasks.join_next().await {
            Some(name) => name.unwrap_or("background"),
            None => std::future::pending().await,
        }
    }
}

fn load_tokens(file: Option<&Path>) -> Result<Option<Arc<Tokens>>, TokenError> {
    Ok(file.map(Tokens::load).transpose()?.map(Arc::new))
}

/// The parts that serve requests.
struct Parts {
    files: Arc<LimitsFiles>,
    xds: Option<Arc<Xds>>,
    domains: Arc<Domains>,
    fleet: Arc<Fleet>,
    telemetry: Arc<Telemetry>,
    /// Those of checks, and those of the page.
    tokens: [Option<Arc<Tokens>>; 2],
    metrics: Arc<Metrics>,
    lifecycle: Arc<Lifecycle>,
    api: Arc<Api>,
    admin: Arc<Admin>,
}

impl Parts {
    fn new(
        settings: &Settings,
        store: Arc<dyn Store>,
        files: Arc<LimitsFiles>,
        tokens: [Option<Arc<Tokens>>; 2],
        name: String,
    ) -> Result<Self, RunError> {
        let [of_checks, of_page] = &tokens;
        let metrics = Arc::new(Metrics::new());
        let domains = Arc::new(Domains::new(Arc::clone(&store), Arc::clone(&metrics)));
        let fleet = Arc::new(Fleet::new(Arc::clone(&store), settings.proxies_per_address));
        let page = of_page.as_ref().map(|tokens| {
            let (store, domains) = (Arc::clone(&store), Arc::clone(&domains));
            let data = Data::new(store, domains, name.clone(), settings.key_prefix.clone());
            Page::new(data, Arc::clone(tokens))
        });
        let xds = settings.xds.clone();
        let xds = xds.map(|server| Arc::new(Xds::new(server, Arc::clone(&store))));
        let telemetry = Arc::new(Telemetry::new(Arc::clone(&store), name, LANES));
        let lifecycle = Arc::new(Lifecycle::new());
        let comparison = settings.compare_with.as_deref().map(|url| {
            let started = Comparison::start(url, Arc::clone(&metrics));
            started.map_err(|error| RunError::CompareWith(error.to_string()))
        });
        let comparison = comparison.transpose()?;
        let api = Api {
            batcher: Batcher::start(
                Arc::clone(&store),
                Arc::clone(&metrics),
                Arc::clone(&telemetry),
                settings.store_timeout,
            ),
            domains: Arc::clone(&domains),
            fleet: Arc::clone(&fleet),
            telemetry: Arc::clone(&telemetry),
            tokens: of_checks.clone(),
            metrics: Arc::clone(&metrics),
            lifecycle: Arc::clone(&lifecycle),
            comparison,
            watched: Watched::new(metrics.health_watches.clone()),
            bounds: Bounds::new(settings, &metrics),
        };
        let admin = Admin {
            store,
            domains: Arc::clone(&domains),
            files: Arc::clone(&files),
            xds: xds.clone(),
            metrics: Arc::clone(&metrics),
            metrics_page: Arc::new(tokio::sync::Mutex::new(MetricsPage::new())),
            lifecycle: Arc::clone(&lifecycle),
            warm: AtomicBool::new(false),
            page,
        };
        Ok(Self {
            files,
            xds,
            domains,
            fleet,
            telemetry,
            tokens,
            metrics,
            lifecycle,
            api: Arc::new(api),
            admin: Arc::new(admin),
        })
    }

    /// Serves the ports, until the lifecycle ends.
    fn serve(&self, listeners: Listeners, tls: Option<Tls>, settings: &Settings) -> JoinSet<()> {
        let mut serving = JoinSet::new();
        serving.spawn(serve(
            listeners.data,
            tls,
            Arc::clone(&self.api),
            data_bounds(settings),
            Arc::clone(&self.lifecycle),
            Arc::clone(&self.metrics),
        ));
        for listener in listeners.admin {
            serving.spawn(serve(
                listener,
                None,
                Arc::clone(&self.admin),
                admin_bounds(settings),
                Arc::clone(&self.lifecycle),
                Arc::clone(&self.metrics),
            ));
        }
        serving
    }

    /// Starts the tasks that follow the store.
    fn follow_store(&self, background: &mut Background) -> io::Result<()> {
        let domains = Arc::clone(&self.domains);
        background.spawn_aside("limits", async move { domains.poll_forever().await })?;
        let (domains, fleet) = (Arc::clone(&self.domains), Arc::clone(&self.fleet));
        background.spawn("fleet", async move {
            fleet.record_forever(&domains).await;
        });
        let (domains, fleet) = (Arc::clone(&self.domains), Arc::clone(&self.fleet));
        let telemetry = Arc::clone(&self.telemetry);
        background.spawn("telemetry", async move {
            telemetry.write_forever(&domains, &fleet).await;
        });
        Ok(())
    }

    /// Starts the tasks that follow the store and the files.
    fn start(
        &self,
        policies: Option<ReadPolicies>,
        background: &mut Background,
    ) -> Result<(), RunError> {
        if policies
            .as_ref()
            .is_some_and(|policies| !policies.is_empty())
        {
            self.domains.begin_filling();
        }
        self.follow_store(background)?;
        if let Some(xds) = self.xds.clone() {
            background.spawn_aside("xds", async move { xds.follow().await })?;
        }
        let api = Arc::clone(&self.api);
        background.spawn("health", async move { api.follow_health().await });
        for tokens in self.tokens.iter().flatten() {
            background.spawn("tokens", Arc::clone(tokens).follow());
        }
        let files = Arc::clone(&self.files);
        // Before the first answer: without a handler, SIGHUP ends the process.
        let sighup = Sighup::new();
        if let Some(policies) = policies {
            let domains = Arc::clone(&self.domains);
            let filling = async move { files.fill_and_follow(policies, &domains, sighup).await };
            background.spawn_aside("files", filling)?;
        } else {
            background.spawn_aside("files", async move { files.follow(sighup).await })?;
        }
        Ok(())
    }
}

/// This limiter's name: host, port, and a random word, which differs after a restart.
fn name(listeners: &Listeners) -> String {
    let host = gethostname::gethostname();
    let port = listeners.data.local_addr().map_or(0, |at| at.port());
    let word = fastrand::u16(..);
    format!("{}:{port}/{word:04x}", host.to_string_lossy())
}

fn data_bounds(settings: &Settings) -> ConnectionBounds {
    ConnectionBounds {
        max: settings.max_connections,
        max_unauthenticated: UNAUTHENTICATED.min(settings.max_connections),
        max_health_checkers: HEALTH_CHECKERS.min(settings.max_connections / 4),
        idle: settings.idle_timeout,
        max_age: settings.max_connection_age,
        max_body: settings.max_body,
    }
}

/// Requests to the admin port carry no token, so every connection stays unauthenticated and a later probe
/// may replace it.
fn admin_bounds(settings: &Settings) -> ConnectionBounds {
    ConnectionBounds {
        max: ADMIN_CONNECTIONS,
        max_unauthenticated: ADMIN_CONNECTIONS,
        max_health_checkers: 0,
        idle: settings.idle_timeout,
        max_age: None,
        max_body: 0,
    }
}

// --- Without ports

/// A limiter that serves streams in place of ports and follows nothing but its store: one of a simulated
/// world. Dropping it ends it at once, as a crash does.
pub struct Portless {
    streams: Streams<Api>,
    _background: Background,
}

impl Portless {
    /// Starts its tasks, on the current runtime.
    ///
    /// # Errors
    /// As of [`run`].
    pub fn start(
        settings: &Settings,
        store: Arc<dyn Store>,
        name: String,
    ) -> Result<Self, RunError> {
        let files = LimitsFiles::new(Vec::new(), None, Arc::clone(&store));
        let parts = Parts::new(settings, store, Arc::new(files), [None, None], name)?;
        let mut background = Background::default();
        parts.follow_store(&mut background)?;
        let streams = Streams::new(
            parts.api,
            data_bounds(settings),
            parts.lifecycle,
            parts.metrics,
        );
        Ok(Self {
            streams,
            _background: background,
        })
    }

    /// Serves a stream as a connection to the data port.
    pub fn accept(
        &mut self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        from: IpAddr,
    ) {
        self.streams.accept(stream, from);
    }

    /// Ends as [`run`] does, but for the last report: connections are served for a while, and then end after the
    /// requests that they have.
    pub async fn shut_down(self, settings: &Settings) {
        self.streams.enter(Phase::Leave);
        sleep(settings.drain).await;
        self.streams.close(settings.last_answers).await;
    }
}
