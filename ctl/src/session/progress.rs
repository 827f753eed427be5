//! Progress of a scan over all keys: a bar on a terminal, nothing elsewhere.

use std::{
    io::{IsTerminal, Write as _},
    sync::atomic::Ordering,
    time::Duration,
};

use super::Session;
use crate::render;

/// The time between two drawings of the bar. A shorter scan shows none.
const DRAWN_EVERY: Duration = Duration::from_millis(200);

impl Session<'_> {
    /// Runs a scan over keys and shows its progress.
    pub async fn with_progress<T>(&self, walk: impl Future<Output = T>) -> T {
        if self.printer.is_quiet() || !std::io::stderr().is_terminal() {
            return walk.await;
        }
        let total = self.store.key_count().await.ok().flatten();
        let mut walk = std::pin::pin!(walk);
        let mut drawn = false;
        let mut ticks = tokio::time::interval(DRAWN_EVERY);
        ticks.tick().await;
        let done = loop {
            tokio::select! {
                biased;
                done = &mut walk => break done,
                _ = ticks.tick() => {
                    drawn = true;
                    self.draw(total);
                }
            }
        };
        if drawn {
            draw("");
        }
        done
    }

    fn draw(&self, total: Option<u64>) {
        let walked = self.walked.load(Ordering::Relaxed);
        draw(&match total {
            // Keys are created and deleted during the scan.
            Some(total) => {
                let walked = walked.min(total);
                let bar = render::bar(walked, total, self.printer.page());
                format!("{bar} {walked} of {total} keys")
            }
            None => format!("{walked} keys"),
        });
    }
}

/// Replaces the last drawing. Write errors are ignored.
fn draw(text: &str) {
    let mut terminal = anstream::stderr().lock();
    let _ = write!(terminal, "\r\x1b[K{text}");
    let _ = terminal.flush();
}
