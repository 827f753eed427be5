//! How edits of the limits get here.
//!
//! One worker of an Envoy, elected by a lease in shared data, polls the domain's
//! snapshot and leaves it there; the others see by a short value that there is
//! a newer one. Envoy's main thread runs a copy of the module that never has a
//! request: it may hold the lease like any other, and need not be told apart.

mod shared;

use shared::{Notice, Poller};
pub(crate) use shared::{Snapshot, SnapshotBody};

use crate::{
    host::{self, Change, Host, Version},
    random::Random,
    time::Now,
};

/// Between polls that are answered at once, before jitter.
const POLL_EVERY_US: u64 = 200_000;
/// How long a limiter is asked to hold a poll to which it has nothing new, in milliseconds, at
/// least; and how much longer at most, by chance, so that a fleet does not ask in step.
///
/// An edit is promised to be in force everywhere within a second, and a poll that is held is its
/// way: the limiter answers as soon as it hears of it, and holds polls only while it would. That
/// leaves a limiter that falls silent with a poll in its hands. Such a poll is given up after at
/// most 800 ms ([`HELD_GRACE_MS`]), and repeated at once; should that be lost too, again 50 and 100 ms later
/// ([`PATIENCE_RETRY_MS`]). The other workers see what it brings with their next tick 50 ms later,
/// or with their next request where they rest. A poller that vanished is replaced 850 ms after its
/// last poll at most ([`LEASE_US`]).
const HOLD_MIN_MS: u64 = 550;
const HOLD_SPREAD_MS: u64 = 150;
/// How much longer the answer to a poll that is held may take.
const HELD_GRACE_MS: u64 = 100;
/// Polls that were answered in a row before one is to be held: where some are lost, more of them
/// bring an edit sooner.
const CALM: u8 = 8;
/// How long a worker that vanished keeps others from polling, beyond the time that its poll is held.
const LEASE_US: u64 = 150_000;
/// How long the others are kept from polling at least: two polls that are answered at once.
const LEASE_MIN_US: u64 = 450_000;
/// No lease is longer.
const LEASE_MAX_US: u64 = LEASE_US + (HOLD_MIN_MS + HOLD_SPREAD_MS) * 1000;
/// How long a poll that is not held may take, in milliseconds: nobody waits for it, and it may
/// bring ten thousand limits.
const PATIENCE_MS: u64 = 250;
/// The same after one that was held and lost, and after that: every further failure doubles it, so
/// that a slow limiter is followed too.
const PATIENCE_RETRY_MS: u64 = 50;
const PATIENCE_MAX_MS: u64 = 4_000;
/// How much longer the host waits for an answer than it is of use. Envoy prefers limiters with
/// fewer calls on them: the poll that comes next rather goes to another.
const LINGER_MS: u64 = 250;

/// One worker's view of what all workers follow.
#[derive(Debug)]
pub(crate) struct Follower {
    notice_key: Vec<u8>,
    snapshot_key: Vec<u8>,
    poller_key: Vec<u8>,
    me: u64,
    random: Random,
    /// The last notice read, as bytes: most looks find the same.
    seen: Vec<u8>,
    /// The version of the snapshot in use here.
    version: u64,
    next_poll_us: u64,
    /// Until when another worker polls, as last seen.
    others_until_us: u64,
    /// When the poll in flight is given up.
    overdue_us: Option<u64>,
    /// How long the last poll may be held, in milliseconds.
    wait_ms: u64,
    /// Polls that were answered in a row, as far as they count.
    calm: u8,
    /// The entity tag of the last snapshot polled, good or not.
    etag: Vec<u8>,
    patience_ms: u64,
}

/// What a look at shared data brought.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// A snapshot newer than the one in use.
    pub(crate) snapshot: Option<Snapshot>,
    /// What limiters said of the number of proxies, if it changed.
    pub(crate) proxies: Option<Vec<u8>>,
}

impl Follower {
    pub(crate) fn new(domain: &str, me: u64, random: Random) -> Self {
        let key = |what: &str| format!("rl1:{domain}:{what}").into_bytes();
        Self {
            notice_key: key("notice"),
            snapshot_key: key("snapshot"),
            poller_key: key("poller"),
            me,
            random,
            seen: Vec::new(),
            version: 0,
            next_poll_us: 0,
            others_until_us: 0,
            overdue_us: None,
            wait_ms: 0,
            calm: 0,
            etag: Vec::new(),
            patience_ms: PATIENCE_MS,
        }
    }

