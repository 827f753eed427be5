//! Work that takes CPU and memory for long: limits are read, converted, validated and compiled beside
//! the threads that serve, so that checks do not wait for it.

use std::{
    sync::{Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::{Semaphore, SemaphorePermit, watch},
    task::spawn_blocking,
    time::{Instant, sleep_until},
};

/// The priority of such threads, as `nice` counts: where the threads that serve want the CPU, they get
/// a third of what those get. (With a tenth, at 10, a limiter beside busy programs took 15 s to start with
/// 10,000 limits.)
#[cfg(target_os = "linux")]
const NICE: i32 = 5;

/// The least pause between two attempts to put limits in force.
const PAUSE: Duration = Duration::from_secs(1);

/// The pause is at least this many times as long as the attempt took. So limits that change without
/// end take a fifth of a CPU, however large they are, and so does a page that is asked for without end.
const PAUSES: u32 = 4;

/// What holds whole copies of a domain's limits does so one after the other: of 10,000 limits, the
/// documents, syntax trees and policies of one edit take some 50 MB.
static LARGE: Semaphore = Semaphore::const_new(1);

/// Waits until nothing else handles whole copies of limits; nothing else does while the permit is
/// held.
pub(crate) async fn alone() -> Option<SemaphorePermit<'static>> {
    // Only a closed semaphore gives none, and nothing closes it.
    LARGE.acquire().await.ok()
}

/// Whether the runtime has one thread. Then all work is done on it: in the order of a simulation, which another
/// thread would break.
fn is_single_threaded() -> bool {
    Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread
}

/// Runs `work` beside the threads that serve; `None` if it panicked.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    if is_single_threaded() {
        return Some(work());
    }
    spawn_blocking(work).await.ok()
}

/// Runs `work` on a thread of low priority; `None` if it panicked.
pub(crate) async fn compute<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    if is_single_threaded() {
        return Some(work());
    }
    let at_low_priority = move || {
        lower_priority();
        work()
    };
    // A thread of its own: those of the runtime cannot get their priority back.
    let waited = spawn_blocking(move || thread::spawn(at_low_priority).join().ok());
    waited.await.ok().flatten()
}

/// Tasks on threads of their own, until this is dropped.
#[derive(Default)]
pub(crate) struct Aside {
    end: watch::Sender<bool>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Aside {
    pub(crate) fn spawn(
        &self,
        name: &str,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        let (runtime, mut end) = (Handle::current(), self.end.subscribe());
        let until_the_end = async move {
            tokio::select! {
                biased;
                _ = end.wait_for(|end| *end) => {}
                () = task => {}
            }
        };
        if is_single_threaded() {
            tokio::spawn(until_the_end);
            return Ok(());
        }
        let thread = thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || {
            lower_priority();
            runtime.block_on(until_the_end);
        })?;
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.push(thread);
        Ok(())
    }
}

impl Drop for Aside {
    /// Waits for them: a timer of theirs panics once the runtime has ended.
    fn drop(&mut self) {
        self.end.send_replace(true);
        let threads = self.threads.get_mut();
        for thread in threads.unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = thread.join();
        }
    }
}

/// Lowers the priority of the calling thread. Elsewhere than on Linux the call is about the process.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, NICE) {
        tracing::debug!(%error, "cannot lower the priority of a thread");
    }
}

/// When the next attempt may begin: to put limits in force, or to write what took long.
pub(crate) struct Pace {
    least: Duration,
    next: Instant,
}

impl Pace {
    /// For limits from outside.
    pub(crate) fn new() -> Self {
        Self::with_least(PAUSE)
    }

    /// With this pause at least.
    pub(crate) fn with_least(least: Duration) -> Self {
        let next = Instant::now();
        Self { least, next }
    }

    /// When the next attempt may begin.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// Waits until an attempt may begin.
    pub(crate) async fn turn(&self) {
        sleep_until(self.next).await;
    }

    /// Records an attempt that began then and ends now.
    pub(crate) fn ended(&mut self, at: Instant) {
        let now = Instant::now();
        self.next = now
            + self
                .least
                .max(now.duration_since(at).saturating_mul(PAUSES));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn attempts_take_at_most_a_fifth_of_the_time_and_one_a_second_begins() {
        let mut pace = Pace::new();
        let start = Instant::now();
        pace.turn().await;
        assert_eq!(
            start.elapsed(),
            Duration::ZERO,
            "the first edit waits for nothing"
        );
        for (took_ms, pause_ms) in [(0, 1000), (100, 1000), (5000, 20_000)] {
            let began = Instant::now();
            tokio::time::advance(Duration::from_millis(took_ms)).await;
            pace.ended(began);
            let ended = Instant::now();
            pace.turn().await;
            assert_eq!(ended.elapsed().as_millis(), pause_ms, "after {took_ms} ms");
        }
    }

    #[cfg(target_os = "linux")]
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn only_the_threads_beside_the_serving_ones_have_a_low_priority() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let before = nice();
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let aside = Aside::default();
        let task = async move {
            sender.send(nice()).unwrap();
        };
        aside.spawn("test", task).unwrap();
        assert_eq!(receiver.await.unwrap(), NICE.max(before));
        assert_eq!(compute(nice).await, Some(NICE.max(before)));
        assert_eq!(nice(), before);
        // Nor have threads of the runtime that a computation waited on.
        assert_eq!(spawn_blocking(nice).await.unwrap(), before);
    }
}
