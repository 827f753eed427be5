//! How edits of the limits get here.
//!
//! One worker of an Envoy, elected by a lease in shared data, polls the domain's
//! snapshot and leaves it there; the others see by a short value that there is
//! a newer one. Envoy's main thread runs a copy of the module that never has a
//! request: it may hold the lease like any other, and need not be told apart.

use super::{
    schedule::{LEASE_MAX_US, PollSchedule},
    snapshot::{Notice, PollerLease, Snapshot},
};

use crate::{
    host::{self, Change, Host, Version},
    random::Random,
    time::Now,
};

/// One worker's view of what all workers follow.
#[derive(Debug)]
pub(crate) struct PolicyPoller {
    notice_key: Vec<u8>,
    snapshot_key: Vec<u8>,
    poller_key: Vec<u8>,
    worker_id: u64,
    schedule: PollSchedule,
    /// The last notice read, as bytes: most looks find the same.
    last_notice: Vec<u8>,
    /// The version of the snapshot in use here.
    version: u64,
    /// Until when another worker polls, as last seen.
    others_until_us: u64,
    /// The entity tag of the last snapshot polled, good or not.
    etag: Vec<u8>,
}

/// What a look at shared data brought.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SharedUpdate {
    /// A snapshot newer than the one in use.
    pub(crate) snapshot: Option<Snapshot>,
    /// What limiters said of the number of proxies, if it changed.
    pub(crate) proxies: Option<Vec<u8>>,
}

impl PolicyPoller {
    pub(crate) fn new(domain: &str, worker_id: u64, random: Random) -> Self {
        let key = |what: &str| format!("rl1:{domain}:{what}").into_bytes();
        Self {
            notice_key: key("notice"),
            snapshot_key: key("snapshot"),
            poller_key: key("poller_lease"),
            worker_id,
            schedule: PollSchedule::new(random),
            last_notice: Vec::new(),
            version: 0,
            others_until_us: 0,
            etag: Vec::new(),
        }
    }

    /// Looks whether another worker left something new.
    pub(crate) fn load_update(&mut self, host: &impl Host) -> SharedUpdate {
        let Some(read) = host.load(&self.notice_key) else {
            return SharedUpdate::default();
        };
        if read.bytes == self.last_notice {
            return SharedUpdate::default();
        }
        let notice = Notice::read(&read.bytes);
        let before = Notice::read(&self.last_notice);
        self.last_notice = read.bytes;
        let is_newer = notice.version != self.version;
        let snapshot = is_newer.then(|| self.take(host)).flatten();
        if is_newer && snapshot.is_none() {
            // Garbage, until somebody writes it anew: what is in force stays.
            self.last_notice.clear();
        }
        let proxies = (notice.proxies != before.proxies).then_some(notice.proxies);
        SharedUpdate { snapshot, proxies }
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
        if !self.schedule.is_due(now) || !self.holds_lease(host, now) {
            return false;
        }
        self.schedule.leaves(now);
        true
    }

    /// Whether the poll in flight is waited for in vain. Then it has failed, and the next is due.
    pub(crate) fn is_overdue(&mut self, now: Now) -> bool {
        self.schedule.is_overdue(now)
    }

    /// When this worker may have to poll next, or to do without an answer.
    pub(crate) fn next_us(&self) -> u64 {
        self.schedule.next_us(self.others_until_us)
    }

    /// Polls at the next occasion, because an answer told of another revision.
    #[inline(never)]
    pub(crate) fn poll_soon(&mut self) {
        self.schedule.poll_soon();
    }

    fn holds_lease(&mut self, host: &impl Host, now: Now) -> bool {
        let read = host.load(&self.poller_key);
        let (poller_lease, version) = match &read {
            Some(read) => (PollerLease::read(&read.bytes), read.version),
            None => (PollerLease::default(), Version::ABSENT),
        };
        let left_us = poller_lease.until_us.saturating_sub(now.mono_us);
        // Nobody is given longer than a lease, whatever the value says.
        if poller_lease.worker != self.worker_id && left_us > 0 && left_us <= LEASE_MAX_US {
            self.others_until_us = poller_lease.until_us;
            return false;
        }
        let renewed = PollerLease {
            worker: self.worker_id,
            until_us: now.mono_us.saturating_add(self.schedule.lease_us()),
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
        self.schedule.wait_ms()
    }

    /// How long the host is to wait for its answer, in milliseconds.
    pub(crate) fn timeout_ms(&self) -> u64 {
        self.schedule.timeout_ms()
    }

    /// The poll brought nothing: no answer, or one that is none.
    pub(crate) fn poll_failed(&mut self) {
        self.schedule.failed();
    }

    /// The poll brought a snapshot that cannot be used. It is not asked for again.
    pub(crate) fn poll_rejected(&mut self, etag: Vec<u8>) {
        self.schedule.answered();
        self.etag = etag;
    }

    /// The poll said that the snapshot in use is the newest.
    pub(crate) fn poll_unchanged(&mut self, host: &impl Host, proxies: Option<&[u8]>) {
        self.schedule.answered();
        self.write_notice(host, self.version, proxies);
    }

    /// The poll brought a snapshot that this worker has compiled: leaves it for the others.
    pub(crate) fn poll_brought(
        &mut self,
        host: &impl Host,
        snapshot: &Snapshot,
        proxies: Option<&[u8]>,
    ) {
        self.schedule.answered();
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
            self.write_notice(host, version, proxies);
        }
    }

    fn write_notice(&self, host: &impl Host, version: u64, proxies: Option<&[u8]>) {
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
mod tests;
