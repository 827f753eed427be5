//! Concurrent requests share round trips to the store.
//!
//! Each of a few lanes makes one store call at a time. A check that finds a lane free is sent at
//! once. While all lanes are busy, checks wait, and the first lane that is free sends them
//! together. So a quiet service adds no wait, a busy one makes fewer and larger calls, and a
//! hanging store never has more than [`LANES`] calls in progress.
//!
//! A request whose checks weigh more than a call may goes in parts, one after the other, and each
//! part waits its turn behind what others have sent meanwhile: the more a request asks, the longer
//! it waits, and nobody else does.

use std::{
    collections::VecDeque,
    iter::repeat_n,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt, future::join_all};
use protocol::{Answer, Check, LimitRequest, SlotOp};
use store::{CheckError, Store, StoreError};
use tokio::{
    sync::{Notify, oneshot},
    task::JoinSet,
    time::{Instant, timeout_at},
};

use crate::{domains::Active, metrics::Metrics, telemetry::Telemetry};

/// Bound: calls to the store that a limiter has in flight. Beyond it, checks wait.
pub(crate) const LANES: usize = 4;

/// The most that one call may weigh, in checks of one token bucket: about a millisecond of the store's
/// time, so that other calls do not wait long.
const CALL_MAX: usize = 256;

/// The checks of a larger request are weighed one by one, limit by limit; those of others where all limits are
/// cheap by the most expensive one and how many lately matched, since weighing takes longer than it saves there.
const ESTIMATED_MAX: usize = 128;

/// Bound: checks that wait in a limiter. Beyond it, 503.
///
/// With more, the store is so slow that they would time out anyway.
const QUEUE_MAX: usize = 16 * 1024;

/// How far a store may exceed its timeout before its call is abandoned.
const GRACE: Duration = Duration::from_millis(100);

/// How long past its deadline a request waits for the reason of a store whose timeout began later, when
/// the call did. Without it, a check that waited for a connection counts as one that may have been
/// charged, and the next is sent to a server that is about to be suspected.
const REASON: Duration = Duration::from_millis(20);

/// Why there are no decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undecided {
    /// The queue is full.
    Overloaded,
    /// The deadline passed in the queue: nothing was sent.
    NotSent,
    /// The deadline passed during the store call.
    TimedOut,
}

/// The queue before the store.
pub(crate) struct Batcher {
    shared: Arc<Shared>,
    /// They end with the batcher.
    _lanes: JoinSet<()>,
}

struct Shared {
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    telemetry: Arc<Telemetry>,
    timeout: Duration,
    queue: Mutex<Queue>,
    work: Notify,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Entry>,
    checks: usize,
}

impl Batcher {
    /// Starts the lanes; they end with the batcher.
    pub(crate) fn start(
        store: Arc<dyn Store>,
        metrics: Arc<Metrics>,
        telemetry: Arc<Telemetry>,
        timeout: Duration,
    ) -> Self {
        let shared = Arc::new(Shared {
            store,
            metrics,
            telemetry,
            timeout,
            queue: Mutex::default(),
            work: Notify::new(),
        });
        let mut lanes = JoinSet::new();
        for lane in 0..LANES {
            let shared = Arc::clone(&shared);
            lanes.spawn(async move { shared.lane(lane).await });
        }
        Self {
            shared,
            _lanes: lanes,
        }
    }

    /// Decides the checks of one request against one policy, or gives up at `deadline`: with an error
    /// if none of them was sent, else with one for each check that was not decided.
    pub(crate) async fn decide(
        &self,
        policy: &Arc<Active>,
        checks: Vec<Check>,
        force: bool,
        deadline: Instant,
        proxy: Option<Arc<str>>,
    ) -> Result<Outcome, Undecided> {
        let send =
            |checks, weight| self.send(policy, checks, weight, force, deadline, proxy.clone());
        let (fits, weight) = fitting(policy, &checks, checks.len());
        if fits == checks.len() {
            return send(checks, weight).await;
        }
        let count = checks.len();
        let mut outcome = Outcome::default();
        let mut guard = self.hold(policy, force, Vec::new());
        let mut rest = checks.into_iter();
        while !rest.as_slice().is_empty() {
            let at = outcome.decisions.len();
            let (fits, weight) = fitting(policy, rest.as_slice(), count);
            match send(rest.by_ref().take(fits).collect(), weight).await {
                Ok(part) => {
                    outcome.checks.extend(part.checks);
                    outcome.decisions.extend(part.decisions);
                    guard.checks.extend(part.given);
                }
                Err(undecided) if at == 0 => return Err(undecided),
                Err(undecided) => {
                    let error = self.error(undecided);
                    let part = repeat_n(Err(error), fits);
                    let unsent = repeat_n(Err(self.error(Undecided::NotSent)), rest.len());
                    outcome.decisions.extend(part.chain(unsent));
                    break;
                }
            }
        }
        outcome.given = guard.keep();
        Ok(outcome)
    }

