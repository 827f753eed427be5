//! SIGHUP: read the files again.

/// The signals received.
pub(crate) struct Sighup {
    #[cfg(unix)]
    signal: Option<tokio::signal::unix::Signal>,
}

impl Sighup {
    pub(crate) fn new() -> Self {
        Self {
            #[cfg(unix)]
            signal: {
                use tokio::signal::unix::{SignalKind, signal};
                signal(SignalKind::hangup())
                    .inspect_err(|error| tracing::warn!(%error, "cannot listen for SIGHUP: it will end the process"))
                    .ok()
            },
        }
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) {
        #[cfg(unix)]
        if let Some(signal) = &mut self.signal
            && signal.recv().await.is_some()
        {
            return;
        }
        std::future::pending::<()>().await;
    }
}
