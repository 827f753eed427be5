//! The reply to a denied request.

use std::{fmt::Write, rc::Rc};

use filter_config::{DenyBody, DenyConfig, Styles};
use policy::Name;
use protocol::DecidedBy;

use super::{
    QuotaStatus,
    headers::{self, QuotaHeaders, ResponseHeaders, write_headers},
};
use crate::random::Random;

/// The problem type of a denial, as registered with IANA.
const PROBLEM_TYPE: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// Why a request is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Denial {
    /// The limits that deny it; `true` for those that clients may see.
    pub(crate) by: Vec<(Name, bool)>,
    /// What decided.
    pub(crate) source: DecidedBy,
    /// When to retry, in milliseconds; `None`: never.
    pub(crate) retry_after_ms: Option<u64>,
    /// The client's quotas at the limits that clients may see.
    pub(crate) quota_statuses: Vec<QuotaStatus>,
}

/// A local response, in place of an upstream's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalReply {
    /// The HTTP status.
    pub status: u16,
    /// What `%RESPONSE_CODE_DETAILS%` shows.
    pub details: Rc<str>,
    /// Headers. They contain only names of limits and numbers, and no client bytes.
    pub headers: HeaderList,
    /// The body; for gRPC, the status message.
    pub body: Rc<str>,
    /// The status of a gRPC call.
    pub grpc_status: u8,
}

/// Headers in order, with their values concatenated in one string.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderList {
    values: String,
    /// Each name, with the end of its value in `values`.
    names: Vec<(&'static str, usize)>,
}

impl HeaderList {
    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let starts = std::iter::once(0).chain(self.names.iter().map(|(_, end)| *end));
        let spans = starts.zip(&self.names);
        spans.map(|(start, (name, end))| (*name, self.values.get(start..*end).unwrap_or_default()))
    }
}

impl ResponseHeaders for HeaderList {
    fn get(&self, _name: &str) -> Option<Vec<u8>> {
        None
    }

    fn set(&mut self, name: &'static str, value: &str) {
        self.add(name, value);
    }

    fn add(&mut self, name: &'static str, value: &str) {
        self.values.push_str(value);
        self.names.push((name, self.values.len()));
    }
}

/// The parts of the last reply that depend only on the reason: one client is denied many times.
#[derive(Debug, Default)]
pub(crate) struct ReplyCache {
    by: Vec<(Name, bool)>,
    source: Option<DecidedBy>,
    grpc: bool,
    details: Rc<str>,
    body: Rc<str>,
}

impl ReplyCache {
    /// Whether the cached reply has the same reason as a denial.
    fn is_of(&self, denial: &Denial, grpc: bool) -> bool {
        self.source == Some(denial.source) && self.grpc == grpc && self.by == denial.by
    }

    #[cold]
    fn new(denial: &Denial, config: &DenyConfig, status: u16, grpc: bool) -> Self {
        let first = denial.by.first().map_or("", |(name, _)| name.as_str());
        let details = ["rl_denied:", first, ":", denial.source.word()].concat();
        Self {
            by: denial.by.clone(),
            source: Some(denial.source),
            grpc,
            details: details.into(),
            body: denial.body(config, status, grpc).into(),
        }
    }
}

impl Denial {
    /// The reply to the client.
    pub(crate) fn reply(
        self,
        config: &DenyConfig,
        styles: Styles,
        grpc: bool,
        random: &mut Random,
        reply_cache: &mut ReplyCache,
    ) -> LocalReply {
        const RESOURCE_EXHAUSTED: u8 = 8;
        const PERMISSION_DENIED: u8 = 7;
        const UNAVAILABLE: u8 = 14;
        let (status, grpc_status) = match self.source {
            DecidedBy::Missing => (403, PERMISSION_DENIED),
            DecidedBy::Failure => (config.status_on_error, UNAVAILABLE),
            _ => (config.status, RESOURCE_EXHAUSTED),
        };
        if !reply_cache.is_of(&self, grpc) {
            *reply_cache = ReplyCache::new(&self, config, status, grpc);
        }
        let mut reply = LocalReply {
            status,
            details: Rc::clone(&reply_cache.details),
            headers: HeaderList {
                values: String::with_capacity(160),
                names: Vec::with_capacity(8),
            },
            body: Rc::clone(&reply_cache.body),
            grpc_status,
        };
        let quota_exceeded = grpc_status == RESOURCE_EXHAUSTED;
        if quota_exceeded {
            reply.headers.set("x-envoy-ratelimited", "true");
        }
        if let Some(wait_ms) = self.retry_after_ms {
            let spread_ms = wait_ms.saturating_mul(config.retry_jitter_percent.into()) / 100;
            let wait_ms = wait_ms.saturating_add(random.below(spread_ms.saturating_add(1)));
            let wait = headers::retry_after(wait_ms);
            if styles.retry_after {
                reply.headers.set("retry-after", &wait);
            }
            if styles.spring && quota_exceeded {
                reply.headers.set("x-ratelimit-retry-after", &wait);
            }
        }
        let content_type = match config.body {
            DenyBody::ProblemJson => Some("application/problem+json"),
            DenyBody::Text => Some("text/plain; charset=utf-8"),
            DenyBody::Empty => None,
        };
        if let Some(content_type) = content_type.filter(|_| !grpc) {
            reply.headers.set("content-type", content_type);
        }
        let quotas = QuotaHeaders {
            quota_statuses: self.quota_statuses,
        };
        write_headers(&quotas, true, styles, &mut reply.headers);
        reply
    }

