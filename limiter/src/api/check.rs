//! `POST /v1/check`, in both encodings, and the calls about what a check took: settle, release, renew, report.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use hyper::{
    Response, StatusCode,
    body::Incoming,
    header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER},
    http::request::Parts,
};
use policy::Name;
use protocol::{
    Answer, ApiError, CHECK_CBOR, CHECK_JSON, Check, ErrorCode,
    compact::{Batch, BatchAnswer, Report},
    json::{self, Reason, Reply},
};
use tokio::time::Instant;

use super::{
    Answered, Api, REVISION,
    body::{InflightPermit, MemoryPermit, Received},
    decide::Decided,
    refusal,
};
use crate::{
    domains::Active,
    fleet::{ProxyId, RequestingProxy},
    serve::{self, Peer},
    trace,
};

/// How a body is encoded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Json,
    Compact,
}

impl Api {
    pub(super) async fn check(&self, head: &Parts, body: Incoming, peer: Arc<Peer>) -> Answered {
        let permit = self.bounds.enter()?;
        let encoding = encoding(&head.headers, &[Encoding::Json, Encoding::Compact])?;
        let deny_status = deny_status(head)?;
        let address = peer.address;
        let body = self.receive(body, peer).await?;
        match encoding {
            Encoding::Json => self.check_json(body, deny_status, permit).await,
            Encoding::Compact => self.check_compact(address, body).await,
        }
    }

    /// Reads a body, if there is memory for it.
    pub(super) async fn receive(
        &self,
        body: Incoming,
        peer: Arc<Peer>,
    ) -> Result<Received, ApiError> {
        let bodies = &self.bounds.bodies;
        let received = bodies.receive(body, peer).await;
        received.map_err(|error| refusal::of_body(error, bodies.max()))
    }

    /// Reads a request whose checks charge nothing. Also returns its permit among the requests in
    /// flight and its memory.
    async fn receive_uncharged(
        &self,
        body: Incoming,
        peer: Arc<Peer>,
        parse: impl FnOnce(&[u8]) -> Result<json::Request, ApiError> + Send + 'static,
    ) -> Result<(json::Request, (InflightPermit, MemoryPermit)), ApiError> {
        let permit = self.bounds.enter()?;
        let body = self.receive(body, peer).await?;
        let (request, mut memory) = self.bounds.bodies.decode(body, parse).await?;
        memory.hold(&request.checks).ok_or_else(refusal::no_room)?;
        Ok((request, (permit, memory)))
    }

    async fn check_json(
        &self,
        body: Received,
        deny: StatusCode,
        permit: InflightPermit,
    ) -> Answered {
        let (request, mut memory) = self.bounds.bodies.decode(body, json::parse).await?;
        // The checks hold memory until they are decided, also while they wait for permits.
        memory.hold(&request.checks).ok_or_else(refusal::no_room)?;
        let deadline = Instant::now() + self.bounds.store_timeout;
        let mut checks = request.checks;
        trace::set_request(&request.domain, checks.len());
        if request.batch {
            if deny != StatusCode::OK {
                let message = "a batch has no status of its own; it is for single checks";
                return Err(refusal::invalid("deny_status", message));
            }
            let decided = self.decide(&request.domain, checks, deadline, None).await?;
            trace::decided(&decided.decisions);
            return batch_response(&decided, &request.domain);
        }
        let (decided, reason) = match (request.wait_ms, checks.pop()) {
            (1.., Some(check)) => {
                let wait = Duration::from_millis(request.wait_ms);
                self.decide_waiting(&request.domain, check, wait, permit)
                    .await?
            }
            (_, check) => {
                let checks = check.into_iter().collect();
                (
                    self.decide(&request.domain, checks, deadline, None).await?,
                    None,
                )
            }
        };
        trace::decided(&decided.decisions);
        let token = decided.token(&request.domain, 0);
        single_response(&decided, reason, deny, token)
    }

