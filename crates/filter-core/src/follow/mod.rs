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

/// Between polls, before jitter. With it and the ticks in between, at most 300 ms.
///
/// An edit is promised to be in force everywhere within a second, and this is its way: a limiter
/// that missed the hint finds it within 240 ms, the poll within 300 ms, the other workers with
/// their next tick 50 ms later, or with their next request where they rest. Of the second that leaves 400 ms for calls: one poll that is lost
/// ([`PATIENCE_MIN_MS`]) and repeated with the next tick, or a poller that vanished ([`LEASE_US`],
/// which holds 450 ms where a poll takes 300).
const POLL_EVERY_US: u64 = 200_000;
/// How long a worker that vanished keeps others from polling.
const LEASE_US: u64 = 450_000;
/// How long a poll may take, in milliseconds: nobody waits for it, and it may bring ten thousand
/// limits. After a failure it is given twice as long, so that a slow limiter is followed too.
const PATIENCE_MIN_MS: u64 = 250;
const PATIENCE_MAX_MS: u64 = 4_000;
/// How long an answer is waited for. Beyond it the callout has failed or the host forgot it.
const POLL_PATIENCE_US: u64 = 5_000_000;

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
    /// When the poll in flight left.
    polling_since_us: Option<u64>,
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
            polling_since_us: None,
            etag: Vec::new(),
            patience_ms: PATIENCE_MIN_MS,
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
        if let Some(since_us) = self.polling_since_us {
            if now.mono_us.saturating_sub(since_us) < POLL_PATIENCE_US {
                return false;
            }
            self.polling_since_us = None;
        }
        if !now.reached(self.next_poll_us) || !self.holds_lease(host, now) {
            return false;
        }
        self.next_poll_us = now
            .mono_us
            .saturating_add(self.random.jittered(POLL_EVERY_US));
        self.polling_since_us = Some(now.mono_us);
        true
    }

    /// When this worker may have to poll next.
    pub(crate) fn next_us(&self) -> u64 {
        self.next_poll_us.max(self.others_until_us)
    }

    /// Polls at the next occasion, because an answer told of another revision.
    pub(crate) fn hurry(&mut self) {
        self.next_poll_us = 0;
    }

    fn holds_lease(&mut self, host: &impl Host, now: Now) -> bool {
        let read = host.load(&self.poller_key);
        let (poller, version) = match &read {
            Some(read) => (Poller::read(&read.bytes), read.version),
            None => (Poller::default(), Version::ABSENT),
        };
        let left_us = poller.until_us.saturating_sub(now.mono_us);
        // Nobody is given longer than a lease, whatever the value says.
        if poller.worker != self.me && left_us > 0 && left_us <= LEASE_US {
            self.others_until_us = poller.until_us;
            return false;
        }
        let renewed = Poller {
            worker: self.me,
            until_us: now.mono_us.saturating_add(LEASE_US),
        };
        host.swap(&self.poller_key, &renewed.write(), version)
            .is_ok()
    }

    /// The tag to poll with: a limiter that has nothing newer says just that.
    pub(crate) fn etag(&self) -> &[u8] {
        &self.etag
    }

    /// How long the next poll may take, in milliseconds.
    pub(crate) fn patience_ms(&self) -> u64 {
        self.patience_ms
    }

    /// The poll brought nothing: no answer, or one that is none.
    pub(crate) fn poll_failed(&mut self) {
        self.polling_since_us = None;
        self.patience_ms = (self.patience_ms * 2).min(PATIENCE_MAX_MS);
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
        self.polling_since_us = None;
        self.patience_ms = PATIENCE_MIN_MS;
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

    #[test]
    fn a_poll_without_an_answer_is_given_up() {
        let host = SharedData::default();
        let mut worker = follower(1);
        assert!(worker.is_due(&host, at(0)));
        assert!(!worker.is_due(&host, at(4_999)));
        assert!(worker.is_due(&host, at(5_000)));
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
