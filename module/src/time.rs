//! Time: the clocks, and the thread that schedules ticks.

use std::{
    sync::{
        Arc, Condvar, LazyLock, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{Builder, JoinHandle},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use filter_core::{Clock, Now};

use crate::abi::ConfigScheduler;

/// The start of the monotonic clock, which is the same for all workers and configurations: what they
/// share has deadlines. Not at 0, which is the past of every deadline.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);
const START_US: u64 = 1_000_000;

/// Microseconds on the monotonic clock.
pub fn mono_us() -> u64 {
    let us = u64::try_from(START.elapsed().as_micros()).unwrap_or(u64::MAX);
    us.saturating_add(START_US)
}

/// Milliseconds since the epoch.
fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let ms = since.map_or(0, |since| since.as_millis());
    u64::try_from(ms).unwrap_or(0)
}

/// Both clocks.
#[derive(Debug)]
pub struct Clocks(Clock);

impl Clocks {
    /// As of now.
    pub fn new() -> Self {
        Self(Clock::new(wall_ms(), mono_us()))
    }

    /// Adjusts to a wall clock that was set.
    pub fn adjust(&self) {
        self.0.adjust(wall_ms(), mono_us());
    }

    /// The time.
    pub fn now(&self) -> Now {
        self.0.at(mono_us())
    }
}

// --- Ticks: Envoy has no timers for a module, so a thread sleeps until the next is due.

/// Schedules an event of the configuration when the next tick is due, and looks after calls that are overdue: the
/// main thread, which has Envoy's timers, may be busy for longer than requests wait.
#[derive(Debug)]
pub struct Ticker {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    /// When the next tick is due; `u64::MAX`: none is.
    due_us: AtomicU64,
    /// When a call is overdue, likewise.
    overdue_us: AtomicU64,
    ended: Mutex<bool>,
    sooner: Condvar,
}

impl Ticker {
    /// Starts the thread. `None`: the system has no thread left. `end_overdue` is called on it, and says when it is to
    /// be called again.
    pub fn start(
        scheduler: Arc<ConfigScheduler>,
        event: u64,
        end_overdue: impl Fn() -> u64 + Send + 'static,
    ) -> Option<Self> {
        let shared = Arc::new(Shared {
            due_us: AtomicU64::new(u64::MAX),
            overdue_us: AtomicU64::new(u64::MAX),
            ended: Mutex::new(false),
            sooner: Condvar::new(),
        });
        let its = Arc::clone(&shared);
        // Linux cuts names after 15 bytes.
        let thread = Builder::new()
            .name("rl_filter:ticks".to_owned())
            .stack_size(512 << 10)
            .spawn(move || its.run(&scheduler, event, end_overdue))
            .ok()?;
        Some(Self {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Schedules a tick at this time, if none is scheduled before.
    pub fn by(&self, due_us: u64) {
        self.shared.wake_by(&self.shared.due_us, due_us);
    }

    /// A call is overdue then, if none is before.
    pub fn overdue_by(&self, at_us: u64) {
        self.shared.wake_by(&self.shared.overdue_us, at_us);
    }

    /// Ends the thread, and waits for it.
    pub fn end(&self) {
        let mut ended = self
            .shared
            .ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *ended = true;
        drop(ended);
        self.shared.sooner.notify_one();
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // It does nothing that panics.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn wake_by(&self, which: &AtomicU64, at_us: u64) {
        if which.fetch_min(at_us, Relaxed) > at_us {
            // Under the lock, so that the thread is either asleep, or has yet to read the time.
            let _ended = self.ended.lock();
            self.sooner.notify_one();
        }
    }

    fn run(&self, scheduler: &ConfigScheduler, event: u64, end_overdue: impl Fn() -> u64) {
        let lock = || self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ended = lock();
        while !*ended {
            let [due_us, overdue_us] = [&self.due_us, &self.overdue_us].map(|at| at.load(Relaxed));
            let now_us = mono_us();
            if due_us <= now_us {
                // The main thread schedules the next one.
                self.due_us.store(u64::MAX, Relaxed);
                scheduler.commit(event);
            } else if overdue_us <= now_us {
                self.overdue_us.store(u64::MAX, Relaxed);
                // What it does may wake this thread.
                drop(ended);
                self.overdue_us.fetch_min(end_overdue(), Relaxed);
                ended = lock();
            } else {
                let left = Duration::from_micros(due_us.min(overdue_us) - now_us);
                let waited = self.sooner.wait_timeout(ended, left);
                ended = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

// --- When a worker's tick is due.

/// A tick that comes so long after it was due is late: the main thread was busy.
pub const LATE_US: u64 = 5000;

/// When a tick is due; at first, at once.
#[derive(Debug, Default)]
pub struct Due {
    at_us: AtomicU64,
    is_put_off: AtomicBool,
}

impl Due {
    /// Sets when.
    pub fn set(&self, at_us: u64) {
        self.at_us.store(at_us, Relaxed);
    }

    /// When, by the monotonic clock.
    pub fn at_us(&self) -> u64 {
        self.at_us.load(Relaxed)
    }

    /// Whether it is due. One that comes late is put off once: Envoy reads what it received while its main thread was
    /// busy after this event, and a tick before it would take the answers there for missing.
    pub fn is_past(&self, now_us: u64) -> bool {
        let at_us = self.at_us();
        if at_us > now_us {
            return false;
        }
        let is_late = at_us > 0 && now_us - at_us > LATE_US;
        if is_late && !self.is_put_off.swap(true, Relaxed) {
            self.set(now_us.saturating_add(1000));
            return false;
        }
        self.is_put_off.store(false, Relaxed);
        true
    }
}