    pub(super) async fn check_compact(&self, address: IpAddr, body: Received) -> Answered {
        let decode = |bytes: &[u8]| {
            Batch::decode(bytes)
                .map_err(|error| ApiError::new(ErrorCode::InvalidRequest, error.to_string()))
        };
        let (batch, mut memory) = self.bounds.bodies.decode(body, decode).await?;
        let mark = batch.proxy_mark();
        let Batch {
            domain,
            proxy,
            revision,
            keys,
            checks,
            ..
        } = batch;
        let sender = RequestingProxy {
            id: &proxy,
            node: None,
            is_module: false,
            revision: revision.as_ref(),
        };
        let proxy = self.fleet.saw(address, &domain, sender);
        trace::set_request(&domain, checks.len());
        let checks = checks.into_iter().map(|check| Check {
            proxy: mark,
            ..check.into_check(&keys)
        });
        let checks: Vec<Check> = checks.collect();
        memory.hold(&checks).ok_or_else(refusal::no_room)?;
        let deadline = Instant::now() + self.bounds.store_timeout;
        let decided = self
            .decide(&domain, checks, deadline, proxy.clone())
            .await?;
        trace::decided(&decided.decisions);
        if let Some(error) = decided.all_failed() {
            return Err(error);
        }
        let answer = BatchAnswer {
            revision: decided.policy.compiled.revision().clone(),
            proxies: self.live_proxies(&domain, proxy.as_ref(), &decided),
            results: decided
                .decisions
                .into_iter()
                .map(|decision| decision.map_err(|error| refusal::code(&error)))
                .collect(),
        };
        let mut response = serve::answer(StatusCode::OK, CHECK_CBOR, answer.encode());
        name_revision(&mut response, &decided.policy);
        Ok(response)
    }

    /// Records which limits the proxy checked; returns how many proxies check each.
    fn live_proxies(
        &self,
        domain: &Name,
        proxy: Option<&ProxyId>,
        decided: &Decided,
    ) -> Vec<(Name, u64)> {
        let answers = decided.decisions.iter().flatten();
        let asked: BTreeSet<&Name> = answers
            .flat_map(|answer| answer.limits.iter().map(|limit| &limit.name))
            .collect();
        if let Some(proxy) = proxy {
            self.fleet.checked(domain, proxy, asked.iter().copied());
        }
        let Some(counts) = self.fleet.counts(domain) else {
            return Vec::new();
        };
        let live = |limit: &Name| Some((limit.clone(), counts.of(limit)?));
        asked.into_iter().filter_map(live).collect()
    }
}

/// The encoding of the body, one of those that its path takes; JSON by default. Types that a web page can send
/// across origins without a preflight (text, forms) are refused, like requests with an `origin`.
pub(super) fn encoding(headers: &HeaderMap, takes: &[Encoding]) -> Result<Encoding, ApiError> {
    let Some(value) = headers.get(CONTENT_TYPE) else {
        return Ok(Encoding::Json);
    };
    let media_type = value.as_bytes().split(|b| *b == b';').next();
    let media_type = media_type.unwrap_or_default().trim_ascii();
    let is = |name: &str| media_type.eq_ignore_ascii_case(name.as_bytes());
    let found = takes.iter().find(|encoding| is(encoding.media_type()));
    found.copied().ok_or_else(|| {
        let known: Vec<&str> = takes.iter().map(|encoding| encoding.in_words()).collect();
        let message = format!("this path takes {}", known.join(" and "));
        ApiError::new(ErrorCode::UnsupportedMediaType, message)
    })
}

impl Encoding {
    const fn media_type(self) -> &'static str {
        match self {
            Self::Json => CHECK_JSON,
            Self::Compact => CHECK_CBOR,
        }
    }

    const fn in_words(self) -> &'static str {
        match self {
            Self::Json => "application/json (curl --json)",
            Self::Compact => CHECK_CBOR,
        }
    }
}

/// The status of a denial: 429 if the client prefers it.
fn deny_status(head: &Parts) -> Result<StatusCode, ApiError> {
    let mut status = StatusCode::OK;
    for (name, value) in serve::query(&head.uri) {
        status = match (name, value) {
            ("deny_status", "429") => StatusCode::TOO_MANY_REQUESTS,
            ("deny_status", "200") => StatusCode::OK,
            ("deny_status", _) => return Err(refusal::invalid(name, "it is 200 or 429")),
            _ => {
                return Err(refusal::invalid(
                    name,
                    "no such parameter; there is deny_status",
                ));
            }
        };
    }
    Ok(status)
}

fn batch_response(decided: &Decided, domain: &Name) -> Answered {
    if let Some(error) = decided.all_failed() {
        return Err(error);
    }
    let policy = &decided.policy.compiled;
    let decisions = decided.decisions.iter().enumerate();
    let results = decisions.map(|(at, decision)| match decision {
        Ok(answer) => Ok(Reply::new(answer, policy).reserved_as(decided.token(domain, at))),
        Err(error) => Err(refusal::of_check(error)),
    });
    let body = json::batch_reply(policy.revision().number, results);
    let mut response = serve::answer(StatusCode::OK, CHECK_JSON, body);
    name_revision(&mut response, &decided.policy);
    Ok(response)
}

