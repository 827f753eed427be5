//! Calls as messages of one gRPC stream, which stays open: a batch of checks costs a message, not a
//! request.
//!
//! The proxy opens [`CHECK_STREAM`] and sends nothing before the limiter's first message, which is
//! [`StreamAnswer::OPEN`]. From then on each message of the proxy is a call: an id, and the body that
//! `POST /v1/check` would have in the compact encoding. The limiter answers each call with its id, and
//! the status and the body that the HTTP answer would have, in any order. Before a limiter ends a
//! stream it sends [`StreamAnswer::ENDING`]: the proxy closes its side, and the limiter still answers
//! the calls that were sent before. Numbers are big-endian; gRPC's own framing is around each message.

use std::fmt::Write;

use policy::Name;

/// The gRPC service of [`CHECK_STREAM`].
pub const CHECK_STREAM_SERVICE: &str = "ratelimiter.v1.Checks";
/// The gRPC method of [`CHECK_STREAM`].
pub const CHECK_STREAM_METHOD: &str = "Stream";
/// The path of the stream.
pub const CHECK_STREAM: &str = "/ratelimiter.v1.Checks/Stream";

/// Bytes before the body of a call.
const CALL_HEAD: usize = 4;

/// A message of the proxy: a call to the limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamCall<'m> {
    /// The id by which the answer names the call; not 0.
    pub id: u32,
    /// The compact encoding of a batch of checks.
    pub body: &'m [u8],
}

impl<'m> StreamCall<'m> {
    /// Reads a message; `None`: it is shorter than an id, or the id is 0.
    pub fn decode(message: &'m [u8]) -> Option<Self> {
        let (id, body) = message.split_first_chunk::<CALL_HEAD>()?;
        let id = u32::from_be_bytes(*id);
        (id != 0).then_some(Self { id, body })
    }

    /// The message.
    pub fn encode(self) -> Vec<u8> {
        let mut message = Vec::with_capacity(CALL_HEAD + self.body.len());
        message.extend_from_slice(&self.id.to_be_bytes());
        message.extend_from_slice(self.body);
        message
    }
}

/// A message of the limiter: the answer to a call, or a message about the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamAnswer<'m> {
    /// The id of the call; 0 in a message about the stream.
    pub id: u32,
    /// The HTTP status.
    pub status: u16,
    /// The body of the answer.
    pub body: &'m [u8],
}

impl<'m> StreamAnswer<'m> {
    /// The first message: the limiter accepts calls.
    pub const OPEN: Self = Self {
        id: 0,
        status: 200,
        body: &[],
    };
    /// The limiter accepts no further calls, and answers those in flight.
    pub const ENDING: Self = Self {
        id: 0,
        status: 503,
        body: &[],
    };

    /// Reads a message; `None`: it is shorter than an id and a status.
    pub fn decode(message: &'m [u8]) -> Option<Self> {
        let (id, rest) = message.split_first_chunk()?;
        let (status, body) = rest.split_first_chunk()?;
        Some(Self {
            id: u32::from_be_bytes(*id),
            status: u16::from_be_bytes(*status),
            body,
        })
    }

    /// The message.
    pub fn encode(self) -> Vec<u8> {
        let mut message = Vec::with_capacity(CALL_HEAD + 2 + self.body.len());
        message.extend_from_slice(&self.id.to_be_bytes());
        message.extend_from_slice(&self.status.to_be_bytes());
        message.extend_from_slice(self.body);
        message
    }
}

// --- Headers and content types of the limiter's API.

/// The header that every answer of a limiter carries. One without it is not from a limiter.
pub const API_HEADER: &str = "x-rl-api";
/// The value of [`API_HEADER`].
pub const API_VERSION: &str = "1";
/// The header with the number of the domain's revision.
pub const REVISION_HEADER: &str = "x-rl-revision";
/// The key for the whole domain in [`PROXIES_HEADER`]; no limit has this name. Its count applies to
/// limits that are not listed.
pub const ALL_LIMITS: &str = "*";
/// The header with the live proxies of each limit: see [`format_proxies`].
pub const PROXIES_HEADER: &str = "x-rl-proxies";
/// The content type of [`crate::json`].
pub const CHECK_JSON: &str = "application/json";
/// The content type of [`crate::compact`].
pub const CHECK_CBOR: &str = "application/vnd.rl.check+cbor";

