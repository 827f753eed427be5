//! A poll that is held until there is something new.
//!
//! It is no work: it has no place among the requests worked on, and wakes for edits only. It is
//! held only while this limiter would hear of one itself; otherwise the proxy is better off
//! asking again, maybe somebody else.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::{Api, inflight::Inflight, snapshot::Poll};
use crate::{domains::Lookup, serve::Phase};

/// Those whose time is over within such a span are answered together: to wake a thread for each
/// costs more than the answers. What the proxies ask next comes together too.
const TOGETHER: Duration = Duration::from_millis(20);

/// What each poll held adds to the time over which they are answered after an edit: thousands at
/// once would make the checks of that moment late.
const SPREAD_US: usize = 20;

/// How a proxy's limits stand to those in force here.
enum Standing {
    /// It has them; or it has none, and there are none.
    Same,
    /// Its edit is a later one: this limiter is behind, or the store was set back.
    Ahead,
    /// They differ, or it cannot be said.
    Other,
}

impl Api {
    /// Waits while there is nothing new for a poll, as long as it asks for.
    pub(super) async fn hold(&self, poll: &Poll<'_>) {
        if poll.wait.is_zero() {
            return;
        }
        let Some(_place) = self.bounds.held.enter() else {
            return;
        };
        let until = together(
            self.bounds.since,
            Instant::now() + poll.wait.min(self.bounds.max_poll_wait),
        );
        tokio::select! {
            () = self.news_for(poll) => {}
            () = sleep_until(until) => {}
            () = self.lifecycle.reached(Phase::Leave) => {}
        }
    }

    async fn news_for(&self, poll: &Poll<'_>) {
        let mut news = self.domains.news();
        let mut asked_store = false;
        let mut woken = false;
        while self.domains.poll().is_sure() {
            match self.standing(poll) {
                Standing::Same => {}
                // Never back to limits that were replaced meanwhile.
                Standing::Ahead if !asked_store => {
                    asked_store = true;
                    self.domains.refreshed().await;
                    continue;
                }
                Standing::Ahead | Standing::Other => break,
            }
            if news.changed().await.is_err() {
                return;
            }
            woken = true;
        }
        if woken {
            sleep(spread(&self.bounds.held)).await;
        }
    }

    fn standing(&self, poll: &Poll<'_>) -> Standing {
        match self.domains.find(poll.domain.as_str()) {
            Lookup::Active(policy) if poll.has(&policy) => Standing::Same,
            Lookup::Active(policy) if poll.is_ahead_of(&policy) => Standing::Ahead,
            Lookup::Unknown if poll.has_none() => Standing::Same,
            Lookup::Active(_) | Lookup::Unknown | Lookup::NotLoaded(_) => Standing::Other,
        }
    }
}

/// The last of the moments for which polls are held that is not later than this one.
fn together(since: Instant, moment: Instant) -> Instant {
    let late_ns = (moment - since).as_nanos() % TOGETHER.as_nanos();
    moment - Duration::from_nanos(u64::try_from(late_ns).unwrap_or(0))
}

/// How long after an edit one of those held is answered.
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
            assert_eq!(together(since, at(us)), at(answered_us), "{us}");
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
