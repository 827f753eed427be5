//! `GET /v1/policy`: the snapshot that proxies poll.

use std::{net::IpAddr, time::Duration};

use bytes::Bytes;
use hyper::{
    Response, StatusCode,
    header::{
        ACCEPT, CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue,
        IF_NONE_MATCH,
    },
    http::request::Parts,
};
use policy::{Name, Revision};
use protocol::{
    ApiError, CHANGES_CBOR, CHANGES_PARAMETER, ErrorCode, LIMITS_CBOR, MODULE, PROXIES_HEADER,
    format_proxies,
};
use tokio::time::{Instant, sleep, sleep_until};

use super::{Answered, Api, REVISION, body::Inflight, refusal};
use crate::{
    domains::{Active, Lookup, Snapshot},
    fleet::RequestingProxy,
    serve::{self, Phase},
};

const PROXIES: HeaderName = HeaderName::from_static(PROXIES_HEADER);

/// A poll: the domain, how long it may be held, and what the proxy has in force.
pub(super) struct Poll<'r> {
    pub(super) domain: Name,
    /// How long it may be held.
    pub(super) wait: Duration,
    /// The revision that the proxy has in force.
    revision: Option<Revision>,
    takes_changes: bool,
    headers: &'r HeaderMap,
}

impl<'r> Poll<'r> {
    /// Ignores unknown parameters: a proxy may be newer than this limiter.
    fn read(head: &'r Parts) -> Result<Self, ApiError> {
        let domain = parameter(head, "domain")
            .ok_or_else(|| refusal::invalid("domain", "missing; write /v1/policy?domain=NAME"))?;
        let domain: Name = domain
            .parse()
            .map_err(|error: policy::NameError| refusal::invalid("domain", error.to_string()))?;
        let wait_ms = parameter(head, "wait_ms").map_or(Ok(0), str::parse::<u64>);
        let wait_ms = wait_ms
            .map_err(|_| refusal::invalid("wait_ms", "not a whole number of milliseconds"))?;
        let reported = parameter(head, "revision").and_then(read_revision);
        Ok(Self {
            domain,
            wait: Duration::from_millis(wait_ms),
            revision: reported.or_else(|| tagged(&head.headers)),
            takes_changes: parameter(head, CHANGES_PARAMETER).is_some(),
            headers: &head.headers,
        })
    }

    /// Whether the proxy has this snapshot: `If-None-Match` is a list of tags, or `*`.
    pub(super) fn has(&self, snapshot: &Snapshot) -> bool {
        let ours = snapshot.etag.as_bytes();
        self.headers.get_all(IF_NONE_MATCH).iter().any(|value| {
            value.as_bytes().split(|b| *b == b',').any(|tag| {
                let tag = tag.trim_ascii();
                tag.strip_prefix(b"W/").unwrap_or(tag) == ours || tag == b"*"
            })
        })
    }

    /// The changes since the snapshot that the proxy has, if it can apply changes. A parameter and not
    /// another `accept`: limiters without changes send the whole.
    fn changes(&self, snapshot: &Snapshot) -> Option<Bytes> {
        let tag = self.headers.get(IF_NONE_MATCH)?.to_str().ok()?;
        self.takes_changes.then(|| snapshot.since(tag))?
    }

    /// Whether it comes from a filter.
    fn wants_compact(&self) -> bool {
        let accept = self.headers.get(ACCEPT).map(HeaderValue::as_bytes);
        accept == Some(LIMITS_CBOR.as_bytes())
    }

    /// Whether the proxy has no limits at all.
    fn has_none(&self) -> bool {
        !self.headers.contains_key(IF_NONE_MATCH)
    }

    /// Whether the proxy has a later revision in force.
    fn is_ahead_of(&self, policy: &Active) -> bool {
        let ours = policy.compiled.revision();
        let theirs = self.revision.as_ref();
        theirs.is_some_and(|theirs| theirs.number > ours.number)
    }
}

