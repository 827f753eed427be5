//! Polls for the domain's snapshot, and applies the answers.

use std::{fmt::Write, hash::Hasher, sync::Arc};

use policy::{
    BUILT_IN, CHECK_STREAM_REFUSED, Compiled, Name, REQUEST_BODY, REQUEST_BODY_PASSES,
    SnapshotError,
};
use protocol::{
    API_HEADER, API_VERSION, ApiError, CHANGES_CBOR, CHANGES_PARAMETER, ErrorCode, LIMITS_CBOR,
    MODULE, PROXIES_HEADER, REVISION_HEADER, SNAPSHOT_MAX, parse_proxies,
};
use siphasher::sip::SipHasher13;

use crate::{
    active_policy::{ActivePolicy, PolicyState},
    call::POLICY_PATH,
    host::{self, Change, Contended, Host, Now, Put, Random, Reader, Version},
    metrics::Event,
    worker::{Call, CallAnswer, Level, Step, Worker, log_line},
};

/// The result of a poll.
enum Polled {
    Unchanged {
        proxies: Vec<u8>,
    },
    Brought {
        snapshot: Snapshot,
        proxies: Vec<u8>,
        /// Whether the limiter lacks the domain without confirming that it was deleted.
        unconfirmed: bool,
    },
    /// A snapshot of more than [`SNAPSHOT_MAX`] bytes.
    TooLarge {
        etag: Vec<u8>,
    },
    Failed,
}

impl Worker {
    /// Loads a newer snapshot from shared data, and polls if a poll by this worker is due.
    pub(crate) fn poll_policy(&mut self, host: &impl Host, now: Now) {
        self.load_snapshot(host, now);
        if self.policy.poller.is_overdue(now) {
            self.on_poll_failed(now);
        }
        if self.policy.poller.is_due(host, now) {
            self.poll(host);
        }
    }

    /// Loads what another worker stored in shared data.
    pub(crate) fn load_snapshot(&mut self, host: &impl Host, now: Now) {
        let update = self.policy.poller.load_update(host);
        // In force once, at the end: requests wait meanwhile.
        let (mut newest, mut unfit) = (None, false);
        for snapshot in update.snapshots {
            match self.next_policy(host, newest.as_ref(), &snapshot.body) {
                Ok(next) => newest = Some(next),
                Err(Unusable::Unfit) => {
                    unfit = true;
                    break;
                }
                Err(Unusable::Rejected(error)) => self.warn_rejected(&error),
            }
        }
        if let Some(next) = newest {
            self.put_in_force(now, next);
        }
        if unfit {
            return self.policy.poller.changes_unfit();
        }
        if let (Some(text), PolicyState::Limits(policy)) = (update.proxies, &self.policy.state) {
            let text = String::from_utf8_lossy(&text);
            for (limit, proxies) in parse_proxies(&text) {
                policy.set_proxies(limit, proxies);
            }
        }
    }

    fn poll(&mut self, host: &impl Host) {
        let id = self.calls.registry.start_poll();
        let proxy = &self.process.proxy;
        let mut headers = Vec::with_capacity(2);
        headers.push(("accept", LIMITS_CBOR.to_owned()));
        if let Ok(etag) = std::str::from_utf8(self.policy.poller.etag())
            && !etag.is_empty()
        {
            headers.push(("if-none-match", etag.to_owned()));
        }
        self.call(Call {
            id,
            method: "GET",
            path: format!(
                "{POLICY_PATH}?domain={}&proxy={proxy}&wait_ms={}{}",
                self.config.domain,
                self.policy.poller.wait_ms(),
                self.about(host)
            ),
            headers,
            body: None,
            timeout_ms: self.policy.poller.timeout_ms(),
        });
    }

    /// The query parameters that describe this proxy: the revision in force (another than the one last
    /// polled if that was unusable), its node id, and the entries that it supplies.
    fn about(&self, host: &impl Host) -> String {
        let mut about = String::new();
        // Writing to a string cannot fail.
        if let PolicyState::Limits(policy) = &self.policy.state {
            write!(about, "&revision={}", tag_of(&policy.compiled)).unwrap_or_default();
            if policy.compiled.takes_changes() {
                write!(about, "&{CHANGES_PARAMETER}=1").unwrap_or_default();
            }
        }
        if !self.policy.node.is_empty() {
            write!(about, "&node={}", self.policy.node).unwrap_or_default();
        }
        if self.policy.is_module {
            write!(about, "&filter={MODULE}").unwrap_or_default();
        }
        if let Some(entries) = self.share_entries(host) {
            write!(about, "&entries={entries}").unwrap_or_default();
        }
        about
    }

    /// Adds the entries of this configuration to those that the polls of this process report.
    pub(crate) fn share_entries(&self, host: &impl Host) -> Option<String> {
        let body = self.config.request_body_max.map(|_| REQUEST_BODY);
        let passes = self
            .requests
            .bodies
            .are_missed()
            .then_some(REQUEST_BODY_PASSES);
        let refused = self
            .calls
            .stream
            .was_refused()
            .then_some(CHECK_STREAM_REFUSED);
        let sources = self.config.sources.iter();
        let marks = sources
            .clone()
            .filter_map(|(name, source)| source.mark(name));
        let marks: Vec<String> = marks.collect();
        let own = sources.map(|(name, _)| name.as_str());
        let own = own.chain(marks.iter().map(String::as_str));
        let own = own.chain(body).chain(passes).chain(refused);
        self.policy.poller.share_entries(host, &own)
    }

