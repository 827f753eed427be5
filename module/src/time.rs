//! Time: the clocks, and the thread that schedules ticks.

use std::{
    ptr,
    sync::{
        Arc, Condvar, LazyLock, Mutex, PoisonError, Weak,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{AcqRel, Relaxed},
        },
    },
    thread::{self, Builder, ThreadId},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use filter_core::{Clock, Now};

use crate::hooks::{self, Filter, locked};

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

// --- Ticks: Envoy has no timers for a module, so a thread sleeps until the next is due. One serves all configurations:
// a proxy may have hundreds, one for each filter chain.

/// When the thread has to do something for a configuration: schedule its tick, or end waits that are overdue, for the
/// main thread, which has Envoy's timers, may be busy for longer than requests wait.
#[derive(Debug)]
pub struct Ticker {
    /// When the next tick is due; `u64::MAX`: none is.
    due_us: AtomicU64,
    /// When a wait is overdue, likewise.
    overdue_us: AtomicU64,
}

/// The thread, and the configurations that have not ended.
static TICKING: Mutex<(Option<ThreadId>, Vec<Arc<Filter>>)> = Mutex::new((None, Vec::new()));
/// Something is due sooner.
static SOONER: Condvar = Condvar::new();

impl Ticker {
    /// A tick is due at once.
    pub fn new() -> Self {
        Self {
            due_us: AtomicU64::new(0),
            overdue_us: AtomicU64::new(u64::MAX),
        }
    }

    /// Has the thread look after a configuration. `false`: the system has no thread left.
    pub fn start(filter: &Arc<Filter>) -> bool {
        let mut ticking = locked(&TICKING);
        let (thread, filters) = &mut *ticking;
        *thread = thread.or_else(spawn);
        if thread.is_some() {
            filters.push(Arc::clone(filter));
            SOONER.notify_one();
        }
        thread.is_some()
    }

    /// The thread looks after a configuration no more.
    ///
    /// While it schedules an event, Envoy's scheduler holds the configuration. If nobody else does any more, Envoy ends
    /// it there, and would end its calls next, which are the main thread's: on another thread that would be Envoy's end.
    /// So this never returns there, which costs a thread and a configuration, and another thread takes over.
    pub fn end(filter: &Filter) {
        let mut ticking = locked(&TICKING);
        let (thread, filters) = &mut *ticking;
        filters.retain(|ticking| !ptr::eq(Arc::as_ptr(ticking), filter));
        if *thread == Some(thread::current().id()) {
            *thread = spawn();
            drop(ticking);
            loop {
                thread::park();
            }
        }
    }

    /// Schedules a tick at this time, if none is scheduled before.
    pub fn by(&self, due_us: u64) {
        wake_by(&self.due_us, due_us);
    }

    /// A wait is overdue then, if none is before.
    pub fn overdue_by(&self, at_us: u64) {
        wake_by(&self.overdue_us, at_us);
    }

    fn next_us(&self) -> u64 {
        self.due_us.load(Relaxed).min(self.overdue_us.load(Relaxed))
    }

    /// Does what is due.
    fn work(&self, filter: &Filter, now_us: u64) {
        if self.due_us.load(Relaxed) <= now_us {
            // The main thread schedules the next one.
            self.due_us.store(u64::MAX, Relaxed);
            filter.tick_on_main();
        }
        if self.overdue_us.load(Relaxed) <= now_us {
            // What a worker sets meanwhile is read here, or wakes this thread.
            self.overdue_us.swap(u64::MAX, AcqRel);
            self.overdue_us.fetch_min(filter.end_overdue(), Relaxed);
        }
    }
}

fn wake_by(which: &AtomicU64, at_us: u64) {
    if which.fetch_min(at_us, AcqRel) > at_us {
        // Under the lock, so that the thread is either asleep, or has yet to read the time.
        let _ticking = locked(&TICKING);
        SOONER.notify_one();
    }
}

fn spawn() -> Option<ThreadId> {
    // Linux cuts names after 15 bytes.
    let thread = Builder::new().name("rl_filter:ticks".to_owned());
    let thread = thread.stack_size(512 << 10).spawn(run).ok()?;
    Some(thread.thread().id())
}

fn run() {
    let mut ticking = locked(&TICKING);
    loop {
        let now_us = mono_us();
        let due = |filter: &&Arc<Filter>| filter.ticker.next_us() <= now_us;
        let due: Vec<_> = ticking.1.iter().filter(due).map(Arc::downgrade).collect();
        if due.is_empty() {
            let next_us = ticking.1.iter().map(|filter| filter.ticker.next_us()).min();
            // One may have come sooner meanwhile.
            let left = next_us.unwrap_or(u64::MAX).saturating_sub(now_us);
            let left = Duration::from_micros(left);
            let waited = SOONER.wait_timeout(ticking, left);
            ticking = waited.unwrap_or_else(PoisonError::into_inner).0;
            continue;
        }
        // What it does may wake this thread, or end a configuration.
        drop(ticking);
        for filter in due.iter().filter_map(Weak::upgrade) {
            hooks::caught("ticks", || filter.ticker.work(&filter, now_us));
        }
        ticking = locked(&TICKING);
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
