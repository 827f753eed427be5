//! Elects one poller per process and shares its results.
//!
//! One worker of the process, elected by a lease in shared data, polls the domain's snapshot and stores
//! it there; a short notice announces a newer one to the others. Envoy's main thread runs a copy of the
//! module that never receives a request: it may hold the lease like any other worker.

use super::{
    schedule::{LEASE_MAX_US, PollSchedule},
    snapshot::{Notice, PollerLease, Snapshot},
    supplied_entries,
};

use crate::{
    host::{self, Change, Host, Version},
    random::Random,
    time::Now,
};

/// One worker's poller.
#[derive(Debug)]
pub(crate) struct PolicyPoller {
    notice_key: Vec<u8>,
    snapshot_key: Vec<u8>,
    poller_key: Vec<u8>,
    entries_key: Vec<u8>,
    worker_id: u64,
    schedule: PollSchedule,
    /// The bytes of the last notice read: it rarely changes.
    last_notice: Vec<u8>,
    /// The version of the snapshot that this worker uses.
    version: u64,
    /// When the lease of another worker ends, as last read.
    others_until_us: u64,
    /// The entity tag of the last snapshot polled, whether it could be used or not.
    etag: Vec<u8>,
}

/// The changes in shared data.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SharedUpdate {
    /// A newer snapshot than the one in use.
    pub(crate) snapshot: Option<Snapshot>,
    /// The numbers of proxies that limiters report, if they changed.
    pub(crate) proxies: Option<Vec<u8>>,
}

impl PolicyPoller {
    pub(crate) fn new(domain: &str, worker_id: u64, random: Random) -> Self {
        let key = |what: &str| format!("rl1:{domain}:{what}").into_bytes();
        Self {
            notice_key: key("notice"),
            snapshot_key: key("snapshot"),
            poller_key: key("poller_lease"),
            entries_key: key("entries"),
            worker_id,
            schedule: PollSchedule::new(random),
            last_notice: Vec::new(),
            version: 0,
            others_until_us: 0,
            etag: Vec::new(),
        }
    }

    /// Reads the notice, and the values that it announces.
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
            // The value is not a snapshot, and is read again. The limits in force stay.
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

    /// Whether this worker must poll now. If so, it must report the outcome.
    pub(crate) fn is_due(&mut self, host: &impl Host, now: Now) -> bool {
        if !self.schedule.is_due(now) || !self.holds_lease(host, now) {
            return false;
        }
        self.schedule.leaves(now);
        true
    }

    /// Whether the poll in flight has taken too long. Then it has failed, and the next is due.
    pub(crate) fn is_overdue(&mut self, now: Now) -> bool {
        self.schedule.is_overdue(now)
    }

    /// When the next poll may be due, or the one in flight has taken too long.
    pub(crate) fn next_us(&self) -> u64 {
        self.schedule.next_us(self.others_until_us)
    }

    /// Polls as soon as allowed, because an answer named another revision.
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
        // A value that claims more than the longest lease was written by another plugin.
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

    /// Adds the entries of this worker's configuration to those that polls report; returns all of them,
    /// as `user,tenant`. `None`: the list cannot be reported.
    pub(crate) fn share_entries<'n>(
        &self,
        host: &impl Host,
        own: &(impl Iterator<Item = &'n str> + Clone),
    ) -> Option<String> {
        // Contended: the next poll tries again.
        let all = supplied_entries::share(host, &self.entries_key, own);
        all.ok().flatten()
    }

    /// The entity tag to poll with: a limiter without a newer snapshot answers `304`.
    pub(crate) fn etag(&self) -> &[u8] {
        &self.etag
    }

    /// How long the limiter may hold the poll that is due, in milliseconds; 0: it answers at once.
    pub(crate) fn wait_ms(&self) -> u64 {
        self.schedule.wait_ms()
    }

    /// The timeout of the poll that is due, in milliseconds.
    pub(crate) fn timeout_ms(&self) -> u64 {
        self.schedule.timeout_ms()
    }

    /// The poll failed.
    pub(crate) fn poll_failed(&mut self) {
        self.schedule.failed();
    }

    /// The poll returned an unusable snapshot. It is not fetched again.
    pub(crate) fn poll_rejected(&mut self, etag: Vec<u8>) {
        self.schedule.answered();
        self.etag = etag;
    }

    /// The snapshot in use is the newest.
    pub(crate) fn poll_unchanged(&mut self, host: &impl Host, proxies: Option<&[u8]>) {
        self.schedule.answered();
        self.write_notice(host, self.version, proxies);
    }

    /// The poll returned a snapshot that this worker uses now: stores it for the others.
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
        // Contended: another worker is storing a snapshot. This worker's next poll returns the same
        // one.
        if let Ok(version) = left {
            self.version = version;
            self.write_notice(host, version, proxies);
        }
    }

    fn write_notice(&self, host: &impl Host, version: u64, proxies: Option<&[u8]>) {
        // Contended: the next poll writes it again.
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