    /// Applies the answer to a poll.
    pub(crate) fn on_poll_answer(
        &mut self,
        host: &impl Host,
        now: Now,
        answer: Option<&dyn CallAnswer>,
    ) {
        match answer.map_or(Polled::Failed, read) {
            Polled::Unchanged { proxies } => {
                self.policy.poller.poll_unchanged(host, Some(&proxies));
            }
            // The store was emptied and the limiter restarted: the last limits stay in force.
            Polled::Brought {
                unconfirmed: true, ..
            } if matches!(self.policy.state, PolicyState::Limits(_)) => {
                self.warn_lost();
                self.on_poll_failed(now);
            }
            Polled::Brought {
                snapshot, proxies, ..
            } if self.has(&snapshot) => {
                let poller = &mut self.policy.poller;
                if poller.wants_whole && !matches!(snapshot.body, SnapshotBody::Changes(_)) {
                    poller.poll_brought(host, &snapshot, Some(&proxies));
                } else {
                    poller.poll_unchanged(host, Some(&proxies));
                }
            }
            Polled::Brought {
                snapshot, proxies, ..
            } => match self.next_policy(host, None, &snapshot.body) {
                Ok(next) => {
                    let poller = &mut self.policy.poller;
                    if poller.poll_brought(host, &snapshot, Some(&proxies)) {
                        self.put_in_force(now, next);
                    }
                }
                Err(Unusable::Unfit) => self.policy.poller.poll_unfit(),
                Err(Unusable::Rejected(error)) => {
                    self.warn_rejected(&error);
                    self.policy.poller.poll_rejected(now, snapshot.etag);
                }
            },
            Polled::TooLarge { etag } => {
                self.warn_rejected(&SnapshotError::TooLarge(SNAPSHOT_MAX));
                self.policy.poller.poll_rejected(now, etag);
            }
            Polled::Failed => self.on_poll_failed(now),
        }
        // After a long poll the next is due at once.
        self.poll_policy(host, now);
        self.await_poll(now);
    }

    fn warn_lost(&mut self) {
        if !std::mem::replace(&mut self.policy.warned_lost, true) {
            let text = format!(
                "rate limiter: a limiter has no domain {}, which nobody deleted; the last limits \
                 stay in force",
                self.config.domain
            );
            self.steps.push_back(Step::Log(Level::Warn, text));
        }
    }

    /// A poll failed.
    #[inline(never)]
    pub(crate) fn on_poll_failed(&mut self, now: Now) {
        self.counts.happened(Event::PolicyPollFailed);
        self.policy.poller.poll_failed();
        self.tick_soon(now);
    }

    /// Whether a snapshot is the one in force. A proxy in between may send the snapshot instead of
    /// `304`.
    fn has(&self, snapshot: &Snapshot) -> bool {
        match snapshot.body {
            SnapshotBody::Unknown => matches!(self.policy.state, PolicyState::NoLimits),
            SnapshotBody::Limits(_) | SnapshotBody::Changes(_) => {
                let poller = &self.policy.poller;
                // Who asks for the whole may have the tag of changes that did not fit.
                !snapshot.etag.is_empty()
                    && snapshot.etag == poller.etag
                    && (!poller.wants_whole || self.is_in_force(&snapshot.etag))
            }
        }
    }

    fn is_in_force(&self, etag: &[u8]) -> bool {
        let PolicyState::Limits(policy) = &self.policy.state else {
            return false;
        };
        let tag = etag.strip_prefix(b"\"").unwrap_or(etag);
        tag.starts_with(tag_of(&policy.compiled).as_bytes())
    }

    /// The limits of a snapshot, or with changes of the `newest` ones, which are those in force if there are
    /// no newer ones; `None`: there are none.
    fn next_policy(
        &self,
        host: &impl Host,
        newest: Option<&Option<Compiled>>,
        body: &SnapshotBody,
    ) -> Result<Option<Compiled>, Unusable> {
        let base = match (newest, &self.policy.state) {
            (Some(newest), _) => newest.as_ref(),
            (None, PolicyState::Limits(policy)) => Some(&policy.compiled),
            (None, _) => None,
        };
        Ok(Some(match body {
            SnapshotBody::Unknown => return Ok(None),
            SnapshotBody::Limits(bytes) => host.read_snapshot(bytes).map_err(Unusable::Rejected)?,
            SnapshotBody::Changes(bytes) => {
                let next = base.and_then(|base| base.with_changes(bytes));
                next.ok_or(Unusable::Unfit)?
            }
        }))
    }

    /// An unreadable snapshot never replaces a readable one.
    fn warn_rejected(&mut self, error: &SnapshotError) {
        self.counts.happened(Event::PolicyRejected);
        let text = log_line(&error.to_string());
        let text = format!("rate limiter: a snapshot cannot be used: {text}");
        self.steps.push_back(Step::Log(Level::Warn, text));
    }

