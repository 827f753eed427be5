//! Long polls: the limiter holds a poll until the limits change or its wait ends.
//!
//! Long polls do not count as requests in flight, and only changes wake them. A limiter that cannot
//! see changes answers at once, so that the proxy polls again, perhaps at another limiter.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::{Api, inflight::Inflight, snapshot::Poll};
use crate::{domains::Lookup, serve::Phase};

/// Polls whose waits end within one such interval are answered together: waking a thread for each
/// costs more than the answers. Their next polls then arrive together too.
const WAKE_INTERVAL: Duration = Duration::from_millis(20);

/// After an edit, the answers to long polls are spread over this time per poll: thousands at once
/// would delay checks.
const SPREAD_US: usize = 20;

/// How a proxy's limits compare with those in force here.
enum Freshness {
    /// The same; or the proxy has none, and the domain has none.
    Current,
    /// The proxy has a later revision: this limiter is stale, or the store was set back.
    ProxyAhead,
    /// They differ, or the limiter cannot decide.
    Differs,
}

impl Api {
    /// Waits until there is a change for a poll, or its wait ends.
    pub(super) async fn wait_for_change(&self, poll: &Poll<'_>) {
        if poll.wait.is_zero() {
            return;
        }
        let Some(_place) = self.bounds.held.enter() else {
            return;
        };
        let until = wake_instant(
            self.bounds.since,
            Instant::now() + poll.wait.min(self.bounds.max_poll_wait),
        );
        tokio::select! {
            () = self.change_for(poll) => {}
            () = sleep_until(until) => {}
            () = self.lifecycle.reached(Phase::Leave) => {}
        }
    }

    async fn change_for(&self, poll: &Poll<'_>) {
        let mut changes = self.domains.changes();
        let mut refreshed = false;
        let mut woken = false;
        while self.domains.poll().is_sure() {
            match self.freshness(poll) {
                Freshness::Current => {}
                // Refresh first: a poll must not be answered with limits that were replaced
                // meanwhile.
                Freshness::ProxyAhead if !refreshed => {
                    refreshed = true;
                    self.domains.refreshed().await;
                    continue;
                }
                Freshness::ProxyAhead | Freshness::Differs => break,
            }
            if changes.changed().await.is_err() {
                return;
            }
            woken = true;
        }
        if woken {
            sleep(spread(&self.bounds.held)).await;
        }
    }

    fn freshness(&self, poll: &Poll<'_>) -> Freshness {
        match self.domains.find(poll.domain.as_str()) {
            Lookup::Active(policy) if poll.has(&policy.snapshot(self.telemetry.now_ms())) => {
                Freshness::Current
            }
            Lookup::Active(policy) if poll.is_ahead_of(&policy) => Freshness::ProxyAhead,
            Lookup::Unknown if poll.has_none() => Freshness::Current,
            Lookup::Active(_) | Lookup::Unknown | Lookup::NotLoaded(_) => Freshness::Differs,
        }
    }
}

/// Rounds down to an instant at which long polls end.
fn wake_instant(since: Instant, moment: Instant) -> Instant {
    let late_ns = (moment - since).as_nanos() % WAKE_INTERVAL.as_nanos();
    moment - Duration::from_nanos(u64::try_from(late_ns).unwrap_or(0))
}

/// A random delay after an edit for one long poll.
fn spread(held: &Inflight) -> Duration {
    let most_us = held.used().saturating_mul(SPREAD_US);
    let most_us = u64::try_from(most_us).unwrap_or(u64::MAX);
    Duration::from_micros(fastrand::u64(0..=most_us))
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;

    #[test]
    fn polls_whose_time_is_over_at_about_the_same_time_are_answered_together() {
        let since = Instant::now();
        let at = |us| since + Duration::from_micros(us);
        for (us, answered_us) in [
            (0, 0),
            (19_999, 0),
            (20_000, 20_000),
            (39_999, 20_000),
            (650_001, 640_000),
        ] {
            assert_eq!(wake_instant(since, at(us)), at(answered_us), "{us}");
        }
    }

    #[test]
    fn a_thousand_polls_are_answered_over_twenty_milliseconds_and_a_few_at_once() {
        for (polls, most_us) in [(1, 20), (1000, 20_000)] {
            let held = Inflight::new(polls, Gauge::default());
            let _places: Vec<_> = (0..polls).map(|_| held.enter()).collect();
            let most = Duration::from_micros(most_us);
            let all: Vec<_> = (0..1000).map(|_| spread(&held)).collect();
            assert!(all.iter().all(|wait| *wait <= most));
            assert!(all.iter().any(|wait| *wait > most / 2));
        }
    }
}