fn single_response(
    decided: &Decided,
    reason: Option<Reason>,
    deny: StatusCode,
    token: Option<String>,
) -> Answered {
    let answer = match decided.decisions.first() {
        Some(Ok(answer)) => answer,
        Some(Err(error)) => return Err(refusal::of_check(error)),
        None => return Err(ApiError::new(ErrorCode::Internal, "no decision")),
    };
    let mut reply = Reply::new(answer, &decided.policy.compiled).reserved_as(token);
    if let Some(reason) = reason {
        reply = reply.because(reason);
    }
    let status = if answer.allowed { StatusCode::OK } else { deny };
    let mut response = serve::answer(status, CHECK_JSON, json::check_reply(&reply));
    if status == StatusCode::TOO_MANY_REQUESTS {
        let seconds = retry_after_s(answer);
        response
            .headers_mut()
            .extend(seconds.map(|seconds| (RETRY_AFTER, HeaderValue::from(seconds))));
    }
    name_revision(&mut response, &decided.policy);
    Ok(response)
}

/// Whole seconds, rounded up; `None` where it can never pass.
fn retry_after_s(answer: &Answer) -> Option<u64> {
    let ms = answer.summary().retry_after_ms?;
    Some(ms.div_ceil(1000))
}

fn name_revision(response: &mut Response<Bytes>, policy: &Active) {
    let revision = policy.revision_header.clone();
    response.headers_mut().insert(REVISION, revision);
}

// --- `POST /v1/settle`: the true cost of what a program reserved

impl Api {
    /// Settles reservations; the answer is that of a check which charges nothing. It may be repeated.
    pub(super) async fn settle(&self, body: Incoming, peer: Arc<Peer>) -> Answered {
        let received = self.receive_uncharged(body, peer, json::parse_settle);
        let (request, _held) = received.await?;
        let deadline = Instant::now() + self.bounds.store_timeout;
        let decided = self
            .decide(&request.domain, request.checks, deadline, None)
            .await?;
        single_response(&decided, None, StatusCode::OK, None)
    }
}

// --- `POST /v1/release` and `POST /v1/renew`: slots of requests in flight that programs hold

impl Api {
    /// Frees slots or, with `renew`, keeps them. Both may be repeated.
    pub(super) async fn slots(&self, body: Incoming, peer: Arc<Peer>, renew: bool) -> Answered {
        let parse = move |bytes: &[u8]| json::parse_slots(bytes, renew);
        let (request, _held) = self.receive_uncharged(body, peer, parse).await?;
        if renew {
            self.are_in_flight(&request)?;
        }
        let deadline = Instant::now() + self.bounds.store_timeout;
        let decided = self
            .decide(&request.domain, request.checks, deadline, None)
            .await?;
        if let Some(error) = decided.all_failed() {
            return Err(error);
        }
        let results = decided
            .decisions
            .iter()
            .map(|decision| decision.as_ref().map_err(refusal::of_check));
        let reply = json::renewed_reply(request.batch, results)?;
        Ok(serve::answer(StatusCode::OK, CHECK_JSON, reply))
    }

    /// Refuses the slot of a queue: it is a start time, and cannot be renewed.
    fn are_in_flight(&self, request: &json::Request) -> Result<(), ApiError> {
        let policy = self.active(&request.domain)?;
        let compiled = &policy.compiled;
        for entry in request.checks.iter().flat_map(|check| &check.limits) {
            let limit = compiled.named(&entry.limit);
            if limit.is_some_and(|limit| !limit.gives_slots()) {
                let message = format!("{} is no limit on requests in flight", entry.limit);
                return Err(refusal::invalid("slots", message));
            }
        }
        Ok(())
    }
}

// --- `POST /v1/report`: decisions that proxies made without a call

impl Api {
    /// Counts a report; the answer is empty.
    pub(super) async fn report(&self, body: Incoming, peer: Arc<Peer>) -> Answered {
        let _permit = self.bounds.enter()?;
        let address = peer.address;
        let body = self.receive(body, peer).await?;
        let decode = |bytes: &[u8]| {
            Report::decode(bytes)
                .map_err(|error| ApiError::new(ErrorCode::InvalidRequest, error.to_string()))
        };
        let (mut report, _memory) = self.bounds.bodies.decode(body, decode).await?;
        let policy = self.active(&report.domain)?;
        let known = |limit: &Name| policy.compiled.position(limit.as_str()).is_some();
        report.tallies.retain(|tally| known(&tally.limit));
        report.denied.retain(|denied| known(&denied.limit));
        if let Some(proxy) = self.fleet.admit(address, &report.proxy) {
            // A proxy that decides by a limit gets a share of it, with or without a call.
            let limits = report.tallies.iter().map(|tally| &tally.limit);
            self.fleet.checked(&report.domain, &proxy, limits);
        } else {
            report.proxy.clear();
        }
        for tally in &report.tallies {
            policy.counters.reported(tally);
        }
        self.telemetry.reported(report);
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = StatusCode::NO_CONTENT;
        Ok(response)
    }
}
