//! Lines of text: Envoy's and Istio's default formats, the combined format of NGINX and Apache, and what a
//! regular expression matches.

use std::borrow::Cow;

use regex::bytes::Regex;

use crate::layout::{Field, Unreadable, Values};

/// Values of a text format that flags can name.
pub(crate) const ENVOY: &[&str] = &[
    "authority",
    "bytes_received",
    "protocol",
    "request_id",
    "response_flags",
    "upstream_cluster",
    "upstream_host",
    "user_agent",
    "x_forwarded_for",
];
pub(crate) const COMBINED: &[&str] = &["protocol", "referer", "remote_user", "user_agent"];

/// What was asked for by the name that a format has for it.
#[derive(Debug, Default)]
pub(crate) struct Named {
    values: Vec<(String, usize)>,
    /// Groups of the pattern, and their slots.
    pub(crate) groups: Vec<(usize, usize)>,
}

impl Named {
    pub(crate) fn add(&mut self, name: &str, slot: usize) {
        self.values.push((name.to_owned(), slot));
    }

    fn set(&self, name: &str, value: &[u8], values: &mut Values) {
        for (_, slot) in self.values.iter().filter(|(known, _)| known == name) {
            values.set(*slot, 1, value);
        }
    }
}

/// `[2026-11-25T23:47:17.250Z] "GET /path HTTP/1.1" 200 - 0 12 3 2 "10.0.0.1" "curl" "id" "host" "10.0.0.2:80"`,
/// and Istio's, which has more values in between and behind.
///
/// Envoy escapes nothing: a header may have quotes. So what clients cannot choose is found first.
pub(crate) fn envoy(line: &[u8], named: &Named, values: &mut Values) -> Result<bool, Unreadable> {
    envoy_parts(line, named, values).ok_or(Unreadable::Envoy)
}

fn envoy_parts(line: &[u8], named: &Named, values: &mut Values) -> Option<bool> {
    let (time, rest) = split(line.strip_prefix(b"[")?, b"] \"")?;
    values.field(Field::Time, time);
    let (request, rest) = quoted_request(rest)?;
    let (status, rest) = split(rest, b" ")?;
    values.field(Field::Status, status);
    let (flags, rest) = split(rest, b" ")?;
    named.set("response_flags", flags, values);
    let is_number = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let (next, after) = split(rest, b" ")?;
    let (received, rest) = if is_number(next) {
        (next, after)
    } else {
        // Istio: details of the response and of the connection's end, and a quoted failure.
        let (_, rest) = split(after, b" \"")?;
        let (_, rest) = split(rest, b"\" ")?;
        split(rest, b" ")?
    };
    named.set("bytes_received", received, values);
    let (sent, rest) = split(rest, b" ")?;
    values.field(Field::BytesSent, sent);
    let (took, rest) = split(rest, b" ")?;
    values.field(Field::Duration, took);
    let (service, rest) = split(rest, b" \"")?;
    values.field(Field::ServiceTime, service);
    let end = rest.iter().rposition(|byte| *byte == b'"')?;
    let (quoted, tail) = rest.split_at_checked(end)?;
    let (quoted, upstream_host) = split_last(quoted)?;
    let (quoted, authority) = split_last(quoted)?;
    let (quoted, request_id) = split_last(quoted)?;
    let (forwarded, user_agent) = split(quoted, b"\" \"")?;
    // Either value has the other's quotes: which address the proxy has appended cannot be told.
    if memchr::memmem::find(user_agent, b"\" \"").is_some() {
        return None;
    }
    values.field(Field::Host, authority);
    values.field(Field::Forwarded, forwarded);
    let mut behind = { tail.get(1..)?.split(|byte| *byte == b' ') }.filter(|text| !text.is_empty());
    let cluster = behind.next();
    if let Some(address) = behind.nth(2) {
        values.field(Field::Address, address);
    }
    if let Some(route) = behind.nth(1) {
        values.field(Field::Route, route);
    }
    for (name, value) in [
        ("authority", authority),
        ("request_id", request_id),
        ("upstream_cluster", cluster.unwrap_or(b"-")),
        ("upstream_host", upstream_host),
        ("user_agent", user_agent),
        ("x_forwarded_for", forwarded),
    ] {
        named.set(name, value, values);
    }
    Some(read_request(request, named, values))
}

/// Whether a line is no access log's, but what Envoy says about itself on the same output, as
/// `[2026-11-25 23:47:17.250][1][info][main] ...`, Istio's agent, as `2026-11-25T23:47:17.250Z  info  ...`, with tabs, or
/// NGINX, as `2026/11/25 23:47:17 [error] 31#31: ...`.
pub(crate) fn is_of_server(line: &[u8]) -> bool {
    const LEVELS: [&[u8]; 13] = [
        b"trace",
        b"debug",
        b"info",
        b"notice",
        b"warn",
        b"warning",
        b"error",
        b"crit",
        b"critical",
        b"alert",
        b"emerg",
        b"fatal",
        b"off",
    ];
    let of_envoy = || {
        let (time, rest) = split(line.strip_prefix(b"[")?, b"][")?;
        let (_thread, rest) = split(rest, b"][")?;
        let (level, _) = split(rest, b"]")?;
        let is_time = matches!(time, [_, _, _, _, b'-', _, _, b'-', _, _, b' ', ..]);
        is_time.then_some(level)
    };
    let of_agent = || {
        let (time, rest) = split(line, b"\t")?;
        let (level, _) = split(rest, b"\t")?;
        matches!(time, [_, _, _, _, b'-', _, _, b'-', _, _, b'T', ..]).then_some(level)
    };
    let of_nginx = || {
        let (time, rest) = split(line, b" [")?;
        let (level, _) = split(rest, b"] ")?;
        matches!(time, [_, _, _, _, b'/', _, _, b'/', _, _, b' ', ..]).then_some(level)
    };
    let level = of_envoy().or_else(of_agent).or_else(of_nginx);
    level.is_some_and(|level| LEVELS.contains(&level))
}