    /// Looks whether another worker left something new.
    pub(crate) fn look(&mut self, host: &impl Host) -> News {
        let Some(read) = host.load(&self.notice_key) else {
            return News::default();
        };
        if read.bytes == self.seen {
            return News::default();
        }
        let notice = Notice::read(&read.bytes);
        let before = Notice::read(&self.seen);
        self.seen = read.bytes;
        let snapshot = (notice.version != self.version)
            .then(|| self.take(host))
            .flatten();
        let proxies = (notice.proxies != before.proxies).then_some(notice.proxies);
        News { snapshot, proxies }
    }

    fn take(&mut self, host: &impl Host) -> Option<Snapshot> {
        let read = host.load(&self.snapshot_key)?;
        let (version, snapshot) = Snapshot::read(&read.bytes)?;
        self.version = version;
        self.etag.clone_from(&snapshot.etag);
        Some(snapshot)
    }

    /// Whether this worker is to poll now; then it must, and report what became of it.
    pub(crate) fn is_due(&mut self, host: &impl Host, now: Now) -> bool {
        if self.overdue_us.is_some() || !now.reached(self.next_poll_us) {
            return false;
        }
        let hold_ms = HOLD_MIN_MS + self.random.below(HOLD_SPREAD_MS);
        let wait_ms = if self.calm < CALM { 0 } else { hold_ms };
        if !self.holds_lease(host, now, wait_ms * 1000) {
            return false;
        }
        self.wait_ms = wait_ms;
        self.next_poll_us = now
            .mono_us
            .saturating_add(self.random.jittered(POLL_EVERY_US));
        self.overdue_us = Some(now.after_ms(self.patience_ms()));
        true
    }

    /// Whether the poll in flight is waited for in vain. Then it has failed, and the next is due.
    pub(crate) fn is_overdue(&mut self, now: Now) -> bool {
        let overdue = self.overdue_us.is_some_and(|at_us| now.reached(at_us));
        if overdue {
            self.next_poll_us = 0;
        }
        overdue
    }

    /// When this worker may have to poll next, or to do without an answer.
    pub(crate) fn next_us(&self) -> u64 {
        let next_us = self.next_poll_us.max(self.others_until_us);
        self.overdue_us.unwrap_or(next_us)
    }

    /// Polls at the next occasion, because an answer told of another revision. Of that a limiter
    /// that holds a poll should have heard too.
    #[inline(never)]
    pub(crate) fn hurry(&mut self) {
        self.next_poll_us = 0;
        let wait_us = std::mem::take(&mut self.wait_ms) * 1000;
        self.overdue_us = self.overdue_us.map(|at_us| at_us.saturating_sub(wait_us));
    }

    fn holds_lease(&mut self, host: &impl Host, now: Now, wait_us: u64) -> bool {
        let read = host.load(&self.poller_key);
        let (poller, version) = match &read {
            Some(read) => (Poller::read(&read.bytes), read.version),
            None => (Poller::default(), Version::ABSENT),
        };
        let left_us = poller.until_us.saturating_sub(now.mono_us);
        // Nobody is given longer than a lease, whatever the value says.
        if poller.worker != self.me && left_us > 0 && left_us <= LEASE_MAX_US {
            self.others_until_us = poller.until_us;
            return false;
        }
        let lease_us = wait_us.saturating_add(LEASE_US).max(LEASE_MIN_US);
        let renewed = Poller {
            worker: self.me,
            until_us: now.mono_us.saturating_add(lease_us),
        };
        host.swap(&self.poller_key, &renewed.write(), version)
            .is_ok()
    }

    /// The tag to poll with: a limiter that has nothing newer says just that.
    pub(crate) fn etag(&self) -> &[u8] {
        &self.etag
    }

    /// How long the limiter may hold the poll that is due, in milliseconds.
    pub(crate) fn wait_ms(&self) -> u64 {
        self.wait_ms
    }

    /// How long it may take, in milliseconds.
    fn patience_ms(&self) -> u64 {
        match self.wait_ms {
            0 => self.patience_ms,
            wait_ms => wait_ms + HELD_GRACE_MS,
        }
    }

    /// How long the host is to wait for its answer, in milliseconds.
    pub(crate) fn timeout_ms(&self) -> u64 {
        self.patience_ms() + LINGER_MS
    }

    /// The poll brought nothing: no answer, or one that is none.
    pub(crate) fn poll_failed(&mut self) {
        self.overdue_us = None;
        self.patience_ms = if self.calm < CALM {
            (self.patience_ms * 2).min(PATIENCE_MAX_MS)
        } else {
            PATIENCE_RETRY_MS
        };
        self.calm = 0;
    }

