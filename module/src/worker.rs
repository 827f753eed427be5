//! The state of one of Envoy's workers: its state machine, and its requests.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicU64},
};

use filter_core::{ByStream, Callback, Step, StreamId, Worker};

use crate::{
    abi::{Key, RequestScheduler},
    time::Due,
};

/// One of Envoy's workers.
#[derive(Debug)]
pub struct Slot {
    state: Mutex<State>,
    /// When its next tick is due.
    pub due: Due,
    /// When what its requests wait for is overdue; `u64::MAX`: none waits. Written under the lock.
    pub overdue_us: AtomicU64,
    /// Whether the main thread has to end its turn.
    pub main_ends_turn: AtomicBool,
}

impl Slot {
    /// A worker that ticks at once. `event`: what its requests schedule.
    pub fn new(worker: Worker, event: u64) -> Self {
        Self {
            state: Mutex::new(State::new(worker, event)),
            due: Due::default(),
            overdue_us: AtomicU64::new(u64::MAX),
            main_ends_turn: AtomicBool::new(false),
        }
    }

    /// Its state. A panic under the lock is followed by [`State::replace`].
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the lock guards.
#[derive(Debug)]
pub struct State {
    /// Its state machine.
    pub worker: Worker,
    /// How many state machines it had before: each panic ends one.
    pub epoch: u32,
    /// Whether its configuration has ended.
    pub left: bool,
    /// Whether the state machine is to be told that the turn ends, at the next event.
    pub ends_turn: bool,
    /// Whether the main thread has steps to carry out, once the lock is released.
    pub wakes: bool,
    /// Requests whose bodies did not arrive in time, for the next event.
    pub late: Vec<StreamId>,
    /// The period of its ticks.
    pub tick_ms: u32,
    next_id: u32,
    /// Requests that have not ended, and how each is paused.
    requests: ByStream<Option<Paused>>,
    /// Those that are paused, in no order.
    paused: Vec<StreamId>,
    scheduled: Option<Scheduled>,
    /// The number of events.
    event: u64,
}

/// A request that waits for its decision.
#[derive(Debug)]
struct Paused {
    /// Where its position in `State::paused` is.
    at: usize,
    key: Key,
    scheduler: RequestScheduler,
}

/// An event of this worker that was scheduled and has not come. One serves all requests.
#[derive(Clone, Copy, Debug)]
struct Scheduled {
    /// The request whose event it is: without it, none comes.
    carrier: StreamId,
    /// Whether a tick came meanwhile.
    late: bool,
}

/// No request of the worker is paused, so none can have an event.
#[derive(Clone, Copy, Debug)]
pub struct NoCarrier;

/// The steps that a worker leaves to others.
#[derive(Debug, Default)]
pub struct Steps {
    /// What becomes of the request whose hook is running.
    pub own: Option<Step>,
    /// Calls and streams, for the main thread.
    pub calls: Vec<Step>,
    /// Messages for the log.
    pub log: Vec<Step>,
    /// Whether the state machine wants to know when the turn ends.
    pub ends_turn: bool,
}

/// The id of no request.
const NOBODY: StreamId = StreamId(0);

impl State {
    fn new(worker: Worker, event: u64) -> Self {
        Self {
            worker,
            event,
            epoch: 0,
            left: false,
            ends_turn: false,
            wakes: false,
            late: Vec::new(),
            tick_ms: 0,
            next_id: 0,
            requests: ByStream::default(),
            paused: Vec::new(),
            scheduled: None,
        }
    }

    /// A request begins. An id is not used again before 2^32 others, and never while its request lives.
    pub fn begin(&mut self) -> StreamId {
        loop {
            self.next_id = self.next_id.wrapping_add(1);
            let id = StreamId(self.next_id);
            if id != NOBODY && self.requests.get(id).is_none() {
                self.requests.insert(id, None);
                return id;
            }
        }
    }

    /// A request is paused.
    pub fn pause(&mut self, id: StreamId, key: Key, scheduler: RequestScheduler) {
        let at = self.paused.len();
        if let Some(paused) = self.requests.get_mut(id) {
            *paused = Some(Paused { at, key, scheduler });
            self.paused.push(id);
        }
    }

    /// Whether a request is paused.
    pub fn is_paused(&self, id: StreamId) -> bool {
        matches!(self.requests.get(id), Some(Some(_)))
    }