/// The content type of a snapshot of limits as filters read it. Without it in `accept`, it is JSON.
pub const LIMITS_CBOR: &str = "application/vnd.rl.limits+cbor";
/// What changed in them since the snapshot that a proxy has.
pub const CHANGES_CBOR: &str = "application/vnd.rl.limits-changes+cbor";
/// The query parameter of a poll by which a proxy says that it can apply changes.
pub const CHANGES_PARAMETER: &str = "changes";

/// The value of the query parameter `filter` by which a poll says that it comes from a dynamic module; polls of
/// wasm have no such parameter.
pub const MODULE: &str = "module";

/// The content type of a [`crate::compact::Report`].
pub const REPORT_CBOR: &str = "application/vnd.rl.report+cbor";

/// The longest [`PROXIES_HEADER`], in bytes: well within what HTTP clients accept. Limits that do not
/// fit are left out; the count of [`ALL_LIMITS`] applies to them until the answer to a check has
/// theirs.
const MAX_PROXIES: usize = 16_384;

/// `*=4, per-user=3, exports=1`: how many proxies recently sent checks, in all and for each limit.
pub fn format_proxies<'n>(all: u64, limits: impl IntoIterator<Item = (&'n Name, u64)>) -> String {
    let mut text = format!("{ALL_LIMITS}={all}");
    for (limit, count) in limits {
        let before = text.len();
        // Writing to a string cannot fail.
        write!(text, ", {limit}={count}").unwrap_or_default();
        if text.len() > MAX_PROXIES {
            text.truncate(before);
            break;
        }
    }
    text
}

/// Whether this may be the id of a filter: 128 random bits, in hex.
pub fn is_proxy_id(id: &str) -> bool {
    id.len() == 32 && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Reads what [`format_proxies`] wrote; invalid items are left out.
pub fn parse_proxies(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.split(',').filter_map(|item| {
        let (limit, count) = item.trim().split_once('=')?;
        Some((limit, count.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        for (id, body) in [(1, &b"checks"[..]), (u32::MAX, b"")] {
            let call = StreamCall { id, body };
            assert_eq!(StreamCall::decode(&call.encode()), Some(call));
            let status = 429;
            let answer = StreamAnswer { id, status, body };
            assert_eq!(StreamAnswer::decode(&answer.encode()), Some(answer));
        }
        for about in [StreamAnswer::OPEN, StreamAnswer::ENDING] {
            assert_eq!(StreamAnswer::decode(&about.encode()), Some(about));
        }
    }

    #[test]
    fn a_short_message_or_a_call_without_an_id_is_rejected() {
        for message in [&b""[..], b"123", &[0; 4], &[0, 0, 0, 0, 7]] {
            assert_eq!(StreamCall::decode(message), None, "{message:?}");
        }
        for length in 0..6 {
            assert_eq!(StreamAnswer::decode(&[1; 6][..length]), None, "{length}");
        }
    }

    #[test]
    fn the_path_is_that_of_the_method() {
        let path = format!("/{CHECK_STREAM_SERVICE}/{CHECK_STREAM_METHOD}");
        assert_eq!(path, CHECK_STREAM);
    }
}

#[cfg(test)]
mod headers_tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    #[test]
    fn live_proxies_round_trip() {
        let limits = [(name("per-user"), 3), (name("exports"), 1)];
        let text = format_proxies(4, limits.iter().map(|(limit, count)| (limit, *count)));
        assert_eq!(text, "*=4, per-user=3, exports=1");
        assert!(parse_proxies(&text).eq([("*", 4), ("per-user", 3), ("exports", 1)]));
        assert!(parse_proxies("").next().is_none());
        assert!(parse_proxies("a, b=, =,c=x,d=-1, e=5").eq([("e", 5)]));
    }

    #[test]
    fn the_header_is_bounded() {
        let limits: Vec<Name> = (0..10_000).map(|n| name(&format!("limit-{n}"))).collect();
        let text = format_proxies(3, limits.iter().map(|limit| (limit, 3)));
        assert!(text.len() <= MAX_PROXIES);
        assert!(parse_proxies(&text).count() > 1000);
        assert!(parse_proxies(&text).all(|(_, count)| count == 3));
    }
}