/// `10.0.0.1 - user [25/Nov/2026:23:47:17 +0000] "GET /path HTTP/1.1" 200 12 "referer" "user agent"`, perhaps with
/// more behind. Servers escape quotes.
pub(crate) fn combined(
    line: &[u8],
    named: &Named,
    values: &mut Values,
) -> Result<bool, Unreadable> {
    combined_parts(line, named, values).ok_or(Unreadable::Combined)
}

fn combined_parts(line: &[u8], named: &Named, values: &mut Values) -> Option<bool> {
    let (address, rest) = split(line, b" ")?;
    values.field(Field::Address, address);
    // A user's name may have any bracket, but no quote that is not escaped.
    let (before, rest) = split(rest, b"] \"")?;
    let (user, time) = before.split_at_checked(memchr::memmem::rfind(before, b" [")?)?;
    let (_ident, user) = split(user, b" ")?;
    named.set("remote_user", &unescaped(user), values);
    values.field(Field::Time, time.get(2..)?);
    let (request, rest) = split_escaped(rest)?;
    let mut rest = rest.strip_prefix(b" ")?.splitn(3, |byte| *byte == b' ');
    values.field(Field::Status, rest.next()?);
    // Apache writes a dash for no bytes.
    let sent = rest.next()?;
    values.field(Field::BytesSent, if sent == b"-" { b"0" } else { sent });
    if let Some((referer, rest)) = rest
        .next()
        .and_then(|rest| split_escaped(rest.strip_prefix(b"\"")?))
    {
        named.set("referer", &unescaped(referer), values);
        if let Some((agent, _)) = rest.strip_prefix(b" \"").and_then(split_escaped) {
            named.set("user_agent", &unescaped(agent), values);
        }
    }
    Some(read_request(&unescaped(request), named, values))
}

/// Named groups.
pub(crate) fn pattern(
    line: &[u8],
    pattern: &Regex,
    named: &Named,
    values: &mut Values,
) -> Result<bool, Unreadable> {
    let found = pattern.captures(line).ok_or(Unreadable::Pattern)?;
    for (group, slot) in &named.groups {
        if let Some(value) = found.get(*group) {
            values.set(*slot, 1, value.as_bytes());
        }
    }
    Ok(true)
}

/// Reads `GET /path HTTP/1.1`. `false`: it is no request, but a connection that never sent one.
fn read_request(request: &[u8], named: &Named, values: &mut Values) -> bool {
    let parts = split(request, b" ").and_then(|(method, rest)| {
        let end = rest.iter().rposition(|byte| *byte == b' ')?;
        Some((method, rest.get(..end)?, rest.get(end + 1..)?))
    });
    let Some((method, target, protocol)) = parts else {
        return false;
    };
    if method == b"-" || target.is_empty() {
        return false;
    }
    values.field(Field::Method, method);
    values.field(Field::Path, path_of(target));
    named.set("protocol", protocol, values);
    true
}

/// The path of a target that names the host as well, as clients send it to proxies: Envoy goes by the path alone.
fn path_of(target: &[u8]) -> &[u8] {
    match split(target, b"://") {
        Some((scheme, rest)) if scheme.iter().all(u8::is_ascii_alphabetic) => {
            let path = memchr::memchr(b'/', rest).and_then(|at| rest.get(at..));
            path.unwrap_or(b"/")
        }
        _ => target,
    }
}

/// What is before a text and what is behind it.
fn split<'t>(text: &'t [u8], at: &[u8]) -> Option<(&'t [u8], &'t [u8])> {
    let start = memchr::memmem::find(text, at)?;
    Some((text.get(..start)?, text.get(start + at.len()..)?))
}

/// A list of quoted values without its last, and the last.
fn split_last(quoted: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = memchr::memmem::rfind(quoted, b"\" \"")?;
    Some((quoted.get(..at)?, quoted.get(at + 3..)?))
}

/// Envoy's request and what is behind its quote: the first that a status follows.
fn quoted_request(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut ends = memchr::memmem::find_iter(text, b"\" ");
    let end = ends.find(|end| {
        let behind = text.get(end + 2..).unwrap_or_default();
        let digits = behind
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        (1..=3).contains(&digits) && behind.get(digits) == Some(&b' ')
    })?;
    Some((text.get(..end)?, text.get(end + 2..)?))
}

/// What is before the first quote that is not escaped, and what is behind it.
fn split_escaped(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut from = 0;
    loop {
        let at = from + memchr::memchr2(b'"', b'\\', text.get(from..)?)?;
        if text.get(at) == Some(&b'"') {
            return Some((text.get(..at)?, text.get(at + 1..)?));
        }
        from = at + 2;
    }
}

/// Undoes `\x22` (NGINX, Apache), `\"` and `\\`.
fn unescaped(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'\\') {
        return Cow::Borrowed(text);
    }
    let hex = |digit: u8| char::from(digit).to_digit(16);
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    loop {
        rest = match rest {
            [] => return Cow::Owned(out),
            [b'\\', b'x', high, low, after @ ..] => {
                let byte = hex(*high).zip(hex(*low)).map(|(high, low)| high * 16 + low);
                out.push(
                    byte.and_then(|byte| u8::try_from(byte).ok())
                        .unwrap_or(b'?'),
                );
                after
            }
            [b'\\', byte, after @ ..] | [byte, after @ ..] => {
                out.push(*byte);
                after
            }
        };
    }
}
