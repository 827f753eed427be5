//! Tasks in the background.

use std::time::Duration;

use tokio::task::JoinHandle;

/// A task that is aborted when its owner is dropped.
pub(crate) struct AbortOnDrop(JoinHandle<()>);

impl AbortOnDrop {
    pub(crate) fn new(task: JoinHandle<()>) -> Self {
        Self(task)
    }

    /// Returns once the task has ended.
    pub(crate) async fn ended(&mut self) {
        // An error means that it was aborted or panicked, so it has ended.
        let _ = (&mut self.0).await;
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A random pause of at least half of `wait`, so that many clients do not return at once.
pub(crate) fn jittered(wait: Duration) -> Duration {
    let micros = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(fastrand::u64(micros / 2..=micros))
}