    /// The key of a paused request.
    pub fn key(&self, id: StreamId) -> Option<Key> {
        let paused = self.requests.get(id)?.as_ref()?;
        Some(paused.key)
    }

    /// A request continues or is answered. Returns its key, if it was paused. An event that it carries
    /// still comes.
    pub fn unpause(&mut self, id: StreamId) -> Option<Key> {
        let paused = self.requests.get_mut(id)?.take()?;
        self.remove_paused(paused.at);
        Some(paused.key)
    }

    fn remove_paused(&mut self, at: usize) {
        self.paused.swap_remove(at);
        if let Some(moved) = self.paused.get(at)
            && let Some(Some(moved)) = self.requests.get_mut(*moved)
        {
            moved.at = at;
        }
    }

    /// A request has ended. Returns whether an event was lost with it, and no other request could have
    /// it instead.
    pub fn end(&mut self, id: StreamId) -> bool {
        if let Some(Some(paused)) = self.requests.remove(id) {
            self.remove_paused(paused.at);
        }
        self.late.retain(|late| *late != id);
        if self.carries_event(id) {
            self.scheduled = None;
            return self.schedule(None).is_err();
        }
        false
    }

    /// Whether a request carries the event that is on its way.
    pub fn carries_event(&self, id: StreamId) -> bool {
        self.scheduled.is_some_and(|event| event.carrier == id)
    }

    /// Schedules an event of this worker, unless one is on its way; `carrier`: by this paused request.
    pub fn schedule(&mut self, carrier: Option<StreamId>) -> Result<(), NoCarrier> {
        if self.scheduled.is_some() {
            return Ok(());
        }
        let carrier = carrier.or_else(|| self.paused.last().copied());
        let carrier = carrier.ok_or(NoCarrier)?;
        let paused = self.requests.get(carrier).and_then(Option::as_ref);
        paused.ok_or(NoCarrier)?.scheduler.commit(self.event);
        self.scheduled = Some(Scheduled {
            carrier,
            late: false,
        });
        Ok(())
    }

    /// The next event ends the turn of the state machine; `carrier`: as of [`Self::schedule`]. `true`: none
    /// comes, so the main thread has to end it.
    pub fn end_turn(&mut self, carrier: Option<StreamId>) -> bool {
        self.ends_turn = true;
        self.schedule(carrier).is_err()
    }

    /// The event has come.
    pub fn event_came(&mut self) {
        self.scheduled = None;
    }

    /// At a tick: an event that has not come since the last one is scheduled again.
    pub fn look_after_event(&mut self) {
        match &mut self.scheduled {
            Some(Scheduled { late, .. }) if !*late => *late = true,
            Some(_) => {
                self.scheduled = None;
                // Without a paused request, nobody needs it.
                let _ = self.schedule(None);
            }
            None => {}
        }
    }

    /// Takes the steps of the state machine. Of those that end a pause, only that of `current`, whose hook
    /// is running; the others wait for an event.
    pub fn steps(&mut self, current: Option<StreamId>) -> Steps {
        let mut callback = Callback::of_request(current.unwrap_or(NOBODY));
        let mut steps = Steps::default();
        while let Some(step) = self.worker.poll_step(&mut callback) {
            self.sort(step, &mut steps);
        }
        steps
    }

    /// Puts a step where it belongs.
    pub fn sort(&mut self, step: Step, steps: &mut Steps) {
        match step {
            Step::Continue { .. } | Step::Refuse { .. } => steps.own = Some(step),
            Step::Call(_) | Step::Stream(_) => steps.calls.push(step),
            Step::Log(..) => steps.log.push(step),
            Step::AtTurnEnd => steps.ends_turn = true,
            Step::DecideWithoutBody(id) => {
                self.late.push(id);
                steps.ends_turn = true;
            }
        }
    }

    /// Replaces the state machine after a panic. Requests that waited for a decision get one by
    /// `failure_mode`. Returns the old one.
    pub fn replace(&mut self, worker: Worker) -> Worker {
        let old = std::mem::replace(&mut self.worker, worker);
        self.epoch = self.epoch.wrapping_add(1);
        self.late.clear();
        self.ends_turn = false;
        self.scheduled = None;
        for id in &self.paused {
            self.worker.decide_by_failure_mode(*id);
        }
        // Without a paused request, nobody waits.
        let _ = self.schedule(None);
        old
    }
}