    /// The poll brought a snapshot that cannot be used. It is not asked for again.
    pub(crate) fn poll_rejected(&mut self, etag: Vec<u8>) {
        self.answered();
        self.etag = etag;
    }

    /// The poll said that the snapshot in use is the newest.
    pub(crate) fn poll_unchanged(&mut self, host: &impl Host, proxies: Option<&[u8]>) {
        self.answered();
        self.give_notice(host, self.version, proxies);
    }

    /// The poll brought a snapshot that this worker has compiled: leaves it for the others.
    pub(crate) fn poll_brought(
        &mut self,
        host: &impl Host,
        snapshot: &Snapshot,
        proxies: Option<&[u8]>,
    ) {
        self.answered();
        self.etag.clone_from(&snapshot.etag);
        let left = host::update(host, &self.snapshot_key, |bytes| {
            let version = Snapshot::read(bytes).map_or(0, |(version, _)| version);
            let version = version.wrapping_add(1);
            Change::Write(snapshot.write(version), version)
        });
        // Contended: another worker leaves a snapshot just now, and this one's next poll
        // brings the same.
        if let Ok(version) = left {
            self.version = version;
            self.give_notice(host, version, proxies);
        }
    }

    fn answered(&mut self) {
        self.overdue_us = None;
        self.calm = self.calm.saturating_add(1);
        self.patience_ms = PATIENCE_MS;
    }