    fn put_in_force(&mut self, now: Now, next: Option<Compiled>) {
        let domain = &self.config.domain;
        let text = match next {
            None => {
                let text = format!("the limiter has no domain {domain}: nothing is limited");
                self.policy.state = PolicyState::NoLimits;
                text
            }
            Some(compiled) => {
                let (number, limits) = (compiled.revision().number, compiled.limits().len());
                let text = format!("revision {number} of domain {domain}: {limits} limits");
                let before = match &self.policy.state {
                    PolicyState::Limits(before) => Some(&**before),
                    PolicyState::NoLimits | PolicyState::Unknown => None,
                };
                let active = ActivePolicy::new(compiled, &self.config.sources, before);
                self.policy.state = PolicyState::Limits(Arc::new(active));
                text
            }
        };
        self.calls.retry_budget.policy_received(now);
        self.counts.happened(Event::PolicyLoaded);
        self.outage.warned_no_policy = false;
        self.policy.warned_lost = false;
        self.steps
            .push_back(Step::Log(Level::Info, format!("rate limiter: {text}")));
    }
}

/// Why a snapshot cannot be put in force.
enum Unusable {
    /// Changes of other limits than those in force, or with a limit that cannot be read.
    Unfit,
    /// No snapshot that this version can read.
    Rejected(SnapshotError),
}

/// What a limiter's tag of these limits starts with.
fn tag_of(compiled: &Compiled) -> String {
    let revision = compiled.revision();
    format!("{}-{:016x}", revision.number, revision.digest)
}

fn read(answer: &dyn CallAnswer) -> Polled {
    if answer.header(API_HEADER) != Some(API_VERSION.as_bytes()) {
        return Polled::Failed;
    }
    let proxies = answer.header(PROXIES_HEADER).unwrap_or_default().to_vec();
    let etag = answer.header("etag").unwrap_or_default().to_vec();
    match answer.header(":status") {
        Some(b"304") => Polled::Unchanged { proxies },
        Some(b"200") => match answer.body(SNAPSHOT_MAX) {
            Some(body) => {
                let body = if answer.header("content-type") == Some(CHANGES_CBOR.as_bytes()) {
                    SnapshotBody::Changes(body)
                } else {
                    SnapshotBody::Limits(body)
                };
                Polled::Brought {
                    snapshot: Snapshot { etag, body },
                    proxies,
                    unconfirmed: false,
                }
            }
            None => Polled::TooLarge { etag },
        },
        Some(b"404") => {
            let error = answer
                .body(SNAPSHOT_MAX)
                .as_deref()
                .and_then(ApiError::from_json);
            match error {
                Some(error) if error.code == ErrorCode::UnknownDomain => Polled::Brought {
                    snapshot: Snapshot {
                        etag,
                        body: SnapshotBody::Unknown,
                    },
                    proxies,
                    unconfirmed: answer.header(REVISION_HEADER).is_none(),
                },
                _ => Polled::Failed,
            }
        }
        _ => Polled::Failed,
    }
}

// --- Elects one poller per process and shares its results.
//
// One worker of the process, elected by a lease in shared data, polls the domain's snapshot and stores
// it there, and then the changes that it gets instead of further ones, in a log. A short notice announces
// both to the others: those that have the limits apply the changes that they lack; a worker that starts
// later reads the snapshot and all changes since. A log that grew long is replaced by a snapshot, which
// those that have its limits do not read. Each write of the log is a compare-and-swap and has a version of
// its own, so that pollers that overlap do not mix their limits up. Envoy's main thread runs a copy of the
// module that never receives a request: it may hold the lease like any other worker.

/// One worker's poller.
#[derive(Debug)]
pub(crate) struct PolicyPoller {
    notice_key: Vec<u8>,
    snapshot_key: Vec<u8>,
    changes_key: Vec<u8>,
    poller_key: Vec<u8>,
    entries_key: Vec<u8>,
    worker_id: u64,
    /// The bytes of the last notice read: it rarely changes.
    last_notice: Vec<u8>,
    /// The version of the limits that this worker uses.
    version: u64,
    /// Whether the limits in use are newer than those of the version: they could not be stored for the others.
    is_ahead: bool,
    /// Whether the next poll is for the whole, because changes did not fit or their log is long.
    pub(crate) wants_whole: bool,
    /// Times that shared data did not have what its notice announces.
    reads_in_vain: u32,
    /// The version in the notice when changes in the log last did not fit.
    unfit_at: u64,
    /// When the lease of another worker ends, as last read.
    others_until_us: u64,
    /// The entity tag of the last snapshot polled, whether it could be used or not.
    etag: Vec<u8>,
    /// When a snapshot that was unusable is fetched again.
    again_us: Option<u64>,
    /// The next pause before that.
    again_pause_us: u64,
    random: Random,
    next_us: u64,
    /// The earliest time of the next poll, if there is a newer revision.
    soonest_us: u64,
    /// When the poll in flight fails; `None`: none is in flight.
    overdue_us: Option<u64>,
    /// The hold of the last poll, in milliseconds.
    wait_ms: u64,
    /// Consecutive polls that were answered.
    answered_in_a_row: u8,
    /// The timeout of the next short poll.
    short_timeout_ms: u64,
}