    /// Frees the slots of a client that disconnects before it has its answer.
    pub(crate) fn hold(&self, policy: &Arc<Active>, force: bool, given: Vec<Check>) -> SlotGuard {
        SlotGuard {
            shared: Arc::clone(&self.shared),
            policy: Arc::clone(policy),
            force,
            checks: given,
        }
    }

    /// Why one check is not decided.
    pub(crate) fn error(&self, undecided: Undecided) -> CheckError {
        let error = match undecided {
            Undecided::TimedOut => StoreError::Timeout(self.shared.timeout),
            Undecided::Overloaded | Undecided::NotSent => {
                StoreError::Unreachable("the checks before it took all the time".to_owned())
            }
        };
        error.into()
    }

    async fn send(
        &self,
        policy: &Arc<Active>,
        checks: Vec<Check>,
        weight: usize,
        force: bool,
        deadline: Instant,
        proxy: Option<Arc<str>>,
    ) -> Result<Outcome, Undecided> {
        let (reply, mut answer) = oneshot::channel();
        let settled = Arc::new(AtomicBool::new(false));
        let entry = Entry {
            policy: Arc::clone(policy),
            force,
            weight,
            checks,
            deadline,
            proxy,
            settled: Arc::clone(&settled),
            reply,
        };
        self.shared.push(entry)?;
        let answered = match timeout_at(deadline, &mut answer).await {
            Err(_) if settle(&settled) => return Err(Undecided::NotSent),
            Err(_) => timeout_at(deadline + REASON, answer).await,
            answered => answered,
        };
        match answered {
            Ok(Ok(outcome)) => Ok(outcome),
            Ok(Err(_)) if settle(&settled) => Err(Undecided::NotSent),
            Ok(Err(_)) | Err(_) => Err(Undecided::TimedOut),
        }
    }
}

/// How many of the next checks of a request of `count` one call takes, at least one, and what they
/// weigh.
fn fitting(policy: &Active, checks: &[Check], count: usize) -> (usize, usize) {
    let now_ms = store::wall_ms();
    let (mut fits, mut sum) = (0, 0);
    for check in checks {
        let weight = policy.weight(check, now_ms, count > ESTIMATED_MAX);
        if fits > 0 && sum + weight > CALL_MAX {
            break;
        }
        fits += 1;
        sum += weight;
    }
    (fits, sum)
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // A panic while the lock is held leaves the queue usable.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, entry: Entry) -> Result<(), Undecided> {
        let mut queue = self.queue();
        let checks = queue.checks + entry.checks.len();
        // A request larger than the whole queue is accepted when the queue is empty.
        if checks > QUEUE_MAX && !queue.waiting.is_empty() {
            return Err(Undecided::Overloaded);
        }
        queue.checks = checks;
        queue.waiting.push_back(entry);
        drop(queue);
        self.work.notify_one();
        Ok(())
    }

    async fn lane(&self, lane: usize) {
        loop {
            let entries = self.take();
            if entries.is_empty() {
                self.work.notified().await;
                continue;
            }
            // A panic in a call does not end the lane.
            if AssertUnwindSafe(self.call(lane, entries))
                .catch_unwind()
                .await
                .is_err()
            {
                tracing::error!("a call of the store panicked; its checks got no decision");
            }
        }
    }

    /// Takes the checks of the next call: at least one request, unless no client waits any more.
    fn take(&self) -> Vec<Entry> {
        let now = Instant::now();
        let mut queue = self.queue();
        let (mut entries, mut sum) = (Vec::new(), 0);
        while let Some(next) = queue.waiting.front() {
            let weight = next.weight;
            if sum > 0 && sum + weight > CALL_MAX {
                break;
            }
            let Some(entry) = queue.waiting.pop_front() else {
                break;
            };
            queue.checks -= entry.checks.len();
            if entry.is_wanted(now) {
                sum += weight;
                entries.push(entry);
            }
        }
        if !queue.waiting.is_empty() {
            self.work.notify_one();
        }
        entries
    }

    async fn call(&self, lane: usize, entries: Vec<Entry>) {
        let groups = group(entries).into_iter();
        join_all(groups.map(|group| self.ask(lane, group))).await;
    }

    async fn ask(&self, lane: usize, group: Group) {
        let started = Instant::now();
        let asked = self
            .store
            .check(&group.policy.compiled, &group.checks, group.force);
        // Stores have a timeout of their own; this one bounds a store whose timeout fails.
        let answers = timeout_at(started + self.timeout + GRACE, asked)
            .await
            .unwrap_or_default();
        let took = started.elapsed().as_secs_f64();
        self.metrics.store_duration_seconds.observe(took);
        let size = u32::try_from(group.checks.len()).unwrap_or(u32::MAX);
        self.metrics.store_batch_size.observe(size.into());
        self.metrics.calls.called(&answers, Instant::now());
        let decided = group.checks.iter().zip(&answers);
        group.policy.called(decided);
        let compiled = &group.policy.compiled;
        let requests = group.requests.iter();
        let proxies =
            requests.flat_map(|request| repeat_n(request.proxy.as_deref(), request.checks));
        self.telemetry
            .decided(lane, compiled, group.checks.iter().zip(proxies), &answers);
        let timed_out = || Err(StoreError::Timeout(self.timeout).into());
        let mut answers = answers.into_iter();
        let mut checks = group.checks.into_iter();
        let mut abandoned = Vec::new();
        for request in group.requests {
            let mut outcome = Outcome {
                decisions: Vec::with_capacity(request.checks),
                checks: checks.by_ref().take(request.checks).collect(),
                given: Vec::new(),
            };
            for check in &outcome.checks {
                let decision = answers.next().unwrap_or_else(timed_out);
                let answer = decision.as_ref().ok();
                outcome
                    .given
                    .extend(answer.and_then(|answer| freeing(check, answer)));
                outcome.decisions.push(decision);
            }
            // The client has disconnected: free its slots for others.
            if let Err(unread) = request.reply.send(outcome) {
                abandoned.extend(unread.given);
            }
        }
        self.free(&group.policy, &abandoned, group.force).await;
    }

    async fn free(&self, policy: &Active, given: &[Check], force: bool) {
        if !given.is_empty() {
            let freed = self.store.check(&policy.compiled, given, force);
            let _ = timeout_at(Instant::now() + self.timeout + GRACE, freed).await;
        }
    }
}