    fn give_notice(&self, host: &impl Host, version: u64, proxies: Option<&[u8]>) {
        // Contended: the next poll says it again.
        let _ = host::update(host, &self.notice_key, |bytes| {
            let old = Notice::read(bytes);
            let new = Notice {
                version: version.max(old.version),
                proxies: proxies.map_or_else(|| old.proxies.clone(), <[u8]>::to_vec),
            };
            if new == old {
                Change::Keep(())
            } else {
                Change::Write(new.write(), ())
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{simulated::SharedData, time::at};

    fn follower(me: u64) -> Follower {
        Follower::new("shop", me, Random::new(me))
    }

    fn snapshot(text: &str) -> Snapshot {
        Snapshot {
            etag: format!("\"{text}\"").into_bytes(),
            body: SnapshotBody::Limits(text.as_bytes().to_vec()),
        }
    }

    #[test]
    fn one_worker_polls_and_its_successor_takes_over() {
        let host = SharedData::default();
        let mut workers = [follower(1), follower(2), follower(3)];
        let mut polls = [0; 3];
        let mut longest = 0;
        let mut last = 0;
        for ms in (0..10_000).step_by(50) {
            for (n, worker) in workers.iter_mut().enumerate() {
                // The first worker is gone after five seconds.
                if (n > 0 || ms < 5000) && worker.is_due(&host, at(ms)) {
                    worker.poll_failed();
                    polls[n] += 1;
                    longest = longest.max(ms - last);
                    last = ms;
                }
            }
        }
        assert!(
            polls[0] >= 5000 / 300 && polls[0] <= 5000 / 150 + 1,
            "{polls:?}"
        );
        assert_eq!(
            polls[1..].iter().filter(|polls| **polls > 0).count(),
            1,
            "{polls:?}"
        );
        // A poll, or what is left of the lease of one that is gone, and a tick.
        assert!(longest <= 500, "{longest}");
        assert!(polls.iter().sum::<u64>() >= 9_000 / 300, "{polls:?}");
    }

    #[test]
    fn what_one_worker_brings_the_others_find_once() {
        let host = SharedData::default();
        let (mut poller, mut other) = (follower(1), follower(2));
        assert_eq!(other.look(&host), News::default());
        assert!(poller.is_due(&host, at(0)));
        poller.poll_brought(&host, &snapshot("first"), Some(b"per-user=2"));
        let news = other.look(&host);
        assert_eq!(news.snapshot, Some(snapshot("first")));
        assert_eq!(news.proxies.as_deref(), Some(&b"per-user=2"[..]));
        assert_eq!(other.look(&host), News::default());
        assert_eq!(other.etag(), b"\"first\"");
        // The poller itself has it already, but not the number of proxies.
        let news = poller.look(&host);
        assert_eq!((news.snapshot, news.proxies.is_some()), (None, true));
        poller.poll_unchanged(&host, Some(b"per-user=3"));
        let news = other.look(&host);
        assert_eq!(
            (news.snapshot, news.proxies.unwrap()),
            (None, b"per-user=3".to_vec())
        );
    }

    #[test]
    fn a_worker_that_starts_later_finds_what_is_there() {
        let host = SharedData::default();
        let mut poller = follower(1);
        poller.poll_brought(&host, &snapshot("first"), None);
        poller.poll_brought(
            &host,
            &Snapshot {
                etag: Vec::new(),
                body: SnapshotBody::Unknown,
            },
            None,
        );
        let news = follower(2).look(&host);
        assert_eq!(news.snapshot.unwrap().body, SnapshotBody::Unknown);
    }

    /// The moment at which a poll that left now is given up, in milliseconds.
    fn given_up(worker: &mut Follower, host: &SharedData, left_ms: u64) -> u64 {
        let mut ms = left_ms;
        while !worker.is_overdue(at(ms)) {
            assert!(!worker.is_due(host, at(ms)), "one at a time");
            ms += 1;
        }
        worker.poll_failed();
        ms
    }

    /// A worker whose polls were all answered, and when it polls next.
    fn calm(host: &SharedData, seed: u64) -> (Follower, u64) {
        let mut worker = follower(seed);
        let mut ms = 0;
        for _ in 0..CALM {
            while !worker.is_due(host, at(ms)) {
                ms += 1;
            }
            assert_eq!(worker.wait_ms(), 0, "a poll to get to know the limiter");
            worker.poll_unchanged(host, None);
        }
        while !worker.is_due(host, at(ms)) {
            ms += 1;
        }
        (worker, ms)
    }

    #[test]
    fn polls_without_an_answer_are_repeated_less_and_less_often() {
        let host = SharedData::default();
        let mut worker = follower(1);
        let mut ms = 0;
        for patience_ms in [250, 500, 1000, 2000, 4000, 4000] {
            assert!(worker.is_due(&host, at(ms)), "at once");
            let up_ms = given_up(&mut worker, &host, ms);
            assert_eq!(up_ms, ms + patience_ms);
            ms = up_ms;
        }
    }

    #[test]
    fn a_limiter_that_falls_silent_with_a_poll_in_its_hands_costs_less_than_a_second() {
        for seed in 0..100 {
            let host = SharedData::default();
            let (mut worker, left_ms) = calm(&host, seed);
            let wait_ms = worker.wait_ms();
            assert!((HOLD_MIN_MS..HOLD_MIN_MS + HOLD_SPREAD_MS).contains(&wait_ms));
            let mut ms = left_ms;
            for patience_ms in [wait_ms + 100, 50, 100] {
                let up_ms = given_up(&mut worker, &host, ms);
                assert_eq!(up_ms, ms + patience_ms);
                assert!(worker.timeout_ms() > patience_ms, "Envoy has it in mind");
                assert!(worker.is_due(&host, at(up_ms)), "at once");
                assert_eq!(worker.wait_ms(), 0, "no limiter is to be trusted now");
                ms = up_ms;
            }
            assert!(ms - left_ms <= 950);
        }
    }

    #[test]
    fn a_poll_that_is_held_is_given_up_when_a_check_told_of_an_edit() {
        let host = SharedData::default();
        let (mut worker, left_ms) = calm(&host, 1);
        worker.hurry();
        worker.hurry();
        assert_eq!(given_up(&mut worker, &host, left_ms), left_ms + 100);
        assert!(worker.is_due(&host, at(left_ms + 100)));
        let up_ms = given_up(&mut worker, &host, left_ms + 100);
        assert_eq!(up_ms, left_ms + 150);
    }

    #[test]
    fn nobody_polls_beside_one_whose_poll_is_held_and_somebody_soon_after_it() {
        let host = SharedData::default();
        let (mut worker, left_ms) = calm(&host, 1);
        let mut other = follower(2);
        // It is replaced if it vanishes now, and not while it waits.
        let mut ms = left_ms;
        while !other.is_due(&host, at(ms)) {
            assert!(other.next_us() <= at(left_ms + 850).mono_us);
            ms += 1;
        }
        assert!(
            ms > left_ms + worker.wait_ms() + 100 && ms <= left_ms + 850,
            "{ms}"
        );
        worker.poll_unchanged(&host, None);
        assert!(!worker.is_due(&host, at(ms)));
    }

    #[test]
    fn a_snapshot_that_was_rejected_is_not_asked_for_again() {
        let mut worker = follower(1);
        worker.poll_rejected(b"\"bad\"".to_vec());
        assert_eq!(worker.etag(), b"\"bad\"");
    }

    #[test]
    fn a_lease_that_another_plugin_wrote_does_not_last() {
        let host = SharedData::default();
        let mut worker = follower(1);
        let forged = Poller {
            worker: 9,
            until_us: u64::MAX,
        };
        host.overwrite(&worker.poller_key, &forged.write());
        assert!(worker.is_due(&host, at(1)));
    }
}