/// The changes in shared data.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SharedUpdate {
    /// What leads from the limits in use to the newest, in this order.
    pub(crate) snapshots: Vec<Snapshot>,
    /// The numbers of proxies that limiters report, if they changed.
    pub(crate) proxies: Option<Vec<u8>>,
}

impl PolicyPoller {
    pub(crate) fn new(domain: &str, worker_id: u64, random: Random) -> Self {
        let key = |what: &str| format!("rl1:{domain}:{what}").into_bytes();
        // Names of their own: a filter of a version without changes, which another one replaces while both
        // run, would overwrite the snapshot under the log.
        Self {
            notice_key: key("limits_notice"),
            snapshot_key: key("limits"),
            changes_key: key("limits_changes"),
            poller_key: key("limits_poller"),
            entries_key: key("entries"),
            worker_id,
            last_notice: Vec::new(),
            version: 0,
            is_ahead: false,
            wants_whole: false,
            reads_in_vain: 0,
            unfit_at: 0,
            others_until_us: 0,
            etag: Vec::new(),
            again_us: None,
            again_pause_us: AGAIN_MIN_US,
            random,
            next_us: 0,
            soonest_us: 0,
            overdue_us: None,
            wait_ms: 0,
            answered_in_a_row: 0,
            short_timeout_ms: TIMEOUT_MS,
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
        let snapshots = if notice.version == self.version {
            Vec::new()
        } else {
            self.take(host)
        };
        if notice.version != self.version {
            // Something was overwritten, or is being written, and is read again. The limits in force stay.
            self.last_notice.clear();
            if self.version == 0 && self.again_us.is_none() {
                self.reads_in_vain += 1;
                self.wants_whole |= self.reads_in_vain.is_multiple_of(READS_MAX);
            }
        }
        if !snapshots.is_empty() {
            (self.is_ahead, self.again_us) = (false, None);
        }
        let proxies = (notice.proxies != before.proxies).then_some(notice.proxies);
        SharedUpdate { snapshots, proxies }
    }

    fn take(&mut self, host: &impl Host) -> Vec<Snapshot> {
        let mut found = Vec::new();
        let log = host.load(&self.changes_key);
        let log = log.as_ref().and_then(|read| Log::read(&read.bytes));
        let log = log.unwrap_or_default();
        // Where the newest is in use, nothing is read again, whatever the notice says.
        if self.version == 0 || !(log.base..=log.tip()).contains(&self.version) {
            let read = host.load(&self.snapshot_key);
            let whole = read.and_then(|read| Snapshot::read(&read.bytes));
            // An older one than the log continues is about to be replaced.
            let whole = whole.filter(|(version, _)| *version >= log.base);
            if let Some((version, whole)) = whole.filter(|whole| whole.0 != self.version) {
                self.version = version;
                self.wants_whole = false;
                // The last one polled could not be used.
                let unused = self.etag.is_empty() || self.again_us.is_some();
                if unused || self.etag != whole.etag {
                    self.etag.clone_from(&whole.etag);
                    found.push(whole);
                }
            }
        }
        while let Some(next) = self.version.checked_add(1)
            && let Some(changes) = log.to(next)
        {
            self.version = next;
            self.etag.clone_from(&changes.etag);
            found.push(changes);
        }
        found
    }

    /// Changes in the log did not fit. The worker starts again from the snapshot, once; then only at the
    /// next notice, and it asks for a new one when it polls. What it loaded last is not in force.
    pub(crate) fn changes_unfit(&mut self) {
        self.version = 0;
        self.etag.clear();
        let notice = Notice::read(&self.last_notice).version;
        if std::mem::replace(&mut self.unfit_at, notice) == notice {
            self.wants_whole = true;
        } else {
            self.last_notice.clear();
        }
    }

    /// Whether this worker must poll now. If so, it must report the outcome.
    pub(crate) fn is_due(&mut self, host: &impl Host, now: Now) -> bool {
        if !self.is_time(now) || !self.holds_lease(host, now) {
            return false;
        }
        self.leaves(now);
        true
    }

    fn holds_lease(&mut self, host: &impl Host, now: Now) -> bool {
        let read = host.load(&self.poller_key);
        let (poller_lease, version) = match &read {
            Some(read) => (PollerLease::read(&read.bytes), read.version),
            None => (PollerLease::default(), Version::ABSENT),
        };
        let left_us = poller_lease.until_us.saturating_sub(now.mono_us);
        // A value that claims more than the longest lease was written by another plugin. A worker that cannot use
        // what the others share does not wait for them to share it anew.
        let is_held = left_us > 0 && left_us <= LEASE_MAX_US && !self.wants_whole;
        if poller_lease.worker != self.worker_id && is_held {
            self.others_until_us = poller_lease.until_us;
            return false;
        }
        let renewed = PollerLease {
            worker: self.worker_id,
            until_us: now.mono_us.saturating_add(self.lease_us()),
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
        let all = share(host, &self.entries_key, own);
        all.ok().flatten()
    }

    /// The entity tag to poll with: a limiter without a newer snapshot answers `304`. Empty: for the whole.
    pub(crate) fn etag(&self) -> &[u8] {
        if self.wants_whole { &[] } else { &self.etag }
    }

    /// The poll returned an unusable snapshot. It is fetched again after a pause: what damaged it may be gone.
    pub(crate) fn poll_rejected(&mut self, now: Now, etag: Vec<u8>) {
        self.answered();
        self.wants_whole = false;
        self.etag = etag;
        self.again_us = Some(now.mono_us.saturating_add(self.again_pause_us));
        self.again_pause_us = (self.again_pause_us * 2).min(AGAIN_MAX_US);
    }

    /// The poll returned changes of other limits: the next one is for the whole.
    pub(crate) fn poll_unfit(&mut self) {
        self.answered();
        self.wants_whole = true;
        self.next_us = self.next_us.min(self.soonest_us);
    }

    /// The snapshot in use is the newest.
    pub(crate) fn poll_unchanged(&mut self, host: &impl Host, proxies: Option<&[u8]>) {
        self.answered();
        self.write_notice(host, self.version, proxies);
    }

    /// The poll returned a snapshot or changes that this worker can use: stores them for the others. Returns
    /// whether to use them: not changes that another worker was faster to store.
    pub(crate) fn poll_brought(
        &mut self,
        host: &impl Host,
        snapshot: &Snapshot,
        proxies: Option<&[u8]>,
    ) -> bool {
        self.answered();
        let known = self.version;
        let stored = match snapshot.body {
            SnapshotBody::Changes(_) => {
                let next = known.saturating_add(1);
                let entry = snapshot.write(next);
                host::update(host, &self.changes_key, |bytes| {
                    let log = Log::read(bytes);
                    let (base, tip) = log.map_or((0, 0), |log| (log.base, log.tip()));
                    match tip {
                        tip if tip > known => Change::Keep(None),
                        tip if tip < known || self.is_ahead => Change::Keep(Some(0)),
                        tip => {
                            self.wants_whole = bytes.len() + entry.len() > LOG_MAX
                                || tip.saturating_sub(base) + 1 >= LOG_ENTRIES_MAX;
                            Change::Write(Log::with(bytes, &entry), Some(next))
                        }
                    }
                })
            }
            SnapshotBody::Unknown | SnapshotBody::Limits(_) => {
                self.wants_whole = false;
                self.store_whole(host, snapshot).map(Some)
            }
        };
        match stored {
            // Another worker is ahead, and this one loads what it stored; unless no notice announces it.
            Ok(None) => {
                self.wants_whole = true;
                return false;
            }
            Ok(Some(version @ 1..)) => {
                self.version = version;
                self.is_ahead = false;
                self.write_notice(host, version, proxies);
            }
            // The log was overwritten or cannot be written: the others need a new snapshot.
            Ok(Some(0)) | Err(Contended) => (self.is_ahead, self.wants_whole) = (true, true),
        }
        self.etag.clone_from(&snapshot.etag);
        (self.again_us, self.again_pause_us) = (None, AGAIN_MIN_US);
        true
    }

    /// Stores a snapshot under a new version, or under that of this worker if it has the same limits;
    /// returns the version.
    fn store_whole(&self, host: &impl Host, snapshot: &Snapshot) -> Result<u64, Contended> {
        let same = !self.is_ahead && !self.etag.is_empty() && self.etag == snapshot.etag;
        // First the log, which orders versions.
        let version = host::update(host, &self.changes_key, |bytes| {
            let tip = Log::read(bytes).map_or(0, |log| log.tip());
            let version = if same && tip == self.version {
                tip
            } else {
                tip.max(self.version).saturating_add(1)
            };
            Change::Write(Log::after(version), version)
        })?;
        host::update(host, &self.snapshot_key, |bytes| {
            match Snapshot::read(bytes) {
                // Another worker was faster.
                Some((stored, _)) if stored > version => Change::Keep(version),
                _ => Change::Write(snapshot.write(version), version),
            }
        })
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

// --- Schedules polls: when to poll, how long the limiter may hold a poll, and when a poll has failed.

/// The time between polls that are answered at once, before jitter.
const POLL_EVERY_US: u64 = 200_000;
/// The least time between polls when answers name another revision. A limiter that is stale, or sends
/// wrong revisions, names another one in each answer, and a poll may return 10,000 limits.
const POLL_MIN_US: u64 = 50_000;
/// How long a limiter may hold a long poll, in milliseconds: a random time from this minimum to the
/// spread above it, so that a fleet does not poll in step.
///
/// An edit is in force everywhere within one second, because a limiter answers a long poll as soon as
/// the edit is published. The hold is short enough to time out and retry within that second if the
/// limiter hangs: a long poll times out after at most 800 ms ([`HELD_GRACE_MS`]) and is retried at
/// once, and if the retries are lost too, again 50 and 100 ms later ([`TIMEOUT_RETRY_MS`]). The other
/// workers load the snapshot with their next tick, 50 ms later, or with their next request if they are
/// idle. If a poller vanishes, another worker replaces it at most 850 ms after its last poll
/// ([`LEASE_US`]).
pub(crate) const HOLD_MIN_MS: u64 = 550;
pub(crate) const HOLD_SPREAD_MS: u64 = 150;
/// How much longer than its hold a long poll may take.
const HELD_GRACE_MS: u64 = 100;
/// Consecutive polls that must be answered before a long poll: if polls are lost, short ones fetch an
/// edit sooner.
pub(crate) const ANSWERED_BEFORE_HOLD: u8 = 8;
/// The length of the poller's lease, beyond the hold of its poll: how long a poller that vanished
/// blocks the others.
const LEASE_US: u64 = 150_000;
/// The least length of the lease: two polls that are answered at once.
const LEASE_MIN_US: u64 = 450_000;
/// The longest lease.
const LEASE_MAX_US: u64 = LEASE_US + (HOLD_MIN_MS + HOLD_SPREAD_MS) * 1000;
/// The timeout of a short poll, in milliseconds. No request waits for it, and it may return 10,000
/// limits.
const TIMEOUT_MS: u64 = 250;
/// The timeout after a long poll was lost. Each further failure doubles it, so that a slow limiter can
/// answer.
const TIMEOUT_RETRY_MS: u64 = 50;
const TIMEOUT_MAX_MS: u64 = 4_000;
/// How often a worker without limits looks for those that shared data announces, before it polls for them.
const READS_MAX: u32 = 20;
/// The first pause before a snapshot that was unusable is fetched again; each further one is twice as long.
const AGAIN_MIN_US: u64 = 1_000_000;
/// The longest: a filter that is too old for its limits would fetch megabytes for nothing.
const AGAIN_MAX_US: u64 = 600_000_000;
/// How long the host waits after the poll has failed. Envoy prefers hosts with fewer active requests,
/// so the next poll is more likely to reach another limiter.
const LINGER_MS: u64 = 250;

impl PolicyPoller {
    /// Whether it is time for a poll. If so, sets how long the limiter may hold it.
    fn is_time(&mut self, now: Now) -> bool {
        if self.overdue_us.is_some() || !now.reached(self.next_us) {
            return false;
        }
        let hold_ms = HOLD_MIN_MS + self.random.below(HOLD_SPREAD_MS);
        self.wait_ms = if self.answered_in_a_row < ANSWERED_BEFORE_HOLD {
            0
        } else {
            hold_ms
        };
        true
    }

    /// Records that the poll is sent.
    fn leaves(&mut self, now: Now) {
        if self.again_us.is_some_and(|at_us| now.reached(at_us)) {
            self.again_us = None;
            self.etag.clear();
        }
        let pause_us = self.random.jittered(POLL_EVERY_US);
        self.next_us = now.mono_us.saturating_add(pause_us);
        self.soonest_us = now.mono_us.saturating_add(POLL_MIN_US);
        self.overdue_us = Some(now.after_ms(self.timeout_ms() - LINGER_MS));
    }

    /// The length of the poller's lease, in microseconds.
    fn lease_us(&self) -> u64 {
        (self.wait_ms * 1000 + LEASE_US).max(LEASE_MIN_US)
    }

    /// How long the limiter may hold the poll, in milliseconds.
    pub(crate) fn wait_ms(&self) -> u64 {
        self.wait_ms
    }

    /// The timeout of the call, in milliseconds.
    pub(crate) fn timeout_ms(&self) -> u64 {
        LINGER_MS
            + match self.wait_ms {
                0 => self.short_timeout_ms,
                wait_ms => wait_ms + HELD_GRACE_MS,
            }
    }

    /// Whether the poll in flight has taken too long. Then it has failed, and the next is due.
    pub(crate) fn is_overdue(&mut self, now: Now) -> bool {
        let overdue = self.overdue_us.is_some_and(|at_us| now.reached(at_us));
        if overdue {
            self.next_us = 0;
        }
        overdue
    }

    /// When the poll in flight fails, or else when the next one is due.
    pub(crate) fn next_us(&self) -> u64 {
        let next_us = self.next_us.max(self.others_until_us);
        self.overdue_us.unwrap_or(next_us)
    }

    /// There is a newer revision, with which a limiter should have answered the long poll.
    #[inline(never)]
    pub(crate) fn poll_soon(&mut self) {
        self.next_us = self.next_us.min(self.soonest_us);
        let wait_us = std::mem::take(&mut self.wait_ms) * 1000;
        self.overdue_us = self.overdue_us.map(|at_us| at_us.saturating_sub(wait_us));
    }

    fn answered(&mut self) {
        self.overdue_us = None;
        self.answered_in_a_row = self.answered_in_a_row.saturating_add(1);
        self.short_timeout_ms = TIMEOUT_MS;
    }

    /// The poll failed.
    pub(crate) fn poll_failed(&mut self) {
        self.overdue_us = None;
        self.short_timeout_ms = if self.answered_in_a_row < ANSWERED_BEFORE_HOLD {
            (self.short_timeout_ms * 2).min(TIMEOUT_MAX_MS)
        } else {
            TIMEOUT_RETRY_MS
        };
        self.answered_in_a_row = 0;
    }
}

// --- The values that the poller stores in shared data for the other workers.

/// A short value that shows workers whether anything is new.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Notice {
    /// The version of the limits; counts up.
    pub(crate) version: u64,
    /// The number of proxies for each limit, by the limiters' last answers.
    pub(crate) proxies: Vec<u8>,
}

impl Notice {
    pub(crate) fn read(bytes: &[u8]) -> Self {
        match bytes.split_first_chunk() {
            Some((version, proxies)) => Self {
                version: u64::from_le_bytes(*version),
                proxies: proxies.to_vec(),
            },
            None => Self::default(),
        }
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        [&self.version.to_le_bytes(), self.proxies.as_slice()].concat()
    }
}

/// A domain's limits from a poll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// The limiter's entity tag.
    pub(crate) etag: Vec<u8>,
    /// The limits.
    pub(crate) body: SnapshotBody,
}

/// A limiter's answer about a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotBody {
    /// It has no such domain: there are no limits.
    Unknown,
    /// These are its limits, as the limiter sent them.
    Limits(Vec<u8>),
    /// These are the changes that lead from earlier limits to its limits.
    Changes(Vec<u8>),
}

/// The layout's number, after the version; each layout has its own.
const FORMAT: u8 = 3;

/// A checksum. Without it, other bytes could be read as a snapshot that limits nothing.
fn digest(version: u64, content: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write_u64(version);
    hasher.write(content);
    hasher.finish()
}

impl Snapshot {
    /// Reads a snapshot and its version; `None` if the bytes are not one.
    pub(crate) fn read(bytes: &[u8]) -> Option<(u64, Self)> {
        let mut reader = Reader::new(bytes);
        let version = reader.u64()?;
        if reader.u8()? != FORMAT || reader.u64()? != digest(version, reader.rest()) {
            return None;
        }
        let known = reader.u8()?;
        let etag_len = usize::try_from(reader.u32()?).ok()?;
        let etag = reader.take(etag_len)?.to_vec();
        let body = match known {
            0 if reader.is_empty() => SnapshotBody::Unknown,
            1 => SnapshotBody::Limits(reader.rest().to_vec()),
            2 => SnapshotBody::Changes(reader.rest().to_vec()),
            _ => return None,
        };
        Some((version, Self { etag, body }))
    }

