//! Follows the primary that sentinels name.
//!
//! Each sentinel is queried a few times a second over its own connection, and at once when it
//! publishes a switch or a server refuses writes. Their answers together decide ([`quorum`]): a
//! deposed primary may stay up, accept writes and answer until a sentinel demotes it, so its own
//! replies prove nothing.

mod query;
mod quorum;

use std::{
    future::pending,
    io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use self::quorum::Claim;
use crate::{
    Subscription,
    dial::{Dialer, Dialled},
    subscription::Publisher,
    task::{AbortOnDrop, jittered},
    url::{Host, Sentinels},
};

/// Pause between two queries to a sentinel, jittered down to half of it.
const POLL: Duration = Duration::from_millis(250);
/// Pause when a failover is suspected, jittered down to half of it. However many checks a
/// server refuses, a sentinel is queried at most forty times a second.
const REFRESH: Duration = Duration::from_millis(50);
/// How often the log warns that no sentinel answers.
const AGAIN: Duration = Duration::from_secs(30);
/// The channel in which sentinels publish a new primary.
const SWITCH: &str = "+switch-master";

/// The primary of a service, followed from the first use on. Clones share the tasks that follow it.
#[derive(Clone)]
pub(crate) struct Primary {
    shared: Arc<Shared>,
    watchers: Arc<OnceLock<Vec<AbortOnDrop>>>,
}

struct Shared {
    service: String,
    /// Dials each sentinel.
    sentinels: Vec<Dialer>,
    /// How long a connection to a sentinel may take, and an answer.
    limit: Duration,
    state: watch::Sender<State>,
    /// Incremented for each reason to query now.
    refreshes: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    /// The last reply of each sentinel, or why there was none; `None`: not yet queried.
    reports: Vec<Option<Result<Claim, String>>>,
    followed: Option<Claim>,
    /// Whether to decide before all sentinels have answered.
    hurried: bool,
    /// When the log last warned that none answers.
    warned_at: Option<Instant>,
}

impl Primary {
    /// `dial_to` makes the dialer of a sentinel.
    pub(crate) fn new(
        sentinels: &Sentinels,
        limit: Duration,
        dial_to: impl Fn(&Host) -> Dialer,
    ) -> Self {
        let state = State {
            reports: vec![None; sentinels.hosts.len()],
            ..State::default()
        };
        Self {
            shared: Arc::new(Shared {
                service: sentinels.service.clone(),
                sentinels: sentinels.hosts.iter().map(dial_to).collect(),
                limit,
                state: watch::Sender::new(state),
                refreshes: watch::Sender::new(0),
            }),
            watchers: Arc::default(),
        }
    }

    /// The last known place of the primary. At first, waits until most of the sentinels agree, all
    /// have answered, or one has and the others take long.
    pub(crate) async fn place(&self) -> io::Result<Host> {
        self.start();
        let mut state = self.shared.state.subscribe();
        let known = |state: &State| state.followed.is_some() || state.all_failed();
        let in_time = timeout(self.shared.limit / 4, state.wait_for(known))
            .await
            .is_ok();
        if !in_time {
            self.shared.state.send_modify(|state| {
                state.hurried = true;
                state.decide(&self.shared.service);
            });
        }
        let state = state.wait_for(known).await.map_err(io::Error::other)?;
        match &state.followed {
            Some(claim) => Ok(claim.primary.clone()),
            None => Err(io::Error::other(state.first_error())),
        }
    }

    /// Returns once the primary is elsewhere.
    pub(crate) async fn moved(&self, from: &Host) {
        let mut state = self.shared.state.subscribe();
        let elsewhere = |state: &State| {
            let followed = state.followed.as_ref();
            followed.is_some_and(|claim| claim.primary != *from)
        };
        // Cannot fail: the sender is borrowed from self.
        let _ = state.wait_for(elsewhere).await;
    }

    /// Queries the sentinels now, because the primary may have moved.
    pub(crate) fn refresh(&self) {
        self.shared
            .refreshes
            .send_modify(|refreshes| *refreshes = refreshes.wrapping_add(1));
    }

    fn start(&self) {
        self.watchers.get_or_init(|| {
            let watch = |sentinel| {
                let shared = Arc::clone(&self.shared);
                AbortOnDrop::new(tokio::spawn(async move { shared.watch(sentinel).await }))
            };
            (0..self.shared.sentinels.len()).map(watch).collect()
        });
    }
}

/// A sentinel publishes at a fixed address.
impl Publisher for Dialer {
    fn dial(&self) -> BoxFuture<'_, io::Result<Dialled>> {
        Box::pin(async {
            Ok(Dialled {
                stream: self.dial().await?,
                login: self.server().login.clone(),
                place: None,
            })
        })
    }

    fn moved<'a>(&'a self, _from: Option<&'a Host>) -> BoxFuture<'a, ()> {
        Box::pin(pending())
    }
}

