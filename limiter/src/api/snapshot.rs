//! `GET /v1/policy`: what proxies follow.

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Response, StatusCode,
    header::{
        CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue, IF_NONE_MATCH,
    },
    http::request::Parts,
};
use policy::{Name, Revision};
use protocol::{ApiError, ErrorCode, PROXIES_HEADER, format_proxies};

use super::{Answered, Api, REVISION, refusal};
use crate::{domains::Active, http, telemetry::Asker};

const PROXIES: HeaderName = HeaderName::from_static(PROXIES_HEADER);

impl Api {
    /// The domain's limits, or 304 if the proxy has them; either way the number of live proxies.
    ///
    /// Parameters that this version does not know are left alone: a proxy may be newer.
    pub(super) fn snapshot(&self, head: &Parts) -> Answered {
        let parameter = |wanted| {
            let mut parameters = http::query(&head.uri);
            parameters.find_map(|(name, value)| (name == wanted).then_some(value))
        };
        let domain = parameter("domain")
            .ok_or_else(|| refusal::invalid("domain", "missing; write /v1/policy?domain=NAME"))?;
        let domain: Name = domain
            .parse()
            .map_err(|error: policy::NameError| refusal::invalid("domain", error.to_string()))?;
        if let Some(proxy) = parameter("proxy") {
            let told = parameter("revision").and_then(read_revision);
            let revision = told.or_else(|| tagged(&head.headers));
            let asker = Asker {
                id: proxy,
                node: parameter("node"),
                revision: revision.as_ref(),
            };
            self.telemetry.heard(&domain, asker);
        }
        let policy = match self.active(&domain) {
            Ok(policy) => policy,
            Err(error) => return self.no_snapshot(&domain, error),
        };
        let mut response = Response::new(Full::default());
        if has(&head.headers, &policy) {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        } else {
            *response.body_mut() = Full::new(Bytes::clone(&policy.snapshot));
            let json = HeaderValue::from_static(http::JSON);
            response.headers_mut().insert(CONTENT_TYPE, json);
        }
        let headers = response.headers_mut();
        headers.insert(ETAG, policy.etag.clone());
        headers.insert(REVISION, policy.revision_header.clone());
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        if let Some(counts) = self.proxies.counts(&domain) {
            let live = format_proxies(counts.iter().map(|(limit, count)| (limit, *count)));
            headers.extend(HeaderValue::try_from(live).map(|live| (PROXIES, live)));
        }
        Ok(response)
    }

    /// Of a domain that was deleted, the revision tells so: a proxy that has limits does not give
    /// them up because a store was emptied.
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

/// The revision that a tag of ours names.
fn tagged(headers: &HeaderMap) -> Option<Revision> {
    let tag = headers.get(IF_NONE_MATCH)?.to_str().ok()?;
    read_revision(tag.trim().trim_matches('"'))
}

/// `17-00ff…`: number and digest.
fn read_revision(text: &str) -> Option<Revision> {
    let (number, digest) = text.split_once('-')?;
    Some(Revision {
        number: number.parse().ok()?,
        digest: u64::from_str_radix(digest, 16).ok()?,
    })
}

/// Whether the asker has this revision: `If-None-Match` is a list of tags, or `*`.
fn has(headers: &HeaderMap, policy: &Active) -> bool {
    let ours = policy.etag.as_bytes();
    headers.get_all(IF_NONE_MATCH).iter().any(|value| {
        value.as_bytes().split(|b| *b == b',').any(|tag| {
            let tag = tag.trim_ascii();
            tag.strip_prefix(b"W/").unwrap_or(tag) == ours || tag == b"*"
        })
    })
}