    pub(crate) fn write(&self, version: u64) -> Vec<u8> {
        let (known, body) = match &self.body {
            SnapshotBody::Unknown => (0, &[][..]),
            SnapshotBody::Limits(body) => (1, body.as_slice()),
            SnapshotBody::Changes(body) => (2, body.as_slice()),
        };
        let mut content = Vec::with_capacity(5 + self.etag.len() + body.len());
        content.put_u8(known);
        content.put_u32(u32::try_from(self.etag.len()).unwrap_or(u32::MAX));
        content.extend_from_slice(&self.etag);
        content.extend_from_slice(body);
        let mut out = Vec::with_capacity(17 + content.len());
        out.put_u64(version);
        out.put_u8(FORMAT);
        out.put_u64(digest(version, &content));
        out.extend_from_slice(&content);
        out
    }
}

/// Bound: bytes of changes after a snapshot in shared data, besides those of one answer. Beyond it, the worker
/// that polls fetches a snapshot.
///
/// Every worker copies them at each edit.
const LOG_MAX: usize = 128 << 10;

/// Bound: changes after a snapshot in shared data. Beyond it, the worker that polls fetches a snapshot.
///
/// A worker that was idle applies all of them in one callback, while its requests wait. A snapshot of 5,000
/// limits takes some 700 KB, changes of one limit 200 bytes.
const LOG_ENTRIES_MAX: u64 = 64;

/// The changes since the snapshot in shared data, each in the layout of a snapshot behind its length.
#[derive(Debug, Default)]
struct Log<'b> {
    /// The version of the snapshot.
    base: u64,
    entries: Vec<&'b [u8]>,
}

