//! SIGHUP, by which an administrator asks for files to be read again.

/// The signals that came.
pub(crate) struct Hangups {
    #[cfg(unix)]
    signal: Option<tokio::signal::unix::Signal>,
}

impl Hangups {
    pub(crate) fn new() -> Self {
        Self {
            #[cfg(unix)]
            signal: {
                use tokio::signal::unix::{SignalKind, signal};
                signal(SignalKind::hangup())
                    .inspect_err(|error| tracing::warn!(%error, "SIGHUP cannot be heeded"))
                    .ok()
            },
        }
    }

    /// Waits for the next one.
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
