//! What clients see: the headers of a response, and the reply to a denied request.

use std::{fmt::Write, sync::Arc};

use filter_config::{DenyBody, DenyConfig, Styles};
use policy::Name;
use protocol::DecidedBy;

use crate::host::Random;

/// A client's quota at one limit after a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QuotaStatus {
    /// The limit.
    pub(crate) limit: Name,
    /// Its quota in units.
    pub(crate) quota: u64,
    /// The time in which an empty quota refills completely, in milliseconds.
    pub(crate) window_ms: u64,
    /// Units left.
    pub(crate) remaining: u64,
    /// The time until the quota is complete, in milliseconds; `None`: waiting does not help.
    pub(crate) reset_after_ms: Option<u64>,
    /// Units that the request costs.
    pub(crate) cost: u64,
    /// Whether the limit denies the request.
    pub(crate) denies: bool,
}

// --- Rate limit headers of responses.

/// The headers of a response that is about to leave for the client.
pub trait ResponseHeaders {
    /// The first value of a header.
    fn get(&self, name: &str) -> Option<Vec<u8>>;
    /// Sets a header, replacing its values.
    fn set(&mut self, name: &'static str, value: &str);
    /// Adds a value to a header and keeps its other values.
    fn add(&mut self, name: &'static str, value: &str);
    /// A property of Envoy by its path, whose parts are separated by zero bytes.
    fn property(&self, _path: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

/// Adds the rate limit headers of limits that are neither hidden nor in shadow mode. The upstream's own headers stay if they are tighter. Of a denied request,
/// only the limits that deny it show their numbers: those of others would tell the client to go on.
pub(crate) fn write_headers(
    all: &[QuotaStatus],
    denied: bool,
    styles: Styles,
    headers: &mut impl ResponseHeaders,
) {
    let shown = || all.iter().filter(|status| status.denies == denied);
    // Of several with the least units left, the one that takes longest to reset.
    let tightness = |status: &&QuotaStatus| {
        let reset_ms = status.reset_after_ms.unwrap_or(u64::MAX);
        (status.remaining, std::cmp::Reverse(reset_ms))
    };
    // Headers that are read come first: a read makes Envoy build an index.
    if (styles.x_ratelimit || styles.spring)
        && let Some(tightest) = shown().min_by_key(tightness)
    {
        write_tightest(tightest, styles, headers);
    }
    if styles.ratelimit {
        // One buffer for both values.
        let mut value = String::with_capacity(40 * all.len());
        write_list(
            "ratelimit-policy",
            None,
            all,
            &mut value,
            headers,
            |out, status| {
                push_parameter(out, 'q', status.quota);
                push_parameter(out, 'w', seconds(status.window_ms));
            },
        );
        write_list(
            "ratelimit",
            Some(denied),
            all,
            &mut value,
            headers,
            |out, status| {
                push_parameter(out, 'r', status.remaining);
                if let Some(reset_ms) = status.reset_after_ms {
                    push_parameter(out, 't', seconds(reset_ms));
                }
            },
        );
    }
}

/// Headers with one number each, from the tightest limit.
fn write_tightest(tightest: &QuotaStatus, styles: Styles, headers: &mut impl ResponseHeaders) {
    const REMAINING: &str = "x-ratelimit-remaining";
    let theirs = headers.get(REMAINING);
    let number = |value: &[u8]| std::str::from_utf8(value).ok()?.trim().parse::<u64>().ok();
    let upstream = theirs.as_deref().and_then(number);
    if upstream.is_some_and(|remaining| remaining <= tightest.remaining) {
        return;
    }
    // An absent header is added, which saves another search.
    match theirs {
        Some(_) => set_number(headers, REMAINING, tightest.remaining),
        None => headers.add(REMAINING, itoa::Buffer::new().format(tightest.remaining)),
    }
    // An upstream may set these without `x-ratelimit-remaining`.
    let mut set = |name, number| set_number(headers, name, number);
    if styles.x_ratelimit {
        set("x-ratelimit-limit", tightest.quota);
        if let Some(reset_ms) = tightest.reset_after_ms {
            set("x-ratelimit-reset", seconds(reset_ms));
        }
    }
    if styles.spring {
        set("x-ratelimit-replenish-rate", per_second(tightest));
        set("x-ratelimit-burst-capacity", tightest.quota);
        set("x-ratelimit-requested-tokens", tightest.cost);
    }
}

/// A header with an item for each limit, like `"per-user";q=20;w=2` or `"per-user";r=19;t=1`; `denying`: only
/// for those that deny, or that do not. The items of several rate limiters on the path are listed together.
fn write_list(
    name: &'static str,
    denying: Option<bool>,
    quota_statuses: &[QuotaStatus],
    value: &mut String,
    headers: &mut impl ResponseHeaders,
    parameters: fn(&mut String, &QuotaStatus),
) {
    value.clear();
    for quota_status in quota_statuses {
        if denying.is_some_and(|denying| quota_status.denies != denying) {
            continue;
        }
        if !value.is_empty() {
            value.push_str(", ");
        }
        push_item(value, quota_status.limit.as_str());
        parameters(value, quota_status);
    }
    if !value.is_empty() {
        headers.add(name, value);
    }
}

/// Whole seconds, rounded up.
fn seconds(ms: u64) -> u64 {
    ms.div_ceil(1000)
}

/// The rate in whole units per second, rounded down.
fn per_second(quota_status: &QuotaStatus) -> u64 {
    let per_window = u128::from(quota_status.quota) * 1000;
    u64::try_from(per_window / u128::from(quota_status.window_ms.max(1))).unwrap_or(u64::MAX)
}

/// `Retry-After` for a wait.
fn retry_after(wait_ms: u64) -> u64 {
    seconds(wait_ms).max(1)
}

// --- The reply to a denied request.

/// The problem type of a denial, as registered with IANA.
const PROBLEM_TYPE: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// Why a request is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Denial {
    /// The limits that deny it; `true` for those that clients may see.
    pub(crate) by: Vec<(Name, bool)>,
    /// What decided.
    pub(crate) source: DecidedBy,
    /// The status of the limits that deny it, if they have their own.
    pub(crate) deny_status: Option<u16>,
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
    pub details: Arc<str>,
    /// Headers. They contain only names of limits and numbers, and no client bytes.
    pub headers: HeaderList,
    /// The body; for gRPC, the status message.
    pub body: Arc<str>,
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
    status: u16,
    grpc: bool,
    details: Arc<str>,
    body: Arc<str>,
}

impl ReplyCache {
    /// Whether the cached reply has the same reason as a denial.
    fn is_of(&self, denial: &Denial, status: u16, grpc: bool) -> bool {
        (self.source, self.status, self.grpc) == (Some(denial.source), status, grpc)
            && self.by == denial.by
    }

    #[cold]
    fn new(denial: &Denial, config: &DenyConfig, status: u16, grpc: bool) -> Self {
        let first = denial.by.first().map_or("", |(name, _)| name.as_str());
        let details = ["rl_denied:", first, ":", denial.source.word()].concat();
        Self {
            by: denial.by.clone(),
            source: Some(denial.source),
            status,
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
            // A server error is not the client's fault, and gRPC's word for that is another one.
            _ => match self.deny_status {
                Some(status @ 500..) => (status, UNAVAILABLE),
                Some(status) => (status, RESOURCE_EXHAUSTED),
                None => (config.status, RESOURCE_EXHAUSTED),
            },
        };
        if !reply_cache.is_of(&self, status, grpc) {
            *reply_cache = ReplyCache::new(&self, config, status, grpc);
        }
        let mut reply = LocalReply {
            status,
            details: Arc::clone(&reply_cache.details),
            headers: HeaderList {
                values: String::with_capacity(160),
                names: Vec::with_capacity(8),
            },
            body: Arc::clone(&reply_cache.body),
            grpc_status,
        };
        let quota_exceeded = !matches!(self.source, DecidedBy::Missing | DecidedBy::Failure);
        if quota_exceeded {
            reply.headers.set("x-envoy-ratelimited", "true");
        }
        if let Some(wait_ms) = self.retry_after_ms {
            let spread_ms = wait_ms.saturating_mul(config.retry_jitter_percent.into()) / 100;
            let wait_ms = wait_ms.saturating_add(random.below(spread_ms.saturating_add(1)));
            let wait = retry_after(wait_ms);
            if styles.retry_after {
                set_number(&mut reply.headers, "retry-after", wait);
            }
            if styles.spring && quota_exceeded {
                set_number(&mut reply.headers, "x-ratelimit-retry-after", wait);
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
        write_headers(&self.quota_statuses, true, styles, &mut reply.headers);
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

/// Sets a header to a number.
#[inline(never)]
fn set_number(headers: &mut impl ResponseHeaders, name: &'static str, number: u64) {
    headers.set(name, itoa::Buffer::new().format(number));
}

/// Appends a number in decimal.
fn push_number(out: &mut String, number: u64) {
    out.push_str(itoa::Buffer::new().format(number));
}

/// Appends a structured field item `"name"`, whose characters need no escaping.
fn push_item(out: &mut String, name: &str) {
    out.push('"');
    out.push_str(name);
    out.push('"');
}

/// Appends a parameter `;name=number`.
fn push_parameter(out: &mut String, name: char, number: u64) {
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
mod headers_tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Default)]
    pub(crate) struct Recorded(pub(crate) BTreeMap<String, Vec<String>>);

    impl Recorded {
        pub(crate) fn with(headers: &[(&str, &str)]) -> Self {
            let owned = |(k, v): &(&str, &str)| ((*k).to_owned(), vec![(*v).to_owned()]);
            Self(headers.iter().map(owned).collect())
        }

        pub(crate) fn all(&self) -> String {
            let line = |(k, v): (&String, &Vec<String>)| format!("{k}: {}\n", v.join(" | "));
            self.0.iter().map(line).collect()
        }
    }

    impl ResponseHeaders for Recorded {
        fn get(&self, name: &str) -> Option<Vec<u8>> {
            Some(self.0.get(name)?.first()?.clone().into_bytes())
        }
        fn set(&mut self, name: &'static str, value: &str) {
            self.0.insert(name.to_owned(), vec![value.to_owned()]);
        }
        fn add(&mut self, name: &'static str, value: &str) {
            self.0
                .entry(name.to_owned())
                .or_default()
                .push(value.to_owned());
        }
    }

    pub(crate) fn quota_status(limit: &str, remaining: u64, reset_after_ms: u64) -> QuotaStatus {
        QuotaStatus {
            limit: limit.parse().unwrap(),
            quota: 20,
            window_ms: 2000,
            remaining,
            reset_after_ms: Some(reset_after_ms),
            cost: 1,
            denies: false,
        }
    }

    const EVERY: Styles = Styles {
        ratelimit: true,
        x_ratelimit: true,
        retry_after: true,
        spring: true,
    };

    #[test]
    fn all_limits_are_listed_and_the_tightest_is_shown() {
        let quota_statuses = vec![
            quota_status("per-user", 7, 1300),
            quota_status("per-tenant", 3, 100),
            quota_status("per-path", 3, 1701),
        ];
        let mut headers = Recorded::default();
        write_headers(&quota_statuses, false, EVERY, &mut headers);
        insta::assert_snapshot!(headers.all(), @r#"
        ratelimit: "per-user";r=7;t=2, "per-tenant";r=3;t=1, "per-path";r=3;t=2
        ratelimit-policy: "per-user";q=20;w=2, "per-tenant";q=20;w=2, "per-path";q=20;w=2
        x-ratelimit-burst-capacity: 20
        x-ratelimit-limit: 20
        x-ratelimit-remaining: 3
        x-ratelimit-replenish-rate: 10
        x-ratelimit-requested-tokens: 1
        x-ratelimit-reset: 2
        "#);
    }

    #[test]
    fn an_upstream_that_is_tighter_keeps_its_headers() {
        let quotas = vec![quota_status("per-user", 7, 1300)];
        for (theirs, kept) in [("5", true), ("7", true), ("8", false), ("many", false)] {
            let mut headers = Recorded::with(&[
                ("x-ratelimit-limit", "9"),
                ("x-ratelimit-remaining", theirs),
                ("ratelimit", "\"theirs\";r=5;t=9"),
            ]);
            write_headers(&quotas, false, Styles::default(), &mut headers);
            let limit = &headers.0["x-ratelimit-limit"];
            assert_eq!(limit, &[if kept { "9" } else { "20" }], "{theirs}");
            assert_eq!(
                headers.0["ratelimit"],
                ["\"theirs\";r=5;t=9", "\"per-user\";r=7;t=2"]
            );
        }
    }

    #[test]
    fn incomplete_upstream_headers_are_replaced() {
        let quotas = vec![quota_status("per-user", 7, 1300)];
        let mut headers = Recorded::with(&[("x-ratelimit-limit", "9"), ("x-ratelimit-reset", "1")]);
        write_headers(&quotas, false, Styles::default(), &mut headers);
        assert_eq!(headers.0["x-ratelimit-limit"], ["20"]);
        assert_eq!(headers.0["x-ratelimit-remaining"], ["7"]);
        assert_eq!(headers.0["x-ratelimit-reset"], ["2"]);
    }

    #[test]
    fn a_denial_shows_the_numbers_of_the_limits_that_deny_only() {
        let over = |limit, remaining, reset_after_ms| QuotaStatus {
            denies: true,
            reset_after_ms,
            ..quota_status(limit, remaining, 0)
        };
        let all = |quota_statuses: Vec<QuotaStatus>| {
            let mut headers = Recorded::default();
            write_headers(&quota_statuses, true, EVERY, &mut headers);
            headers.all()
        };
        // Another limit that has nothing left, either, but is not over.
        let passed = || quota_status("per-path", 0, 25_000);
        insta::assert_snapshot!(
            all(vec![passed(), over("per-user", 3, Some(1300)), over("dear", 7, None)]),
            @r#"
        ratelimit: "per-user";r=3;t=2, "dear";r=7
        ratelimit-policy: "per-path";q=20;w=2, "per-user";q=20;w=2, "dear";q=20;w=2
        x-ratelimit-burst-capacity: 20
        x-ratelimit-limit: 20
        x-ratelimit-remaining: 3
        x-ratelimit-replenish-rate: 10
        x-ratelimit-requested-tokens: 1
        x-ratelimit-reset: 2
        "#);
        // Waiting does not help.
        insta::assert_snapshot!(all(vec![over("dear", 20, None)]), @r#"
        ratelimit: "dear";r=20
        ratelimit-policy: "dear";q=20;w=2
        x-ratelimit-burst-capacity: 20
        x-ratelimit-limit: 20
        x-ratelimit-remaining: 20
        x-ratelimit-replenish-rate: 10
        x-ratelimit-requested-tokens: 1
        "#);
        // Hidden limits deny.
        insta::assert_snapshot!(all(vec![passed()]), @r#"ratelimit-policy: "per-path";q=20;w=2"#);
    }

    #[test]
    fn no_quotas_add_no_headers() {
        let mut headers = Recorded::default();
        write_headers(&[], false, EVERY, &mut headers);
        assert_eq!(headers.all(), "");
    }

    #[test]
    fn a_wait_is_rounded_up_to_whole_seconds() {
        assert_eq!([1, 999, 1000, 1001].map(retry_after), [1, 1, 1, 2]);
    }
}

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