impl<'b> Log<'b> {
    /// `None` if the bytes are not one.
    fn read(bytes: &'b [u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let base = reader.u64()?;
        if reader.u64()? != digest(base, &[]) {
            return None;
        }
        let mut entries = Vec::new();
        while !reader.is_empty() {
            let length = usize::try_from(reader.u32()?).ok()?;
            entries.push(reader.take(length)?);
        }
        Some(Self { base, entries })
    }

    /// The newest version.
    fn tip(&self) -> u64 {
        let changes = u64::try_from(self.entries.len()).unwrap_or(u64::MAX);
        self.base.saturating_add(changes)
    }

    /// The changes that lead to a version from the one before.
    fn to(&self, version: u64) -> Option<Snapshot> {
        let at = version.checked_sub(self.base)?.checked_sub(1)?;
        let (of, changes) = Snapshot::read(self.entries.get(usize::try_from(at).ok()?)?)?;
        (of == version).then_some(changes)
    }

    /// A log without changes.
    fn after(base: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.put_u64s(&[base, digest(base, &[])]);
        bytes
    }

    fn with(bytes: &[u8], entry: &[u8]) -> Vec<u8> {
        let mut next = Vec::with_capacity(bytes.len() + 4 + entry.len());
        next.extend_from_slice(bytes);
        next.put_u32(u32::try_from(entry.len()).unwrap_or(u32::MAX));
        next.extend_from_slice(entry);
        next
    }
}