impl Api {
    /// The domain's limits, or 304 if the proxy has them; either way the number of live proxies.
    pub(super) async fn snapshot(&self, head: &Parts, address: IpAddr) -> Answered {
        let poll = Poll::read(head)?;
        let sender = RequestingProxy {
            id: parameter(head, "proxy").unwrap_or_default(),
            node: parameter(head, "node"),
            is_module: parameter(head, "filter") == Some(MODULE),
            revision: poll.revision.as_ref(),
        };
        if let Some(proxy) = self.fleet.saw(address, &poll.domain, sender)
            && let Some(entries) = parameter(head, "entries")
        {
            self.fleet.list_entries(&poll.domain, &proxy, entries);
        }
        self.wait_for_change(&poll).await;
        let policy = match self.active(&poll.domain) {
            Ok(policy) => policy,
            Err(error) => return self.no_snapshot(&poll.domain, error),
        };
        let snapshot = policy.snapshot(self.telemetry.now_ms()).await;
        let mut response = Response::new(Bytes::new());
        if poll.has(&snapshot) || self.may_be_behind(&poll, &policy) {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        } else {
            let (body, form) = if !poll.wants_compact() {
                let json = snapshot.json(&policy).await.ok_or_else(|| {
                    ApiError::new(ErrorCode::Internal, "the limits could not be written")
                })?;
                (json, serve::JSON)
            } else if let Some(changes) = poll.changes(&snapshot) {
                (changes, CHANGES_CBOR)
            } else {
                (snapshot.compact(), LIMITS_CBOR)
            };
            *response.body_mut() = body;
            let form = HeaderValue::from_static(form);
            response.headers_mut().insert(CONTENT_TYPE, form);
        }
        let headers = response.headers_mut();
        headers.insert(ETAG, snapshot.etag.clone());
        headers.insert(REVISION, policy.revision_header.clone());
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        if let Some(counts) = self.fleet.counts(&poll.domain) {
            let limits = counts.limits.iter().map(|(limit, count)| (limit, *count));
            let live = format_proxies(counts.all, limits);
            headers.extend(HeaderValue::try_from(live).map(|live| (PROXIES, live)));
        }
        Ok(response)
    }

    /// Whether the proxy's limits may be newer than those here.
    fn may_be_behind(&self, poll: &Poll<'_>, policy: &Active) -> bool {
        poll.is_ahead_of(policy) && !self.domains.is_sure_of(poll.domain.as_str())
    }

    /// Sends the revision if the domain was deleted. Without it a proxy keeps its limits, since the
    /// store may have been emptied.
    fn no_snapshot(&self, domain: &Name, error: ApiError) -> Answered {
        let deleted = match error.code {
            ErrorCode::UnknownDomain => self.domains.deleted(domain.as_str()),
            _ => None,
        };
        let Some(number) = deleted else {
            return Err(error);
        };
        let mut response = refusal::response(&error);
        response.headers_mut().insert(REVISION, number.into());
        Ok(response)
    }
}

/// A parameter of the query.
fn parameter<'r>(head: &'r Parts, wanted: &str) -> Option<&'r str> {
    let mut parameters = serve::query(&head.uri);
    parameters.find_map(|(name, value)| (name == wanted).then_some(value))
}

/// The revision in the proxy's entity tag.
fn tagged(headers: &HeaderMap) -> Option<Revision> {
    let tag = headers.get(IF_NONE_MATCH)?.to_str().ok()?;
    read_revision(tag.trim().trim_matches('"'))
}

/// Reads `17-00ff…`: number and digest; a tag may also contain one for the edges.
fn read_revision(text: &str) -> Option<Revision> {
    let (number, digest) = text.split_once('-')?;
    let digest = digest.split_once('-').map_or(digest, |(digest, _)| digest);
    Some(Revision {
        number: number.parse().ok()?,
        digest: u64::from_str_radix(digest, 16).ok()?,
    })
}

// --- Long polls: the limiter holds a poll until the limits change or its wait ends.
//
// Long polls do not count as requests in flight, and only changes wake them. A limiter that cannot
// see changes answers at once, so that the proxy polls again, perhaps at another limiter.

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
    async fn wait_for_change(&self, poll: &Poll<'_>) {
        if poll.wait.is_zero() {
            return;
        }
        let Some(_permit) = self.bounds.held.enter() else {
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
            match self.freshness(poll).await {
                Freshness::Current => {}
                // Refresh first: a poll must not be answered with limits that were replaced
                // meanwhile.
                Freshness::ProxyAhead if !refreshed => {
                    refreshed = true;
                    self.domains.refreshed(Some(&poll.domain)).await;
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

    async fn freshness(&self, poll: &Poll<'_>) -> Freshness {
        match self.domains.find(poll.domain.as_str()) {
            Lookup::Active(policy) => {
                let snapshot = policy.snapshot(self.telemetry.now_ms()).await;
                if poll.has(&snapshot) {
                    Freshness::Current
                } else if poll.is_ahead_of(&policy) {
                    Freshness::ProxyAhead
                } else {
                    Freshness::Differs
                }
            }
            Lookup::Unknown if poll.has_none() => Freshness::Current,
            Lookup::Unknown | Lookup::NotLoaded(_) => Freshness::Differs,
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
mod tests;