/// A check that frees the slots given by an answer; `None`: it gave none.
fn freeing(check: &Check, answer: &Answer) -> Option<Check> {
    let given = answer.limits.iter().filter_map(|limit| {
        Some(LimitRequest {
            slots: vec![SlotOp::free(limit.verdict.slot?, limit.verdict.charged)],
            ..LimitRequest::new(limit.name.clone())
        })
    });
    let limits: Vec<LimitRequest> = given.collect();
    (!limits.is_empty()).then(|| Check {
        descriptor: check.descriptor.clone(),
        only: limits.iter().map(|freed| freed.limit.clone()).collect(),
        limits,
        ..Check::default()
    })
}

// --- The checks of one request, from the queue to their results

/// The result of each check, in order.
pub(crate) type Decisions = Vec<Result<Answer, CheckError>>;

/// The results of a request's checks.
#[derive(Default)]
pub(crate) struct Outcome {
    /// One for each check.
    pub(crate) decisions: Decisions,
    /// The checks themselves, without those after the last that was sent.
    pub(crate) checks: Vec<Check>,
    /// Checks that free the slots which these were given.
    pub(crate) given: Vec<Check>,
}

/// Slots that were given to checks of a request, while others of it are not decided yet. If its client
/// disconnects before, they are freed for others.
pub(crate) struct SlotGuard {
    shared: Arc<Shared>,
    policy: Arc<Active>,
    force: bool,
    /// Checks that free them.
    checks: Vec<Check>,
}

impl SlotGuard {
    /// The request is answered: the slots are its client's.
    pub(crate) fn keep(mut self) -> Vec<Check> {
        std::mem::take(&mut self.checks)
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        let given = std::mem::take(&mut self.checks);
        if given.is_empty() {
            return;
        }
        let (shared, policy) = (Arc::clone(&self.shared), Arc::clone(&self.policy));
        let force = self.force;
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { shared.free(&policy, &given, force).await });
        }
    }
}

/// The checks of one request.
struct Entry {
    policy: Arc<Active>,
    force: bool,
    checks: Vec<Check>,
    /// What the checks cost the store, in checks of one token bucket.
    weight: usize,
    deadline: Instant,
    /// The proxy that sent them, if one did.
    proxy: Option<Arc<str>>,
    /// Set by the lane that sends them or the request that gives up, whichever is first.
    settled: Arc<AtomicBool>,
    reply: oneshot::Sender<Outcome>,
}

impl Entry {
    /// Whether a client still waits. If so, claims the entry, so that the client can no longer give
    /// up without a charge. Otherwise nothing is sent or charged.
    fn is_wanted(&self, now: Instant) -> bool {
        now < self.deadline && !self.reply.is_closed() && settle(&self.settled)
    }
}

/// Claims the entry; `true` for the first caller.
fn settle(settled: &AtomicBool) -> bool {
    !settled.swap(true, Ordering::AcqRel)
}

// --- Requests whose checks go to the store in one call

/// Checks that go to the store in one call.
struct Group {
    policy: Arc<Active>,
    force: bool,
    checks: Vec<Check>,
    requests: Vec<Request>,
}

/// A request, and how many of the checks are its own.
struct Request {
    checks: usize,
    proxy: Option<Arc<str>>,
    reply: oneshot::Sender<Outcome>,
}

/// One group per policy; nearly always one.
fn group(entries: Vec<Entry>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::with_capacity(1);
    for mut entry in entries {
        let request = Request {
            checks: entry.checks.len(),
            proxy: entry.proxy,
            reply: entry.reply,
        };
        let known = groups
            .iter_mut()
            .find(|group| group.force == entry.force && Arc::ptr_eq(&group.policy, &entry.policy));
        match known {
            Some(group) => {
                group.checks.append(&mut entry.checks);
                group.requests.push(request);
            }
            None => groups.push(Group {
                policy: entry.policy,
                force: entry.force,
                checks: entry.checks,
                requests: vec![request],
            }),
        }
    }
    groups
}