/// The lease of the worker that polls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PollerLease {
    pub(crate) worker: u64,
    pub(crate) until_us: u64,
}

impl PollerLease {
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let mut reader = Reader::new(bytes);
        match (reader.u64(), reader.u64()) {
            (Some(worker), Some(until_us)) => Self { worker, until_us },
            _ => Self::default(),
        }
    }

    pub(crate) fn write(self) -> Vec<u8> {
        [self.worker.to_le_bytes(), self.until_us.to_le_bytes()].concat()
    }
}

// --- The descriptor entries that the filters of one Envoy process supply, and what they do to values
// ([`policy::Alterations`]), as polls report them.
//
// One worker polls for all filters of a domain, and their configurations may differ. So each worker
// adds its own entries to a value in shared data, and the poll reports that value. An entry stays
// there until the process ends, even if a filter without it replaces the one that had it.

/// Bound: entries that an Envoy reports that it supplies. Beyond it, none are reported, and `rlctl`
/// warns of none that are missing.
///
/// The entries that a configuration may have, each hashed, and marks for the whole filter.
const ENTRIES_MAX: usize = 2 * 64 + 8;

/// The longest list that is reported, in bytes.
const BYTES_MAX: usize = 2048;

/// Marks a list that is too long. It is no valid list.
const TOO_LONG: &str = "*";