impl Shared {
    /// Queries one sentinel forever.
    async fn watch(&self, sentinel: usize) {
        let Some(dialer) = self.sentinels.get(sentinel) else {
            return;
        };
        let subscription = Subscription::new(dialer.clone(), SWITCH.to_owned(), self.limit);
        let mut switches = subscription.watch();
        loop {
            let why = self.monitor(sentinel, dialer, &mut switches).await;
            tracing::debug!(sentinel = %dialer.server(), why, "no answer from a sentinel");
            let why = format!("the sentinel {}: {why}", dialer.server());
            self.report(sentinel, Err(why));
            sleep(jittered(POLL)).await;
        }
    }

    /// Queries one sentinel until it stops answering; returns why.
    async fn monitor(
        &self,
        sentinel: usize,
        dialer: &Dialer,
        switches: &mut watch::Receiver<u64>,
    ) -> String {
        let late = || format!("no answer within {} ms", self.limit.as_millis());
        let mut connection = match timeout(self.limit, query::Connection::open(dialer)).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(why)) => return why,
            Err(_) => return late(),
        };
        let mut refreshes = self.refreshes.subscribe();
        loop {
            match timeout(self.limit, connection.ask(&self.service)).await {
                Ok(Ok(claim)) => self.report(sentinel, Ok(claim)),
                Ok(Err(why)) => return why,
                Err(_) => return late(),
            }
            tokio::select! {
                () = sleep(jittered(POLL)) => {}
                Ok(()) = switches.changed() => {}
                Ok(()) = refreshes.changed() => sleep(jittered(REFRESH)).await,
            }
        }
    }

    fn report(&self, sentinel: usize, report: Result<Claim, String>) {
        self.state.send_modify(|state| {
            if let Some(last) = state.reports.get_mut(sentinel) {
                *last = Some(report);
            }
            state.decide(&self.service);
            state.warn_if_silent(&self.service);
        });
    }
}

impl State {
    fn all_failed(&self) -> bool {
        self.reports.iter().all(|r| matches!(r, Some(Err(_))))
    }

    fn first_error(&self) -> String {
        let mut reports = self.reports.iter().flatten();
        let first = reports.find_map(|report| report.as_ref().err());
        first.cloned().unwrap_or_default()
    }

    /// Warns if no sentinel answers, since a failover would go unnoticed.
    fn warn_if_silent(&mut self, service: &str) {
        let lately = self.warned_at.is_some_and(|at| at.elapsed() < AGAIN);
        if self.followed.is_some() && self.all_failed() && !lately {
            let error = self.first_error();
            tracing::warn!(
                service,
                error,
                "no sentinel answers; the primary that they named last is used"
            );
            self.warned_at = Some(Instant::now());
        }
    }

    fn decide(&mut self, service: &str) {
        let answers: Vec<&Claim> = self.reports.iter().flatten().flatten().collect();
        let sentinels = self.reports.len();
        let Some(choice) = quorum::decide(&answers, sentinels, self.followed.as_ref()) else {
            return;
        };
        let all_heard = self.hurried || self.reports.iter().all(Option::is_some);
        match &self.followed {
            None if !all_heard && !choice.majority => return,
            Some(before) if before.primary != choice.claim.primary => {
                let shown = |(host, port): &Host| format!("{host}:{port}");
                tracing::info!(
                    service,
                    from = shown(&before.primary),
                    to = shown(&choice.claim.primary),
                    epoch = choice.claim.epoch,
                    votes = choice.votes,
                    sentinels,
                    "the sentinels name another primary"
                );
            }
            _ => {}
        }
        self.followed = Some(choice.claim);
    }
}
