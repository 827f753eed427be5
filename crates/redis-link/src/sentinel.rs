//! Follows the primary that sentinels name.
//!
//! Each sentinel is queried a few times a second over its own connection, and at once when it
//! publishes a switch or a server refuses writes. Their answers together decide ([`decide`]): a
//! deposed primary may stay up, accept writes and answer until a sentinel demotes it, so its own
//! replies prove nothing.

use std::{
    collections::BTreeMap,
    future::pending,
    io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::future::BoxFuture;
use redis::{AsyncConnectionConfig, Pipeline, Value, aio::MultiplexedConnection};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use crate::{
    Error, Subscription,
    bounded::{Bounded, MESSAGE_MAX},
    dial::{Dialer, Dialled},
    error,
    subscription::Publisher,
    task::{AbortOnDrop, jittered},
    url::{Host, Sentinels, host_text},
    value,
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

/// The reply of one sentinel.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Claim {
    primary: Host,
    /// The configuration epoch; 0 if the sentinel does not permit the query.
    epoch: u64,
}

/// A primary to follow.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Choice {
    claim: Claim,
    /// How many sentinels name it.
    votes: usize,
    /// Whether these are most of all sentinels.
    majority: bool,
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
        let mut connection = match timeout(self.limit, Connection::open(dialer)).await {
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
        let Some(choice) = decide(&answers, sentinels, self.followed.as_ref()) else {
            return;
        };
        let all_heard = self.hurried || self.reports.iter().all(Option::is_some);
        match &self.followed {
            None if !all_heard && !choice.majority => return,
            Some(before) if before.primary != choice.claim.primary => {
                let shown = |(host, port): &Host| host_text(host, *port);
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

/// A connection to a sentinel.
struct Connection {
    connection: MultiplexedConnection,
    /// Moves bytes for as long as the connection is kept.
    _driver: AbortOnDrop,
}

impl Connection {
    async fn open(dialer: &Dialer) -> Result<Self, String> {
        let dialled = dialer.dial().await.map_err(|e| e.to_string())?;
        let dialled = Bounded::new(dialled, MESSAGE_MAX);
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_connection_timeout(None);
        let login = &dialer.server().login;
        let opened = MultiplexedConnection::new_with_config(login, dialled, config);
        let (connection, driver) = opened.await.map_err(|e| e.to_string())?;
        Ok(Self {
            connection,
            _driver: AbortOnDrop::new(tokio::spawn(driver)),
        })
    }

    /// The address of the primary, and its configuration epoch.
    async fn ask(&mut self, service: &str) -> Result<Claim, String> {
        // The epoch first: if a failover happens between the two, the address is newer than the
        // epoch, which the next query corrects. An old address never gets a newer epoch.
        let mut both = Pipeline::with_capacity(2);
        for question in ["MASTER", "GET-MASTER-ADDR-BY-NAME"] {
            both.cmd("SENTINEL").arg(question).arg(service);
        }
        let answers = self.connection.send_packed_commands(&both, 0, 2).await;
        let mut answers = answers.map_err(|e| e.to_string())?.into_iter();
        let about = answers.next().map(error::reply_of);
        let place = answers.next().map_or(Ok(Value::Nil), error::reply_of);
        let place = place.map_err(|refusal| Error::from(refusal).to_string())?;
        if place == Value::Nil {
            return Err(format!("it has no service {service}"));
        }
        Ok(Claim {
            primary: address(place).map_err(|e| e.to_string())?,
            // The user may lack permission for the epoch and still be allowed to query the address.
            epoch: about.and_then(Result::ok).and_then(epoch).unwrap_or(0),
        })
    }
}

fn address(answer: Value) -> Result<Host, Error> {
    let mut parts = value::texts(answer)?.into_iter();
    let mut next = || parts.next().ok_or_else(value::short);
    let (host, port) = (next()?, next()?);
    Ok((host, port.parse().map_err(|_| value::short())?))
}

fn epoch(about: Value) -> Option<u64> {
    let fields = value::pairs(about).ok()?;
    fields.get("config-epoch")?.parse().ok()
}

/// Which primary to follow, by the answers received from `sentinels` sentinels; `None`: no change.
///
/// A sentinel that was partitioned or hung keeps naming its old primary. The configuration epoch
/// decides: only a sentinel that wins a vote of most sentinels gets a higher one. But a sentinel
/// may also have a wrong epoch (of another deployment, or by a mistake in its file), so an epoch
/// alone decides nothing:
///
/// - the candidate is the primary that most answering sentinels name, and at least half of them
///   must name it; on a tie, the one with the higher epoch;
/// - it is followed if its epoch is higher than that of the current primary;
/// - otherwise it is followed only if most of *all* sentinels name it: an operator has reset them
///   (`SENTINEL REMOVE`, `SENTINEL MONITOR`). So a stale sentinel cannot revert a failover when it
///   is the only one reachable.
fn decide(answers: &[&Claim], sentinels: usize, followed: Option<&Claim>) -> Option<Choice> {
    let mut named: BTreeMap<&Host, (usize, u64)> = BTreeMap::new();
    for answer in answers {
        let (votes, epoch) = named.entry(&answer.primary).or_default();
        *votes += 1;
        *epoch = answer.epoch.max(*epoch);
    }
    let is_followed = |primary: &Host| followed.is_some_and(|f| f.primary == *primary);
    let (primary, (votes, epoch)) = named
        .into_iter()
        .max_by_key(|(primary, (votes, epoch))| (*votes, *epoch, is_followed(primary)))?;
    let majority = 2 * votes > sentinels;
    let epoch = match followed {
        Some(before) if before.primary == *primary && !majority => epoch.max(before.epoch),
        Some(before) if before.primary != *primary && !majority && epoch <= before.epoch => {
            return None;
        }
        _ => epoch,
    };
    (2 * votes >= answers.len()).then(|| Choice {
        claim: Claim {
            primary: primary.clone(),
            epoch,
        },
        votes,
        majority,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim((primary, epoch): (&str, u64)) -> Claim {
        Claim {
            primary: (primary.to_owned(), 6379),
            epoch,
        }
    }

    /// The primary followed after these answers of three sentinels.
    fn after(answers: &[(&str, u64)], followed: Option<(&str, u64)>) -> Option<(String, u64)> {
        let answers: Vec<Claim> = answers.iter().copied().map(claim).collect();
        let answers: Vec<&Claim> = answers.iter().collect();
        let followed = followed.map(claim);
        let choice = decide(&answers, 3, followed.as_ref()).map(|choice| choice.claim);
        choice
            .or(followed)
            .map(|claim| (claim.primary.0, claim.epoch))
    }

    fn follows(answers: &[(&str, u64)], followed: (&str, u64), wanted: (&str, u64)) {
        let found = after(answers, Some(followed));
        assert_eq!(
            found,
            Some((wanted.0.to_owned(), wanted.1)),
            "{answers:?} after {followed:?}"
        );
    }

    #[test]
    fn a_failover_is_followed_when_most_sentinels_know_it() {
        let old = ("old", 4);
        follows(&[("old", 4), ("old", 4), ("old", 4)], old, old);
        follows(&[("new", 5), ("old", 4), ("old", 4)], old, old);
        follows(&[("new", 5), ("new", 5), ("old", 4)], old, ("new", 5));
        follows(&[("new", 5), ("new", 5), ("new", 5)], old, ("new", 5));
    }

    #[test]
    fn one_of_two_answering_sentinels_suffices_with_a_higher_epoch() {
        follows(&[("new", 5), ("old", 4)], ("old", 4), ("new", 5));
        follows(&[("new", 5)], ("old", 4), ("new", 5));
    }

    #[test]
    fn a_sentinel_with_an_older_view_changes_nothing() {
        let new = ("new", 5);
        for behind in [
            &[("old", 4)][..],
            &[("old", 4), ("new", 5)],
            &[("old", 5)],
            &[("new", 0)],
            &[],
        ] {
            follows(behind, new, new);
        }
    }

    #[test]
    fn a_sentinel_with_a_false_epoch_is_outvoted() {
        let old = ("old", 4);
        follows(&[("liar", 999), ("old", 4), ("old", 4)], old, old);
        follows(&[("old", 999), ("new", 5), ("new", 5)], old, ("new", 5));
        // It was the only one reachable for a while.
        follows(&[("liar", 999)], old, ("liar", 999));
        follows(&[("liar", 999), ("old", 4), ("old", 4)], ("liar", 999), old);
    }

    #[test]
    fn a_majority_of_sentinels_may_revert_to_an_older_epoch() {
        follows(
            &[("other", 0), ("other", 0), ("old", 7)],
            ("old", 7),
            ("other", 0),
        );
        // Without permission to query epochs, only votes count.
        follows(&[("new", 0), ("old", 0)], ("old", 0), ("old", 0));
        follows(
            &[("new", 0), ("new", 0), ("old", 0)],
            ("old", 0),
            ("new", 0),
        );
    }

    #[test]
    fn three_different_sentinel_answers_change_nothing() {
        follows(&[("a", 6), ("b", 5), ("c", 4)], ("c", 4), ("c", 4));
        assert_eq!(after(&[], None), None);
    }

    #[test]
    fn the_first_choice_is_the_majoritys_or_the_newest_primary() {
        let found = |answers| after(answers, None).map(|(primary, _)| primary);
        assert_eq!(found(&[("old", 4)]).as_deref(), Some("old"));
        assert_eq!(found(&[("old", 4), ("new", 5)]).as_deref(), Some("new"));
        let all = [("old", 4), ("old", 4), ("new", 5)];
        assert_eq!(found(&all).as_deref(), Some("old"));
    }
}