/// Adds a configuration's entries to the shared list; returns the list, as `user,tenant`, without
/// the built-in entries. `None`: it is too long to be reported.
pub(super) fn share<'n>(
    host: &impl Host,
    key: &[u8],
    own: &(impl Iterator<Item = &'n str> + Clone),
) -> Result<Option<String>, Contended> {
    host::update(host, key, |bytes| {
        let Some(mut text) = read_names(bytes) else {
            return Change::Keep(None);
        };
        for name in own.clone() {
            let mut listed = text.split(',');
            if !BUILT_IN.contains(&name) && !listed.any(|listed| listed == name) {
                if !text.is_empty() {
                    text.push(',');
                }
                text.push_str(name);
            }
        }
        if text.len() == bytes.len() {
            Change::Keep(Some(text))
        } else if text.split(',').count() > ENTRIES_MAX || text.len() > BYTES_MAX {
            Change::Write(TOO_LONG.into(), None)
        } else {
            Change::Write(text.clone().into_bytes(), Some(text))
        }
    })
}

/// `None`: too long, or not written by a filter.
fn read_names(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?;
    let is_name = |name: &str| name.parse::<Name>().is_ok();
    (text.is_empty() || text.split(',').all(is_name)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod snapshot_tests {
    use super::*;

    #[test]
    fn a_damaged_snapshot_entry_is_rejected() {
        let snapshot = Snapshot {
            etag: b"\"7\"".to_vec(),
            body: SnapshotBody::Limits(b"{}".to_vec()),
        };
        let bytes = snapshot.write(3);
        assert_eq!(Snapshot::read(&bytes), Some((3, snapshot)));
        let unknown = Snapshot {
            etag: Vec::new(),
            body: SnapshotBody::Unknown,
        };
        assert_eq!(Snapshot::read(&unknown.write(4)), Some((4, unknown)));
        for at in 0..bytes.len() {
            let mut garbage = bytes.clone();
            garbage[at] ^= 1;
            assert_eq!(Snapshot::read(&garbage), None, "byte {at}");
            assert_eq!(Snapshot::read(&bytes[..at]), None, "cut at {at}");
        }
        for len in 0..64 {
            assert_eq!(Snapshot::read(&vec![0; len]), None, "{len} zeros");
        }
    }
}

#[cfg(test)]
mod supplied_entries_tests {
    use super::*;
    use crate::simulated::SharedData;

    fn shared(host: &SharedData, own: &[&str]) -> Option<String> {
        share(host, b"entries", &own.iter().copied()).unwrap()
    }

    #[test]
    fn the_entries_of_all_filters_are_reported_without_the_built_in_ones() {
        let host = SharedData::default();
        assert_eq!(shared(&host, &["path", "host"]).as_deref(), Some(""));
        assert_eq!(shared(&host, &["user", "path"]).as_deref(), Some("user"));
        assert_eq!(shared(&host, &["tenant"]).as_deref(), Some("user,tenant"));
        assert_eq!(shared(&host, &["user"]).as_deref(), Some("user,tenant"));
    }

    #[test]
    fn an_entry_list_that_is_too_long_or_invalid_is_not_reported() {
        let many: Vec<String> = (0..=ENTRIES_MAX).map(|n| format!("e{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let host = SharedData::default();
        assert!(shared(&host, &many[1..]).is_some());
        assert_eq!(shared(&host, &many[..1]), None);
        assert_eq!(shared(&host, &["user"]), None, "some would be missing");

        let long: Vec<String> = (10..50).map(|n| format!("{}{n}", "e".repeat(60))).collect();
        let long: Vec<&str> = long.iter().map(String::as_str).collect();
        assert_eq!(shared(&SharedData::default(), &long), None);

        let host = SharedData::default();
        host.overwrite(b"entries", b"a, b\xff");
        assert_eq!(shared(&host, &["user"]), None);
    }
}