    fn body(&self, config: &DenyConfig, status: u16, grpc: bool) -> String {
        let message = match (&config.message, self.source) {
            (Some(message), source) if source != DecidedBy::Failure => message,
            (_, DecidedBy::Missing) => "the request lacks what its limit is counted by",
            (_, DecidedBy::Failure) => "rate limiting is not available",
            _ => "Request cannot be satisfied as assigned quota has been exceeded",
        };
        match config.body {
            _ if grpc => message.to_owned(),
            DenyBody::ProblemJson => self.problem(config, message, status),
            DenyBody::Text => [message, "\n"].concat(),
            DenyBody::Empty => String::new(),
        }
    }

    fn problem(&self, config: &DenyConfig, message: &str, status: u16) -> String {
        let mut body = String::new();
        body.push_str("{\"type\":\"");
        let quota_exceeded = !matches!(self.source, DecidedBy::Missing | DecidedBy::Failure);
        body.push_str(if quota_exceeded {
            PROBLEM_TYPE
        } else {
            "about:blank"
        });
        body.push_str("\",\"title\":\"");
        push_json(&mut body, message);
        body.push_str("\",\"status\":");
        push_number(&mut body, status.into());
        let known = self.by.iter().filter(|(_, known)| *known && quota_exceeded);
        for (n, (name, _)) in known.clone().enumerate() {
            body.push_str(if n > 0 {
                ","
            } else {
                ",\"violated-policies\":["
            });
            push_item(&mut body, name.as_str());
        }
        if known.count() > 0 {
            body.push(']');
        }
        if let Some(docs) = &config.docs {
            body.push_str(",\"documentation\":\"");
            push_json(&mut body, docs);
            body.push('"');
        }
        body.push_str("}\n");
        body
    }
}

// --- Formats numbers and names for header values. The standard library's formatting would take a tenth of
// the time of a request, and allocate for each value.

/// Appends a number in decimal.
pub(super) fn push_number(out: &mut String, number: u64) {
    out.push_str(itoa::Buffer::new().format(number));
}

/// Appends a structured field item `"name"`, whose characters need no escaping.
pub(super) fn push_item(out: &mut String, name: &str) {
    out.push('"');
    out.push_str(name);
    out.push('"');
}

/// Appends a parameter `;name=number`.
pub(super) fn push_parameter(out: &mut String, name: char, number: u64) {
    out.push(';');
    out.push(name);
    out.push('=');
    push_number(out, number);
}

/// Appends text as the inside of a JSON string.
fn push_json(out: &mut String, text: &str) {
    let special = |c: char| matches!(c, '"' | '\\') || c.is_control();
    let mut rest = text;
    while let Some((plain, after)) = rest.find(special).and_then(|at| rest.split_at_checked(at)) {
        out.push_str(plain);
        let mut chars = after.chars();
        match chars.next() {
            Some('"') => out.push_str("\\\""),
            Some('\\') => out.push_str("\\\\"),
            // Writing to a string cannot fail.
            Some(c) => drop(write!(out, "\\u{:04x}", u32::from(c))),
            None => {}
        }
        rest = chars.as_str();
    }
    out.push_str(rest);
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod text_tests {
    use super::*;

    #[test]
    fn json_text_is_escaped() {
        let mut out = String::new();
        push_json(&mut out, "a\"b\\c\nd\u{7f}é");
        assert_eq!(out, "a\\\"b\\\\c\\u000ad\\u007fé");
    }
}
