//! Polls for the domain's snapshot, and applies the answers.

use std::{fmt::Write, rc::Rc};

use policy::{Compiled, REQUEST_BODY, REQUEST_BODY_PASSES};
use protocol::{
    API_HEADER, API_VERSION, ApiError, ErrorCode, LIMITS_CBOR, PROXIES_HEADER, REVISION_HEADER,
    parse_proxies,
};

use crate::{
    active_policy::{ActivePolicy, PolicyState, Snapshot, SnapshotBody},
    call::POLICY_PATH,
    host::Host,
    log_line::log_line,
    metrics::Event,
    time::Now,
    worker::{Call, CallAnswer, Level, Step, Worker},
};

/// Bound: bytes of a snapshot. Beyond it, it is refused, and the proxy's limits stay as they are.
const MAX_SNAPSHOT: usize = 8 << 20;

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
        if let Some(snapshot) = update.snapshot {
            self.adopt(now, &snapshot);
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
        let proxy = self.process.proxy();
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
            let revision = policy.compiled.revision();
            let (number, digest) = (revision.number, revision.digest);
            write!(about, "&revision={number}-{digest:016x}").unwrap_or_default();
        }
        if !self.policy.node.is_empty() {
            write!(about, "&node={}", self.policy.node).unwrap_or_default();
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
        let sources = self.config.sources.iter();
        let marks = sources
            .clone()
            .filter_map(|(name, source)| source.mark(name));
        let marks: Vec<String> = marks.collect();
        let own = sources.map(|(name, _)| name.as_str());
        let own = own.chain(marks.iter().map(String::as_str));
        let own = own.chain(body).chain(passes);
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
                self.policy.poller.poll_unchanged(host, Some(&proxies));
            }
            Polled::Brought {
                snapshot, proxies, ..
            } => {
                if self.adopt(now, &snapshot) {
                    self.policy
                        .poller
                        .poll_brought(host, &snapshot, Some(&proxies));
                } else {
                    self.policy.poller.poll_rejected(snapshot.etag);
                }
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
            SnapshotBody::Limits(_) => {
                !snapshot.etag.is_empty() && snapshot.etag == self.policy.poller.etag()
            }
        }
    }

    /// Puts a snapshot into force; returns whether it was readable. An unreadable snapshot never
    /// replaces a readable one.
    fn adopt(&mut self, now: Now, snapshot: &Snapshot) -> bool {
        let text = match &snapshot.body {
            SnapshotBody::Unknown => {
                self.policy.state = PolicyState::NoLimits;
                format!(
                    "the limiter has no domain {}: nothing is limited",
                    self.config.domain
                )
            }
            SnapshotBody::Limits(bytes) => match Compiled::from_snapshot(bytes) {
                Ok(compiled) => {
                    let text = format!(
                        "revision {} of domain {}: {} limits",
                        compiled.revision().number,
                        self.config.domain,
                        compiled.limits().len(),
                    );
                    self.put_in_force(compiled);
                    text
                }
                Err(error) => {
                    self.counts.happened(Event::PolicyRejected);
                    let text = log_line(&error.to_string());
                    let text = format!("rate limiter: a snapshot cannot be used: {text}");
                    self.steps.push_back(Step::Log(Level::Warn, text));
                    return false;
                }
            },
        };
        self.calls.retry_budget.policy_received(now);
        self.counts.happened(Event::PolicyLoaded);
        self.outage.warned_no_policy = false;
        self.policy.warned_lost = false;
        self.steps
            .push_back(Step::Log(Level::Info, format!("rate limiter: {text}")));
        true
    }

    fn put_in_force(&mut self, compiled: Compiled) {
        let active = ActivePolicy::new(compiled, &self.config.sources);
        if let PolicyState::Limits(before) = &self.policy.state {
            active.inherit_proxies(before);
        }
        self.policy.state = PolicyState::Limits(Rc::new(active));
    }
}

fn read(answer: &dyn CallAnswer) -> Polled {
    if answer.header(API_HEADER) != Some(API_VERSION.as_bytes()) {
        return Polled::Failed;
    }
    let proxies = answer.header(PROXIES_HEADER).unwrap_or_default().to_vec();
    let etag = answer.header("etag").unwrap_or_default().to_vec();
    match answer.header(":status") {
        Some(b"304") => Polled::Unchanged { proxies },
        Some(b"200") => match answer.body(MAX_SNAPSHOT) {
            Some(body) => {
                let body = SnapshotBody::Limits(body);
                Polled::Brought {
                    snapshot: Snapshot { etag, body },
                    proxies,
                    unconfirmed: false,
                }
            }
            None => Polled::Failed,
        },
        Some(b"404") => {
            let error = answer
                .body(MAX_SNAPSHOT)
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
